// SPDX-License-Identifier: MIT
// One thread computes one element of C: the dot product of a row of A and a column of B.
//
// Global loads per multiply-add: 2. Every element of A is loaded m times, every element of B n times.
// Limit: the load/store units. A warp covers 2×16 elements of C, so its loads of A are broadcasts and those of B are coalesced;
// most hit in a cache. But every multiply-add needs two load instructions.
#include "hardware.cuh"
#include "matrix.cuh"

template <typename T>
__global__ void naive(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    Size column = blockIdx.x * Size(blockDim.x) + threadIdx.x;
    Size first_row = blockIdx.y * Size(blockDim.y) + threadIdx.y;
    for (Size row = first_row; row < c.rows; row += gridDim.y * Size(blockDim.y)) {  // gridDim.y is at most 65535
        if (column < c.columns) {
            T sum = 0;
            for (Size k = 0; k < a.columns; ++k) sum = multiply_add(a(row, k), b(k, column), sum);
            c(row, column) = sum;
        }
    }
}
