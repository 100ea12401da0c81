// SPDX-License-Identifier: MIT
// The threads of a block load a square tile of A and one of B into shared memory, and each computes one element of C from them. The
// block loops over tiles along k. Beyond the matrices' edges, tiles are zero.
//
// Global loads per multiply-add: 2 / TILE. Every element of A is loaded ceil(m / TILE) times, of B ceil(n / TILE) times.
// Limit: shared memory bandwidth. Every multiply-add still loads two operands from shared memory.
#include "hardware.cuh"
#include "matrix.cuh"

template <typename T, int TILE>
__global__ void __launch_bounds__(TILE* TILE, TILE == 32 ? 2 : 6)  // blocks per SM: others hide one's latency
    tiled(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    __shared__ T a_tile[TILE][TILE], b_tile[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    Size column = blockIdx.x * Size(TILE) + x;
    for (Size top = blockIdx.y * Size(TILE); top < c.rows; top += gridDim.y * Size(TILE)) {
        Size row = top + y;
        T sum = 0;
        for (Size left = 0; left < a.columns; left += TILE) {
            a_tile[y][x] = a.holds(row, left + x) ? a(row, left + x) : T(0);
            b_tile[y][x] = b.holds(left + y, column) ? b(left + y, column) : T(0);
            __syncthreads();  // the tiles are whole
#pragma unroll
            for (int k = 0; k < TILE; ++k) sum = multiply_add(a_tile[y][k], b_tile[k][x], sum);
            __syncthreads();  // nobody needs them any more
        }
        if (c.holds(row, column)) c(row, column) = sum;
    }
}
