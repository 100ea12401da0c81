// SPDX-License-Identifier: MIT
// The main loop of products_mma.cu and guard.cu: tiles of products of packed bytes on the matrix units, by mma.sync.
#pragma once
#include "packed.cuh"

#if __CUDA_ARCH__ >= 750
// Copies of 16 bytes to shared memory. On compute capability 7.5 they are synchronous, and only the barrier before a stage is read
// waits for them.
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void begin_copy(void* shared, const void* global) { copy_async<16>(shared, global); }
__device__ __forceinline__ void close_copies() { copies_commit(); }
template <int PENDING>
__device__ __forceinline__ void wait_for_copies()
{
    copies_wait<PENDING>();
}
#else
__device__ __forceinline__ void begin_copy(void* shared, const void* global)
{
    *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
}
__device__ __forceinline__ void close_copies() {}
template <int PENDING>
__device__ __forceinline__ void wait_for_copies()
{
}
#endif

// A block's tile of ROWS×COLUMNS, divided into warp tiles of WARP_ROWS×WARP_COLUMNS. Shared memory is a ring buffer of STAGES
// stages, each with 128 packed bytes along k of all lines.
template <typename Byte, int ROWS, int COLUMNS, int WARP_ROWS, int WARP_COLUMNS, int STAGES>
struct ByteTiles {
    static constexpr int WARPS_DOWN = ROWS / WARP_ROWS, WARPS_ACROSS = COLUMNS / WARP_COLUMNS,
                         THREADS = 32 * WARPS_DOWN * WARPS_ACROSS;
    static constexpr int LINES = ROWS + COLUMNS, STAGE = LINES * UNIT, DOWN = WARP_ROWS / 16, ACROSS = WARP_COLUMNS / 8;
    static_assert(LINES * 8 % THREADS == 0 && THREADS % 8 == 0 && WARP_COLUMNS % 16 == 0, "threads copy whole lines of 8 pieces");

    using Sums = int[DOWN][ACROSS][4];  // of mma fragments: rows g and g + 8, columns 2t and 2t + 1

    const unsigned char *a, *b;  // packed
    Size first_row, first_column, steps;
    unsigned char* shared;

    // Starts the copies of one step along k.
    __device__ __forceinline__ void copy(Size step) const
    {
        if (step < steps) {
            unsigned char* stage = shared + step % STAGES * STAGE;
#pragma unroll
            for (int i = threadIdx.x; i < LINES * 8; i += THREADS) {
                int line = i / 8, piece = i % 8 * 16;
                bool of_a = line < ROWS;
                Size from = of_a ? first_row + line : first_column + line - ROWS;
                Size unit = from / UNIT * steps + step;
                begin_copy(stage + line * UNIT + piece, (of_a ? a : b) + unit * UNIT_BYTES + from % UNIT * UNIT + piece);
            }
        }
        close_copies();
    }

    // sums += the products of steps `begin` to `end`; the copies of the first STAGES - 1 steps must have been started.
    __device__ __forceinline__ void multiply(Sums& sums, Size begin, Size end) const
    {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        int top = warp % WARPS_DOWN * WARP_ROWS, left = ROWS + warp / WARPS_DOWN * WARP_COLUMNS;
        int row = lane % 16, piece_a = lane / 16, column = lane % 8 + lane / 16 * 8, piece_b = lane / 8 % 2;
        for (Size step = begin; step < end; ++step) {
            wait_for_copies<STAGES - 2>();
            __syncthreads();
            copy(step + STAGES - 1);
            const unsigned char* stage = shared + step % STAGES * STAGE;
#pragma unroll
            for (int k = 0; k < UNIT / 32; ++k) {
                unsigned part_a[DOWN][4], part_b[ACROSS / 2][4];
#pragma unroll
                for (int i = 0; i < DOWN; ++i)
                    load_matrices(part_a[i], stage + (top + 16 * i + row) * UNIT + ((2 * k + piece_a ^ row % 8) << 4));
#pragma unroll
                for (int j = 0; j < ACROSS / 2; ++j)
                    load_matrices(part_b[j], stage + (left + 16 * j + column) * UNIT + ((2 * k + piece_b ^ column % 8) << 4));
#pragma unroll
                for (int i = 0; i < DOWN; ++i)
#pragma unroll
                    for (int j = 0; j < ACROSS; ++j)
                        multiply_bytes<Byte>(sums[i][j], part_a[i], part_b[j / 2][j % 2 * 2], part_b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }

    // The position of this thread's first sum. Relative to it, sums[i][j][2·half + pair] is at row 16·i + 8·half and column
    // 8·j + pair, or with interleaved lines at column 2·j + pair, plus 64 for every 32.
    __device__ Size row() const { return first_row + threadIdx.x / 32 % WARPS_DOWN * WARP_ROWS + threadIdx.x % 32 / 4; }
    __device__ Size left_column() const { return first_column + threadIdx.x / 32 / WARPS_DOWN * WARP_COLUMNS; }
};
#endif
