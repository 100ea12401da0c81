// At the edges elements of a tile are read that nothing has written, and not used.
#define TILE 16
__global__ void guarded(const float* A, const float* B, float* C, int n)
{
    __shared__ float a[TILE][TILE], b[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int k = 0; k < n; k += TILE, __syncthreads()) {
        if (row < n && k + x < n) a[y][x] = A[row * n + k + x];
        if (k + y < n && column < n) b[y][x] = B[(k + y) * n + column];
        __syncthreads();
        for (int e = 0; e < TILE && k + e < n; ++e) sum += a[y][e] * b[e][x];
    }
    if (row < n && column < n) C[row * n + column] = sum;
}
