// SPDX-License-Identifier: MIT
// lab: block(16, 16) grid((m + 31) / 32, (n + 31) / 32)
#define TILE 32
#define HALF 16
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, top = blockIdx.y * TILE, left = blockIdx.x * TILE;
    float sums[2][2] = {};
    for (int first = 0; first < l; first += TILE) {
        for (int i = y; i < TILE; i += HALF)
            for (int j = x; j < TILE; j += HALF) {
                a_tile[i][j] = top + i < n && first + j < l ? a[(top + i) * l + first + j] : 0;
                b_tile[i][j] = first + i < l && left + j < m ? b[(first + i) * m + left + j] : 0;
            }
        __syncthreads();
        for (int k = 0; k < TILE; ++k) {
            float a_column[2] = {a_tile[y][k], a_tile[y + HALF][k]}, b_row[2] = {b_tile[k][x], b_tile[k][x + HALF]};
            for (int i = 0; i < 2; ++i)
                for (int j = 0; j < 2; ++j) sums[i][j] += a_column[i] * b_row[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) {
            int row = top + y + i * HALF, column = left + x + j * HALF;
            if (row < n && column < m) c[row * m + column] = sums[i][j];
        }
}
