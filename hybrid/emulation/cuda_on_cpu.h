// SPDX-License-Identifier: MIT
// CUDA's keywords, types and built-ins for a C++ compiler, included before a kernel's source. The source is compiled in an
// anonymous namespace, so this file must include all standard headers that it needs.
#pragma once
#if !defined(WHOLE_PROGRAM) && __has_include(<bits/c++config.h>)
// Without C++17's special functions (std::beta and the like) in GCC's math.h: CUDA has none, and parsing them takes longer than all
// other headers together.
#include <bits/c++config.h>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#endif
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <tuple>
#include <type_traits>
#include <utility>

#define CUDA_ON_CPU 1  // __CUDA_ARCH__ comes from the command line

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)  // see Launch::cluster
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __restrict__ __restrict
#ifdef WHOLE_PROGRAM  // .bss has the program's own variables, too
#define __shared__ static thread_local
#else
#define __shared__ static  // the runtime fills .bss with NaN before each block
#endif

// A section apart from __shared__ variables.
#define __constant__ __attribute__((section("cuda_variables")))
#define __device_variable__ __attribute__((section("cuda_variables")))  // in place of the __device__ of variables
#define __managed__ __attribute__((section("cuda_managed")))

namespace cuda_on_cpu {

struct Place {  // a call in the source
    const char* file;
    int line;
    int call;  // distinguishes calls in one line
};

}  // namespace cuda_on_cpu
#define CALLED_FROM cuda_on_cpu::Place place = {__builtin_FILE(), __builtin_LINE(), 0}

static constexpr int warpSize = 32;

#define VECTOR_TYPES(Type, name)                                                           \
    struct name##1 { Type x; };                                                            \
    struct alignas(2 * sizeof(Type)) name##2 { Type x, y; };                               \
    struct name##3 { Type x, y, z; };                                                      \
    struct alignas(sizeof(Type) < 4 ? 4 * sizeof(Type) : 16) name##4 { Type x, y, z, w; }; \
    static inline name##1 make_##name##1(Type x) { return {x}; }                           \
    static inline name##2 make_##name##2(Type x, Type y) { return {x, y}; }                \
    static inline name##3 make_##name##3(Type x, Type y, Type z) { return {x, y, z}; }     \
    static inline name##4 make_##name##4(Type x, Type y, Type z, Type w) { return {x, y, z, w}; }
VECTOR_TYPES(signed char, char)
VECTOR_TYPES(unsigned char, uchar)
VECTOR_TYPES(short, short)
VECTOR_TYPES(unsigned short, ushort)
VECTOR_TYPES(int, int)
VECTOR_TYPES(unsigned, uint)  // threadIdx is a uint3
VECTOR_TYPES(long, long)
VECTOR_TYPES(unsigned long, ulong)
VECTOR_TYPES(long long, longlong)
VECTOR_TYPES(unsigned long long, ulonglong)
VECTOR_TYPES(float, float)
VECTOR_TYPES(double, double)
#undef VECTOR_TYPES

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 of) : x(of.x), y(of.y), z(of.z) {}
};

// Overloads as in CUDA, no template: min(int, long long) is ambiguous there, too.
#define MIN_AND_MAX(Type)                                            \
    static inline Type min(Type x, Type y) { return y < x ? y : x; } \
    static inline Type max(Type x, Type y) { return x < y ? y : x; }
MIN_AND_MAX(int)
MIN_AND_MAX(unsigned)
MIN_AND_MAX(long)
MIN_AND_MAX(unsigned long)
MIN_AND_MAX(long long)
MIN_AND_MAX(unsigned long long)
#undef MIN_AND_MAX
static inline float min(float x, float y) { return fminf(x, y); }
static inline float max(float x, float y) { return fmaxf(x, y); }
static inline double min(double x, double y) { return fmin(x, y); }
static inline double max(double x, double y) { return fmax(x, y); }

