// SPDX-License-Identifier: MIT
// Wrappers of PTX instructions without a CUDA C++ function. For the emulation on a CPU, twins.h has the same functions.
#pragma once

// 16-bit elements: kernels only move them, for the matrix units.
struct Float16 {
    static constexpr int EXPONENT_BITS = 5;
    unsigned short bits;
};

struct Bfloat16 {
    static constexpr int EXPONENT_BITS = 8;
    unsigned short bits;
};

#ifdef CUDA_ON_CPU
#include "twins.h"
#else

// A fused multiply-add, in PTX to keep subnormal numbers even with -ftz=true.
__device__ __forceinline__ float multiply_add(float x, float y, float sum)
{
    asm("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(x), "f"(y));
    return sum;
}

__device__ __forceinline__ double multiply_add(double x, double y, double sum) { return fma(x, y, sum); }

// Conversions between float and double that keep subnormal floats.
__device__ __forceinline__ double widened(float x)
{
    double y;
    asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ double widened(double x) { return x; }

__device__ __forceinline__ double widened(Float16 x)
{
    double y;
    asm("cvt.f64.f16 %0, %1;" : "=d"(y) : "h"(x.bits));
    return y;
}

__device__ __forceinline__ double widened(Bfloat16 x) { return widened(__uint_as_float(static_cast<unsigned>(x.bits) << 16)); }

template <typename T>
__device__ __forceinline__ T rounded(double x)
{
    if constexpr (sizeof(T) == sizeof(double)) {
        return x;
    } else {
        float y;
        asm("cvt.rn.f32.f64 %0, %1;" : "=f"(y) : "d"(x));
        return y;
    }
}

// The dynamic shared memory, sized by the launch configuration.
template <typename T>
__device__ __forceinline__ T* dynamic_shared_memory()
{
    extern __shared__ __align__(1024) unsigned char shared_bytes[];  // aligned for the 128-byte swizzle
    return reinterpret_cast<T*>(shared_bytes);
}

// Four unsigned bytes times four signed ones, added to `sum`.
__device__ __forceinline__ int dot_bytes(unsigned unsigned_bytes, unsigned signed_bytes, int sum)
{
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(unsigned_bytes), "r"(signed_bytes));
    return sum;
}

#if __CUDA_ARCH__ >= 750
// ldmatrix: four matrices of eight rows of 16 bytes. Lane i has the address of row i % 8 of matrix i / 8; it gets of each matrix
// bytes 4·(lane % 4) to 4·(lane % 4) + 3 of row lane / 4.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* shared)
{
    unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

// On the matrix units: a warp's d (8×8) += a (8×16) · b (16×8), of signed or unsigned bytes. Lane (g, t) = (lane / 4, lane % 4) has
// of a the columns 4t to 4t+3 of row g, of b the rows 4t to 4t+3 of column g; d(g, 2t) and d(g, 2t+1).
#define MMA_OF_BYTES(TYPES)                                                                           \
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32." TYPES ".s32 {%0, %1}, {%2}, {%3}, {%0, %1};" \
                 : "+r"(d[0]), "+r"(d[1])                                                             \
                 : "r"(a), "r"(b))

template <typename Byte>
__device__ __forceinline__ void mma_m8n8k16(int (&d)[2], unsigned a, unsigned b)
{
    if constexpr (static_cast<Byte>(-1) < 0)
        MMA_OF_BYTES("s8.s8");
    else
        MMA_OF_BYTES("u8.u8");
}
#undef MMA_OF_BYTES
#endif

#if __CUDA_ARCH__ >= 800
// cp.async: copies BYTES (4, 8 or 16) from global to shared memory asynchronously, without registers. Both addresses are aligned
// to BYTES. It is complete after a copies_wait for its group.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global)
{
    unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(BYTES) : "memory");
}

// The same, but reads only `valid` bytes of the source, and fills the rest with zeros.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global, int valid)
{
    unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(BYTES), "r"(valid) : "memory");
}

// Commits this thread's copies since the last commit as a group.
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the PENDING youngest groups of this thread are incomplete.
template <int PENDING>
__device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// On the tensor cores: a warp's d (8×8) += a (8×4) · b (4×8). Lane (g, t) = (lane / 4, lane % 4) has a(g, t), b(t, g), d(g, 2t)
// and d(g, 2t+1).
__device__ __forceinline__ void mma_m8n8k4(double (&d)[2], double a, double b)
{
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1])
                 : "d"(a), "d"(b));
}

