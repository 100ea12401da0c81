// SPDX-License-Identifier: MIT
// One thread computes one column of C.
//
// Global loads per multiply-add: 2, as in naive. A warp's loads of B and stores to C are coalesced, its loads of A broadcasts.
// Limit: low occupancy, for there are only m threads.
#include "hardware.cuh"
#include "matrix.cuh"

template <typename T>
__global__ void column_per_thread(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    Size column = blockIdx.x * Size(blockDim.x) + threadIdx.x;
    if (column >= c.columns) return;
    for (Size row = 0; row < c.rows; ++row) {
        T sum = 0;
        for (Size k = 0; k < a.columns; ++k) sum = multiply_add(a(row, k), b(k, column), sum);
        c(row, column) = sum;
    }
}
