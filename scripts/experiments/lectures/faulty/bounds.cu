// SPDX-License-Identifier: MIT
// One thread an element, as in naive.cu, but with the bounds tested wrongly, or not at all.
#include "hardware.cuh"
#include "matrix.cuh"

template <typename T>
__device__ T product(const Matrix<const T>& a, const Matrix<const T>& b, Size row, Size column)
{
    T sum = 0;
    for (Size k = 0; k < a.columns; ++k) sum = multiply_add(a(row, k), b(k, column), sum);
    return sum;
}

// One row and one column of threads too many pass the test.
template <typename T>
__global__ void loose_bounds(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    Size row = blockIdx.y * Size(blockDim.y) + threadIdx.y, column = blockIdx.x * Size(blockDim.x) + threadIdx.x;
    if (row > c.rows || column > c.columns) return;  // should be >=
    c(row, column) = product(a, b, row, column);
}

// There is no test: right while the blocks end where the matrix does.
template <typename T>
__global__ void no_bounds(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    Size row = blockIdx.y * Size(blockDim.y) + threadIdx.y, column = blockIdx.x * Size(blockDim.x) + threadIdx.x;
    c(row, column) = product(a, b, row, column);
}
