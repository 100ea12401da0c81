// SPDX-License-Identifier: MIT
// The functions of kernels/hopper.cuh for the emulation: same names, signatures and conditions. Included in an anonymous namespace.
#pragma once

using cuda_on_cpu::barrier_arrive, cuda_on_cpu::barrier_expect, cuda_on_cpu::barrier_init, cuda_on_cpu::barrier_wait;
using cuda_on_cpu::cluster_barrier, cuda_on_cpu::rank_in_cluster, cuda_on_cpu::shared_address, cuda_on_cpu::wgmma_commit;

inline void barriers_are_made() {}

inline void copy_unit_to(unsigned short blocks, unsigned to, const void* from, unsigned barrier)
{
    cuda_on_cpu::bulk_copy(blocks, to, from, UNIT_BYTES, barrier);
}

inline void copy_unit(unsigned to, const void* from, unsigned barrier)
{
    copy_unit_to(static_cast<unsigned short>(1u << rank_in_cluster()), to, from, barrier);
}

inline unsigned long long swizzled_lines(unsigned at) { return at; }

template <typename Byte>
void wgmma_m64n256k32(int (&d)[128], unsigned long long a, unsigned long long b, bool adding)
{
    cuda_on_cpu::wgmma(d, static_cast<unsigned>(a), static_cast<unsigned>(b), adding, static_cast<Byte>(-1) < 0);
}

inline void wgmma_begin() {}

template <int PENDING>
void wgmma_wait()
{
    cuda_on_cpu::wait_wgmmas(PENDING);
}
