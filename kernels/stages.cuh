// SPDX-License-Identifier: MIT
// A pipeline of tiles from global to shared memory by asynchronous copies: the assignment of vectors to threads, and the swizzle of
// their addresses, which avoids bank conflicts.
#pragma once
#include "hardware.cuh"
#include "matrix.cuh"

// An XOR swizzle of the 16-byte vectors within a row: BITS bits of the row's number, from ROW_BIT on, are XORed to the bits of the
// vector's number from VECTOR_BIT on.
template <int ROW_BIT, int BITS, int VECTOR_BIT>
struct Swizzle {
    static constexpr int MASK = (1 << BITS) - 1, PERIOD = BITS ? 1 << (ROW_BIT + BITS) : 1;  // in rows

    __device__ static int vector(int row, int vector) { return vector ^ (row >> ROW_BIT & MASK) << VECTOR_BIT; }
};

using NoSwizzle = Swizzle<0, 0, 0>;

// A ROWS×COLUMNS tile in shared memory, row-major, its vectors swizzled within their row.
template <typename T, int ROWS_, int COLUMNS_, typename Swizzle_>
struct Tile {
    using Element = T;
    using Swizzle = Swizzle_;
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, SIZE = ROWS * COLUMNS, VECTOR = 16 / sizeof(T);
    static constexpr int ROW_STRIDE = COLUMNS;

    __device__ static int offset(int row, int column)
    {
        return row * COLUMNS + Swizzle_::vector(row, column / VECTOR) * VECTOR + column % VECTOR;
    }
};

// A column-major tile, for threads that load several rows of one column as a vector. Columns are padded by one vector, which keeps
// them aligned and spreads a row over the banks.
template <typename T, int ROWS_, int COLUMNS_>
struct TransposedTile {
    using Element = T;
    using Swizzle = NoSwizzle;
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, PITCH = ROWS + 16 / sizeof(T), SIZE = COLUMNS * PITCH, ROW_STRIDE = 1;

    __device__ static int offset(int row, int column) { return column * PITCH + row; }
};

// A position in a ring buffer of STAGES stages of SIZE elements.
template <int STAGES, int SIZE>
struct Ring {
    int stage = 0;

    // To the next stage; returns the distance to it in elements, which is negative from the last stage to the first.
    __device__ __forceinline__ int advance()
    {
        bool last = stage == STAGES - 1;
        stage = last ? 0 : stage + 1;
        return last ? -(STAGES - 1) * SIZE : SIZE;
    }
};

// An asynchronous copy of BYTES: reads the first `valid`, and fills the rest with zeros. cp.async copies at least four bytes:
// elements of one or two bytes, if rows are not aligned to four, are copied synchronously through a register.
template <int BYTES>
__device__ __forceinline__ void copy_piece(void* shared, const void* global, int valid)
{
    if constexpr (BYTES == 2)
        *static_cast<unsigned short*>(shared) = valid ? *static_cast<const unsigned short*>(global) : 0;
    else if constexpr (BYTES == 1)
        *static_cast<unsigned char*>(shared) = valid ? *static_cast<const unsigned char*>(global) : 0;
    else
        copy_async<BYTES>(shared, global, valid);
}

template <int BYTES>
__device__ __forceinline__ void copy_piece(void* shared, const void* global)
{
    if constexpr (BYTES == 2)
        *static_cast<unsigned short*>(shared) = *static_cast<const unsigned short*>(global);
    else if constexpr (BYTES == 1)
        *static_cast<unsigned char*>(shared) = *static_cast<const unsigned char*>(global);
    else
        copy_async<BYTES>(shared, global);
}

enum class Along { COLUMNS, ROWS };  // the direction of k, and of the next tile: to the right (A) or below (B)

// One thread's part in copying one matrix's tiles along k to shared memory, WIDTH elements at a time. The block's threads copy
// ROWS_PER_PASS rows of a tile per pass, in PASSES passes.
//
// All members stay in registers during a kernel's main loop, which copies only tiles that are whole along k. So no member counts
// the elements left along k; copy_checked gets them as an argument. (With two 64-bit counters, warp_tiled<float> fell from 1.03 to
// 0.97 of cuBLAS: in its machine code, four times as many multiply-adds had register bank conflicts.)
template <typename Tile, int THREADS, int WIDTH, Along K>
class TileCopy {
    using T = typename Tile::Element;
    static constexpr int PER_ROW = Tile::COLUMNS / WIDTH, ROWS_PER_PASS = THREADS / PER_ROW;
    static_assert(THREADS % PER_ROW == 0 && Tile::ROWS % ROWS_PER_PASS == 0, "the threads divide the tile evenly");
    // Passes until the swizzle repeats: only their destinations are kept; later ones are at a constant distance.
    static constexpr int PHASES = ROWS_PER_PASS < Tile::Swizzle::PERIOD ? Tile::Swizzle::PERIOD / ROWS_PER_PASS : 1;

    static constexpr int MOST = 1 << 30;  // more than any tile has

    const T* from;  // this thread's next source
    Size pass_step, back;  // from one pass to the next; from after the last pass to the next tile
    int extent;  // of the matrix across k, from this thread's first element on
    T* to[PHASES];  // destinations

    __device__ static int clamp(Size size) { return static_cast<int>(size < 0 ? 0 : size > MOST ? MOST : size); }

public:
    static constexpr int PASSES = Tile::ROWS / ROWS_PER_PASS;

