// SPDX-License-Identifier: MIT
// Each thread computes a register tile, THREAD_ROWS×THREAD_COLUMNS of C: an operand loaded from shared memory into a register is
// used for a whole row or column of the tile. Global and shared memory are read by 16-byte vector loads.
//
// Global loads per multiply-add: 1 / ROWS + 1 / COLUMNS; shared memory loads: 1 / THREAD_ROWS + 1 / THREAD_COLUMNS.
// Limit: latency. There is one pair of tiles and no pipeline, so loads of tiles and arithmetic do not overlap within a block.
//
// With ADDS it computes C += A · B.
#include "hardware.cuh"
#include "matrix.cuh"
#include "vectors.cuh"

template <typename T, int ROWS, int COLUMNS, int DEPTH, int THREAD_ROWS, int THREAD_COLUMNS, int WIDTH, bool ADDS = false>
__global__ void __launch_bounds__(ROWS / THREAD_ROWS * (COLUMNS / THREAD_COLUMNS))
    register_tiled(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    constexpr int THREADS_ACROSS = COLUMNS / THREAD_COLUMNS, THREADS = ROWS / THREAD_ROWS * THREADS_ACROSS;
    constexpr int VECTOR = 16 / sizeof(T);
    // From one of a thread's vectors to the next: neighbouring threads have neighbouring vectors.
    constexpr int ROW_STEP = ROWS / (THREAD_ROWS / VECTOR), COLUMN_STEP = COLUMNS / (THREAD_COLUMNS / VECTOR);
    __shared__ __align__(16) T a_tile[DEPTH][ROWS + VECTOR];  // transposed, so that a thread's rows are vectors; padded
    __shared__ __align__(16) T b_tile[DEPTH][COLUMNS];

    TilePosition at = tile_position<ROWS, COLUMNS>(c);
    int y = threadIdx.x / THREADS_ACROSS * VECTOR, x = threadIdx.x % THREADS_ACROSS * VECTOR;
    T sums[THREAD_ROWS][THREAD_COLUMNS] = {};
    for (Size left = 0; left < a.columns; left += DEPTH) {
        T loaded[WIDTH];
#pragma unroll
        for (int i = threadIdx.x * WIDTH; i < ROWS * DEPTH; i += THREADS * WIDTH) {
            int row = i / DEPTH, k = i % DEPTH;
            load<WIDTH>(a, at.row + row, left + k, loaded);
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) a_tile[k + j][row] = loaded[j];
        }
#pragma unroll
        for (int i = threadIdx.x * WIDTH; i < DEPTH * COLUMNS; i += THREADS * WIDTH) {
            int k = i / COLUMNS, column = i % COLUMNS;
            load<WIDTH>(b, left + k, at.column + column, loaded);
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) b_tile[k][column + j] = loaded[j];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            Vector<T> a_fragment[THREAD_ROWS / VECTOR], b_fragment[THREAD_COLUMNS / VECTOR];
#pragma unroll
            for (int i = 0; i < THREAD_ROWS / VECTOR; ++i) a_fragment[i] = Vector<T>::load(&a_tile[k][y + i * ROW_STEP]);
#pragma unroll
            for (int j = 0; j < THREAD_COLUMNS / VECTOR; ++j) b_fragment[j] = Vector<T>::load(&b_tile[k][x + j * COLUMN_STEP]);
#pragma unroll
            for (int i = 0; i < THREAD_ROWS; ++i)
#pragma unroll
                for (int j = 0; j < THREAD_COLUMNS; ++j)
                    sums[i][j] = multiply_add(a_fragment[i / VECTOR].element[i % VECTOR],
                                              b_fragment[j / VECTOR].element[j % VECTOR], sums[i][j]);
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < THREAD_ROWS; ++i) {
        Size row = at.row + y + i / VECTOR * ROW_STEP + i % VECTOR, column = at.column + x;
        if constexpr (ADDS) add_vectors<WIDTH>(c, row, column, COLUMN_STEP, sums[i]);
        store_vectors<WIDTH>(c, row, column, COLUMN_STEP, sums[i]);
    }
}
