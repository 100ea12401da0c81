// lab: block(8, 8) grid((m + 15) / 16, (n + 15) / 16)
// Each thread computes 2×2 elements.
__global__ void four_each(const double* a, const double* b, double* c, int n, int l, int m)
{
    int i = (blockIdx.y * blockDim.y + threadIdx.y) * 2, j = (blockIdx.x * blockDim.x + threadIdx.x) * 2;
    double sums[2][2] = {};
    for (int k = 0; k < l; ++k)
        for (int y = 0; y < 2; ++y)
            for (int x = 0; x < 2; ++x)
                if (i + y < n && j + x < m) sums[y][x] += a[(i + y) * l + k] * b[k * m + j + x];
    for (int y = 0; y < 2; ++y)
        for (int x = 0; x < 2; ++x)
            if (i + y < n && j + x < m) c[(i + y) * m + j + x] = sums[y][x];
}
