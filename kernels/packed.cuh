// SPDX-License-Identifier: MIT
// The layout of bytes for the matrix units, for rows of A and columns of B (rows of Bᵀ), and loops that pack a matrix into it, four
// neighbours along k at a time.
//
// A unit is 128 lines (rows of A or columns of B) by 128 bytes along k: 16 contiguous KiB, which are copied to shared memory as
// they are. The 16-byte pieces of line r have the hardware's 128-byte swizzle: piece c is at c ^ (r % 8). Units are ordered along
// k, then by lines. A plane holds all units of one modulus.
#pragma once
#include "moduli.cuh"

constexpr int UNIT = 128, UNIT_BYTES = UNIT * UNIT;

__host__ __device__ constexpr Size units(Size length) { return (length + UNIT - 1) / UNIT; }

__device__ __forceinline__ Size packed_offset(Size line, Size k, Size units_along_k)
{
    Size unit = line / UNIT * units_along_k + k / UNIT;
    int r = static_cast<int>(line % UNIT), piece = static_cast<int>(k % UNIT / 16);
    return unit * UNIT_BYTES + r * UNIT + ((piece ^ r % 8) << 4) + k % 16;
}

// The line for column c of B, permuted within 64: a lane of a matrix instruction gets two neighbouring lines of every eight, and so
// 16 neighbouring columns of C.
__device__ __forceinline__ Size interleaved(Size c)
{
    int of_64 = static_cast<int>(c % 64);
    return c - of_64 + of_64 % 16 / 2 * 8 + of_64 / 16 * 2 + of_64 % 2;
}

// Loads four neighbours, zeros beyond `valid`. `aligned`: all rows begin at a multiple of 16 bytes.
__device__ __forceinline__ void load_four(const double* from, Size valid, bool aligned, double (&x)[4])
{
    if (aligned && valid >= 4) {
        double2 first = __ldcs(reinterpret_cast<const double2*>(from)), second = __ldcs(reinterpret_cast<const double2*>(from) + 1);
        x[0] = first.x, x[1] = first.y, x[2] = second.x, x[3] = second.y;
    } else
        for (int i = 0; i < 4; ++i) x[i] = i < valid ? from[i] : 0;
}

__device__ __forceinline__ void load_four(const float* from, Size valid, bool aligned, float (&x)[4])
{
    if (aligned && valid >= 4) {
        float4 four = __ldcs(reinterpret_cast<const float4*>(from));
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else
        for (int i = 0; i < 4; ++i) x[i] = i < valid ? from[i] : 0;
}

// Lowers `least`, a float's bits, to the least ratio of all calling warps. Nonnegative floats are ordered as their bits.
__device__ __forceinline__ void note_least(float ratio, const Matrix<int>& least)
{
    for (int distance = 16; distance; distance /= 2) ratio = fminf(ratio, __shfl_xor_sync(~0u, ratio, distance));
    if (threadIdx.x % 32 == 0 && __float_as_int(ratio) < least(0, 0)) atomicMin(&least(0, 0), __float_as_int(ratio));
}

constexpr int PACKING_THREADS = 256, ROWS_PACKED = 8, COLUMNS_PACKED = 32;  // of a block; lines that it packs

// A warp packs 128 neighbours along k of a row of A. `Way::store` converts four of them and writes the bytes; `Way::place(unit)` is
// the source's unit along k for the packed one. Loads are coalesced, 16 bytes a lane.
//
// With two `Way::PARTS`, elements are complex, with real and imaginary parts alternating in a row, and `store` gets four of each.
template <typename T, typename Way>
__device__ __forceinline__ void pack_rows(const Matrix<const T>& a, const Way& way, Size packed_units)
{
    Size row = blockIdx.x * Size(ROWS_PACKED) + threadIdx.x / 32, unit = blockIdx.y;
    int lane = threadIdx.x % 32;
    if (row >= a.rows) return;
    constexpr int PARTS = Way::PARTS;
    Size k = (way.place(unit) * UNIT + 4 * lane) * PARTS;
    bool aligned = (reinterpret_cast<size_t>(a.data) | a.stride * sizeof(T)) % 16 == 0;
    T loaded[PARTS][4], four[PARTS][4];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) load_four(&a(row, 0) + k + 4 * i, a.columns - k - 4 * i, aligned, loaded[i]);
#pragma unroll
    for (int i = 0; i < 4 * PARTS; ++i) four[i % PARTS][i / PARTS] = loaded[i / 4][i % 4];
    way.store(four, row, packed_offset(row, unit * UNIT + 4 * lane, packed_units));
}

// A block packs 128 rows of 32 columns of B, or of 16 complex ones, transposed in shared memory.
template <typename T, typename Way>
__device__ __forceinline__ void pack_columns(const Matrix<const T>& b, const Way& way, Size packed_units)
{
    constexpr int PARTS = Way::PARTS;
    constexpr int PITCH = UNIT + 16 / sizeof(T);  // of a column in shared memory: its lanes' 16-byte loads have no bank conflicts
    __shared__ __align__(16) T tile[COLUMNS_PACKED][PITCH];
    Size first = blockIdx.x * Size(COLUMNS_PACKED), unit = blockIdx.y, first_k = way.place(unit) * UNIT;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 8
    for (int i = warp; i < UNIT; i += PACKING_THREADS / 32)
        tile[lane][i] = b.holds(first_k + i, first + lane) ? __ldcs(&b(first_k + i, first + lane)) : T(0);
    __syncthreads();
#pragma unroll
    for (int i = warp; i < COLUMNS_PACKED / PARTS; i += PACKING_THREADS / 32) {
        Size column = first / PARTS + i;
        if (column * PARTS >= b.columns) break;
        T four[PARTS][4];
#pragma unroll
        for (int j = 0; j < 4 * PARTS; ++j) four[j / 4][j % 4] = tile[i * PARTS + j / 4][4 * lane + j % 4];
        way.store(four, column, packed_offset(way.line(column), unit * UNIT + 4 * lane, packed_units));
    }
}
