// One thread computes one row of C.
//
// Global loads per multiply-add: 2, as in naive. A warp reads 32 rows of A at once, far apart (32 pieces a load); B's
// element is the same for all. Limit: A's scattered loads, and only n threads, too few to fill a GPU.
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
