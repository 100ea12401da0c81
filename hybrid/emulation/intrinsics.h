// SPDX-License-Identifier: MIT
// CUDA's votes and reductions of a warp or a block, and its integer and floating-point intrinsics. Included by cuda_on_cpu.h.
#pragma once
#include <time.h>

namespace cuda_on_cpu {

struct Votes {
    unsigned yes, all;  // lane masks of a warp, or thread counts of a block
};

Votes block_votes(bool yes, Place place);
unsigned active_mask(Place place);

inline void vote(const Lanes& lanes)
{
    Votes votes{0, lanes.mask};
    for (int lane = 0; lane < 32; ++lane)
        if (lanes.mask >> lane & 1 && *static_cast<const bool*>(lanes.input[lane])) votes.yes |= 1u << lane;
    for (int lane = 0; lane < 32; ++lane)
        if (lanes.mask >> lane & 1) *static_cast<Votes*>(lanes.output[lane]) = votes;
}

inline Votes warp_votes(unsigned mask, bool yes, Place place)
{
    Votes votes;
    warp_sync(mask, vote, &yes, &votes, false, place);
    return votes;
}

template <typename T, T (*combined)(T, T)>
void reduce(const Lanes& lanes)
{
    int first = __builtin_ctz(lanes.mask);
    T result = *static_cast<const T*>(lanes.input[first]);
    for (int lane = first + 1; lane < 32; ++lane)
        if (lanes.mask >> lane & 1) result = combined(result, *static_cast<const T*>(lanes.input[lane]));
    for (int lane = 0; lane < 32; ++lane)
        if (lanes.mask >> lane & 1) *static_cast<T*>(lanes.output[lane]) = result;
}

template <typename T>
void match(const Lanes& lanes)
{
    for (int lane = 0; lane < 32; ++lane) {
        if (!(lanes.mask >> lane & 1)) continue;
        unsigned same = 0;
        for (int other = 0; other < 32; ++other)
            if (lanes.mask >> other & 1 && *static_cast<const T*>(lanes.input[other]) == *static_cast<const T*>(lanes.input[lane]))
                same |= 1u << other;
        *static_cast<Votes*>(lanes.output[lane]) = {same, lanes.mask};
    }
}

}  // namespace cuda_on_cpu

// The lanes that have converged here. Programs must not rely on which they are.
static inline unsigned __activemask(CALLED_FROM) { return cuda_on_cpu::active_mask(place); }

static inline unsigned __ballot_sync(unsigned mask, int predicate, CALLED_FROM)
{
    return cuda_on_cpu::warp_votes(mask, predicate, place).yes;
}
static inline int __any_sync(unsigned mask, int predicate, CALLED_FROM)
{
    return cuda_on_cpu::warp_votes(mask, predicate, place).yes != 0;
}
static inline int __all_sync(unsigned mask, int predicate, CALLED_FROM)
{
    cuda_on_cpu::Votes votes = cuda_on_cpu::warp_votes(mask, predicate, place);
    return votes.yes == votes.all;
}

template <typename T>
unsigned __match_any_sync(unsigned mask, T value, CALLED_FROM)
{
    cuda_on_cpu::Votes same;
    cuda_on_cpu::warp_sync(mask, cuda_on_cpu::match<T>, &value, &same, false, place);
    return same.yes;
}

#define REDUCTION(name, Type, result)                                                                             \
    static inline Type combined_##name(Type x, Type y) { return result; }                                         \
    static inline Type __reduce_##name##_sync(unsigned mask, Type value, CALLED_FROM)                             \
    {                                                                                                             \
        Type reduced;                                                                                             \
        cuda_on_cpu::warp_sync(mask, cuda_on_cpu::reduce<Type, combined_##name>, &value, &reduced, false, place); \
        return reduced;                                                                                           \
    }
REDUCTION(add, int, static_cast<int>(static_cast<unsigned>(x) + static_cast<unsigned>(y)))
REDUCTION(add, unsigned, x + y)
REDUCTION(min, int, x < y ? x : y)
REDUCTION(min, unsigned, x < y ? x : y)
REDUCTION(max, int, x > y ? x : y)
REDUCTION(max, unsigned, x > y ? x : y)
REDUCTION(and, unsigned, x& y)
REDUCTION(or, unsigned, x | y)
REDUCTION(xor, unsigned, x ^ y)
#undef REDUCTION

static inline int __syncthreads_count(int predicate, CALLED_FROM)
{
    return static_cast<int>(cuda_on_cpu::block_votes(predicate, place).yes);
}
static inline int __syncthreads_and(int predicate, CALLED_FROM)
{
    cuda_on_cpu::Votes votes = cuda_on_cpu::block_votes(predicate, place);
    return votes.yes == votes.all;
}
static inline int __syncthreads_or(int predicate, CALLED_FROM) { return cuda_on_cpu::block_votes(predicate, place).yes != 0; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x)
{
    unsigned turned = 0;
    for (int bit = 0; bit < 32; ++bit) turned |= (x >> bit & 1) << (31 - bit);
    return turned;
}
static inline int __mul24(int x, int y) { return (x << 8 >> 8) * (y << 8 >> 8); }
static inline unsigned __umul24(unsigned x, unsigned y) { return (x & 0xffffff) * (y & 0xffffff); }

// Rounded to nearest, as is all arithmetic here.
#define ARITHMETIC(name, symbol)                                                \
    static inline float __f##name##_rn(float x, float y) { return x symbol y; } \
    static inline double __d##name##_rn(double x, double y) { return x symbol y; }
ARITHMETIC(add, +)
ARITHMETIC(sub, -)
ARITHMETIC(mul, *)
ARITHMETIC(div, /)
#undef ARITHMETIC
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
static inline float __frcp_rn(float x) { return 1 / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __int2float_rn(int x) { return static_cast<float>(x); }
static inline float __double2float_rn(double x) { return static_cast<float>(x); }
static inline int __float2int_rn(float x) { return static_cast<int>(lrintf(x)); }
static inline int __float2int_rz(float x) { return static_cast<int>(x); }
static inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }
static inline int __float2int_ru(float x) { return static_cast<int>(ceilf(x)); }

// Less exact on a GPU. Macros, because C libraries declare functions of these names.
static inline float __fdividef(float x, float y) { return x / y; }
#define __expf expf
#define __logf logf
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define CUDART_INF_F HUGE_VALF  // these of math_constants.h
#define CUDART_INF HUGE_VAL
#define CUDART_PI_F 3.141592654f
#define CUDART_PI 3.1415926535897931
static inline float __saturatef(float x) { return fminf(fmaxf(x, 0), 1); }
#if !defined(__GLIBC__) || (__GLIBC__ == 2 && __GLIBC_MINOR__ < 41)  // newer ones have these as C has them
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
#endif

// This CPU's clock in nanoseconds, which says nothing about a GPU.
static inline long long clock64()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}
static inline void __nanosleep(unsigned) {}
