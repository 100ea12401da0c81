// SPDX-License-Identifier: MIT
// The products of products_mma.cu by Hopper's warpgroup instructions (wgmma), with operands in shared memory.
//
// Two warpgroups multiply 64 rows of A by 256 columns of B each. One more thread fills STAGES stages of 128 bytes along k: units
// have the same layout in global and shared memory, so each is one bulk copy, without a tensor map. The two blocks of a cluster
// compute tiles of the same columns of B: each copies half of these, for both (multicast). Blocks are persistent: they loop over
// tiles, and while one tile's sums are reduced, the next one's operands arrive.
//
// Global loads per multiply-add: 1/128, of one byte. Limit: the matrix units and, under full load, the GPU's power limit.
#include "hopper.cuh"

#if __CUDA_ARCH__ >= 900
constexpr int CLUSTER = 2, STAGES = 4, ROWS = 128, COLUMNS = 256, STAGE = 3 * UNIT_BYTES, MULTIPLIERS = 256;
constexpr unsigned short ALL_BLOCKS = (1 << CLUSTER) - 1;
constexpr Size MOST_STEPS = MOST_TERMS / UNIT;

struct PairOfTiles {
    int number;  // of the modulus
    Size row, column;
};

// The moduli one after the other; within one, as tile_position with GROUP pairs of tiles.
__device__ __forceinline__ PairOfTiles pair_of_tiles(Size number, Size rows, Size columns)
{
    constexpr int GROUP = 16, HEIGHT = CLUSTER * ROWS;
    Size of_one = ceil_div(rows, HEIGHT) * ceil_div(columns, COLUMNS);
    TilePosition at = tile_position<HEIGHT, COLUMNS, GROUP>(Matrix<char>{nullptr, rows, columns, columns}, number % of_one);
    return {static_cast<int>(number / of_one), at.row, at.column};
}

// The pairs of tiles that a cluster takes: from `first` on, every `stride`-th.
struct Work {
    Size first, stride, pairs, steps;

    __device__ Work(Size rows, Size columns, Size moduli, Size inner)
    {
        first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER, steps = inner / UNIT;
        pairs = ceil_div(rows, CLUSTER * ROWS) * ceil_div(columns, COLUMNS) * moduli;
    }
};

// A ring buffer of stages, each with a barrier for "full" and one for "empty".
struct Stages {
    unsigned data, full, empty;
    int stage = 0;
    unsigned phase = 0;  // of this turn around the ring, modulo 2

    __device__ Stages(const void* data, const void* barriers)
        : data(shared_address(data)), full(shared_address(barriers)), empty(full + 8 * STAGES)
    {
    }

    __device__ __forceinline__ unsigned bytes() const { return data + stage * STAGE; }
    __device__ __forceinline__ unsigned when_full() const { return full + 8 * stage; }
    __device__ __forceinline__ unsigned when_empty() const { return empty + 8 * stage; }
    __device__ __forceinline__ void advance()
    {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// The copying thread.
__device__ __forceinline__ void copy_operands(Stages stages, const Work& work, const Matrix<const unsigned char>& a,
                                              const Matrix<const unsigned char>& b, Size rows, Size columns)
{
    unsigned rank = rank_in_cluster();
    for (Size number = work.first; number < work.pairs; number += work.stride) {
        PairOfTiles pair = pair_of_tiles(number, rows, columns);
        const unsigned char* from_a = &a(pair.number, 0) + (pair.row / UNIT + rank) * work.steps * UNIT_BYTES;
        const unsigned char* from_b = &b(pair.number, 0) + (pair.column / UNIT + rank) * work.steps * UNIT_BYTES;
        for (Size step = 0; step < work.steps; ++step, stages.advance()) {
            barrier_wait(stages.when_empty(), stages.phase ^ 1);  // returns at once in the first turn
            barrier_expect(stages.when_full(), STAGE);
            copy_unit(stages.bytes(), from_a + step * UNIT_BYTES, stages.when_full());
            copy_unit_to(ALL_BLOCKS, stages.bytes() + (1 + rank) * UNIT_BYTES, from_b + step * UNIT_BYTES, stages.when_full());
        }
    }
}

// A warpgroup's sums over steps `begin` to `end` of one tile; overwrites `sums` if `begin` is 0, else adds to them.
template <typename Byte>
__device__ __forceinline__ void multiply(int (&sums)[128], Stages& stages, Size begin, Size end)
{
    auto is_read = [&](unsigned barrier) {  // signals both blocks, which copy into this stage
        if (threadIdx.x % 128 < CLUSTER) barrier_arrive(barrier, threadIdx.x % 128);
    };
    unsigned before = 0;
    for (Size step = begin; step < end; ++step, stages.advance()) {
        barrier_wait(stages.when_full(), stages.phase);
        unsigned of_a = stages.bytes() + threadIdx.x / 128 * (UNIT_BYTES / 2), of_b = stages.bytes() + UNIT_BYTES;
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < UNIT; k += 32)
            wgmma_m64n256k32<Byte>(sums, swizzled_lines(of_a + k), swizzled_lines(of_b + k), step + k > 0);
        wgmma_commit();
        if (step > begin) {
            wgmma_wait<1>();
            is_read(before);
        }
        before = stages.when_empty();
    }
    wgmma_wait<0>();
    is_read(before);
}

// Calls `finish(sums, number of the modulus, first row, first column)` for each of the block's tiles, in the threads with its sums.
template <typename Byte, typename Reduce, typename Finish>
__device__ __forceinline__ void multiply_tiles(const Matrix<const unsigned char>& a, const Matrix<const unsigned char>& b,
                                               Size rows, Size columns, Size moduli, Size inner, Reduce reduce, Finish finish)
{
    unsigned char* data = dynamic_shared_memory<unsigned char>();
    __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
    Work work(rows, columns, moduli, inner);
    Stages stages(data, barriers);
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(stages.full + 8 * i, 1);
            barrier_init(stages.empty + 8 * i, MULTIPLIERS / 128 * CLUSTER);
        }
    barriers_are_made();
    cluster_barrier();
    if (threadIdx.x == MULTIPLIERS) copy_operands(stages, work, a, b, rows, columns);
    if (threadIdx.x < MULTIPLIERS) {
        int sums[128], lane = threadIdx.x % 32;
        Size row_in_pair = rank_in_cluster() * ROWS + threadIdx.x / 32 * 16 + lane / 4;
        for (Size number = work.first; number < work.pairs; number += work.stride) {
            PairOfTiles pair = pair_of_tiles(number, rows, columns);
            multiply<Byte>(sums, stages, 0, min(work.steps, MOST_STEPS));
            for (Size begin = MOST_STEPS; begin < work.steps; begin += MOST_STEPS) {
                reduce(sums, pair.number);
                multiply<Byte>(sums, stages, begin, min(work.steps, begin + MOST_STEPS));
            }
            finish(sums, pair.number, pair.row + row_in_pair, pair.column);
        }
    }
    cluster_barrier();  // no block may end while the other one copies into its shared memory
}

