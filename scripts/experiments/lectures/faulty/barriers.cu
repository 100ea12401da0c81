// SPDX-License-Identifier: MIT
// Tiles in shared memory, ragged edges and all, and a barrier that not all threads come to, or none.
#include "hardware.cuh"
#include "matrix.cuh"

enum class Without { FIRST, SECOND };

// One of the two barriers is missing.
template <typename T, int TILE, Without BARRIER>
__global__ void one_barrier(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    __shared__ T a_tile[TILE][TILE], b_tile[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    Size row = blockIdx.y * Size(TILE) + y, column = blockIdx.x * Size(TILE) + x;
    T sum = 0;
    for (Size left = 0; left < a.columns; left += TILE) {
        a_tile[y][x] = a.holds(row, left + x) ? a(row, left + x) : T(0);
        b_tile[y][x] = b.holds(left + y, column) ? b(left + y, column) : T(0);
        if (BARRIER != Without::FIRST) __syncthreads();
        for (int k = 0; k < TILE; ++k) sum = multiply_add(a_tile[y][k], b_tile[k][x], sum);
        if (BARRIER != Without::SECOND) __syncthreads();
    }
    if (c.holds(row, column)) c(row, column) = sum;
}

// Threads beyond C leave at once; nobody loads their part of the tiles, and the others wait for them.
template <typename T, int TILE>
__global__ void early_return(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    __shared__ T a_tile[TILE][TILE], b_tile[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    Size row = blockIdx.y * Size(TILE) + y, column = blockIdx.x * Size(TILE) + x;
    if (!c.holds(row, column)) return;
    T sum = 0;
    for (Size left = 0; left < a.columns; left += TILE) {
        a_tile[y][x] = left + x < a.columns ? a(row, left + x) : T(0);
        b_tile[y][x] = left + y < b.rows ? b(left + y, column) : T(0);
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum = multiply_add(a_tile[y][k], b_tile[k][x], sum);
        __syncthreads();
    }
    c(row, column) = sum;
}
