// One thread computes one element of C: the dot product of a row of A and a column of B.
//
// Global loads per multiply-add: 2. Every element of A is loaded m times, every element of B n times.
// Limit: the load units. A warp's threads share the element of A and sit side by side in B and C, so what they load
// together comes in few pieces, mostly out of the caches; but each multiply-add waits for two loads.
#include "hardware.cuh"
#include "matrix.cuh"

template <typename T>
__global__ void naive(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    Size column = blockIdx.x * Size(blockDim.x) + threadIdx.x;
    Size first_row = blockIdx.y * Size(blockDim.y) + threadIdx.y;
    for (Size row = first_row; row < c.rows; row += gridDim.y * Size(blockDim.y)) {  // a grid has at most 65535 blocks in y
        if (column < c.columns) {
            T sum = 0;
            for (Size k = 0; k < a.columns; ++k) sum = multiply_add(a(row, k), b(k, column), sum);
            c(row, column) = sum;
        }
    }
}
