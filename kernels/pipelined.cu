// SPDX-License-Identifier: MIT
// A pipeline of STAGES stages: asynchronous copies (cp.async) prefetch tiles to shared memory, without registers, while one is
// multiplied. A vector of A is 16 bytes along k; the swizzle spreads the rows that a warp reads over all banks.
//
// Global loads per multiply-add: 1 / ROWS + 1 / COLUMNS; shared memory loads: 1 / THREAD_ROWS + 1 / THREAD_COLUMNS.
// Limit: the latency of shared memory at every step along k, and the barrier at every tile.
#include "hardware.cuh"
#include "matrix.cuh"
#include "stages.cuh"
#include "vectors.cuh"

template <typename T, int ROWS, int COLUMNS, int DEPTH, int THREAD_ROWS, int THREAD_COLUMNS, int STAGES, int WIDTH>
__global__ void __launch_bounds__(ROWS / THREAD_ROWS * (COLUMNS / THREAD_COLUMNS))
    pipelined(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    constexpr int THREADS_DOWN = ROWS / THREAD_ROWS, THREADS_ACROSS = COLUMNS / THREAD_COLUMNS;
    constexpr int THREADS = THREADS_DOWN * THREADS_ACROSS;
    constexpr int VECTOR = 16 / sizeof(T), COLUMN_STEP = THREADS_ACROSS * VECTOR;  // from a thread's vector to its next
    using ATile = Tile<T, ROWS, DEPTH, Swizzle<0, 2, 0>>;
    using BTile = Tile<T, DEPTH, COLUMNS, NoSwizzle>;

    T* shared = dynamic_shared_memory<T>();
    TilePosition at = tile_position<ROWS, COLUMNS>(c);
    int y = threadIdx.x / THREADS_ACROSS, x = threadIdx.x % THREADS_ACROSS * VECTOR;

    using Pipeline = TilePipeline<ATile, BTile, THREADS, STAGES, WIDTH, WIDTH>;
    Pipeline pipeline(shared, a, b, at);
    T sums[THREAD_ROWS][THREAD_COLUMNS] = {};
    for (int tile = 0; tile < Pipeline::AHEAD; ++tile) pipeline.copy_tile(tile);
    for (int tile = 0; tile < pipeline.tiles; ++tile) {
        pipeline.wait();
        pipeline.copy_tile(tile + Pipeline::AHEAD);
        const T* a_tile = shared + tile % STAGES * Pipeline::STAGE;
        const T* b_tile = a_tile + ATile::SIZE;
#pragma unroll
        for (int k = 0; k < DEPTH; k += VECTOR) {
            Vector<T> a_fragment[THREAD_ROWS];
#pragma unroll
            for (int i = 0; i < THREAD_ROWS; ++i) a_fragment[i] = Vector<T>::load(a_tile + ATile::offset(y + i * THREADS_DOWN, k));
#pragma unroll
            for (int e = 0; e < VECTOR; ++e)
#pragma unroll
                for (int j = 0; j < THREAD_COLUMNS; j += VECTOR) {
                    Vector<T> b_fragment = Vector<T>::load(b_tile + BTile::offset(k + e, x + j / VECTOR * COLUMN_STEP));
#pragma unroll
                    for (int i = 0; i < THREAD_ROWS; ++i)
#pragma unroll
                        for (int f = 0; f < VECTOR; ++f)
                            sums[i][j + f] = multiply_add(a_fragment[i].element[e], b_fragment.element[f], sums[i][j + f]);
                }
        }
    }
    copies_wait<0>();

#pragma unroll
    for (int i = 0; i < THREAD_ROWS; ++i)
        store_vectors<WIDTH>(c, at.row + y + i * THREADS_DOWN, at.column + x, COLUMN_STEP, sums[i]);
}
