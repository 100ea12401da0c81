// For the ordinary units, all that helps at once: a block's tile is cut into warps' tiles and those into 4×8 lanes' elements;
// tiles arrive asynchronously; a thread holds two steps of B, and of A the row it multiplies and the next.
//
// Global loads per multiply-add: 1 / ROWS + 1 / COLUMNS. Shared loads per multiply-add: 1 / (rows of a thread) + 1 / (columns
// of a thread), 16 bytes each. Limit: the multiply-add units, and at full load the GPU's power.
#include "hardware.cuh"
#include "matrix.cuh"
#include "stages.cuh"
#include "vectors.cuh"

template <typename T, int ROWS, int COLUMNS, int DEPTH, int WARP_ROWS, int WARP_COLUMNS, int STAGES, int BLOCKS_PER_SM, int WIDTH>
__global__ void __launch_bounds__(ROWS / WARP_ROWS * (COLUMNS / WARP_COLUMNS) * 32, BLOCKS_PER_SM)
    warp_tiled(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    constexpr int WARPS_DOWN = ROWS / WARP_ROWS, THREADS = WARPS_DOWN * (COLUMNS / WARP_COLUMNS) * 32;
    constexpr int PIECE = 16 / sizeof(T), DOWN = WARP_ROWS / (4 * PIECE), ACROSS = WARP_COLUMNS / (8 * PIECE);
    using ATile = TransposedTile<T, ROWS, DEPTH>;
    using BTile = Tile<T, DEPTH, COLUMNS, NoSwizzle>;
    constexpr int STAGE = ATile::SIZE + BTile::SIZE;
    constexpr int TURN = 4;  // k from a few copies to the next: apart, so that they wait for nothing; not alone, for each few costs

    T* shared = launched_shared_memory<T>();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, x = lane % 8 * PIECE, y = lane / 8 * PIECE;
    int my_row = warp % WARPS_DOWN * WARP_ROWS + y, my_column = warp / WARPS_DOWN * WARP_COLUMNS + x;
    TilePosition at = tile_position<ROWS, COLUMNS>(c);

    using CopyA = TileCopy<ATile, THREADS, 1, STAGES, STAGE, Along::COLUMNS>;
    using CopyB = TileCopy<BTile, THREADS, WIDTH, STAGES, STAGE, Along::ROWS>;
    CopyA copy_a(shared, a, at.row, 0);
    CopyB copy_b(shared + ATile::SIZE, b, 0, at.column);
    auto copy_carefully = [&] {
        copy_a.carefully();
        copy_b.carefully();
    };
    auto next_tile = [&] {
        copies_commit();
        copy_a.next_tile();
        copy_b.next_tile();
    };
    // The pieces of a tile, a few in each of `turns` turns.
    auto copy = [&](bool wanted, int turn, int turns) {
        constexpr int PIECES = CopyA::TIMES + CopyB::TIMES;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (i * turns / PIECES != turn) continue;
            if (i < CopyA::TIMES)
                copy_a.piece(i, wanted);
            else
                copy_b.piece(i - CopyA::TIMES, wanted);
        }
        if (turn == turns - 1) next_tile();
    };

    T sums[DOWN][PIECE][ACROSS][PIECE] = {};
    Piece<T> a_part[2][DOWN], b_part[2][ACROSS];
    const T *a_from = shared + ATile::place(my_row, 0), *b_from = shared + ATile::SIZE + BTile::place(0, my_column);
    auto fetch = [&](int k) {
#pragma unroll
        for (int i = 0; i < DOWN; ++i) a_part[k % 2][i] = Piece<T>::at(a_from + ATile::place(4 * PIECE * i, k));
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) b_part[k % 2][j] = Piece<T>::at(b_from + BTile::place(k, 8 * PIECE * j));
    };

    int tiles = static_cast<int>(pieces(a.columns, DEPTH));
    bool cut = (c.columns - at.column) % WIDTH && c.columns - at.column < COLUMNS;  // C's edge goes through a piece
    int whole_tiles = cut ? 0 : static_cast<int>(a.columns / DEPTH);
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        copy_carefully();
        copy_a.skip_pieces();
        copy_b.skip_pieces();
        next_tile();
    }
    copies_wait<STAGES - 2>();
    __syncthreads();
    int stage = 0;  // that is read
    fetch(0);
    auto multiply_tile = [&](bool whole) {
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            if (k % TURN == 0) copy(whole, k / TURN, DEPTH / TURN);
            if (k == DEPTH - 1) {  // all of this tile is in registers: on to the next
                copies_wait<STAGES - 2>();
                __syncthreads();  // ... and nobody reads this one any more
                int forward = stage == STAGES - 1 ? -(STAGES - 1) * STAGE : STAGE;
                stage = stage == STAGES - 1 ? 0 : stage + 1;
                a_from += forward;
                b_from += forward;
            }
            fetch((k + 1) % DEPTH);
            // Back and forth, so that each multiply-add shares a number with the one before it: registers have few ports.
#pragma unroll
            for (int i = 0; i < DOWN * PIECE; ++i)
#pragma unroll
                for (int step = 0; step < ACROSS * PIECE; ++step) {
                    int j = i % 2 ? ACROSS * PIECE - 1 - step : step;
                    T& sum = sums[i / PIECE][i % PIECE][j / PIECE][j % PIECE];
                    sum = multiply_add(a_part[k % 2][i / PIECE].of[i % PIECE], b_part[k % 2][j / PIECE].of[j % PIECE], sum);
                }
        }
    };
    int tile = 0;  // two loops, the long one without a jump: after each jump instructions come late
    for (; tile + STAGES - 1 < whole_tiles; ++tile) multiply_tile(true);
    for (; tile < tiles; ++tile) {
        copy_carefully();
        multiply_tile(false);
    }
    copies_wait<0>();

#pragma unroll
    for (int i = 0; i < DOWN; ++i)
#pragma unroll
        for (int row = 0; row < PIECE; ++row)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
                store<WIDTH>(c, at.row + my_row + 4 * PIECE * i + row, at.column + my_column + 8 * PIECE * j, sums[i][row][j]);
}
