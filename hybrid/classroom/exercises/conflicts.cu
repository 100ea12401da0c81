// SPDX-License-Identifier: MIT
// Bank conflicts.
// This kernel stores A's tile turned, so that its threads write down a column of a 32×32 array: all of them into the same bank.
// Keep it turned, and get rid of the conflicts.
// ? Bank = word number modulo 32. How far apart are neighbours of a column?
// ? A row may be longer than what is used of it.
#define TILE 32
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    __shared__ float a_turned[TILE][TILE], b_tile[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int first = 0; first < l; first += TILE) {
        a_turned[x][y] = row < n && first + x < l ? a[row * l + first + x] : 0;
        b_tile[y][x] = first + y < l && column < m ? b[(first + y) * m + column] : 0;
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += a_turned[k][y] * b_tile[k][x];
        __syncthreads();
    }
    if (row < n && column < m) c[row * m + column] = sum;
}
