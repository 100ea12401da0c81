// SPDX-License-Identifier: MIT
// int8 on the matrix units: a warp's mma instruction multiplies a 16×32 by a 32×8 fragment, and adds the products in 32 bits,
// exactly for up to 131071 columns of A. C is int32.
//
// The difficulty is B: a lane needs four bytes of one column, but ldmatrix transposes only 16-bit elements, two neighbours of a
// row. So two of these registers, of rows 4t and 4t+2, and of 4t+1 and 4t+3, are recombined by prmt, for two columns.
//
// Global loads per multiply-add: 1 / ROWS + 1 / COLUMNS, of one-byte elements.
// Limit: issuing matrix instructions, and shared memory, as for 16-bit operands.
#include "hardware.cuh"
#include "matrix.cuh"
#include "mma_loop.cuh"

// The swizzles avoid bank conflicts: an ldmatrix reads rows 0, 2, … 14 or 1, 3, … 15 of B's tile, and eight consecutive rows of
// A's.
template <typename T, int ROWS, int COLUMNS, int DEPTH, int WARP_ROWS, int WARP_COLUMNS, int STAGES, int BLOCKS_PER_SM, int WIDTH>
__global__ void __launch_bounds__(ROWS / WARP_ROWS * (COLUMNS / WARP_COLUMNS) * 32, BLOCKS_PER_SM)
    tensor_int8(Matrix<const T> a, Matrix<const T> b, Matrix<int> c)
{
    constexpr int WARPS_DOWN = ROWS / WARP_ROWS, THREADS = WARPS_DOWN * (COLUMNS / WARP_COLUMNS) * 32;
    constexpr int PARTS = WARP_ROWS / 16, STEPS = DEPTH / 32;
    static_assert(WARP_COLUMNS == WARP_ROWS, "a step has as many fragments of A as of B, each 16 long");
    static_assert(DEPTH == 64 || DEPTH == 128, "the swizzle of A is for these");
    using ATile = Tile<T, ROWS, DEPTH, Swizzle<DEPTH == 64, DEPTH == 64 ? 2 : 3, 0>>;
    using BTile = Tile<T, DEPTH, COLUMNS, Swizzle<1, 3, 0>>;

    T* shared = dynamic_shared_memory<T>();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int warp_row = warp % WARPS_DOWN * WARP_ROWS, warp_column = warp / WARPS_DOWN * WARP_COLUMNS;
    TilePosition at = tile_position<ROWS, COLUMNS>(c);

    using Pipeline = TilePipeline<ATile, BTile, THREADS, STAGES, WIDTH, WIDTH>;
    Pipeline pipeline(shared, a, b, at);
    int sums[PARTS][2 * PARTS][4] = {};
    unsigned a_fragment[2][PARTS][4], b_fragment[2][PARTS][4];  // of B: 16 columns each, the even ones and then the odd ones
    const T *a_from[STEPS], *b_from[PARTS];  // this lane's row of the matrices that an ldmatrix loads
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
        a_from[step] = shared + ATile::offset(warp_row + lane % 16, 32 * step + lane / 16 * 16);
    int row = lane / 16 * 16 + lane % 8 * 2 + lane / 8 % 2;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) b_from[part] = shared + ATile::SIZE + BTile::offset(row, warp_column + 16 * part);
    auto fetch = [&](int step, int part) {
        load_matrices(a_fragment[step % 2][part], a_from[step] + 16 * part * DEPTH);
        unsigned r[4], (&into)[4] = b_fragment[step % 2][part];
        load_matrices_transposed(r, b_from[part] + 32 * step * COLUMNS);
        into[0] = __byte_perm(r[0], r[1], 0x6240);  // column 2g, rows 4t to 4t+3
        into[1] = __byte_perm(r[2], r[3], 0x6240);  // and 16 below
        into[2] = __byte_perm(r[0], r[1], 0x7351);  // column 2g+1
        into[3] = __byte_perm(r[2], r[3], 0x7351);
    };
    auto mma = [&](int step, int i, int j) {
        const unsigned* two = b_fragment[step % 2][j / 2] + j % 2 * 2;
        mma_m16n8k32<T>(sums[i][j], a_fragment[step % 2][i], two[0], two[1]);
    };
    multiply_tiles<Pipeline, STAGES, STEPS, PARTS, (WIDTH == 16)>(pipeline, a_from, b_from, fetch, mma);

#pragma unroll
    for (int i = 0; i < PARTS; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int j = 0; j < PARTS; ++j) {
                // Even and odd columns alternate: this lane has four neighbours.
                const int* even = sums[i][2 * j] + 2 * half;
                const int* odd = sums[i][2 * j + 1] + 2 * half;
                Size r = at.row + warp_row + 16 * i + 8 * half + g, column = at.column + warp_column + 16 * j + 4 * t;
                if (r >= c.rows) continue;
                if (WIDTH == 16 && column + 3 < c.columns)  // so C's rows are aligned to 16 bytes, too
                    *reinterpret_cast<int4*>(&c(r, column)) = make_int4(even[0], odd[0], even[1], odd[1]);
                else
#pragma unroll
                    for (int n = 0; n < 4; ++n)
                        if (column + n < c.columns) c(r, column + n) = n % 2 ? odd[n / 2] : even[n / 2];
            }
}