    __device__ TileCopy(T* first, const Matrix<const T>& matrix, Size top, Size left)
    {
        int row = threadIdx.x / PER_ROW, column = threadIdx.x % PER_ROW * WIDTH;
        from = matrix.data + (top + row) * matrix.stride + left + column;
        pass_step = ROWS_PER_PASS * matrix.stride;
        back = K == Along::COLUMNS ? Tile::COLUMNS - PASSES * pass_step : 0;
        extent = clamp(K == Along::COLUMNS ? matrix.rows - top - row : matrix.columns - left - column);
#pragma unroll
        for (int i = 0; i < PHASES; ++i) to[i] = first + Tile::offset(row + i * ROWS_PER_PASS, column);
    }

    // Copies a whole tile with bounds checks, and zeros for elements beyond the matrix. `remaining`: the matrix's elements along k
    // from the tile's first on, at most the tile's depth.
    __device__ __forceinline__ void copy_checked(int remaining) const
    {
        int row = threadIdx.x / PER_ROW, column = threadIdx.x % PER_ROW * WIDTH;
        T* tile = to[0] - Tile::offset(row, column);
        int rows = K == Along::COLUMNS ? extent : remaining - row, columns = K == Along::COLUMNS ? remaining - column : extent;
        int valid_bytes = max(min(columns, WIDTH), 0) * static_cast<int>(sizeof(T));
        constexpr int TOGETHER = WIDTH * sizeof(T) < 4 ? 16 : 1;  // unrolled for synchronous copies, to overlap their loads
#pragma unroll TOGETHER
        for (int i = 0; i < PASSES; ++i)
            copy_piece<WIDTH * sizeof(T)>(tile + Tile::offset(row + i * ROWS_PER_PASS, column), from + i * pass_step,
                                          i * ROWS_PER_PASS < rows ? valid_bytes : 0);
    }

    // The i-th pass of a tile that is whole along k; passes must be called in order. Copies only if `wanted`. Elements beyond the
    // matrix across k are not set to zero: they only affect elements beyond C.
    __device__ __forceinline__ void pass(int i, bool wanted)
    {
        bool inside = K == Along::COLUMNS ? i * ROWS_PER_PASS < extent : extent > 0;
        if (wanted && inside)
            copy_piece<WIDTH * sizeof(T)>(to[i % PHASES] + i / PHASES * PHASES * ROWS_PER_PASS * Tile::ROW_STRIDE, from);
        from += pass_step;
    }

    // After all passes of a tile: moves to the next tile, and to its stage, `forward` elements on.
    __device__ __forceinline__ void next_tile(int forward)
    {
        from += back;
#pragma unroll
        for (int i = 0; i < PHASES; ++i) to[i] += forward;
    }

    __device__ __forceinline__ void skip_passes() { from += PASSES * pass_step; }
};

// Copies a block's tiles of A and B along k into a ring buffer of STAGES stages; a stage has A's tile, then B's.
template <typename ATile, typename BTile, int THREADS, int STAGES, int A_WIDTH, int B_WIDTH>
class TilePipeline {
    using T = typename ATile::Element;

public:
    static constexpr int STAGE = ATile::SIZE + BTile::SIZE;
    static constexpr int AHEAD = STAGES - 1;  // the prefetch distance: tiles in flight while one is read

    int tiles;  // along k
    int full_tiles;  // the first ones, which need no bounds checks along k

    __device__ TilePipeline(T* shared, const Matrix<const T>& a, const Matrix<const T>& b, TilePosition at)
        : k_size(a.columns), copy_a(shared, a, at.row, 0), copy_b(shared + ATile::SIZE, b, 0, at.column)
    {
        tiles = static_cast<int>(ceil_div(a.columns, ATile::COLUMNS));
        bool cut = (b.columns - at.column) % B_WIDTH && b.columns - at.column < BTile::COLUMNS;  // B ends within a vector
        full_tiles = cut ? 0 : static_cast<int>(a.columns / ATile::COLUMNS);
    }

    // Starts to copy tile `number`, the next one, with bounds checks, and commits the copies as a group.
    __device__ __forceinline__ void copy_tile(int number)
    {
        copy_checked(number);
        copy_a.skip_passes();
        copy_b.skip_passes();
        next();
    }

    // The same in `slices` parts, without bounds checks, to issue between the multiply-adds of another tile. If not `wanted`,
    // because copy_checked has copied the tile, the pipeline only advances.
    __device__ __forceinline__ void copy_slice(int slice, int slices, bool wanted)
    {
        constexpr int PASSES = CopyA::PASSES + CopyB::PASSES;
#pragma unroll
        for (int i = 0; i < PASSES; ++i) {
            if (i * slices / PASSES != slice) continue;
            if (i < CopyA::PASSES)
                copy_a.pass(i, wanted);
            else
                copy_b.pass(i - CopyA::PASSES, wanted);
        }
        if (slice == slices - 1) next();
    }

    __device__ __forceinline__ void copy_checked(int number) const
    {
        constexpr int DEPTH = ATile::COLUMNS;
        int remaining = static_cast<int>(min(k_size - static_cast<Size>(number) * DEPTH, static_cast<Size>(DEPTH)));
        copy_a.copy_checked(remaining);
        copy_b.copy_checked(remaining);
    }

    // Waits until all threads' copies of the next tile are complete, and no thread reads the previous one.
    __device__ __forceinline__ static void wait()
    {
        copies_wait<STAGES - 2>();
        __syncthreads();
    }

private:
    using CopyA = TileCopy<ATile, THREADS, A_WIDTH, Along::COLUMNS>;
    using CopyB = TileCopy<BTile, THREADS, B_WIDTH, Along::ROWS>;
    Size k_size;
    CopyA copy_a;
    CopyB copy_b;
    Ring<STAGES, STAGE> ring;

    __device__ __forceinline__ void next()
    {
        copies_commit();
        int forward = ring.advance();
        copy_a.next_tile(forward);
        copy_b.next_tile(forward);
    }
};
