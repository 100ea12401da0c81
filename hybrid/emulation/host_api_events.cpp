// SPDX-License-Identifier: MIT
// The runtime API's calls about the device, events and streams.
#include <chrono>
#include <set>

#include "api_call.h"
#include "findings.h"

using namespace cuda_on_cpu;

struct CUevent_st {
    double milliseconds;
    bool recorded;
};
struct CUstream_st {};

namespace {

std::set<cudaEvent_t>& events = *new std::set<cudaEvent_t>;  // used until the very end of the process
std::set<cudaStream_t>& streams = *new std::set<cudaStream_t>;

double milliseconds_now()
{
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

cudaError_t waited(const char* name, const char* file, int line) { return Call(name, file, line).waits(); }

}  // namespace

cudaError_t cudaGetDeviceCount(int* count, const char*, int) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device, const char*, int) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device, const char* file, int line)
{
    return Call("cudaSetDevice", file, line)
        .ends_with(device ? cudaErrorInvalidDevice : cudaSuccess,
                   "device " + std::to_string(device) + " is not there, only device 0");
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device, const char* file, int line)
{
    if (device) return Call("cudaGetDeviceProperties", file, line).ends_with(cudaErrorInvalidDevice);
    *properties = {};
    snprintf(properties->name, sizeof(properties->name), "emulated GPU (a CPU)");
    properties->totalGlobalMem = DEVICE_MEMORY;
    properties->sharedMemPerBlock = properties->sharedMemPerMultiprocessor = USUAL_SHARED;
    properties->totalConstMem = properties->regsPerBlock = properties->regsPerMultiprocessor = 1 << 16;
    properties->memPitch = 0x7fffffff;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 0x7fffffff;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxBlocksPerMultiProcessor = 32;
    properties->major = 9;
    properties->multiProcessorCount = properties->unifiedAddressing = properties->managedMemory = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(const char* file, int line) { return waited("cudaDeviceSynchronize", file, line); }
cudaError_t cudaThreadSynchronize(const char* file, int line) { return waited("cudaThreadSynchronize", file, line); }
cudaError_t cudaDeviceReset(const char* file, int line)
{
    cudaError_t error = waited("cudaDeviceReset", file, line);
    release_all("cudaDeviceReset in line " + std::to_string(line));
    events.clear();
    streams.clear();
    lasting = last_error = cudaSuccess;
    return error;
}
cudaError_t cudaThreadExit(const char* file, int line) { return cudaDeviceReset(file, line); }
cudaError_t cudaRuntimeGetVersion(int* version, const char*, int) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version, const char*, int) { return *version = CUDART_VERSION, cudaSuccess; }

namespace {

cudaError_t of_event(const char* name, cudaEvent_t event, bool recorded, const char* file, int line)
{
    bool is_valid = events.count(event) && (!recorded || event->recorded);
    return Call(name, file, line).ends_with(is_valid ? cudaSuccess : cudaErrorInvalidResourceHandle);
}
cudaError_t of_stream(const char* name, cudaStream_t stream, const char* file, int line)
{
    return Call(name, file, line).ends_with(!stream || streams.count(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

}  // namespace

cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned, const char*, int)
{
    events.insert(*event = new CUevent_st{});
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags, const char* file, int line)
{
    return cudaEventCreate(event, flags, file, line);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream, const char* file, int line)
{
    if (cudaError_t error = of_stream("cudaEventRecord", stream, file, line)) return error;
    if (cudaError_t error = of_event("cudaEventRecord", event, false, file, line)) return error;
    *event = {milliseconds_now(), true};
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event, const char* file, int line)
{
    if (cudaError_t error = of_event("cudaEventSynchronize", event, false, file, line)) return error;
    return waited("cudaEventSynchronize", file, line);
}
cudaError_t cudaEventQuery(cudaEvent_t event, const char* file, int line)
{
    return of_event("cudaEventQuery", event, false, file, line);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop, const char* file, int line)
{
    tell_note("times");
    for (cudaEvent_t each : {start, stop})
        if (cudaError_t error = of_event("cudaEventElapsedTime", each, true, file, line)) return error;
    *milliseconds = static_cast<float>(stop->milliseconds - start->milliseconds);
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event, const char* file, int line)
{
    if (cudaError_t error = of_event("cudaEventDestroy", event, false, file, line)) return error;
    events.erase(event);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream, const char*, int)
{
    tell_note("streams");
    streams.insert(*stream = new CUstream_st);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned, const char* file, int line)
{
    return cudaStreamCreate(stream, file, line);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream, const char* file, int line)
{
    if (cudaError_t error = of_stream("cudaStreamSynchronize", stream, file, line)) return error;
    return waited("cudaStreamSynchronize", file, line);
}
cudaError_t cudaStreamQuery(cudaStream_t stream, const char* file, int line)
{
    return of_stream("cudaStreamQuery", stream, file, line);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned, const char* file, int line)
{
    if (cudaError_t error = of_stream("cudaStreamWaitEvent", stream, file, line)) return error;
    return of_event("cudaStreamWaitEvent", event, false, file, line);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream, const char* file, int line)
{
    if (cudaError_t error = of_stream("cudaStreamDestroy", stream, file, line)) return error;
    streams.erase(stream);
    delete stream;
    return cudaSuccess;
}