namespace cuda_on_cpu {

struct Thread {
    uint3 index;
    int lane;
    unsigned number;  // in its block
    int block_barriers, warp_syncs;
    char* stack;
};

struct Lanes {  // the operands and results of the lanes in a warp operation
    unsigned mask;
    const void* input[32];
    void* output[32];
};

using Combine = void (*)(const Lanes&);

extern Thread* current;
extern uint3 block_index;
extern dim3 block_size, grid_size;

void block_barrier(Place place);
// Waits until all lanes in `mask` have called it. Then `combine`, the same for all, computes each lane's output.
void warp_sync(unsigned mask, Combine combine, const void* input, void* output, bool orders_memory, Place place);
void* dynamic_shared_memory();  // aligned to 128 bytes, as on a GPU
void copy(void* to, const void* from, int bytes, int there, Place place, void* instruction);
void copies_commit();
void wait_copies(int pending);

// For clusters. Shared addresses are offsets within a block's shared memory.
unsigned shared_address(const void* at);
unsigned rank_in_cluster();
void cluster_barrier();
void barrier_init(unsigned barrier, int arrivals);
void barrier_wait(unsigned barrier, unsigned parity);
void barrier_expect(unsigned barrier, int bytes);
void barrier_arrive(unsigned barrier, unsigned block);
void bulk_copy(unsigned blocks, unsigned to, const void* from, unsigned bytes, unsigned barrier);
void wgmma(int* d, unsigned a, unsigned b, bool adding, bool is_signed);
void wgmma_commit();
void wait_wgmmas(unsigned pending);

struct Array {  // a matrix, or a number as a 1×1 matrix; Python has this layout
    void* data;
    long long rows, columns, stride;
    int item;
};

struct Launch {
    unsigned grid[3], block[3];
    unsigned long long shared_bytes, seed;
    int order, copies;
    unsigned cluster;  // blocks
};

struct Work {  // each thread calls thread(argument)
    void (*thread)(void*);
    void* argument;
    size_t bytes;
};

const char* run(const Launch& launch, const Work& work);  // the first failure as "kind|text"; null for none

template <typename Parameter>
bool fits(const Array& array)
{
    if constexpr (std::is_arithmetic_v<Parameter>)
        return array.item == sizeof(Parameter) && array.rows == 1 && array.columns == 1;
    else
        return array.item == sizeof(*std::declval<Parameter>().data);
}

template <typename Parameter>
Parameter as_parameter(const Array& array)
{
    if constexpr (std::is_arithmetic_v<Parameter>)
        return *static_cast<const Parameter*>(array.data);
    else
        return {static_cast<decltype(Parameter::data)>(array.data), array.rows, array.columns, array.stride};
}

// Launches a kernel whose parameters are matrices and numbers; returns as `run`.
template <typename... Parameters>
const char* start(void (*kernel)(Parameters...), const Launch* launch, const Array* arrays, int count)
{
    const Array* next = arrays;
    if (count != sizeof...(Parameters)) return "launch|the kernel takes another number of matrices";
    if (!(fits<Parameters>(*next++) && ...)) return "launch|the matrices are not of the kernel's type";
    next = arrays;
    std::pair<void (*)(Parameters...), std::tuple<Parameters...>> call{kernel, {as_parameter<Parameters>(*next++)...}};
    auto thread = [](void* of) { std::apply(static_cast<decltype(call)*>(of)->first, static_cast<decltype(call)*>(of)->second); };
    return run(*launch, {thread, &call, sizeof(call)});
}

template <typename T>
struct Itself {
    using Type = T;
};
template <typename T>
using TheSame = typename Itself<T>::Type;  // std::type_identity_t of C++20: a parameter from which T is not deduced

// Functions of memory_check.cpp; null if that is not linked.
#define WHERE_WATCHED __attribute__((weak))
WHERE_WATCHED void note_atomic(void* to, size_t bytes, void* instruction, bool needs_value);
WHERE_WATCHED void note_copy(void* at, size_t bytes, bool writes, void* instruction);  // a part of an asynchronous copy
WHERE_WATCHED void undefined_shuffle(Place place);  // a lane takes the value of an inactive one
WHERE_WATCHED void fence(bool of_all_blocks);       // after it, races between blocks are not reported

template <typename T>
struct ShuffleInput {
    T value;
    int from;
};

template <typename T>
void shuffle(const Lanes& lanes)
{
    for (int lane = 0; lane < 32; ++lane) {
        if (!(lanes.mask >> lane & 1)) continue;
        int from = static_cast<const ShuffleInput<T>*>(lanes.input[lane])->from;
        if (lanes.mask >> from & 1)
            memcpy(lanes.output[lane], &static_cast<const ShuffleInput<T>*>(lanes.input[from])->value, sizeof(T));
        else {
            memset(lanes.output[lane], 0xFF, sizeof(T));  // undefined in CUDA: here NaN
            static_cast<ShuffleInput<T>*>(const_cast<void*>(lanes.input[lane]))->from = -1;
        }
    }
}

template <typename T>
T shuffled(unsigned mask, T value, int from, Place place)
{
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "CUDA shuffles numbers");
    ShuffleInput<T> shuffle_input{value, from};
    T output;
    warp_sync(mask, shuffle<T>, &shuffle_input, &output, false, place);
    if (shuffle_input.from < 0 && undefined_shuffle) undefined_shuffle(place);
    return output;
}

// Functions, not variables, so that reading them is no memory access; const, since a thread's values do not change.
__attribute__((const)) uint3 thread_index();
__attribute__((const)) uint3 index_of_block();
__attribute__((const)) dim3 size_of_block();
__attribute__((const)) dim3 size_of_grid();
}  // namespace cuda_on_cpu
#define threadIdx (cuda_on_cpu::thread_index())
#define blockIdx (cuda_on_cpu::index_of_block())
#define blockDim (cuda_on_cpu::size_of_block())
#define gridDim (cuda_on_cpu::size_of_grid())

static inline void __syncthreads() {}  // for `__syncthreads;`, which does nothing
// A macro, so that two calls in one line are two barriers.
#define __syncthreads() cuda_on_cpu::block_barrier({__builtin_FILE(), __builtin_LINE(), __COUNTER__})

