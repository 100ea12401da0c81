// SPDX-License-Identifier: MIT
// The runtime API's calls, with the errors that CUDA has, and with findings of what a GPU would not tell.
#include "api_call.h"

#include <assert.h>
#include <stdarg.h>

#include <string>

#include "findings.h"
#include "memory_check.h"

namespace cuda_on_cpu {

namespace {

int launches;
size_t most_shared = USUAL_SHARED;

struct ForDevice {  // device memory can be used
    ForDevice() { let_host_use_device_memory(true); }
    ~ForDevice() { let_host_use_device_memory(false); }
};

cudaError_t copied(const char* name, void* to, const void* from, size_t bytes, cudaMemcpyKind kind, bool waits, const char* file,
                   int line)
{
    Call call(name, file, line);
    if (waits)
        if (cudaError_t error = call.waits()) return error;
    if (lasting) return call.ends_with(lasting);
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return call.ends_with(cudaErrorInvalidMemcpyDirection);
    if (!bytes) return cudaSuccess;
    bool is_valid = to && from;
    Region *target = call.device_memory(to, bytes, is_valid), *source = call.device_memory(from, bytes, is_valid);
    auto fits = [](const Region* region, bool on_device) {
        return region ? (on_device || region->kind == Region::MANAGED) : !on_device;
    };
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault) is_valid = is_valid && fits(target, to_device) && fits(source, from_device);
    if (!is_valid) return call.ends_with(cudaErrorInvalidValue);
    if (source && !target) call.reads(*source, from, bytes);
    ForDevice now;
    memmove(to, from, bytes);
    size_t offset = target ? static_cast<char*>(to) - target->begin : 0;
    if (target && source && source->kind != Region::MANAGED)  // what the host writes there is not seen
        mark_as(*target, offset, *source, static_cast<const char*>(from) - source->begin, bytes);
    else if (target)
        mark_written(*target, offset, bytes);
    return cudaSuccess;
}

// Rows of `width` bytes, whose beginnings are a pitch apart.
cudaError_t rows_copied(const char* name, void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                        size_t height, cudaMemcpyKind kind, bool waits, const char* file, int line)
{
    if (width > to_pitch || width > from_pitch) return Call(name, file, line).ends_with(cudaErrorInvalidPitchValue);
    for (size_t row = 0; row < height; ++row) {
        char* target = static_cast<char*>(to) + row * to_pitch;
        const char* source = static_cast<const char*>(from) + row * from_pitch;
        if (cudaError_t error = copied(name, target, source, width, kind, waits && !row, file, line)) return error;
    }
    return cudaSuccess;
}

cudaError_t filled(const char* name, void* to, int value, size_t bytes, const char* file, int line)
{
    Call call(name, file, line);
    if (lasting) return call.ends_with(lasting);
    bool is_valid = true;
    Region* target = call.device_memory(to, bytes, is_valid);
    if (!bytes) return cudaSuccess;
    if (!target || !is_valid) return call.ends_with(cudaErrorInvalidValue);
    ForDevice now;
    memset(to, value, bytes);
    mark_written(*target, static_cast<char*>(to) - target->begin, bytes);
    return cudaSuccess;
}

cudaError_t allocated(const char* name, void** pointer, size_t bytes, Region::Kind kind, const char* file, int line)
{
    Call call(name, file, line);
    if (lasting) return call.ends_with(lasting);
    if (!pointer || (kind == Region::MANAGED && !bytes)) return call.ends_with(cudaErrorInvalidValue);
    *pointer = nullptr;
    if (!bytes) return cudaSuccess;
    Region* region = allocate(bytes, kind, file, line);
    if (!region) return call.ends_with(cudaErrorMemoryAllocation);
    *pointer = region->begin;
    return cudaSuccess;
}

struct AtEnd {
    ~AtEnd()
    {
        memory_check::program_ends();
        if (!printed.empty()) tell_note("unflushed");
        if (in_flight)
            tell("{\"event\": \"unseen\", \"kernel\": %s, \"line\": %d}", quoted(under_way.kernel).c_str(), under_way.line);
        if (!lasting && !in_flight) tell_leaks();  // after a failure a program can free nothing
        tell("{\"event\": \"end\", \"launches\": %d}", launches);
    }
} at_end;

}  // namespace

cudaError_t copy_symbol(const char* name, void* symbol, size_t size, size_t offset, void* host, const void* from, size_t bytes,
                        const char* file, int line)
{
    Call call(name, file, line);
    if (cudaError_t error = call.waits()) return error;
    if (offset > size || bytes > size - offset) return call.ends_with(cudaErrorInvalidValue);
    char* at = static_cast<char*>(symbol) + offset;
    ForDevice now;
    memmove(host ? host : at, host ? at : from, bytes);
    return cudaSuccess;
}

void allow_shared(int bytes) { most_shared = min(max(USUAL_SHARED, static_cast<size_t>(bytes)), MOST_SHARED); }

Launched::Launched(const char* kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream, const char* file, int line)
    : kernel_(kernel), file_(file), line_(line), grid_(grid), block_(block), shared_(shared)
{
    if (stream) tell_note("streams");
}

