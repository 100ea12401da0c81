// SPDX-License-Identifier: MIT
// Products of packed bytes on the matrix units, by mma.sync, for compute capability 7.5 and above. `products` computes all moduli
// in one launch, and reduces 32-bit sums in registers: it writes only remainders. `byte_products` is for signed bytes, and writes
// sums.
//
// Global loads per multiply-add: 1/64, of one byte. Limit: issuing the matrix instructions and their loads from shared memory.
#include "byte_tiles.cuh"

#if __CUDA_ARCH__ >= 750
constexpr int ROWS = 128, COLUMNS = 128;
constexpr int STAGES = __CUDA_ARCH__ >= 800 ? 3 : 2;  // as many as fit into shared memory
template <typename Byte>
using Tiles = ByteTiles<Byte, ROWS, COLUMNS, 64, 64, STAGES>;

constexpr Size MOST_STEPS = MOST_TERMS / UNIT;

// The remainders of a lane's 16 neighbouring columns of one row.
__device__ __forceinline__ uint4 remainders_of(const int (&sums)[8][4], int half, const Divisor& by)
{
    auto four = [&](int j) {
        return pack_bytes(by.remainder(sums[j][2 * half]), by.remainder(sums[j][2 * half + 1]), by.remainder(sums[j + 1][2 * half]),
                          by.remainder(sums[j + 1][2 * half + 1]));
    };
    return make_uint4(four(0), four(2), four(4), four(6));
}

// Each row of `a` and `b` is a plane of packed bytes, `inner` bytes along k; B's lines are interleaved. `c`: the matrices of
// remainders one below the other, of `rows` rows each; its row stride is a multiple of 16, up to which columns may be written.
__global__ void __launch_bounds__(Tiles<unsigned char>::THREADS, 1)
    products(Matrix<const unsigned char> a, Matrix<const unsigned char> b, Matrix<unsigned char> c, long long rows, long long inner)
{
    using Tiles = ::Tiles<unsigned char>;
    Size tiles_of_one = ceil_div(rows, ROWS) * ceil_div(c.columns, COLUMNS), number = blockIdx.x / tiles_of_one;
    TilePosition at =
        tile_position<ROWS, COLUMNS>(Matrix<unsigned char>{c.data, rows, c.columns, c.stride}, blockIdx.x % tiles_of_one);
    Tiles tiles{&a(number, 0), &b(number, 0), at.row, at.column, inner / UNIT, dynamic_shared_memory<unsigned char>()};
    Tiles::Sums sums = {};
    Divisor by(modulus(static_cast<int>(number)));
    for (int step = 0; step < STAGES - 1; ++step) tiles.copy(step);
    for (Size begin = 0; begin < tiles.steps; begin += MOST_STEPS) {
        if (begin > 0) {
#pragma unroll
            for (int i = 0; i < Tiles::DOWN * Tiles::ACROSS * 4; ++i) (&sums[0][0][0])[i] = by.remainder((&sums[0][0][0])[i]);
        }
        tiles.multiply(sums, begin, min(tiles.steps, begin + MOST_STEPS));
    }

    Size row = tiles.row(), column = tiles.left_column() + threadIdx.x % 4 * 16;
#pragma unroll
    for (int i = 0; i < Tiles::DOWN; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Size r = row + 16 * i + 8 * half;
            if (r < rows && column < c.columns)
                *reinterpret_cast<uint4*>(&c(number * rows + r, column)) = remainders_of(sums[i], half, by);
        }
}

__device__ __forceinline__ int element_of(int sum, int) { return sum; }
__device__ __forceinline__ float element_of(int sum, float) { return static_cast<float>(sum); }

// A double without a conversion, which is slow on GPUs with slow float64: the bits of 2⁵² + 2³¹ + sum, minus the first two.
__device__ __forceinline__ double element_of(int sum, double)
{
    return __hiloint2double(0x43300000, sum ^ static_cast<int>(1u << 31)) - 4503601774854144.0;
}

// C itself, for 8-bit integers whose sums of products fit 31 bits. B's lines are not interleaved.
template <typename T>
__global__ void __launch_bounds__(Tiles<signed char>::THREADS, 1)
    byte_products(Matrix<const unsigned char> a, Matrix<const unsigned char> b, Matrix<T> c, long long inner)
{
    using Tiles = ::Tiles<signed char>;
    TilePosition at = tile_position<ROWS, COLUMNS>(c);
    Tiles tiles{a.data, b.data, at.row, at.column, inner / UNIT, dynamic_shared_memory<unsigned char>()};
    Tiles::Sums sums = {};
    for (int step = 0; step < STAGES - 1; ++step) tiles.copy(step);
    tiles.multiply(sums, 0, tiles.steps);

    Size row = tiles.row(), column = tiles.left_column() + threadIdx.x % 4 * 2;
    int there = static_cast<int>(min(c.columns - column, Size(COLUMNS)));
#pragma unroll
    for (int i = 0; i < Tiles::DOWN; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Size r = row + 16 * i + 8 * half;
            if (r >= c.rows) continue;
            T* to = &c(r, column);
#pragma unroll
            for (int j = 0; j < Tiles::ACROSS; ++j)
#pragma unroll
                for (int n = 0; n < 2; ++n)
                    if (8 * j + n < there) to[8 * j + n] = element_of(sums[i][j][2 * half + n], T());
        }
}
#endif
