// Tiles on their way from global to shared memory: who copies which piece, and where it lies so that no two threads of a
// warp want the same bank at once.
#pragma once
#include "hardware.cuh"
#include "matrix.cuh"

// Moves the 16-byte pieces within their row: bits of the row's number, from ROW_BIT on, flip bits of the piece's, from
// PIECE_BIT on.
template <int ROW_BIT, int BITS, int PIECE_BIT>
struct Swizzle {
    static constexpr int MASK = (1 << BITS) - 1, PERIOD = BITS ? 1 << (ROW_BIT + BITS) : 1;  // in rows

    __device__ static int piece(int row, int piece) { return piece ^ (row >> ROW_BIT & MASK) << PIECE_BIT; }
};

using NoSwizzle = Swizzle<0, 0, 0>;

// A tile in shared memory, ROWS×COLUMNS, row by row, in pieces of 16 bytes that the swizzle moves within their row.
template <typename T, int ROWS_, int COLUMNS_, typename Swizzle_>
struct Tile {
    using Element = T;
    using Swizzle = Swizzle_;
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, SIZE = ROWS * COLUMNS, PIECE = 16 / sizeof(T);
    static constexpr int BELOW = COLUMNS;  // from one row to the next

    __device__ static int place(int row, int column)
    {
        return row * COLUMNS + Swizzle_::piece(row, column / PIECE) * PIECE + column % PIECE;
    }
};

// The same tile column by column, for threads that want several rows of one column at once.
template <typename T, int ROWS_, int COLUMNS_>
struct TransposedTile {
    using Element = T;
    using Swizzle = NoSwizzle;
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, PITCH = ROWS + 16 / sizeof(T), SIZE = COLUMNS * PITCH, BELOW = 1;

    __device__ static int place(int row, int column) { return column * PITCH + row; }
};

// Goes round STAGES places, SIZE elements from one to the next.
template <int STAGES, int SIZE>
struct Ring {
    int place = 0;

    // To the next place; returns how many elements forward, or back, that is.
    __device__ __forceinline__ int forward()
    {
        bool last = place == STAGES - 1;
        place = last ? 0 : place + 1;
        return last ? -(STAGES - 1) * SIZE : SIZE;
    }
};

enum class Along { COLUMNS, ROWS };  // where the next tile lies: to the right (A) or below (B)

// One thread's part in copying a matrix's tiles, one after the other, into shared memory. WIDTH elements are copied at a time.
//
// What is counted here takes registers through all of a kernel's longest loop, and that loop copies only tiles that lie within
// the matrix: so nothing counts what is left along k; who copies carefully says it. (With two counts of 64 bits
// warp_tiled<float> fell from 1.03 of cuBLAS to 0.97; in its machine code four times as many multiply-adds took their three
// numbers from one bank of registers.)
template <typename Tile, int THREADS, int WIDTH, Along K>
class TileCopy {
    using T = typename Tile::Element;
    static constexpr int PER_ROW = Tile::COLUMNS / WIDTH, ROWS_AT_ONCE = THREADS / PER_ROW;
    static_assert(THREADS % PER_ROW == 0 && Tile::ROWS % ROWS_AT_ONCE == 0, "the threads divide the tile evenly");
    static constexpr int PLACES = ROWS_AT_ONCE < Tile::Swizzle::PERIOD ? Tile::Swizzle::PERIOD / ROWS_AT_ONCE : 1;

    static constexpr int MOST = 1 << 30;  // more than any tile has

    const T* from;                // this thread's next piece
    Size down, back;              // to the piece below; from below the last to the next tile's first
    int across;                   // of the matrix across k, from this thread's first piece on
    T* to[PLACES];                // where the first pieces go; the others lie in the same way below

    __device__ static int clamp(Size size) { return static_cast<int>(size < 0 ? 0 : size > MOST ? MOST : size); }

public:
    static constexpr int TIMES = Tile::ROWS / ROWS_AT_ONCE;

    __device__ TileCopy(T* first, const Matrix<const T>& matrix, Size top, Size left)
    {
        int row = threadIdx.x / PER_ROW, column = threadIdx.x % PER_ROW * WIDTH;
        from = matrix.data + (top + row) * matrix.stride + left + column;
        down = ROWS_AT_ONCE * matrix.stride;
        back = K == Along::COLUMNS ? Tile::COLUMNS - TIMES * down : 0;
        across = clamp(K == Along::COLUMNS ? matrix.rows - top - row : matrix.columns - left - column);
#pragma unroll
        for (int i = 0; i < PLACES; ++i) to[i] = first + Tile::place(row + i * ROWS_AT_ONCE, column);
    }

