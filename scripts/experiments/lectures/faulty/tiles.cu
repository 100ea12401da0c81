// SPDX-License-Identifier: MIT
// Square tiles in shared memory, for matrices that consist of whole tiles, and for those only.
#include "hardware.cuh"
#include "matrix.cuh"

// Tiles along k are counted by a division that rounds down, and nothing is tested.
template <typename T, int TILE>
__global__ void whole_tiles(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    __shared__ T a_tile[TILE][TILE], b_tile[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    Size row = blockIdx.y * Size(TILE) + y, column = blockIdx.x * Size(TILE) + x;
    T sum = 0;
    for (Size tile = 0; tile < a.columns / TILE; ++tile) {
        a_tile[y][x] = a(row, tile * TILE + x);
        b_tile[y][x] = b(tile * TILE + y, column);
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum = multiply_add(a_tile[y][k], b_tile[k][x], sum);
        __syncthreads();
    }
    c(row, column) = sum;
}

// The same, and both tiles come from the first matrix.
template <typename T, int TILE>
__global__ void second_tile(Matrix<const T> a, Matrix<const T>, Matrix<T> c)
{
    __shared__ T a_tile[TILE][TILE], b_tile[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    Size row = blockIdx.y * Size(TILE) + y, column = blockIdx.x * Size(TILE) + x;
    T sum = 0;
    for (Size tile = 0; tile < a.columns / TILE; ++tile) {
        a_tile[y][x] = a(row, tile * TILE + x);
        b_tile[y][x] = a(tile * TILE + y, column);
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum = multiply_add(a_tile[y][k], b_tile[k][x], sum);
        __syncthreads();
    }
    c(row, column) = sum;
}
