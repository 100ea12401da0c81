// CUDA's words for a C++ compiler. Included before a kernel's source, whose every thread then runs as a fiber of runtime.cpp.
//
// The source itself is compiled inside an anonymous namespace, so nothing below may wait for the kernel's own headers, and
// everything of the standard library that they could want is included here.
#pragma once
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
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __restrict__ __restrict
#define __shared__ static  // one block runs at a time; the runtime fills the whole of .bss with NaN before each
#define warpSize 32

// Where a kernel meets the runtime is known by file and line, for the messages and to tell meeting points apart.
#define CALLED_FROM const char *file = __builtin_FILE(), int line = __builtin_LINE()
// What the runtime does in a kernel's name is no access of a thread's own.
#define UNCHECKED __attribute__((noinline, no_sanitize_address, no_sanitize_thread, no_sanitize_undefined))

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define VECTOR_TYPES(Type, name)                                                                        \
    struct alignas(2 * sizeof(Type)) name##2 {                                                          \
        Type x, y;                                                                                      \
    };                                                                                                  \
    struct name##3 {                                                                                    \
        Type x, y, z;                                                                                   \
    };                                                                                                  \
    struct alignas(16) name##4 {                                                                        \
        Type x, y, z, w;                                                                                \
    };                                                                                                  \
    static inline name##2 make_##name##2(Type x, Type y) { return {x, y}; }                             \
    static inline name##3 make_##name##3(Type x, Type y, Type z) { return {x, y, z}; }                  \
    static inline name##4 make_##name##4(Type x, Type y, Type z, Type w) { return {x, y, z, w}; }
VECTOR_TYPES(float, float)
VECTOR_TYPES(double, double)
VECTOR_TYPES(int, int)
VECTOR_TYPES(long long, longlong)
VECTOR_TYPES(unsigned, uint)  // threadIdx is a uint3
#undef VECTOR_TYPES

// CUDA's overloads, and no template: min(int, long long) is as ambiguous there as here.
#define LEAST_AND_MOST(Type)                                             \
    static inline Type min(Type x, Type y) { return y < x ? y : x; }     \
    static inline Type max(Type x, Type y) { return x < y ? y : x; }
LEAST_AND_MOST(int)
LEAST_AND_MOST(unsigned)
LEAST_AND_MOST(long)
LEAST_AND_MOST(unsigned long)
LEAST_AND_MOST(long long)
LEAST_AND_MOST(unsigned long long)
#undef LEAST_AND_MOST
static inline float min(float x, float y) { return fminf(x, y); }
static inline float max(float x, float y) { return fmaxf(x, y); }
static inline double min(double x, double y) { return fmin(x, y); }
static inline double max(double x, double y) { return fmax(x, y); }

