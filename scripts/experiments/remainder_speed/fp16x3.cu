// SPDX-License-Identifier: MIT
// An experiment: float32 products as three products of float16 on the matrix units of compute capability 9.0a. Each element is the
// sum of two halves, high and low; low · low is left out. The units cut their sums off, so after every CHUNK units along k, of 64
// halves each, sums are added to registers, where they are rounded to nearest.
//
// Blocks, copies and barriers are those of kernels/products.cu, without persistence. A stage holds 64 along k of high and low halves of
// 128 rows and 128 columns.
#include "hopper.cuh"

constexpr int CLUSTER = 2, STAGES = 3, ROWS = 128, COLUMNS = 128, STAGE = 4 * UNIT_BYTES, MULTIPLIERS = 256, HALVES = UNIT / 2;
constexpr unsigned short ALL_BLOCKS = (1 << CLUSTER) - 1;

__device__ __forceinline__ unsigned short half_of(float x)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ float float_of(unsigned short bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// Eight neighbours along k of a row of A, or of a column of B, as high and as low halves: 16 bytes in each of two packed planes.
template <bool OF_COLUMNS>
__global__ void __launch_bounds__(256) split(Matrix<const float> matrix, Matrix<const double> scales, Matrix<unsigned char> planes)
{
    Size lines = OF_COLUMNS ? matrix.columns : matrix.rows, length = OF_COLUMNS ? matrix.rows : matrix.columns;
    Size units = (length + HALVES - 1) / HALVES, pieces = units * 8;
    Size number = blockIdx.x * Size(256) + threadIdx.x;
    Size line = OF_COLUMNS ? number % lines : number / pieces, piece = OF_COLUMNS ? number / lines : number % pieces;
    if (line >= lines || piece >= pieces) return;
    double scale = scales.data[line];
    unsigned high[4], low[4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        Size k = piece * 8 + i;
        float x = k < length ? static_cast<float>(widened(OF_COLUMNS ? matrix(k, line) : matrix(line, k)) * scale) : 0.0f;
        unsigned short upper = half_of(x), lower = half_of(x - float_of(upper));
        high[i / 2] = i % 2 ? high[i / 2] | static_cast<unsigned>(upper) << 16 : upper;
        low[i / 2] = i % 2 ? low[i / 2] | static_cast<unsigned>(lower) << 16 : lower;
    }
    Size at = (line / UNIT * units + piece / 8) * UNIT_BYTES + line % UNIT * UNIT + ((piece % 8 ^ line % 8) << 4);
    *reinterpret_cast<uint4*>(planes.data + at) = make_uint4(high[0], high[1], high[2], high[3]);
    *reinterpret_cast<uint4*>(planes.data + planes.stride + at) = make_uint4(low[0], low[1], low[2], low[3]);
}

#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)

// A warpgroup's d (64×128) = or, if `adding`, += a (64×16) · b (16×128) of halves, as wgmma_m64n256k32 of hopper.cuh.
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], unsigned long long a, unsigned long long b, bool adding)
{
    asm volatile(
        "{\n.reg .pred adding;\nsetp.ne.b32 adding, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
        "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, adding, 1, 1, 0, 0;\n}"
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)
        : "l"(a), "l"(b), "r"(static_cast<int>(adding)));
}
#undef SIXTEEN
#undef FOUR

// `a`, `b`: planes of high and low halves, whose lines' units along k are `units`. `row_scales`, `column_scales`: inverse powers of two.
template <int CHUNK>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(MULTIPLIERS + 32, 1)
    products_of_halves(Matrix<const unsigned char> a, Matrix<const unsigned char> b, Matrix<const double> row_scales,
                       Matrix<const double> column_scales, Matrix<float> c, long long units)
{
    unsigned char* shared = dynamic_shared_memory<unsigned char>();
    __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
    unsigned data = shared_address(shared), full = shared_address(barriers), empty = full + 8 * STAGES, rank = rank_in_cluster();
    TilePosition at = tile_position<CLUSTER * ROWS, COLUMNS>(c, blockIdx.x / CLUSTER);
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, MULTIPLIERS / 128 * CLUSTER);
        }
    barriers_are_made();
    cluster_barrier();
    if (threadIdx.x == MULTIPLIERS) {
        const unsigned char* from_a = a.data + (at.row / UNIT + rank) * units * UNIT_BYTES;
        const unsigned char* from_b = b.data + rank * b.stride + at.column / UNIT * units * UNIT_BYTES;
        for (Size unit = 0; unit < units; ++unit) {
            int stage = static_cast<int>(unit % STAGES);
            unsigned to = data + stage * STAGE, when_full = full + 8 * stage;
            barrier_wait(empty + 8 * stage, static_cast<unsigned>(unit / STAGES + 1) % 2);
            barrier_expect(when_full, STAGE);
            copy_unit(to, from_a + unit * UNIT_BYTES, when_full);
            copy_unit(to + UNIT_BYTES, from_a + a.stride + unit * UNIT_BYTES, when_full);
            // High halves of B are copied by one block of the cluster, low ones by the other, for both.
            copy_unit_to(ALL_BLOCKS, to + (2 + rank) * UNIT_BYTES, from_b + unit * UNIT_BYTES, when_full);
        }
    }
    if (threadIdx.x < MULTIPLIERS) {
        float sums[64] = {}, d[64];
        for (Size first = 0; first < units; first += CHUNK) {
            Size end = min(units, first + CHUNK);
            for (Size unit = first; unit < end; ++unit) {
                int stage = static_cast<int>(unit % STAGES);
                unsigned of_a = data + stage * STAGE + threadIdx.x / 128 * (UNIT_BYTES / 2),
                         of_b = data + stage * STAGE + 2 * UNIT_BYTES;
                barrier_wait(full + 8 * stage, static_cast<unsigned>(unit / STAGES) % 2);
                wgmma_begin();
#pragma unroll
                for (int k = 0; k < UNIT; k += 32) {
                    unsigned long long high_a = swizzled_lines(of_a + k), low_a = swizzled_lines(of_a + UNIT_BYTES + k);
                    unsigned long long high_b = swizzled_lines(of_b + k), low_b = swizzled_lines(of_b + UNIT_BYTES + k);
                    wgmma_m64n128k16(d, low_a, high_b, unit > first || k > 0);  // small ones first
                    wgmma_m64n128k16(d, high_a, low_b, true);
                    wgmma_m64n128k16(d, high_a, high_b, true);
                }
                wgmma_commit();
                wgmma_wait<0>();
                if (threadIdx.x % 128 < CLUSTER) barrier_arrive(empty + 8 * stage, threadIdx.x % 128);
            }
#pragma unroll
            for (int i = 0; i < 64; ++i) sums[i] += d[i];
        }
        int lane = threadIdx.x % 32;
        Size row = at.row + rank * ROWS + threadIdx.x / 32 * 16 + lane / 4, left = at.column + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Size r = row + 8 * half;
            if (r >= c.rows) continue;
            float of_row = static_cast<float>(row_scales.data[r]);
#pragma unroll
            for (int j = 0; j < 16; ++j)
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    Size column = left + 8 * j + n;
                    if (column < c.columns)
                        c(r, column) = sums[4 * j + 2 * half + n] * of_row * static_cast<float>(column_scales.data[column]);
                }
        }
    }
    cluster_barrier();  // no block may end while the other one copies into its shared memory
}
