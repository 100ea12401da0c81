// expect: barrier
#define TILE 16
__global__ void tiled(float* A, float* B, float* C, int n)
{
    __shared__ float a[TILE][TILE], b[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int first = 0; first < n; first += TILE) {
        if (row >= n || column >= n) return; a[y][x] = row < n && first + x < n ? A[row * n + first + x] : 0; b[y][x] = first + y < n && column < n ? B[(first + y) * n + column] : 0;
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += a[y][k] * b[k][x];
        __syncthreads();
    }
    if (row < n && column < n) C[row * n + column] = sum;
}
