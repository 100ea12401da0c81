// SPDX-License-Identifier: MIT
// Four elements a thread.
// In the tiled kernel each product needs two loads from shared memory. Let each thread compute 2×2 elements of C, with tiles of
// 32×32 and blocks of 16×16 threads.
// ? Each thread loads four elements of each tile.
// ? Two values of A's column and two of B's row, kept in variables, make four products.
// lab: block(16, 16) grid((m + 31) / 32, (n + 31) / 32)
#define TILE 16
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int first = 0; first < l; first += TILE) {
        a_tile[y][x] = row < n && first + x < l ? a[row * l + first + x] : 0;
        b_tile[y][x] = first + y < l && column < m ? b[(first + y) * m + column] : 0;
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += a_tile[y][k] * b_tile[k][x];
        __syncthreads();
    }
    if (row < n && column < m) c[row * m + column] = sum;
}
