// SPDX-License-Identifier: MIT
// Sizes that are no multiples of the tile.
// This tiled kernel is right where the tile divides n, l and m. Make it right for all sizes.
// ? What should a tile hold where the matrix has ended, so that the sum does not change?
// ? No thread may leave before the last barrier. How many tiles along k are there, if the last is not whole?
#define TILE 16
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int tile = 0; tile < l / TILE; ++tile) {
        a_tile[y][x] = a[row * l + tile * TILE + x];
        b_tile[y][x] = b[(tile * TILE + y) * m + column];
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += a_tile[y][k] * b_tile[k][x];
        __syncthreads();
    }
    c[row * m + column] = sum;
}
