// The instructions CUDA C++ has no words for, one function each. On a CPU their twins take their place.
#pragma once

#ifdef CUDA_ON_CPU
#include "twins.h"
#else

// One rounding, and subnormal numbers kept whatever the compiler was told about them.
__device__ __forceinline__ float multiply_add(float x, float y, float sum)
{
    asm("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(x), "f"(y));
    return sum;
}

__device__ __forceinline__ double multiply_add(double x, double y, double sum) { return fma(x, y, sum); }

// The shared memory whose size the launch gives.
template <typename T>
__device__ __forceinline__ T* launched_shared_memory()
{
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    return reinterpret_cast<T*>(shared_bytes);
}

#if __CUDA_ARCH__ >= 800
// BYTES (4, 8 or 16) from global to shared memory, past the registers. Both addresses are multiples of BYTES. Done when a
// later copies_wait says so.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global)
{
    unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(BYTES) : "memory");
}

// The same, but only `there` bytes of the source are read; zeros make up the rest.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global, int there)
{
    unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(there) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(BYTES), "r"(there) : "memory");
}

// Closes a group of copies.
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `PENDING` of this thread's groups, the youngest, are under way.
template <int PENDING>
__device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// A warp's d (8×8) += a (8×4) · b (4×8). With g = lane / 4 and t = lane % 4, a lane holds a(g, t), b(t, g), d(g, 2t) and d(g, 2t+1).
__device__ __forceinline__ void mma_m8n8k4(double (&d)[2], double a, double b)
{
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1])
                 : "d"(a), "d"(b));
}
#endif

#if __CUDA_ARCH__ >= 900
// A warp's d (16×8) += a (16×8) · b (8×8). A lane holds a(g, t), a(g+8, t), a(g, t+4), a(g+8, t+4); b(t, g), b(t+4, g);
// d(g, 2t), d(g, 2t+1), d(g+8, 2t), d(g+8, 2t+1).
__device__ __forceinline__ void mma_m16n8k8(double (&d)[4], const double (&a)[4], const double (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
}
#endif
#endif  // CUDA_ON_CPU