namespace cuda_on_cpu {

struct Thread {
    uint3 index;
    int lane;
};

struct Lanes {  // the lanes of a warp that met: what each brought, and where it wants its answer
    unsigned mask;
    const void* brought[32];
    void* answer[32];
};

using Combine = void (*)(const Lanes&);

extern Thread* current;
extern uint3 block_index;
extern dim3 block_size, grid_size;

void meet_block(const char* file, int line);
// Waits for the lanes in `mask`. When all are there, `combine` (the same for all) gives each its answer.
void meet_warp(unsigned mask, Combine combine, const void* brought, void* answer, bool orders_memory, const char* file, int line);
void* launched_memory();  // multiple of 128, as on a GPU
void copy(void* to, const void* from, int bytes, int there, const char* file, int line);
void close_copies();
void wait_copies(int pending);

struct Array {  // a matrix as Python hands it over, or a number as one of 1×1
    void* data;
    long long rows, columns, stride;
    int item;
};

struct Launch {
    unsigned grid[2], block[2];
    unsigned long long shared_bytes, seed;
    int order, copies;
};

int run(const Launch& launch, void (*thread)(void*), void* argument, char* error, size_t error_size);
int refuse(const char* text, char* error, size_t error_size);

template <typename Parameter>
bool fits(const Array& array)
{
    if constexpr (std::is_arithmetic_v<Parameter>)
        return array.item == sizeof(Parameter) && array.rows == 1 && array.columns == 1;
    else
        return array.item == sizeof(*std::declval<Parameter>().data);
}

template <typename Parameter>
Parameter taken(const Array& array)
{
    if constexpr (std::is_arithmetic_v<Parameter>)
        return *static_cast<const Parameter*>(array.data);
    else
        return {static_cast<decltype(Parameter::data)>(array.data), array.rows, array.columns, array.stride};
}

// Starts a kernel whose parameters are matrices and numbers.
template <typename... Parameters, size_t... I>
int start(void (*kernel)(Parameters...), const Launch& launch, const Array* arrays, int count, char* error, size_t error_size,
          std::index_sequence<I...>)
{
    if (count != sizeof...(Parameters)) return refuse("launch|the kernel takes another number of matrices", error, error_size);
    if (!(fits<Parameters>(arrays[I]) && ...)) return refuse("launch|the matrices are not of the kernel's type", error, error_size);
    struct Call {
        void (*kernel)(Parameters...);
        std::tuple<Parameters...> parameters;
    } call{kernel, {taken<Parameters>(arrays[I])...}};
    auto thread = [](void* of) {
        Call& call = *static_cast<Call*>(of);
        call.kernel(std::get<I>(call.parameters)...);
    };
    return run(launch, thread, &call, error, error_size);
}

template <typename... Parameters>
int start(void (*kernel)(Parameters...), const Launch* launch, const Array* arrays, int count, char* error, size_t error_size)
{
    return start(kernel, *launch, arrays, count, error, error_size, std::index_sequence_for<Parameters...>{});
}

template <typename T>
struct Asked {  // by a shuffle
    T value;
    int from;
};

template <typename T>
UNCHECKED void shuffle(const Lanes& lanes)
{
    for (int lane = 0; lane < 32; ++lane) {
        if (!(lanes.mask >> lane & 1)) continue;
        int from = static_cast<const Asked<T>*>(lanes.brought[lane])->from;
        if (lanes.mask >> from & 1)
            memcpy(lanes.answer[lane], &static_cast<const Asked<T>*>(lanes.brought[from])->value, sizeof(T));
        else
            memset(lanes.answer[lane], 0xFF, sizeof(T));  // undefined in CUDA: here NaN
    }
}

template <typename T>
T shuffled(unsigned mask, T value, int from, const char* file, int line)
{
    static_assert(std::is_arithmetic_v<T>, "CUDA shuffles numbers");
    Asked<T> asked{value, from};
    T answer;
    meet_warp(mask, shuffle<T>, &asked, &answer, false, file, line);
    return answer;
}

}  // namespace cuda_on_cpu

#define threadIdx (cuda_on_cpu::current->index)
#define blockIdx (cuda_on_cpu::block_index)
#define blockDim (cuda_on_cpu::block_size)
#define gridDim (cuda_on_cpu::grid_size)

static inline void __syncthreads(CALLED_FROM) { cuda_on_cpu::meet_block(file, line); }

static inline void __syncwarp(unsigned mask = 0xffffffffu, CALLED_FROM)
{
    cuda_on_cpu::meet_warp(mask, nullptr, nullptr, nullptr, true, file, line);
}

// A shuffle within groups of `width` lanes; a lane that asks beyond its group gets its own value.
template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32, CALLED_FROM)
{
    int group = cuda_on_cpu::current->lane & -width;
    return cuda_on_cpu::shuffled(mask, value, group + (from & (width - 1)), file, line);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, CALLED_FROM)
{
    int lane = cuda_on_cpu::current->lane, from = lane ^ bits;
    return cuda_on_cpu::shuffled(mask, value, from < (lane & -width) + width ? from : lane, file, line);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32, CALLED_FROM)
{
    int lane = cuda_on_cpu::current->lane, from = lane + static_cast<int>(distance);
    return cuda_on_cpu::shuffled(mask, value, from < (lane & -width) + width ? from : lane, file, line);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32, CALLED_FROM)
{
    int lane = cuda_on_cpu::current->lane, from = lane - static_cast<int>(distance);
    return cuda_on_cpu::shuffled(mask, value, from >= (lane & -width) ? from : lane, file, line);
}

template <typename T>
__forceinline__ T __ldg(const T* from)
{
    return *from;
}

// Fibers change only where they meet, so this is one step for all others; race checks must not see two.
template <typename T>
__attribute__((noinline, no_sanitize_thread)) T atomicAdd(T* to, T value)
{
    T before = *to;
    *to = before + value;
    return before;
}
