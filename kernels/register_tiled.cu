// Each thread computes a small block of C. What it loads from shared memory into registers serves a whole row or column of
// that block; both global and shared memory are read 16 bytes at once.
//
// Global loads per multiply-add: 1 / ROWS + 1 / COLUMNS; shared loads: 1 / MINE_DOWN + 1 / MINE_ACROSS numbers.
// Limit: waiting. While tiles are loaded nothing is multiplied, and the other way round.
//
// With ADDS the product is added to what C holds.
#include "hardware.cuh"
#include "matrix.cuh"
#include "vectors.cuh"

template <typename T, int ROWS, int COLUMNS, int DEPTH, int MINE_DOWN, int MINE_ACROSS, int WIDTH, bool ADDS = false>
__global__ void __launch_bounds__(ROWS / MINE_DOWN * (COLUMNS / MINE_ACROSS))
    register_tiled(Matrix<const T> a, Matrix<const T> b, Matrix<T> c)
{
    constexpr int THREADS_ACROSS = COLUMNS / MINE_ACROSS, THREADS = ROWS / MINE_DOWN * THREADS_ACROSS;
    constexpr int PIECE = 16 / sizeof(T);
    constexpr int DOWN = ROWS / (MINE_DOWN / PIECE), ACROSS = COLUMNS / (MINE_ACROSS / PIECE);  // from a thread's piece to its next
    __shared__ __align__(16) T a_tile[DEPTH][ROWS + PIECE];  // by columns, so that a thread's rows lie side by side
    __shared__ __align__(16) T b_tile[DEPTH][COLUMNS];

    TilePosition at = tile_position<ROWS, COLUMNS>(c);
    int y = threadIdx.x / THREADS_ACROSS * PIECE, x = threadIdx.x % THREADS_ACROSS * PIECE;
    T sums[MINE_DOWN][MINE_ACROSS] = {};
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
            Piece<T> a_part[MINE_DOWN / PIECE], b_part[MINE_ACROSS / PIECE];
#pragma unroll
            for (int i = 0; i < MINE_DOWN / PIECE; ++i) a_part[i] = Piece<T>::at(&a_tile[k][y + i * DOWN]);
#pragma unroll
            for (int j = 0; j < MINE_ACROSS / PIECE; ++j) b_part[j] = Piece<T>::at(&b_tile[k][x + j * ACROSS]);
#pragma unroll
            for (int i = 0; i < MINE_DOWN; ++i)
#pragma unroll
                for (int j = 0; j < MINE_ACROSS; ++j)
                    sums[i][j] = multiply_add(a_part[i / PIECE].of[i % PIECE], b_part[j / PIECE].of[j % PIECE], sums[i][j]);
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < MINE_DOWN; ++i) {
        Size row = at.row + y + i / PIECE * DOWN + i % PIECE, column = at.column + x;
        if constexpr (ADDS) add_pieces<WIDTH>(c, row, column, ACROSS, sums[i]);
        store_pieces<WIDTH>(c, row, column, ACROSS, sums[i]);
    }
}
