// One array for all functions of the file, in which both tiles lie.
// lab: block(8, 8) grid((m + 7) / 8, (n + 7) / 8)
extern __shared__ float tiles[];
__device__ float product(int e) { return tiles[threadIdx.y * 8 + e] * tiles[64 + e * 8 + threadIdx.x]; }
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 8 + y, column = blockIdx.x * 8 + x;
    float sum = 0;
    for (int k = 0; k < l; k += 8) {
        tiles[y * 8 + x] = row < n && k + x < l ? a[row * l + k + x] : 0;
        reinterpret_cast<float*>(tiles + 64)[y * 8 + x] = k + y < l && column < m ? b[(k + y) * m + column] : 0;
        __syncthreads();
        for (int e = 0; e < 8; ++e) sum += product(e);
        __syncthreads();
    }
    if (row < n && column < m) c[row * m + column] = sum;
}
