// SPDX-License-Identifier: MIT
// Decides whether a product is accurate enough from remainders. Rounding to integers has errors in proportion to |row|·|column|
// (Euclidean norms), native arithmetic to Σ|a·b|. So the least ratio Σ|a·b| / (|row|·|column|) over all elements of C decides. It
// is small if large elements meet only small ones.
//
// A product of bytes gives a lower bound: of magnitudes, scaled to a mean of 8 in each line, capped at 127, and rounded down to
// integers. Only one of every few units along k is sampled. Only the least ratio is written.
//
// On Hopper, products.cu has this kernel. The one here uses so few registers and so little shared memory that it runs beside a
// kernel of products on the same SM.
#include "byte_tiles.cuh"

// The sampled one of each `every` units along k; its position varies, in case the matrix is periodic.
__device__ __forceinline__ Size sampled(Size unit, Size every) { return unit * every + (unit * 5 + 3) % every; }

template <typename T>
struct Magnitudes {
    static constexpr int PARTS = 1;
    Matrix<const double> cuts;  // one for each line
    Matrix<unsigned char> packed;
    Size every, there;  // units along k: one of `every` is sampled; their number

    __device__ __forceinline__ Size place(Size unit) const { return min(sampled(unit, every), there - 1); }
    __device__ __forceinline__ Size line(Size column) const { return column; }
    __device__ __forceinline__ void store(const T (&four)[1][4], Size line, Size offset) const
    {
        double cut = cuts.data[line] * 0.999999;  // rounding must not increase a magnitude
        auto rounded_down = [&](T x) { return static_cast<unsigned>(fmin(fabs(widened(x)) * cut, 127.0)); };
        *reinterpret_cast<unsigned*>(packed.data + offset) =
            pack_bytes(rounded_down(four[0][0]), rounded_down(four[0][1]), rounded_down(four[0][2]), rounded_down(four[0][3]));
    }
};

template <typename T>
__global__ void __launch_bounds__(PACKING_THREADS)
    magnitudes_of_rows(Matrix<const T> a, Matrix<const double> cuts, Matrix<unsigned char> packed, int every)
{
    pack_rows(a, Magnitudes<T>{cuts, packed, every, units(a.columns)}, gridDim.y);
}

template <typename T>
__global__ void __launch_bounds__(PACKING_THREADS)
    magnitudes_of_columns(Matrix<const T> b, Matrix<const double> cuts, Matrix<unsigned char> packed, int every)
{
    pack_columns(b, Magnitudes<T>{cuts, packed, every, units(b.rows)}, gridDim.y);
}

#if __CUDA_ARCH__ >= 750
using GuardTiles = ByteTiles<unsigned char, 64, 64, 32, 32, 2>;

// `least`: the least ratio so far, as a float's bits. `row_steps`, `column_steps`: the value of a magnitude of 1, relative to its
// line's norm. `a`, `b`: packed magnitudes of these lines, with `a.columns` bytes along k.
__global__ void __launch_bounds__(GuardTiles::THREADS, 4)
    least_ratio(Matrix<const unsigned char> a, Matrix<const unsigned char> b, Matrix<const float> row_steps,
                Matrix<const float> column_steps, Matrix<int> least)
{
    Size across = ceil_div(column_steps.columns, 64), steps = a.columns / UNIT;
    GuardTiles tiles{
        a.data, b.data, blockIdx.x / across * 64, blockIdx.x % across * 64, steps, dynamic_shared_memory<unsigned char>()};
    GuardTiles::Sums sums = {};
    tiles.copy(0);
    tiles.multiply(sums, 0, steps);

    float ratio = 1;
    Size row = tiles.row(), column = tiles.left_column() + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < GuardTiles::DOWN; ++i)
#pragma unroll
        for (int j = 0; j < GuardTiles::ACROSS; ++j)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                Size r = row + 16 * i + n / 2 * 8, c = column + 8 * j + n % 2;
                if (r < row_steps.columns && c < column_steps.columns)
                    ratio = fminf(ratio, static_cast<float>(sums[i][j][n]) * (row_steps.data[r] * column_steps.data[c]));
            }
    note_least(ratio, least);
}
#endif
