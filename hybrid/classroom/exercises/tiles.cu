// SPDX-License-Identifier: MIT
// Tiles in shared memory, all by yourself.
// The kernel of `element` loads every element of A and B again and again. Load tiles of 16×16 elements into shared memory, and
// use each 16 times.
// ? A block goes along a row of tiles of A and a column of tiles of B.
// ? Each thread loads one element of each tile, then waits, then adds 16 products, then waits.
#define TILE 16
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    if (row >= n || column >= m) return;
    float sum = 0;
    for (int k = 0; k < l; ++k) sum += a[row * l + k] * b[k * m + column];
    c[row * m + column] = sum;
}
