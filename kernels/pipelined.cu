// Tiles are copied asynchronously, past the registers, into a ring of STAGES: while one is multiplied the next ones are on
// their way. A piece of A is 16 bytes along k; the swizzle spreads the rows that a warp reads at once over all banks.
//
// Global loads per multiply-add: 1 / ROWS + 1 / COLUMNS; shared loads: 1 / MINE_DOWN + 1 / MINE_ACROSS numbers.
// Limit: the wait for shared memory at every step, and for the slowest warp at every tile.
#include "hardware.cuh"
#include "matrix.cuh"
#include "stages.cuh"
#include "vectors.cuh"

template <typename T, int ROWS, int COLUMNS, int DEPTH, int MINE_DOWN, int MINE_ACROSS, int STAGES, int WIDTH>
__global__ void __launch_bounds__(ROWS / MINE_DOWN * (COLUMNS / MINE_ACROSS))
    pipelined(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    constexpr int THREADS_DOWN = ROWS / MINE_DOWN, THREADS_ACROSS = COLUMNS / MINE_ACROSS, THREADS = THREADS_DOWN * THREADS_ACROSS;
    constexpr int PIECE = 16 / sizeof(T), ACROSS = THREADS_ACROSS * PIECE;  // from a thread's piece to its next
    using ATile = Tile<T, ROWS, DEPTH, Swizzle<0, 2, 0>>;
    using BTile = Tile<T, DEPTH, COLUMNS, NoSwizzle>;

    T* shared = launched_shared_memory<T>();
    TilePosition at = tile_position<ROWS, COLUMNS>(c);
    int y = threadIdx.x / THREADS_ACROSS, x = threadIdx.x % THREADS_ACROSS * PIECE;

    using Tiles = Supply<ATile, BTile, THREADS, STAGES, WIDTH, WIDTH>;
    Tiles supply(shared, a, b, at);
    T sums[MINE_DOWN][MINE_ACROSS] = {};
    for (int tile = 0; tile < Tiles::AHEAD; ++tile) supply.tile(tile);
    for (int tile = 0; tile < supply.tiles; ++tile) {
        supply.wait();
        supply.tile(tile + Tiles::AHEAD);
        const T* a_tile = shared + tile % STAGES * Tiles::STAGE;
        const T* b_tile = a_tile + ATile::SIZE;
#pragma unroll
        for (int k = 0; k < DEPTH; k += PIECE) {
            Piece<T> a_part[MINE_DOWN];
#pragma unroll
            for (int i = 0; i < MINE_DOWN; ++i) a_part[i] = Piece<T>::at(a_tile + ATile::place(y + i * THREADS_DOWN, k));
#pragma unroll
            for (int e = 0; e < PIECE; ++e)
#pragma unroll
                for (int j = 0; j < MINE_ACROSS; j += PIECE) {
                    Piece<T> b_part = Piece<T>::at(b_tile + BTile::place(k + e, x + j / PIECE * ACROSS));
#pragma unroll
                    for (int i = 0; i < MINE_DOWN; ++i)
#pragma unroll
                        for (int f = 0; f < PIECE; ++f)
                            sums[i][j + f] = multiply_add(a_part[i].of[e], b_part.of[f], sums[i][j + f]);
                }
        }
    }
    copies_wait<0>();

#pragma unroll
    for (int i = 0; i < MINE_DOWN; ++i) store_pieces<WIDTH>(c, at.row + y + i * THREADS_DOWN, at.column + x, ACROSS, sums[i]);
}