// The same with each matrix transposed, as 16-bit elements: of each a lane gets rows 2·(lane % 4) and 2·(lane % 4) + 1 in column
// lane / 4.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], const void* shared)
{
    unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

// On the matrix units: a warp's d (16×8) += a (16×16) · b (16×8), of 16-bit elements with sums in float. Lane (g, t) has of a the
// columns 2t and 2t+1 of rows g and g+8, then those 8 to the right; of b the rows 2t and 2t+1 of column g, then those 8 below;
// d(g, 2t), d(g, 2t+1), d(g+8, 2t), d(g+8, 2t+1).
#define MMA_OF_HALVES(TYPES)                                           \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPES        \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
                 "{%0, %1, %2, %3};"                                   \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    if constexpr (T::EXPONENT_BITS == Bfloat16::EXPONENT_BITS)
        MMA_OF_HALVES("bf16.bf16");
    else
        MMA_OF_HALVES("f16.f16");
}
#undef MMA_OF_HALVES

// On the matrix units: a warp's d (16×8) += a (16×32) · b (32×8), of signed or unsigned bytes. Lane (g, t) has of a the columns
// 4t to 4t+3 of rows g and g+8, then those 16 to the right; of b the rows 4t to 4t+3 of column g, then those 16 below; d(g, 2t),
// d(g, 2t+1), d(g+8, 2t), d(g+8, 2t+1).
#define MMA_OF_BYTES(TYPES)                                            \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." TYPES        \
                 ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
                 "{%0, %1, %2, %3};"                                   \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

template <typename Byte>
__device__ __forceinline__ void mma_m16n8k32(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    if constexpr (static_cast<Byte>(-1) < 0)
        MMA_OF_BYTES("s8.s8");
    else
        MMA_OF_BYTES("u8.u8");
}
#undef MMA_OF_BYTES
#endif

#if __CUDA_ARCH__ >= 900
// A warp's d (16×8) += a (16×8) · b (8×8). Lane (g, t) has a(g, t), a(g+8, t), a(g, t+4), a(g+8, t+4); b(t, g), b(t+4, g);
// d(g, 2t), d(g, 2t+1), d(g+8, 2t), d(g+8, 2t+1).
__device__ __forceinline__ void mma_m16n8k8(double (&d)[4], const double (&a)[4], const double (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
}
#endif
#endif  // CUDA_ON_CPU

#if __CUDA_ARCH__ < 800
// Before sm_80, copies are synchronous.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global, int valid)
{
    for (int i = 0; i < BYTES / 4; ++i)
        static_cast<unsigned*>(shared)[i] = 4 * i < valid ? static_cast<const unsigned*>(global)[i] : 0;
}

template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global)
{
    copy_async<BYTES>(shared, global, BYTES);
}

__device__ __forceinline__ void copies_commit() {}

template <int PENDING>
__device__ __forceinline__ void copies_wait()
{
}
#endif

#if __CUDA_ARCH__ >= 750
// A lane's part of d (16×8) += a (16×32) · b (32×8), of bytes. Before sm_80 it takes four mma of 8×8×16.
template <typename Byte>
__device__ __forceinline__ void multiply_bytes(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
#if __CUDA_ARCH__ >= 800
    mma_m16n8k32<Byte>(d, a, b0, b1);
#else
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int part[2] = {d[2 * half], d[2 * half + 1]};
        mma_m8n8k16<Byte>(part, a[half], b0);
        mma_m8n8k16<Byte>(part, a[half + 2], b1);
        d[2 * half] = part[0];
        d[2 * half + 1] = part[1];
    }
#endif
}
#endif

#if __CUDA_ARCH__ >= 800
// A lane's part of d (16×8) += a (16×8) · b (8×8). Before sm_90 it takes four mma of 8×8×4.
__device__ __forceinline__ void multiply_fragments(double (&d)[4], const double (&a)[4], const double (&b)[2])
{
#if __CUDA_ARCH__ >= 900
    mma_m16n8k8(d, a, b);
#else
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        double part[2] = {d[2 * half], d[2 * half + 1]};
        mma_m8n8k4(part, a[half], b[0]);
        mma_m8n8k4(part, a[half + 2], b[1]);
        d[2 * half] = part[0];
        d[2 * half + 1] = part[1];
    }
#endif
}
#endif
