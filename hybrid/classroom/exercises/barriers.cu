// SPDX-License-Identifier: MIT
// Two barriers are missing.
// The tiled kernel of the lecture, from which somebody has removed both __syncthreads(). Put them back.
// ? When may a thread read what others have stored?
// ? When may a thread overwrite what others still read?
#define TILE 16
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int first = 0; first < l; first += TILE) {
        a_tile[y][x] = row < n && first + x < l ? a[row * l + first + x] : 0;
        b_tile[y][x] = first + y < l && column < m ? b[(first + y) * m + column] : 0;
        for (int k = 0; k < TILE; ++k) sum += a_tile[y][k] * b_tile[k][x];
    }
    if (row < n && column < m) c[row * m + column] = sum;
}
