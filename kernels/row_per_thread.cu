// SPDX-License-Identifier: MIT
// One thread computes one row of C.
//
// Global loads per multiply-add: 2, as in naive. A warp loads from 32 rows of A, so these loads are uncoalesced: 32 sectors per
// load; loads of B are broadcasts.
// Limit: the uncoalesced loads, and low occupancy, for there are only n threads.
#include "hardware.cuh"
#include "matrix.cuh"

template <typename T>
__global__ void row_per_thread(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    Size row = blockIdx.x * Size(blockDim.x) + threadIdx.x;
    if (row >= c.rows) return;
    for (Size column = 0; column < c.columns; ++column) {
        T sum = 0;
        for (Size k = 0; k < a.columns; ++k) sum = multiply_add(a(row, k), b(k, column), sum);
        c(row, column) = sum;
    }
}
