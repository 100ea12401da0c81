// Tiles in shared memory, any sizes, double.
#define TILE 8

__global__ void tiled(int n, int l, int m, const double* __restrict__ a, const double* __restrict__ b, double* c)
{
    __shared__ double a_tile[TILE][TILE], b_tile[TILE][TILE];
    int i = blockIdx.y * TILE + threadIdx.y, j = blockIdx.x * TILE + threadIdx.x;
    double sum = 0;
    for (int first = 0; first < l; first += TILE) {
        int k = first + threadIdx.x, q = first + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] = i < n && k < l ? a[i * l + k] : 0;
        b_tile[threadIdx.y][threadIdx.x] = q < l && j < m ? b[q * m + j] : 0;
        __syncthreads();
        for (int e = 0; e < TILE; ++e) sum += a_tile[threadIdx.y][e] * b_tile[e][threadIdx.x];
        __syncthreads();
    }
    if (i < n && j < m) c[i * m + j] = sum;
}