static inline void __syncwarp(unsigned mask = 0xffffffffu, CALLED_FROM)
{
    cuda_on_cpu::warp_sync(mask, nullptr, nullptr, nullptr, true, place);
}

// Shuffles within groups of `width` lanes; a lane whose source is outside of its group gets its own value.
#define SHUFFLE(name, By, source, is_in_group)                                        \
    template <typename T>                                                             \
    T __shfl##name##_sync(unsigned mask, T value, By by, int width = 32, CALLED_FROM) \
    {                                                                                 \
        int lane = cuda_on_cpu::current->lane, group = lane & -width, from = source;  \
        return cuda_on_cpu::shuffled(mask, value, is_in_group ? from : lane, place);  \
    }
SHUFFLE(, int, group + (by & (width - 1)), true)
SHUFFLE(_xor, int, lane ^ by, from < group + width)
SHUFFLE(_down, unsigned, lane + static_cast<int>(by), from < group + width)
SHUFFLE(_up, unsigned, lane - static_cast<int>(by), from >= group)
#undef SHUFFLE

template <typename T>
__forceinline__ T __ldg(const T* from)
{
    return *from;
}

#define __ldcs __ldg

template <typename T>
__forceinline__ void __stcs(T* to, T value)
{
    *to = value;
}

template <typename To, typename From>
__forceinline__ To same_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

static inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return same_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
static inline float __int_as_float(int x) { return same_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return same_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return same_bits<double>(x); }
static inline double __hiloint2double(int high, int low)
{
    return same_bits<double>(static_cast<unsigned long long>(static_cast<unsigned>(high)) << 32 | static_cast<unsigned>(low));
}
static inline long long __double2ll_rn(double x) { return llrint(x); }
static inline int __double2int_rn(double x) { return static_cast<int>(lrint(x)); }
static inline unsigned __umulhi(unsigned x, unsigned y)
{
    return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}

// A word of four bytes of x (0 to 3) and y (4 to 7), selected by the hexadecimal digits of `selector`.
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
    unsigned word = 0;
    for (int i = 0; i < 4; ++i) word |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return word;
}

// Atomic, because fibers switch only at barriers and warp operations. Not instrumented, because their accesses are no races.
#define ATOMIC_ACCESS(to, needs_value) \
    if (cuda_on_cpu::note_atomic) cuda_on_cpu::note_atomic(to, sizeof(*to), __builtin_return_address(0), needs_value)
#define ATOMIC(name, result, needs_value)                                                      \
    template <typename T>                                                                      \
    __attribute__((noinline, no_sanitize_thread)) T name(T* to, cuda_on_cpu::TheSame<T> value) \
    {                                                                                          \
        ATOMIC_ACCESS(to, needs_value);                                                        \
        T before = *to;                                                                        \
        *to = (result);                                                                        \
        return before;                                                                         \
    }
ATOMIC(atomicAdd, before + value, true)
ATOMIC(atomicSub, before - value, true)
ATOMIC(atomicMax, value > before ? value : before, true)
ATOMIC(atomicMin, value < before ? value : before, true)
ATOMIC(atomicExch, value, false)  // may be the first write
ATOMIC(atomicAnd, before& value, true)
ATOMIC(atomicOr, before | value, true)
ATOMIC(atomicXor, before ^ value, true)
ATOMIC(atomicInc, before >= value ? 0 : before + 1, true)
ATOMIC(atomicDec, before == 0 || before > value ? value : before - 1, true)
#undef ATOMIC

template <typename T>
__attribute__((noinline, no_sanitize_thread)) T atomicCAS(T* to, cuda_on_cpu::TheSame<T> expected, cuda_on_cpu::TheSame<T> value)
{
    ATOMIC_ACCESS(to, true);
    T before = *to;
    if (before == expected) *to = value;
    return before;
}

// Asynchronous copies to shared memory; the last `zeros` bytes become zero.
#define __pipeline_memcpy_async(to, from, ...) cuda_on_cpu::copy_async(to, from, {__FILE__, __LINE__, 0}, __VA_ARGS__)
namespace cuda_on_cpu {
__attribute__((noinline)) inline void copy_async(void* to, const void* from, Place place, size_t bytes, size_t zeros = 0)
{
    copy(to, from, static_cast<int>(bytes), static_cast<int>(bytes - zeros), place, __builtin_return_address(0));
}
}  // namespace cuda_on_cpu
static inline void __pipeline_commit() { cuda_on_cpu::copies_commit(); }
static inline void __pipeline_wait_prior(int groups) { cuda_on_cpu::wait_copies(groups); }

static inline void __threadfence()
{
    if (cuda_on_cpu::fence) cuda_on_cpu::fence(true);
}
static inline void __threadfence_block()
{
    if (cuda_on_cpu::fence) cuda_on_cpu::fence(false);
}
static inline void __threadfence_system() { __threadfence(); }

#include "intrinsics.h"
