// SPDX-License-Identifier: MIT
// CUDA's runtime API for a whole program on the CPU, included before its text, in which hybrid.classroom.cuda_text has rewritten
// each kernel<<<...>>>(...). Work of all streams runs in the order of the calls. As with a GPU, the next call that waits for a
// kernel returns its error, and so do all later calls.
#pragma once
#include <stdlib.h>

#include "cuda_on_cpu.h"

#define CUDART_VERSION 12000

#define CUDA_ERRORS(ERROR)                                                                                          \
    ERROR(cudaSuccess, 0, "no error")                                                                               \
    ERROR(cudaErrorInvalidValue, 1, "invalid argument")                                                             \
    ERROR(cudaErrorMemoryAllocation, 2, "out of memory")                                                            \
    ERROR(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                                       \
    ERROR(cudaErrorInvalidPitchValue, 12, "invalid pitch argument")                                                 \
    ERROR(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                                 \
    ERROR(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                                    \
    ERROR(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                           \
    ERROR(cudaErrorNotReady, 600, "device not ready")                                                               \
    ERROR(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                                 \
    ERROR(cudaErrorAssert, 710, "device-side assert triggered")                                                     \
    ERROR(cudaErrorHostMemoryAlreadyRegistered, 712, "part or all of the requested memory range is already mapped") \
    ERROR(cudaErrorHostMemoryNotRegistered, 713, "pointer does not correspond to a registered memory region")       \
    ERROR(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                                \
    ERROR(cudaErrorUnknown, 999, "unknown error")

// [[nodiscard]]: the compiler's warnings show which errors a program ignores.
enum [[nodiscard]] cudaError {
#define ERROR(name, code, text) name = code,
    CUDA_ERRORS(ERROR)
#undef ERROR
};
typedef cudaError cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum { cudaMemAttachGlobal = 1, cudaMemAttachHost = 2 };
enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2, cudaHostAllocWriteCombined = 4 };
enum { cudaHostRegisterDefault = 0, cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2 };
enum { cudaDeviceScheduleAuto = 0, cudaDeviceScheduleSpin = 1, cudaDeviceScheduleYield = 2, cudaDeviceScheduleBlockingSync = 4 };
enum { cudaDeviceMapHost = 8 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaCpuDeviceId = -1 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9 };
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, totalConstMem, memPitch, sharedMemPerMultiprocessor;
    int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate, major, minor, multiProcessorCount,
        maxThreadsPerMultiProcessor, memoryClockRate, memoryBusWidth, l2CacheSize, concurrentKernels, integrated, canMapHostMemory,
        computeMode, ECCEnabled, pciBusID, pciDeviceID, asyncEngineCount, unifiedAddressing, managedMemory,
        kernelExecTimeoutEnabled, deviceOverlap, regsPerMultiprocessor, maxBlocksPerMultiProcessor;
};

namespace cuda_on_cpu {

struct PointerTo {  // where an allocation's address goes, of any type
    template <typename T>
    PointerTo(T** pointer) : at(reinterpret_cast<void**>(pointer))
    {
    }
    void** at;
};

struct Symbol {  // a variable of the device
    template <typename T>
    Symbol(T& variable) : begin(reinterpret_cast<char*>(&variable)), bytes(sizeof(T)), item(sizeof(std::remove_all_extents_t<T>))
    {
    }
    char* begin;
    size_t bytes, item;
};

struct AnyKernel {
    template <typename Kernel>
    AnyKernel(Kernel)
    {
    }
};

void note_bytes(void* to, int value, size_t item, size_t items, bool is_real, Place place);

}  // namespace cuda_on_cpu

cudaError_t cudaMalloc(cuda_on_cpu::PointerTo pointer, size_t bytes, CALLED_FROM);
cudaError_t cudaMallocAsync(cuda_on_cpu::PointerTo pointer, size_t bytes, cudaStream_t stream, CALLED_FROM);
cudaError_t cudaMallocPitch(cuda_on_cpu::PointerTo pointer, size_t* pitch, size_t width, size_t height, CALLED_FROM);
cudaError_t cudaMallocManaged(cuda_on_cpu::PointerTo pointer, size_t bytes, unsigned flags = 1, CALLED_FROM);
cudaError_t cudaMallocHost(cuda_on_cpu::PointerTo pointer, size_t bytes, unsigned flags = 0, CALLED_FROM);
cudaError_t cudaHostAlloc(cuda_on_cpu::PointerTo pointer, size_t bytes, unsigned flags, CALLED_FROM);
cudaError_t cudaHostGetDevicePointer(cuda_on_cpu::PointerTo pointer, void* host, unsigned flags, CALLED_FROM);
cudaError_t cudaMemcpyToSymbol(const cuda_on_cpu::Symbol& symbol, const void* from, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind kind = cudaMemcpyHostToDevice, CALLED_FROM);
cudaError_t cudaMemcpyFromSymbol(void* to, const cuda_on_cpu::Symbol& symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind kind = cudaMemcpyDeviceToHost, CALLED_FROM);
cudaError_t cudaGetSymbolAddress(void** pointer, const cuda_on_cpu::Symbol& symbol);
cudaError_t cudaFree(void* pointer, CALLED_FROM);
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream, CALLED_FROM);
cudaError_t cudaFreeHost(void* pointer, CALLED_FROM);
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags, CALLED_FROM);
cudaError_t cudaHostUnregister(void* pointer, CALLED_FROM);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, CALLED_FROM);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = 0, CALLED_FROM);
static inline cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes, CALLED_FROM)
{
    return cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice, place);
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind, CALLED_FROM);
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream = 0, CALLED_FROM);
cudaError_t cudaMemset(void* to, int value, size_t bytes, CALLED_FROM);
template <typename T>
cudaError_t cudaMemset(T* to, int value, size_t bytes, CALLED_FROM)
{
    cudaError_t error = cudaMemset(static_cast<void*>(to), value, bytes, place);
    if constexpr (std::is_arithmetic_v<T>)
        if (!error) cuda_on_cpu::note_bytes(to, value, sizeof(T), bytes / sizeof(T), std::is_floating_point_v<T>, place);
    return error;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = 0, CALLED_FROM);
