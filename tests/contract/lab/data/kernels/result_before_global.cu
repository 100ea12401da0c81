// void before __global__, and other names.
void __global__ product(float const * __restrict__ lhs, float const * __restrict__ rhs, float * __restrict__ result, unsigned int width)
{
    const unsigned col = blockDim.x * blockIdx.x + threadIdx.x;
    const unsigned row = blockDim.y * blockIdx.y + threadIdx.y;
    if (col >= width) return;
    if (row >= width) return;
    float s = 0;
    unsigned k = 0;
    do { s += lhs[row * width + k] * rhs[k * width + col]; } while (++k < width);
    result[row * width + col] = s;
}
