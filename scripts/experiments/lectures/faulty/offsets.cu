// SPDX-License-Identifier: MIT
// One thread an element of C; positions in memory are counted in 32 bits.
#include "hardware.cuh"
#include "matrix.cuh"

// Unsigned, because a product of ints that passes 2³¹ may do anything. On a GPU it usually goes on at -2³¹, as here.
template <typename T>
__device__ T& at_32_bits(const Matrix<T>& matrix, Size row, Size column)
{
    unsigned offset = static_cast<unsigned>(row) * static_cast<unsigned>(matrix.stride) + static_cast<unsigned>(column);
    return matrix.data[static_cast<int>(offset)];
}

template <typename T>
__global__ void offsets_32(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    Size column = blockIdx.x * Size(blockDim.x) + threadIdx.x, row = blockIdx.y * Size(blockDim.y) + threadIdx.y;
    if (row >= c.rows || column >= c.columns) return;
    T sum = 0;
    for (Size k = 0; k < a.columns; ++k) sum = multiply_add(at_32_bits(a, row, k), at_32_bits(b, k, column), sum);
    at_32_bits(c, row, column) = sum;
}
