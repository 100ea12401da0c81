// SPDX-License-Identifier: MIT
// The functions of kernels/hopper.cuh for the emulation: same names, signatures and conditions. Included in an anonymous namespace.
#pragma once

using cuda_on_cpu::cluster_barrier;
using cuda_on_cpu::rank_in_cluster;
using cuda_on_cpu::shared_address;

inline void barrier_init(unsigned barrier, int arrivals) { cuda_on_cpu::init_mbarrier(barrier, static_cast<unsigned>(arrivals)); }
inline void barriers_are_made() {}
inline void barrier_wait(unsigned barrier, unsigned parity) { cuda_on_cpu::wait_mbarrier(barrier, parity); }
inline void barrier_expect(unsigned barrier, int bytes) { cuda_on_cpu::expect_bytes(barrier, static_cast<unsigned>(bytes)); }
inline void barrier_arrive(unsigned barrier, unsigned rank) { cuda_on_cpu::arrive_at_mbarrier(barrier, rank); }

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
inline void wgmma_commit() { cuda_on_cpu::commit_wgmmas(); }

template <int PENDING>
void wgmma_wait()
{
    cuda_on_cpu::wait_wgmmas(PENDING);
}
