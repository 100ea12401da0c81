// SPDX-License-Identifier: MIT
// A·(B·x) in the check of a product (check.cu): a product with few columns, in float64, more accurate than the product that it
// checks.
#pragma once

#include "stages.cuh"

using Word = unsigned long long;

constexpr double NOT_INTEGRAL = 1e300;  // replaces the largest magnitude of numbers that are not all integers

__device__ __forceinline__ void take_magnitude(double& largest, double x)
{
    largest = x == rint(x) ? max(largest, fabs(x)) : NOT_INTEGRAL;
}

constexpr int TILE = 64;      // rows and columns that a thread block of subtract_product computes
constexpr int THREADS = 128;  // four warps, each with a quarter of the tile
constexpr int STAGES = 2;     // tiles of each operand in shared memory: one is copied while the other is multiplied
#if __CUDA_ARCH__ >= 800
constexpr int DEEP = 32;  // k at a time
#else
constexpr int DEEP = 16;  // a block has 48 KB of shared memory
#endif

// For float64, ROUND tiles along k are summed before they are added to the total, for smaller rounding errors than the product's.
// Products of shorter types have so much larger errors that their check does without: a thread then has half as many sums in
// registers, and an SM as many blocks as fit without spilling.
constexpr int ROUND = 64 / DEEP;
template <typename T>
constexpr bool IN_ROUNDS = sizeof(T) == sizeof(double);
template <typename T, bool ALIGNED>
constexpr int BLOCKS_OF_AN_SM = ALIGNED && !IN_ROUNDS<T> ? 3 : 2;

// A row-major tile in shared memory. Rows are padded, which avoids bank conflicts when lanes load mma fragments, and aligned to 16
// bytes.
template <typename T, int ROWS_, int COLUMNS_>
struct PaddedTile {
    using Element = T;
    using Swizzle = NoSwizzle;
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, PADDING = sizeof(T) == 2 ? 8 : 4;
    static constexpr int ROW_STRIDE = COLUMNS + PADDING, SIZE = ROWS * ROW_STRIDE;

    __device__ static int offset(int row, int column) { return row * ROW_STRIDE + column; }
};

template <typename T>
using TileOfA = PaddedTile<T, TILE, DEEP>;
using TileOfY = PaddedTile<double, DEEP, TILE>;

// A thread's 32 elements of the tile, and their positions.
#if __CUDA_ARCH__ >= 800
// In 16×8 fragments of `multiply_fragments`; the warps are two by two.
struct Sums {
    double fragments[2][4][4] = {};

    __device__ static int row(int i, int e) { return threadIdx.x / 64 * 32 + i * 16 + e / 2 * 8 + threadIdx.x % 32 / 4; }
    __device__ static int column(int j, int e) { return threadIdx.x / 32 % 2 * 32 + j * 8 + threadIdx.x % 4 * 2 + e % 2; }

    template <typename T>
    __device__ __forceinline__ void add(const T* a, const double* y)
    {
        int inner = threadIdx.x % 4, line = threadIdx.x % 32 / 4;
        a += TileOfA<T>::offset(threadIdx.x / 64 * 32 + line, inner);
        y += TileOfY::offset(inner, threadIdx.x / 32 % 2 * 32 + line);
#pragma unroll
        for (int k = 0; k < DEEP; k += 8) {
            double of_a[2][4], of_y[4][2];
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) of_a[i][e] = widened(a[TileOfA<T>::offset(i * 16 + e % 2 * 8, k + e / 2 * 4)]);
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) of_y[j][e] = y[TileOfY::offset(k + e * 4, j * 8)];
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) multiply_fragments(fragments[i][j], of_a[i], of_y[j]);
        }
    }
};
#else
struct Sums {
    double fragments[2][4][4] = {};

    __device__ static int row(int i, int e) { return (i * 2 + e / 2) * 16 + threadIdx.x / 8; }
    __device__ static int column(int j, int e) { return j * 16 + threadIdx.x % 8 * 2 + e % 2; }

    template <typename T>
    __device__ __forceinline__ void add(const T* a, const double* y)
    {
#pragma unroll 1  // unrolled, 16-bit types take too many registers before 7.0
        for (int k = 0; k < DEEP; ++k)
            for (int i = 0; i < 2; ++i)
                for (int j = 0; j < 4; ++j)
                    for (int e = 0; e < 4; ++e)
                        fragments[i][j][e] = fma(widened(a[TileOfA<T>::offset(row(i, e), k)]), y[TileOfY::offset(k, column(j, e))],
                                                 fragments[i][j][e]);
    }
};
#endif

// The sum of squares and largest magnitude of half a row of A's tiles, the same row in all of them.
struct HalfRow {
    double squares = 0, largest = 0;

