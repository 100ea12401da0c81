// SPDX-License-Identifier: MIT
// A·(B·x) in the check of a product (check.cu): a product with few columns, whose sums of float64 are more accurate than those of
// the product that is checked.
#pragma once

#include "hardware.cuh"
#include "matrix.cuh"

constexpr int TILE = 64, DEEP = 16;  // rows and columns that a thread block of subtract_product computes, and k at a time
constexpr int THREADS = 128;         // four warps, each with a quarter of the tile
constexpr int STRIDE = TILE + 4;     // of a row in shared memory: no bank conflicts when lanes load the fragments of an mma
constexpr int ROUND = 4;             // parts of DEEP that are added up before they join the total: far less is rounded

// A thread's 32 elements of the tile, and where they lie.
#if __CUDA_ARCH__ >= 800
// In fragments of 16×8, as `multiply_fragments` has them; the warps are two by two.
struct Sums {
    double fragments[2][4][4] = {};

    __device__ static int row(int i, int e) { return threadIdx.x / 64 * 32 + i * 16 + e / 2 * 8 + threadIdx.x % 32 / 4; }
    __device__ static int column(int j, int e) { return threadIdx.x / 32 % 2 * 32 + j * 8 + threadIdx.x % 4 * 2 + e % 2; }

    __device__ void add(const double (&a)[DEEP][STRIDE], const double (&y)[DEEP][STRIDE])
    {
        int inner = threadIdx.x % 4, line = threadIdx.x % 32 / 4, top = threadIdx.x / 64 * 32, left = threadIdx.x / 32 % 2 * 32;
#pragma unroll
        for (int k = inner; k < DEEP; k += 8) {
            double of_a[2][4], of_y[4][2];
            for (int i = 0; i < 2; ++i)
                for (int e = 0; e < 4; ++e) of_a[i][e] = a[k + e / 2 * 4][top + i * 16 + e % 2 * 8 + line];
            for (int j = 0; j < 4; ++j)
                for (int e = 0; e < 2; ++e) of_y[j][e] = y[k + e * 4][left + j * 8 + line];
            for (int i = 0; i < 2; ++i)
                for (int j = 0; j < 4; ++j) multiply_fragments(fragments[i][j], of_a[i], of_y[j]);
        }
    }
};
#else
struct Sums {
    double fragments[2][4][4] = {};

    __device__ static int row(int i, int e) { return (i * 2 + e / 2) * 16 + threadIdx.x / 8; }
    __device__ static int column(int j, int e) { return j * 16 + threadIdx.x % 8 * 2 + e % 2; }

    __device__ void add(const double (&a)[DEEP][STRIDE], const double (&y)[DEEP][STRIDE])
    {
#pragma unroll 4
        for (int k = 0; k < DEEP; ++k)
            for (int i = 0; i < 2; ++i)
                for (int j = 0; j < 4; ++j)
                    for (int e = 0; e < 4; ++e) fragments[i][j][e] = fma(a[k][row(i, e)], y[k][column(j, e)], fragments[i][j][e]);
    }
};
#endif

// `difference`, 0 before, gets -a · y; each layer of the grid adds up a part of k. The next part of both operands is loaded into
// registers while the current one is multiplied.
template <typename T>
__global__ void __launch_bounds__(THREADS) subtract_product(Matrix<const T> a, Matrix<const double> y, Matrix<double> difference)
{
    constexpr int LOADS = TILE * DEEP / THREADS;
    __shared__ double a_part[DEEP][STRIDE], y_part[DEEP][STRIDE];
    int thread = threadIdx.x;
    Size top = blockIdx.x * Size(TILE), left = blockIdx.y * Size(TILE);
    Size parts = ceil_div(ceil_div(a.columns, Size(DEEP)), gridDim.z), begin = blockIdx.z * parts * DEEP;
    Size end = min(begin + parts * DEEP, a.columns);
    T next_a[LOADS];
    double next_y[LOADS];
    Sums sums, totals;

    auto close_round = [&] {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            totals.fragments[i / 16][i / 4 % 4][i % 4] += sums.fragments[i / 16][i / 4 % 4][i % 4];
            sums.fragments[i / 16][i / 4 % 4][i % 4] = 0;
        }
    };
    auto load = [&](Size inner) {
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            Size row = top + thread / DEEP + i * (THREADS / DEEP), k = inner + thread % DEEP;
            next_a[i] = a.holds(row, k) ? a(row, k) : T{};
        }
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            Size k = inner + thread / TILE + i * (THREADS / TILE), column = left + thread % TILE;
            next_y[i] = y.holds(k, column) ? y(k, column) : 0.0;
        }
    };

    load(begin);
    for (Size inner = begin, part = 1; inner < end; inner += DEEP, ++part) {
        for (int i = 0; i < LOADS; ++i) a_part[thread % DEEP][thread / DEEP + i * (THREADS / DEEP)] = widened(next_a[i]);
        for (int i = 0; i < LOADS; ++i) y_part[thread / TILE + i * (THREADS / TILE)][thread % TILE] = next_y[i];
        __syncthreads();
        load(inner + DEEP);
        sums.add(a_part, y_part);
        if (part % ROUND == 0) close_round();
        __syncthreads();
    }
    close_round();
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j)
            for (int e = 0; e < 4; ++e) {
                Size row = top + Sums::row(i, e), column = left + Sums::column(j, e);
                if (difference.holds(row, column)) atomicAdd(&difference(row, column), -totals.fragments[i][j][e]);
            }
}
