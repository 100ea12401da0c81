// C has one column: a matrix times a vector. `matvec`: one thread an element. `matvec_warp`: one warp an element, its
// lanes side by side in A's row, their sums folded by shuffles.
//
// Global loads per multiply-add: 2; every element of A is loaded once, the vector n times (from the caches).
// Limit: A must come from memory once. In matvec a warp reads 32 rows at once, 32 pieces a load; in matvec_warp one row,
// in one piece.
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
    // A multiply-add and no +, lest subnormal numbers become 0.
    for (int distance = 16; distance; distance /= 2) sum = multiply_add(T(1), __shfl_xor_sync(0xffffffffu, sum, distance), sum);
    if (lane == 0) c(row, 0) = sum;
}
