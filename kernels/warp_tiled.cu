// SPDX-License-Identifier: MIT
// The fastest kernel without tensor cores. The thread-block tile is divided into warp tiles, and a warp tile among 4×8 lanes. A
// pipeline of asynchronous copies prefetches tiles, and transposes A's, so that a thread's rows of one k are vectors. Operands are
// double-buffered in registers: while a thread multiplies, it loads those of the next k from shared memory.
//
// Global loads per multiply-add: 1 / ROWS + 1 / COLUMNS; shared memory loads: 4 / WARP_ROWS + 8 / WARP_COLUMNS.
// Limit: the fused multiply-add units and, under full load, the GPU's power limit.
//
// With ADDS it computes C += A · B.
#include "hardware.cuh"
#include "matrix.cuh"
#include "stages.cuh"
#include "vectors.cuh"

template <typename T, int ROWS, int COLUMNS, int DEPTH, int WARP_ROWS, int WARP_COLUMNS, int STAGES, int BLOCKS_PER_SM, int WIDTH,
          bool ADDS = false>
__global__ void __launch_bounds__(ROWS / WARP_ROWS * (COLUMNS / WARP_COLUMNS) * 32, BLOCKS_PER_SM)
    warp_tiled(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    constexpr int WARPS_DOWN = ROWS / WARP_ROWS, THREADS = WARPS_DOWN * (COLUMNS / WARP_COLUMNS) * 32;
    constexpr int VECTOR = 16 / sizeof(T), VECTORS_DOWN = WARP_ROWS / (4 * VECTOR), VECTORS_ACROSS = WARP_COLUMNS / (8 * VECTOR);
    using ATile = TransposedTile<T, ROWS, DEPTH>;
    using BTile = Tile<T, DEPTH, COLUMNS, NoSwizzle>;
    // Steps along k between batches of copies: spread out to avoid stalls, but in batches, each of which has a cost.
    constexpr int SLICE = 4;

    T* shared = dynamic_shared_memory<T>();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, x = lane % 8 * VECTOR, y = lane / 8 * VECTOR;
    int my_row = warp % WARPS_DOWN * WARP_ROWS + y, my_column = warp / WARPS_DOWN * WARP_COLUMNS + x;
    TilePosition at = tile_position<ROWS, COLUMNS>(c);

    using Pipeline = TilePipeline<ATile, BTile, THREADS, STAGES, 1, WIDTH>;
    Pipeline pipeline(shared, a, b, at);
    T sums[VECTORS_DOWN * VECTOR][VECTORS_ACROSS * VECTOR] = {};
    Vector<T> a_fragment[2][VECTORS_DOWN], b_fragment[2][VECTORS_ACROSS];
    const T *a_from = shared + ATile::offset(my_row, 0), *b_from = shared + ATile::SIZE + BTile::offset(0, my_column);
    auto fetch = [&](int k) {
#pragma unroll
        for (int i = 0; i < VECTORS_DOWN; ++i) a_fragment[k % 2][i] = Vector<T>::load(a_from + ATile::offset(4 * VECTOR * i, k));
#pragma unroll
        for (int j = 0; j < VECTORS_ACROSS; ++j) b_fragment[k % 2][j] = Vector<T>::load(b_from + BTile::offset(k, 8 * VECTOR * j));
    };

    for (int tile = 0; tile < Pipeline::AHEAD; ++tile) pipeline.copy_tile(tile);
    pipeline.wait();
    fetch(0);
    Ring<STAGES, Pipeline::STAGE> ring;
    auto multiply_tile = [&](bool prefetch) {
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            if (k % SLICE == 0) pipeline.copy_slice(k / SLICE, DEPTH / SLICE, prefetch);
            if (k == DEPTH - 1) {  // the rest of this tile is in registers: on to the next stage
                pipeline.wait();
                int forward = ring.advance();
                a_from += forward;
                b_from += forward;
            }
            fetch((k + 1) % DEPTH);
            // Columns in alternating direction: every multiply-add then has an operand in common with the one before, which
            // avoids register bank conflicts.
#pragma unroll
            for (int i = 0; i < VECTORS_DOWN * VECTOR; ++i)
#pragma unroll
                for (int step = 0; step < VECTORS_ACROSS * VECTOR; ++step) {
                    int j = i % 2 ? VECTORS_ACROSS * VECTOR - 1 - step : step;
                    T& sum = sums[i][j];
                    sum = multiply_add(a_fragment[k % 2][i / VECTOR].element[i % VECTOR],
                                       b_fragment[k % 2][j / VECTOR].element[j % VECTOR], sum);
                }
        }
    };
    int tile = 0;  // two loops, for the long one must not branch: instructions after a branch are fetched late
    for (; tile + Pipeline::AHEAD < pipeline.full_tiles; ++tile) multiply_tile(true);
    for (; tile < pipeline.tiles; ++tile) {
        pipeline.copy_checked(tile + Pipeline::AHEAD);
        multiply_tile(false);
    }
    copies_wait<0>();

#pragma unroll
    for (int i = 0; i < VECTORS_DOWN * VECTOR; ++i) {
        Size row = at.row + my_row + i / VECTOR * 4 * VECTOR + i % VECTOR, column = at.column + my_column;
        if constexpr (ADDS) add_vectors<WIDTH>(c, row, column, 8 * VECTOR, sums[i]);
        store_vectors<WIDTH>(c, row, column, 8 * VECTOR, sums[i]);
    }
}