    template <typename T>
    __device__ __forceinline__ void take(const T* a)
    {
        // Each row begins at another column, to avoid bank conflicts.
        auto element = [&](int i) {
            int row = threadIdx.x % TILE, half = threadIdx.x / TILE * (DEEP / 2);
            return widened(a[TileOfA<T>::offset(row, half + (i + row / 4) % (DEEP / 2))]);
        };
#pragma unroll
        for (int i = 0; i < DEEP / 2; ++i) {
            double x = element(i);
            squares = fma(x, x, squares);
        }
        for (int i = 0; i < DEEP / 2 && largest < NOT_INTEGRAL; ++i) take_magnitude(largest, element(i));
    }
};

// `difference`, 0 before, gets -a · y; each layer of the grid (y) adds a part of k. If there are `row_squares`, each row's sum of
// squares is added to them, and `largest`, 0 before, gets its largest magnitude. Blocks with the same rows of A are neighbours, and
// share them in the L2 cache; all are along the grid's x, since y allows too few. Operands are copied to shared memory in 16-byte
// vectors if ALIGNED, else element by element.
template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(THREADS, BLOCKS_OF_AN_SM<T, ALIGNED>)
    subtract_product(Matrix<const T> a, Matrix<const double> y, Matrix<double> difference, Matrix<double> row_squares,
                     Matrix<Word> largest)
{
    unsigned across = unsigned(ceil_div(difference.columns, Size(TILE)));
    Size left = blockIdx.x % across * Size(TILE), top = blockIdx.x / across * Size(TILE);
    Size in_layer = ceil_div(ceil_div(a.columns, Size(DEEP)), gridDim.y), begin = blockIdx.y * in_layer * DEEP;
    Size beyond = max(a.columns - begin, Size(0));  // columns of A from this layer's first on
    int parts = int(min(in_layer, ceil_div(beyond, Size(DEEP)))), full_parts = int(min(in_layer, beyond / DEEP));
    int rest = int(beyond % DEEP);  // columns of the last part, if it is not full
    // The next part that this block measures; its neighbours with the same rows of A measure the others.
    int measured = row_squares.rows ? int(blockIdx.x % across) : -1;
    double* of_y = dynamic_shared_memory<double>();
    T* of_a = reinterpret_cast<T*>(of_y + STAGES * TileOfY::SIZE);
    TileCopy<TileOfA<T>, THREADS, ALIGNED ? 16 / sizeof(T) : 1, Along::COLUMNS> copy_a(of_a, a, top, begin);
    TileCopy<TileOfY, THREADS, ALIGNED ? 16 / sizeof(double) : 1, Along::ROWS> copy_y(of_y, y, begin, left);
    Ring<STAGES, 1> written;
    HalfRow half_row;
    Sums sums, totals;

    auto copy = [&](int part) {
        if (part < full_parts) {
#pragma unroll
            for (int i = 0; i < copy_a.PASSES; ++i) copy_a.pass(i, true);
#pragma unroll
            for (int i = 0; i < copy_y.PASSES; ++i) copy_y.pass(i, true);
        } else if (part < parts) {
            copy_a.copy_checked(rest);
            copy_y.copy_checked(rest);
        }
        copies_commit();
        int forward = written.advance();
        copy_a.next_tile(forward * TileOfA<T>::SIZE);
        copy_y.next_tile(forward * TileOfY::SIZE);
    };
    auto close_round = [&] {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            totals.fragments[i / 16][i / 4 % 4][i % 4] += sums.fragments[i / 16][i / 4 % 4][i % 4];
            sums.fragments[i / 16][i / 4 % 4][i % 4] = 0;
        }
    };

    for (int part = 0; part < STAGES - 1; ++part) copy(part);
    for (int part = 0; part < parts; ++part) {
        copies_wait<STAGES - 2>();
        __syncthreads();  // this part is complete, and no thread reads the stage that the next copy overwrites
        copy(part + STAGES - 1);
        const T* now = of_a + part % STAGES * TileOfA<T>::SIZE;
        sums.add(now, of_y + part % STAGES * TileOfY::SIZE);
        if (part == measured) {
            half_row.take(now);
            measured += across;
        }
        if (IN_ROUNDS<T> && part % ROUND == ROUND - 1) close_round();
    }
    close_round();
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j)
            for (int e = 0; e < 4; ++e) {
                Size row = top + Sums::row(i, e), column = left + Sums::column(j, e);
                if (difference.holds(row, column)) atomicAdd(&difference(row, column), -totals.fragments[i][j][e]);
            }
    Size row = top + threadIdx.x % TILE;
    if (!row_squares.rows || row >= a.rows) return;
    atomicAdd(&row_squares(row, 0), half_row.squares);
    atomicMax(&largest(row, 0), reinterpret_cast<Word&>(half_row.largest));  // nonnegative doubles are ordered as their bits
}