void Launched::run(void (*thread)(void*), void* argument, size_t bytes)
{
    std::string name = "the launch of " + std::string(kernel_);
    Call call(name.c_str(), file_, line_);
    ++launches;
    if (lasting) return (void)call.ends_with(lasting);
    auto is_within = [](const dim3& size, unsigned x, unsigned y, unsigned z) {
        return size.x && size.y && size.z && size.x <= x && size.y <= y && size.z <= z;
    };
    if (!is_within(grid_, 0x7fffffff, 65535, 65535) || !is_within(block_, 1024, 1024, 64) ||
        block_.x * block_.y * block_.z > 1024) {
        tell("{\"event\": \"configuration\", \"line\": %d, \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u]}", line_, grid_.x,
             grid_.y, grid_.z, block_.x, block_.y, block_.z);
        return (void)call.ends_with(cudaErrorInvalidConfiguration);
    }
    if (shared_ > most_shared) return (void)call.ends_with(cudaErrorInvalidValue);
    if (in_flight) return;  // nothing runs on a GPU after a kernel that failed
    show_printed();
    ForDevice now;
    under_way = {kernel_, file_, line_};
    memory_check::parameters_are(argument, bytes);
    Launch launch{{grid_.x, grid_.y, grid_.z}, {block_.x, block_.y, block_.z}, shared_, 0, 0, 0, 1};
    char error[1000];
    if (cuda_on_cpu::run(launch, thread, argument, error, sizeof(error))) {
        std::string why(error), kind = why.substr(0, why.find('|'));
        in_flight = kind == "illegal" ? cudaErrorIllegalAddress : kind == "assert" ? cudaErrorAssert : cudaErrorLaunchFailure;
        if (kind != "illegal")
            tell("{\"event\": \"finding\", \"kind\": \"stopped\", \"stop\": %s, \"text\": %s, \"kernel\": %s, \"launched\": %d}",
                 quoted(kind.c_str()).c_str(), quoted(why.substr(kind.size() + 1).c_str()).c_str(), quoted(kernel_).c_str(), line_);
    }
    memory_check::kernels_may_run(true);
}

}  // namespace cuda_on_cpu

using namespace cuda_on_cpu;

cudaError_t cudaMalloc(void** pointer, size_t bytes, const char* file, int line)
{
    return allocated("cudaMalloc", pointer, bytes, Region::ALLOCATION, file, line);
}
cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height, const char* file, int line)
{
    *pitch = (width + 511) / 512 * 512;
    return allocated("cudaMallocPitch", pointer, *pitch * height, Region::ALLOCATION, file, line);
}
cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned, const char* file, int line)
{
    return allocated("cudaMallocManaged", pointer, bytes, Region::MANAGED, file, line);
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes, unsigned, const char* file, int line)
{
    Call call("cudaMallocHost", file, line);
    *pointer = malloc(bytes);
    return call.ends_with(*pointer || !bytes ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* pointer, const char*, int)
{
    free(pointer);
    return cudaSuccess;
}

cudaError_t cudaFree(void* pointer, const char* file, int line)
{
    Call call("cudaFree", file, line);
    if (cudaError_t error = call.waits()) return error;
    if (!pointer) return cudaSuccess;
    Region* region = region_around(static_cast<char*>(pointer));
    if (!region || region->freed || region->begin != pointer) return call.ends_with(cudaErrorInvalidValue);
    release(*region);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const char* file, int line)
{
    return copied("cudaMemcpy", to, from, bytes, kind, true, file, line);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream, const char* file,
                            int line)
{
    if (stream) tell_note("streams");
    return copied("cudaMemcpyAsync", to, from, bytes, kind, false, file, line);
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind, const char* file, int line)
{
    return rows_copied("cudaMemcpy2D", to, to_pitch, from, from_pitch, width, height, kind, true, file, line);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream, const char* file, int line)
{
    if (stream) tell_note("streams");
    return rows_copied("cudaMemcpy2DAsync", to, to_pitch, from, from_pitch, width, height, kind, false, file, line);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes, const char* file, int line)
{
    return filled("cudaMemset", to, value, bytes, file, line);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t, const char* file, int line)
{
    return filled("cudaMemsetAsync", to, value, bytes, file, line);
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total, const char* file, int line)
{
    Call call("cudaMemGetInfo", file, line);
    *available = free_bytes();
    *total = DEVICE_MEMORY;
    return call.ends_with(lasting);
}
cudaError_t cudaMemPrefetchAsync(const void* at, size_t bytes, int, cudaStream_t, const char* file, int line)
{
    Call call("cudaMemPrefetchAsync", file, line);
    bool is_valid = true;
    Region* region = call.device_memory(at, bytes, is_valid);
    return call.ends_with(lasting                                                 ? lasting
                          : region && is_valid && region->kind == Region::MANAGED ? cudaSuccess
                                                                                  : cudaErrorInvalidValue);
}

// What kernels print is kept until the host waits for them, as with a GPU. Programs are compiled with -fno-builtin-printf.
extern "C" int printf(const char* format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char* text = nullptr;
    int length = current ? vasprintf(&text, format, arguments) : vfprintf(stdout, format, arguments);
    va_end(arguments);
    if (text) printed += text;
    free(text);
    return length;
}

extern "C" void __assert_fail(const char* assertion, const char* file, unsigned line, const char* function)
{
    std::string what = "assert(" + std::string(assertion) + ") fails in " + file + ":" + std::to_string(line);
    if (current) stop_thread("assert", what.c_str());
    fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, assertion);
    abort();
}
