// SPDX-License-Identifier: MIT
// Matrix times vector: C has one column. `matvec`: one thread per element. `matvec_warp`: one warp per element; its lanes load
// neighbouring elements of A's row, and a reduction by shuffles adds their sums.
//
// Global loads per multiply-add: 2; every element of A is loaded once, every element of the vector n times (from a cache).
// Limit: memory bandwidth, since A has to be loaded once. In matvec loads of A are uncoalesced, 32 sectors per load; in
// matvec_warp they are coalesced.
#include "hardware.cuh"
#include "matrix.cuh"

template <typename T>
__global__ void matvec(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    Size row = blockIdx.x * Size(blockDim.x) + threadIdx.x;
    if (row >= c.rows) return;
    T sum = 0;
    for (Size k = 0; k < a.columns; ++k) sum = multiply_add(a(row, k), b(k, 0), sum);
    c(row, 0) = sum;
}

template <typename T>
__global__ void matvec_warp(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    int lane = threadIdx.x;
    Size row = blockIdx.x * Size(blockDim.y) + threadIdx.y;
    if (row >= c.rows) return;  // the whole warp
    T sum = 0;
    for (Size k = lane; k < a.columns; k += 32) sum = multiply_add(a(row, k), b(k, 0), sum);
    // multiply_add instead of +, which flushes subnormal numbers to zero with -ftz=true.
    for (int distance = 16; distance; distance /= 2) sum = multiply_add(T(1), __shfl_xor_sync(0xffffffffu, sum, distance), sum);
    if (lane == 0) c(row, 0) = sum;
}
