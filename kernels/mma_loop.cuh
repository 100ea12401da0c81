// SPDX-License-Identifier: MIT
// The main loop of tensor_half.cu and tensor_int8.cu: a warp fetches fragments of tiles in shared memory to registers, those of the
// next step along k while it multiplies the current ones (double buffering). A step is 32 bytes along k for all types.
#pragma once
#include "stages.cuh"

// A warp has PARTS×2·PARTS accumulator fragments, and a tile has STEPS steps. `fetch(step, part)` loads fragments `part` of A and
// of B from `a_from` and `b_from`; `mma(step, i, j)` multiplies. BETWEEN: copies are spread out between multiplications. Narrow
// copies are all issued at the beginning of a tile: spreading that many takes too many registers, and those below four bytes are
// synchronous.
template <typename Pipeline, int STAGES, int STEPS, int PARTS, bool BETWEEN, typename T, typename Fetch, typename Mma>
__device__ __forceinline__ void multiply_tiles(Pipeline& pipeline, const T* (&a_from)[STEPS], const T* (&b_from)[PARTS],
                                               Fetch fetch, Mma mma)
{
    constexpr int SLICES = (STEPS - 1) * PARTS;
    static_assert(STEPS % 2 == 0, "fragments alternate between two register buffers");
    for (int tile = 0; tile < Pipeline::AHEAD; ++tile) pipeline.copy_tile(tile);
    pipeline.wait();
#pragma unroll
    for (int part = 0; part < PARTS; ++part) fetch(0, part);
    Ring<STAGES, Pipeline::STAGE> ring;
    auto multiply_tile = [&](bool prefetch) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (step == STEPS - 1) {  // the rest of this tile is in registers: next stage
                pipeline.wait();
                int forward = ring.advance();
#pragma unroll
                for (int i = 0; i < STEPS; ++i) a_from[i] += forward;
#pragma unroll
                for (int i = 0; i < PARTS; ++i) b_from[i] += forward;
            }
#pragma unroll
            for (int i = 0; i < PARTS; ++i) {
                if (step < STEPS - 1) pipeline.copy_slice(step * PARTS + i, SLICES, prefetch);
                fetch((step + 1) % STEPS, i);
#pragma unroll
                for (int next = 0; next < 2 * PARTS; ++next)  // back and forth: each mma shares an operand with the one before
                    mma(step, i, i % 2 ? 2 * PARTS - 1 - next : next);
            }
        }
    };
    int tile = 0;  // two loops, to keep branches out of the long one: instructions after a branch are fetched late
    if constexpr (BETWEEN)
        for (; tile + Pipeline::AHEAD < pipeline.full_tiles; ++tile) multiply_tile(true);
    for (; tile < pipeline.tiles; ++tile) {
        pipeline.copy_checked(tile + Pipeline::AHEAD);
        multiply_tile(false);
    }
    copies_wait<0>();
}
