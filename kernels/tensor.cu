// SPDX-License-Identifier: MIT
// The tensor cores multiply: a warp's mma instruction multiplies a 16×8 by an 8×8 fragment in registers. A pipeline of asynchronous
// copies with STAGES stages keeps them busy, and double buffering of fragments in registers: those of the next mma are loaded from
// shared memory during the current one.
//
// Global loads per multiply-add: 1 / ROWS + 1 / COLUMNS.
// Limit: the tensor cores and, under full load, the GPU's power limit.
//
// With ADDS it computes C += A · B.
#include "hardware.cuh"
#include "matrix.cuh"
#include "stages.cuh"
#include "vectors.cuh"

// It computes Cᵀ = Bᵀ·Aᵀ, 16 columns by 8 rows of C per mma. The columns and k of a fragment's elements may be permuted, if A's,
// B's and C's fragments agree: lane (g, t) = (lane / 4, lane % 4) has columns 2g and 2g+1, and k = 2t and 2t+1, so that every load
// from shared memory is a 16-byte vector in the order of the mma's registers.
template <typename T, int ROWS, int COLUMNS, int DEPTH, int WARP_ROWS, int WARP_COLUMNS, int STAGES, int BLOCKS_PER_SM, int WIDTH,
          bool ADDS = false>
__global__ void __launch_bounds__(ROWS / WARP_ROWS * (COLUMNS / WARP_COLUMNS) * 32, BLOCKS_PER_SM)
    tensor(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    constexpr int WARPS_DOWN = ROWS / WARP_ROWS, THREADS = WARPS_DOWN * (COLUMNS / WARP_COLUMNS) * 32;
    constexpr int MMAS_DOWN = WARP_ROWS / 8, MMAS_ACROSS = WARP_COLUMNS / 16, STEPS = DEPTH / 8;
    static_assert(MMAS_ACROSS % 2 == 0 && STEPS % 2 == 0, "fragments alternate between two register buffers");
    using ATile = Tile<T, ROWS, DEPTH, Swizzle<0, 1, 2>>;
    using BTile = Tile<T, DEPTH, COLUMNS, Swizzle<1, 2, 1>>;

    T* shared = dynamic_shared_memory<T>();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int warp_row = warp % WARPS_DOWN * WARP_ROWS, warp_column = warp / WARPS_DOWN * WARP_COLUMNS;
    TilePosition at = tile_position<ROWS, COLUMNS>(c);

    using Pipeline = TilePipeline<ATile, BTile, THREADS, STAGES, WIDTH, WIDTH>;
    Pipeline pipeline(shared, a, b, at);
    T sums[MMAS_ACROSS][MMAS_DOWN][4] = {};
    T b_fragment[2][4], a_fragment[2][MMAS_DOWN][2];
    const T* a_from[2] = {shared + ATile::offset(warp_row + g, 2 * t), shared + ATile::offset(warp_row + g, 8 + 2 * t)};
    const T* b_from = shared + ATile::SIZE + BTile::offset(2 * t, warp_column + 2 * g);
    auto fetch_a = [&](int step) {
#pragma unroll
        for (int i = 0; i < MMAS_DOWN; ++i) {
            double2 pair = *reinterpret_cast<const double2*>(a_from[step % 2] + step / 2 * 16 + 8 * i * DEPTH);
            a_fragment[step % 2][i][0] = pair.x;
            a_fragment[step % 2][i][1] = pair.y;
        }
    };
    auto fetch_b = [&](int step, int j) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            double2 pair = *reinterpret_cast<const double2*>(b_from + (8 * step + k) * COLUMNS + 16 * j);
            b_fragment[j % 2][2 * k] = pair.x;
            b_fragment[j % 2][2 * k + 1] = pair.y;
        }
    };

    for (int tile = 0; tile < Pipeline::AHEAD; ++tile) pipeline.copy_tile(tile);
    pipeline.wait();
    fetch_a(0);
    fetch_b(0, 0);
    Ring<STAGES, Pipeline::STAGE> ring;
    auto multiply_tile = [&](bool prefetch) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int j = 0; j < MMAS_ACROSS; ++j) {
                pipeline.copy_slice(step * MMAS_ACROSS + j, STEPS * MMAS_ACROSS, prefetch);
                if (j < MMAS_ACROSS - 1)
                    fetch_b(step, j + 1);
                else {
                    if (step == STEPS - 1) {  // the rest of this tile is in registers: next stage
                        pipeline.wait();
                        int forward = ring.advance();
                        a_from[0] += forward;
                        a_from[1] += forward;
                        b_from += forward;
                    }
                    fetch_a((step + 1) % STEPS);
                    fetch_b((step + 1) % STEPS, 0);
                }
#pragma unroll
                for (int i = 0; i < MMAS_DOWN; ++i) multiply_fragments(sums[j][i], b_fragment[j % 2], a_fragment[step % 2][i]);
            }
    };
    int tile = 0;  // two loops, to keep branches out of the long one: instructions after a branch are fetched late
    for (; tile + Pipeline::AHEAD < pipeline.full_tiles; ++tile) multiply_tile(true);
    for (; tile < pipeline.tiles; ++tile) {
        pipeline.copy_checked(tile + Pipeline::AHEAD);
        multiply_tile(false);
    }
    copies_wait<0>();

#pragma unroll
    for (int half = 0; half < 2; ++half)  // in halves: beside the sums, there are too few registers for all elements of C
#pragma unroll
        for (int storing = ADDS ? 0 : 1; storing < 2; ++storing)
#pragma unroll
            for (int i = half * MMAS_DOWN / 2; i < (half + 1) * MMAS_DOWN / 2; ++i)
#pragma unroll
                for (int odd = 0; odd < 2; ++odd)
#pragma unroll
                    for (int j = 0; j < MMAS_ACROSS; ++j) {
                        T pair[2] = {sums[j][i][odd], sums[j][i][odd + 2]};
                        Size row = at.row + warp_row + 8 * i + 2 * t + odd, column = at.column + warp_column + 16 * j + 2 * g;
                        if (storing) {
                            store<WIDTH>(c, row, column, pair);
                        } else {
                            add<WIDTH>(c, row, column, pair);
                            sums[j][i][odd] = pair[0];
                            sums[j][i][odd + 2] = pair[1];
                        }
                    }
}
