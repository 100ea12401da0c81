// The first kernel of a lecture: one block, a thread an element.
__global__ void multiply(float* Nd, float* Md, float* Pd, int Width)
{
    int tx = threadIdx.x, ty = threadIdx.y;
    float Pvalue = 0;
    for (int k = 0; k < Width; ++k) {
        float m = Md[ty * Width + k], n = Nd[k * Width + tx];
        Pvalue += m * n;
    }
    Pd[ty * Width + tx] = Pvalue;
}