cudaError_t cudaMemGetInfo(size_t* available, size_t* total, CALLED_FROM);
cudaError_t cudaMemPrefetchAsync(const void* at, size_t bytes, int device, cudaStream_t stream = 0, CALLED_FROM);

cudaError_t cudaGetDeviceCount(int* count, CALLED_FROM);
cudaError_t cudaGetDevice(int* device, CALLED_FROM);
cudaError_t cudaSetDevice(int device, CALLED_FROM);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer, CALLED_FROM);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags, CALLED_FROM);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device, CALLED_FROM);
static inline cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(CALLED_FROM);
cudaError_t cudaThreadSynchronize(CALLED_FROM);
cudaError_t cudaDeviceReset(CALLED_FROM);
static inline cudaError_t cudaThreadExit(CALLED_FROM) { return cudaDeviceReset(place); }
static inline cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
static inline cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }

static inline cudaError_t cudaFuncSetCacheConfig(cuda_on_cpu::AnyKernel, cudaFuncCache) { return cudaSuccess; }
static inline cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(cuda_on_cpu::AnyKernel kernel, cudaFuncAttribute attribute, int value);
// Without registers, which are not known here.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, cuda_on_cpu::AnyKernel kernel, int threads,
                                                          size_t dynamic_shared);
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, cuda_on_cpu::AnyKernel kernel, size_t dynamic_shared = 0,
                                               int limit = 0);

cudaError_t cudaGetLastError(CALLED_FROM);
cudaError_t cudaPeekAtLastError(CALLED_FROM);
const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);

cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned flags = 0, CALLED_FROM);
#define cudaEventCreateWithFlags cudaEventCreate
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = 0, CALLED_FROM);
cudaError_t cudaEventSynchronize(cudaEvent_t event, CALLED_FROM);
cudaError_t cudaEventQuery(cudaEvent_t event, CALLED_FROM);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop, CALLED_FROM);
cudaError_t cudaEventDestroy(cudaEvent_t event, CALLED_FROM);
cudaError_t cudaStreamCreate(cudaStream_t* stream, CALLED_FROM);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags, CALLED_FROM);
cudaError_t cudaStreamSynchronize(cudaStream_t stream, CALLED_FROM);
cudaError_t cudaStreamQuery(cudaStream_t stream, CALLED_FROM);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0, CALLED_FROM);
cudaError_t cudaStreamDestroy(cudaStream_t stream, CALLED_FROM);

namespace cuda_on_cpu {

struct Given {  // an argument of a launch
    const void* at;
    size_t bytes;
    char kind;  // f, d, i or l: a pointer to float, double or integers of 4 or 8 bytes; n: an integer; x: a real; s: anything else
};

template <typename T>
constexpr char kind_of()
{
    using Element = std::remove_cv_t<std::remove_pointer_t<T>>;
    if (!std::is_pointer_v<T>) return std::is_integral_v<T> ? 'n' : std::is_floating_point_v<T> ? 'x' : 's';
    if constexpr (std::is_integral_v<Element>) return sizeof(Element) == 4 ? 'i' : sizeof(Element) == 8 ? 'l' : 's';
    if constexpr (std::is_class_v<Element>) return sizeof(Element) == sizeof(double) ? 'o' : 's';  // 'o': maybe a complex number
    return std::is_same_v<Element, float> ? 'f' : std::is_same_v<Element, double> ? 'd' : 's';
}

class Launched {  // kernel<<<grid, block, shared, stream>>>
public:
    Launched(const char* kernel, dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = 0, CALLED_FROM)
        : kernel_(kernel), place_(place), grid_(grid), block_(block), shared_(shared), stream_(stream)
    {
    }

    // Arguments are converted to the kernel's parameters once, as in a call.
    template <typename... Parameters>
    void call(void (*kernel)(Parameters...), TheSame<Parameters>... parameters)
    {
        std::tuple<void (*)(Parameters...), std::tuple<Parameters...>> all{kernel, {parameters...}};
        run_all(all);
    }

    // For a template with deduced arguments: `body` calls it.
    template <typename Body, typename... Arguments>
    void call_template(Body body, Arguments... arguments)
    {
        std::tuple<Body, std::tuple<Arguments...>> all{body, {arguments...}};
        run_all(all);
    }

private:
    template <typename All>
    void run_all(All& all)
    {
        auto thread = [](void* of) { std::apply(std::get<0>(*static_cast<All*>(of)), std::get<1>(*static_cast<All*>(of))); };
        std::apply(
            [&](auto&... each) {
                const Given given[] = {{&each, sizeof(each), kind_of<std::decay_t<decltype(each)>>()}..., {}};
                run(thread, &all, sizeof(all), given, sizeof...(each));
            },
            std::get<1>(all));
    }
    void run(void (*thread)(void*), void* argument, size_t bytes, const Given* given, size_t count);
    bool ends_well(const Work& work, int order, bool is_again) const;
    const char* kernel_;
    Place place_;
    dim3 grid_, block_;
    size_t shared_;
    cudaStream_t stream_;
};

// The main function of a program that launches one kernel. `words`: the program's arguments: x, y and z of the grid and of the
// block, bytes of dynamic shared memory, the number of orders of the threads, a random seed, what the observers watch, bytes of
// an element; the number of arrays, and for each its bytes and whether it begins with values; and the numbers. `launch`:
// launches the kernel.
int trial(char** words, const char* kernel, void (*launch)(Launched&, void* const* arrays, const long long* numbers));

}  // namespace cuda_on_cpu