    // All of a tile that may reach beyond the matrix: zeros stand for what is there. `left`: of the matrix along k, from the
    // tile's edge on, at most the tile's depth.
    __device__ __forceinline__ void carefully(int left) const
    {
        int row = threadIdx.x / PER_ROW, column = threadIdx.x % PER_ROW * WIDTH;
        T* tile = to[0] - Tile::place(row, column);
        int rows = K == Along::COLUMNS ? across : left - row, columns = K == Along::COLUMNS ? left - column : across;
        int there = max(min(columns, WIDTH), 0) * static_cast<int>(sizeof(T));
#pragma unroll 1
        for (int i = 0; i < TIMES; ++i)
            copy_async<WIDTH * sizeof(T)>(tile + Tile::place(row + i * ROWS_AT_ONCE, column), from + i * down,
                                          i * ROWS_AT_ONCE < rows ? there : 0);
    }

    // The i-th of a tile's TIMES pieces, in their order; copied if `wanted`. Along k the tile lies within the matrix. What
    // lies beyond it across k is left as it is, for it only ends in elements that C does not have.
    __device__ __forceinline__ void piece(int i, bool wanted)
    {
        bool inside = K == Along::COLUMNS ? i * ROWS_AT_ONCE < across : across > 0;
        if (wanted && inside) copy_async<WIDTH * sizeof(T)>(to[i % PLACES] + i / PLACES * PLACES * ROWS_AT_ONCE * Tile::BELOW, from);
        from += down;
    }

    // After a tile's pieces: to the next tile, and to its place, `forward` elements from this one's.
    __device__ __forceinline__ void next_tile(int forward)
    {
        from += back;
#pragma unroll
        for (int i = 0; i < PLACES; ++i) to[i] += forward;
    }

    __device__ __forceinline__ void skip_pieces() { from += TIMES * down; }
};

// A block's tiles of A and B on their way into a ring in shared memory, STAGES deep; A's tile lies before B's.
template <typename ATile, typename BTile, int THREADS, int STAGES, int A_WIDTH, int B_WIDTH>
class Supply {
    using T = typename ATile::Element;

public:
    static constexpr int STAGE = ATile::SIZE + BTile::SIZE;
    static constexpr int AHEAD = STAGES - 1;  // tiles that are under way while one is read

    int tiles;  // along k
    int whole;  // of them, that lie within the matrices and can be copied without care

    __device__ Supply(T* shared, const Matrix<const T>& a, const Matrix<const T>& b, TilePosition at)
        : along(a.columns), copy_a(shared, a, at.row, 0), copy_b(shared + ATile::SIZE, b, 0, at.column)
    {
        tiles = static_cast<int>(pieces(a.columns, ATile::COLUMNS));
        bool cut = (b.columns - at.column) % B_WIDTH && b.columns - at.column < BTile::COLUMNS;  // B's edge goes through a piece
        whole = cut ? 0 : static_cast<int>(a.columns / ATile::COLUMNS);
    }

    // The next tile, all of it, whatever lies beyond the matrices. `number`: how many came before it.
    __device__ __forceinline__ void tile(int number)
    {
        carefully(number);
        copy_a.skip_pieces();
        copy_b.skip_pieces();
        next();
    }

    // The next tile's turn of `turns` when it is copied a few pieces at a time. If it was copied carefully before, `wanted` is
    // false and it is only passed.
    __device__ __forceinline__ void turn(int turn, int turns, bool wanted)
    {
        constexpr int PIECES = CopyA::TIMES + CopyB::TIMES;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (i * turns / PIECES != turn) continue;
            if (i < CopyA::TIMES)
                copy_a.piece(i, wanted);
            else
                copy_b.piece(i - CopyA::TIMES, wanted);
        }
        if (turn == turns - 1) next();
    }

    __device__ __forceinline__ void carefully(int number) const
    {
        constexpr int DEPTH = ATile::COLUMNS;
        int left = static_cast<int>(min(along - static_cast<Size>(number) * DEPTH, static_cast<Size>(DEPTH)));
        copy_a.carefully(left);
        copy_b.carefully(left);
    }

    // Until the next tile is there for all threads; none of them then reads the one before it any more.
    __device__ __forceinline__ static void wait()
    {
        copies_wait<STAGES - 2>();
        __syncthreads();
    }

private:
    using CopyA = TileCopy<ATile, THREADS, A_WIDTH, Along::COLUMNS>;
    using CopyB = TileCopy<BTile, THREADS, B_WIDTH, Along::ROWS>;
    Size along;  // k
    CopyA copy_a;
    CopyB copy_b;
    Ring<STAGES, STAGE> ring;

    __device__ __forceinline__ void next()
    {
        copies_commit();
        int forward = ring.forward();
        copy_a.next_tile(forward);
        copy_b.next_tile(forward);
    }
};
