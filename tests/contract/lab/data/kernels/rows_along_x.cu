// Rows are counted along x, which the bounds test tells; indices by other names; and a function that is not inlined.
__device__ __noinline__ double term(const double* row, const double* b, int k, int p) { return row[p] * b[p * k]; }
__global__ void multiply(const double* a, const double* b, double* c, int n, int l, int m)
{
    auto own = threadIdx, of_block = blockIdx;
    int i = of_block.x * blockDim.x + own.x, j = of_block.y * blockDim.y + own.y;
    if (i < n && j < m) {
        double sum = 0;
        for (int p = 0; p < l; ++p) sum += term(a + i * l, b + j, m, p);
        c[i * m + j] = sum;
    }
}