// As in products_mma.cu.
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(MULTIPLIERS + 32, 1)
    products(Matrix<const unsigned char> a, Matrix<const unsigned char> b, Matrix<unsigned char> c, long long rows, long long inner)
{
    auto reduce = [](int (&sums)[128], int number) {
        Divisor by(modulus(number));
#pragma unroll
        for (int& sum : sums) sum = by.remainder(sum);
    };
    auto finish = [&](const int (&sums)[128], int number, Size row, Size left) {
        Divisor by(modulus(number));
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int group = 0; group < 4; ++group) {
                unsigned words[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int* four = sums + (group * 8 + 2 * i) * 4 + half * 2;
                    words[i] =
                        pack_bytes(by.remainder(four[0]), by.remainder(four[1]), by.remainder(four[4]), by.remainder(four[5]));
                }
                Size r = row + 8 * half, column = left + 64 * group + threadIdx.x % 4 * 16;
                if (r < rows && column < c.columns)
                    *reinterpret_cast<uint4*>(&c(number * rows + r, column)) = make_uint4(words[0], words[1], words[2], words[3]);
            }
    };
    multiply_tiles<unsigned char>(a, b, rows, c.columns, c.rows / rows, inner, reduce, finish);
}

__device__ __forceinline__ void store_two(double* to, int x, int y) { *reinterpret_cast<double2*>(to) = make_double2(x, y); }
__device__ __forceinline__ void store_two(int* to, int x, int y) { *reinterpret_cast<int2*>(to) = make_int2(x, y); }
__device__ __forceinline__ void store_two(float* to, int x, int y) { *reinterpret_cast<float2*>(to) = make_float2(x, y); }

template <typename T>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(MULTIPLIERS + 32, 1)
    byte_products(Matrix<const unsigned char> a, Matrix<const unsigned char> b, Matrix<T> c, long long inner)
{
    bool aligned = (reinterpret_cast<size_t>(c.data) | c.stride * sizeof(T)) % (2 * sizeof(T)) == 0;
    auto finish = [&](const int (&sums)[128], int, Size row, Size left) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Size column = left + threadIdx.x % 4 * 2;
            T* to = &c(row + 8 * half, column);
            int there = row + 8 * half < c.rows ? static_cast<int>(min(c.columns - column, Size(COLUMNS))) : 0;
#pragma unroll
            for (int j = 0; j < 32; ++j) {
                int first = sums[4 * j + 2 * half], second = sums[4 * j + 2 * half + 1];
                if (aligned && 8 * j + 1 < there) {
                    store_two(to + 8 * j, first, second);
                } else {
                    if (8 * j < there) to[8 * j] = static_cast<T>(first);
                    if (8 * j + 1 < there) to[8 * j + 1] = static_cast<T>(second);
                }
            }
        }
    };
    multiply_tiles<signed char>(a, b, c.rows, c.columns, 1, inner, [](int (&)[128], int) {}, finish);
}

// As in guard.cu.
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(MULTIPLIERS + 32, 1)
    least_ratio(Matrix<const unsigned char> a, Matrix<const unsigned char> b, Matrix<const float> row_steps,
                Matrix<const float> column_steps, Matrix<int> least)
{
    Size rows = row_steps.columns, columns = column_steps.columns;
    float ratio = 1;
    auto finish = [&](const int (&sums)[128], int, Size row, Size left) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Size r = row + 8 * half, column = left + threadIdx.x % 4 * 2;
            int there = r < rows ? static_cast<int>(min(columns - column, Size(COLUMNS))) : 0;
            float of_row = there > 0 ? row_steps.data[r] : 0;
            const float* of_columns = column_steps.data + column;
#pragma unroll
            for (int j = 0; j < 32; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (8 * j + i < there)
                        ratio = fminf(ratio, static_cast<float>(sums[4 * j + 2 * half + i]) * (of_row * of_columns[8 * j + i]));
        }
    };
    multiply_tiles<unsigned char>(a, b, rows, columns, 1, a.columns, [](int (&)[128], int) {}, finish);
    note_least(ratio, least);
}
#endif
