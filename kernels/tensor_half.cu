// SPDX-License-Identifier: MIT
// 16-bit operands (float16 or bfloat16) on the matrix units: a warp's mma instruction multiplies a 16×16 by a 16×8 fragment, and
// adds the exact products in float32. C is float32. Lanes fetch fragments from swizzled shared memory by ldmatrix, which transposes
// B's; those of the next 16 along k are fetched while the current ones are multiplied.
//
// Global loads per multiply-add: 1 / ROWS + 1 / COLUMNS, of two-byte elements.
// Limit: issuing matrix instructions, and shared memory: a warp loads 1 / WARP_ROWS + 1 / WARP_COLUMNS per multiply-add.
//
// With ADDS it computes C += A · B.
#include "hardware.cuh"
#include "matrix.cuh"
#include "mma_loop.cuh"
#include "vectors.cuh"

template <typename T, int ROWS, int COLUMNS, int DEPTH, int WARP_ROWS, int WARP_COLUMNS, int STAGES, int BLOCKS_PER_SM, int WIDTH,
          bool ADDS = false>
__global__ void __launch_bounds__(ROWS / WARP_ROWS * (COLUMNS / WARP_COLUMNS) * 32, BLOCKS_PER_SM)
    tensor_half(Matrix<const T> a, Matrix<const T> b, Matrix<float> c)
{
    constexpr int WARPS_DOWN = ROWS / WARP_ROWS, THREADS = WARPS_DOWN * (COLUMNS / WARP_COLUMNS) * 32;
    constexpr int PARTS = WARP_ROWS / 16, STEPS = DEPTH / 16;
    constexpr int C_WIDTH = WIDTH >= 4 ? 2 : 1;  // the same alignment, in floats
    static_assert(WARP_COLUMNS == WARP_ROWS, "a step has as many fragments of A as of B, each 16 long");
    // The swizzles spread the eight 16-byte rows of an ldmatrix over all 32 banks: rows of A are 64 or 128 bytes, those of B more.
    static_assert(DEPTH == 32 || DEPTH == 64, "the swizzle of A is for these");
    using ATile = Tile<T, ROWS, DEPTH, Swizzle<DEPTH == 32, DEPTH == 32 ? 2 : 3, 0>>;
    using BTile = Tile<T, DEPTH, COLUMNS, Swizzle<0, 3, 0>>;

    T* shared = dynamic_shared_memory<T>();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int warp_row = warp % WARPS_DOWN * WARP_ROWS, warp_column = warp / WARPS_DOWN * WARP_COLUMNS;
    TilePosition at = tile_position<ROWS, COLUMNS>(c);

    using Pipeline = TilePipeline<ATile, BTile, THREADS, STAGES, WIDTH, WIDTH>;
    Pipeline pipeline(shared, a, b, at);
    float sums[PARTS][2 * PARTS][4] = {};
    unsigned a_fragment[2][PARTS][4], b_fragment[2][PARTS][4];  // of B: 16 columns each, for two mma
    const T *a_from[STEPS], *b_from[PARTS];  // this lane's row of the matrices that an ldmatrix loads
#pragma unroll
    for (int step = 0; step < STEPS; ++step) a_from[step] = shared + ATile::offset(warp_row + lane % 16, 16 * step + lane / 16 * 8);
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
        b_from[part] = shared + ATile::SIZE + BTile::offset(lane % 16, warp_column + 16 * part + lane / 16 * 8);
    auto fetch = [&](int step, int part) {
        load_matrices(a_fragment[step % 2][part], a_from[step] + 16 * part * DEPTH);
        load_matrices_transposed(b_fragment[step % 2][part], b_from[part] + 16 * step * COLUMNS);
    };

    auto mma = [&](int step, int i, int j) {
        const unsigned* two = b_fragment[step % 2][j / 2] + j % 2 * 2;
        mma_m16n8k16<T>(sums[i][j], a_fragment[step % 2][i], two[0], two[1]);
    };
    multiply_tiles<Pipeline, STAGES, STEPS, PARTS, (WIDTH > 2)>(pipeline, a_from, b_from, fetch, mma);

#pragma unroll
    for (int i = 0; i < PARTS; ++i)
#pragma unroll
        for (int storing = ADDS ? 0 : 1; storing < 2; ++storing)  // all loads of these rows before the first store
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int j = 0; j < 2 * PARTS; ++j) {
                    float pair[2] = {sums[i][j][2 * half], sums[i][j][2 * half + 1]};
                    Size row = at.row + warp_row + 16 * i + 8 * half + g, column = at.column + warp_column + 8 * j + 2 * t;
                    if (storing) {
                        store<C_WIDTH>(c, row, column, pair);
                    } else {
                        add<C_WIDTH>(c, row, column, pair);
                        sums[i][j][2 * half] = pair[0];
                        sums[i][j][2 * half + 1] = pair[1];
                    }
                }
}
