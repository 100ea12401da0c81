// For the ordinary units, all that helps at once: a block's tile is cut into warps' tiles, and those into blocks of C for
// 4×8 lanes; tiles arrive asynchronously, A's transposed on the way, so that a thread's rows of one k lie side by side; while
// a thread multiplies, the numbers of the next k are on their way from shared memory.
//
// Global loads per multiply-add: 1 / ROWS + 1 / COLUMNS; shared loads: 4 / WARP_ROWS + 8 / WARP_COLUMNS numbers.
// Limit: the multiply-add units, and at full load the GPU's power.
//
// With ADDS the product is added to what C holds.
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
    constexpr int PIECE = 16 / sizeof(T), DOWN = WARP_ROWS / (4 * PIECE), ACROSS = WARP_COLUMNS / (8 * PIECE);
    using ATile = TransposedTile<T, ROWS, DEPTH>;
    using BTile = Tile<T, DEPTH, COLUMNS, NoSwizzle>;
    constexpr int TURN = 4;  // k from a few copies to the next: apart, so that they wait for nothing; not alone, for each few costs

    T* shared = launched_shared_memory<T>();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, x = lane % 8 * PIECE, y = lane / 8 * PIECE;
    int my_row = warp % WARPS_DOWN * WARP_ROWS + y, my_column = warp / WARPS_DOWN * WARP_COLUMNS + x;
    TilePosition at = tile_position<ROWS, COLUMNS>(c);

    using Tiles = Supply<ATile, BTile, THREADS, STAGES, 1, WIDTH>;
    Tiles supply(shared, a, b, at);
    T sums[DOWN * PIECE][ACROSS * PIECE] = {};
    Piece<T> a_part[2][DOWN], b_part[2][ACROSS];
    const T *a_from = shared + ATile::place(my_row, 0), *b_from = shared + ATile::SIZE + BTile::place(0, my_column);
    auto fetch = [&](int k) {
#pragma unroll
        for (int i = 0; i < DOWN; ++i) a_part[k % 2][i] = Piece<T>::at(a_from + ATile::place(4 * PIECE * i, k));
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) b_part[k % 2][j] = Piece<T>::at(b_from + BTile::place(k, 8 * PIECE * j));
    };

    for (int tile = 0; tile < Tiles::AHEAD; ++tile) supply.tile(tile);
    supply.wait();
    fetch(0);
    Ring<STAGES, Tiles::STAGE> ring;
    auto multiply_tile = [&](bool whole) {
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            if (k % TURN == 0) supply.turn(k / TURN, DEPTH / TURN, whole);
            if (k == DEPTH - 1) {  // all of this tile is in registers: on to the next
                supply.wait();
                int forward = ring.forward();
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
                    T& sum = sums[i][j];
                    sum = multiply_add(a_part[k % 2][i / PIECE].of[i % PIECE], b_part[k % 2][j / PIECE].of[j % PIECE], sum);
                }
        }
    };
    int tile = 0;  // two loops, the long one without a jump: after each jump instructions come late
    for (; tile + Tiles::AHEAD < supply.whole; ++tile) multiply_tile(true);
    for (; tile < supply.tiles; ++tile) {
        supply.carefully(tile + Tiles::AHEAD);
        multiply_tile(false);
    }
    copies_wait<0>();

#pragma unroll
    for (int i = 0; i < DOWN * PIECE; ++i) {
        Size row = at.row + my_row + i / PIECE * 4 * PIECE + i % PIECE, column = at.column + my_column;
        if constexpr (ADDS) add_pieces<WIDTH>(c, row, column, 8 * PIECE, sums[i]);
        store_pieces<WIDTH>(c, row, column, 8 * PIECE, sums[i]);
    }
}
