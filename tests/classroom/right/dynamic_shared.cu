// lab: block(16, 8) grid((m + 15) / 16, (n + 7) / 8) shared(8 * 16 * 4)
// A part of a row of A a thread row, in dynamic shared memory; two sizes of the block.
__global__ void part_of_a(float* a, float* b, float* c, unsigned n, unsigned l, unsigned m)
{
    extern __shared__ float part[];
    unsigned x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * blockDim.y + y, column = blockIdx.x * blockDim.x + x;
    float sum = 0;
    for (unsigned first = 0; first < l; first += blockDim.x) {
        part[y * blockDim.x + x] = row < n && first + x < l ? a[row * l + first + x] : 0.0f;
        __syncthreads();
        for (unsigned e = 0; e < blockDim.x && first + e < l; ++e)
            if (column < m) sum += part[y * blockDim.x + e] * b[(first + e) * m + column];
        __syncthreads();
    }
    if (row < n && column < m) c[row * m + column] = sum;
}
