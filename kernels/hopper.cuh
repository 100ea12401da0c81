// SPDX-License-Identifier: MIT
// PTX instructions of compute capability 9.0a: clusters, bulk copies that count bytes at barriers, and matrix instructions of a
// warpgroup (wgmma). Addresses of shared memory are 32 bits.
#pragma once
#include "packed.cuh"

#ifdef CUDA_ON_CPU
#include "hopper_twins.h"
#else

__device__ __forceinline__ unsigned shared_address(const void* at) { return static_cast<unsigned>(__cvta_generic_to_shared(at)); }

__device__ __forceinline__ unsigned rank_in_cluster()
{
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// A barrier in shared memory (mbarrier). A phase ends when all arrivals and all expected bytes are there; a wait takes the parity
// of the phase that must end.
__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barriers_are_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity)
{
    asm volatile(
        "{\n.reg .pred complete;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
        "@!complete bra again;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Arrives, and expects this many bytes.
__device__ __forceinline__ void barrier_expect(unsigned barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives at the same barrier of another block of the cluster.
__device__ __forceinline__ void barrier_arrive(unsigned barrier, unsigned rank)
{
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

// Copies a whole unit, by one thread; its bytes count at the barrier.
__device__ __forceinline__ void copy_unit(unsigned to, const void* from, unsigned barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(UNIT_BYTES), "r"(barrier)
                 : "memory");
}

// The same to this address in several blocks of the cluster (multicast). `blocks`: a bit mask.
__device__ __forceinline__ void copy_unit_to(unsigned short blocks, unsigned to, const void* from, unsigned barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(UNIT_BYTES), "r"(barrier), "h"(blocks)
        : "memory");
}

// The wgmma descriptor of lines of 128 bytes in shared memory, eight per 1024 bytes, with the 128-byte swizzle.
__device__ __forceinline__ unsigned long long swizzled_lines(unsigned at)
{
    return static_cast<unsigned long long>((at & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// A warpgroup's d (64×256) = or, if `adding`, += a (64×32) · b (32×256), both from shared memory. Lane (g, t) of warp w has of d
// the rows 16w + g and 16w + g + 8 as mma.sync does: d[4j] to d[4j+3] are those of columns 8j to 8j+7.
#define FOUR(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define WGMMA(TYPES)                                                                                                               \
    asm volatile(                                                                                                                  \
        "{\n.reg .pred adding;\nsetp.ne.b32 adding, %130, 0;\n"                                                                    \
        "wgmma.mma_async.sync.aligned.m64n256k32.s32." TYPES                                                                       \
        " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, "    \
        "%25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
        "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, " \
        "%73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, " \
        "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, "    \
        "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, adding;\n}"                                \
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80), SIXTEEN(96), SIXTEEN(112)                   \
        : "l"(a), "l"(b), "r"(static_cast<int>(adding)))

template <typename Byte>
__device__ __forceinline__ void wgmma_m64n256k32(int (&d)[128], unsigned long long a, unsigned long long b, bool adding)
{
    if constexpr (static_cast<Byte>(-1) < 0)
        WGMMA("s8.s8");
    else
        WGMMA("u8.u8");
}
#undef WGMMA
#undef SIXTEEN
#undef FOUR

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING of the warpgroup's youngest groups are incomplete.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
#endif  // CUDA_ON_CPU
