// SPDX-License-Identifier: MIT
// Calls of the runtime API about devices, events and streams.
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/time.h>
#include <time.h>

#include <map>
#include <set>

#include "runtime.h"

using namespace cuda_on_cpu;

namespace cuda_on_cpu {

using Clock = std::map<int, unsigned>;  // a vector clock: for each stream how many of its operations are over

static void merge(Clock& clock, const Clock& other)
{
    for (auto [stream, works] : other) clock[stream] = max(clock[stream], works);
}

}  // namespace cuda_on_cpu

struct CUstream_st {
    int number, device;
    bool waits_for_default;  // and the default stream for it
    Clock after;             // what the stream's next operation comes after
    bool was_queried;        // while its work was not over
};
struct CUevent_st {
    double milliseconds;
    bool recorded;
    Clock after;
    bool was_queried;  // while its work was not over
    int stream, launches;  // the stream's number, and the launches so far
    UnderWay latest;
};

namespace {

std::set<cudaEvent_t>& events = *new std::set<cudaEvent_t>;  // used until the very end of the process
std::set<cudaStream_t>& streams = *new std::set<cudaStream_t>;
CUstream_st* usual = new CUstream_st[MOST_DEVICES]{};  // the default stream of each device
int streams_made = MOST_DEVICES;
Clock& host = *new Clock;  // what the host waited for

struct Use {
    const char *begin, *end;
    bool writes;
    int stream;
    unsigned work;
    std::string what;
    Place place;
};
std::vector<Use>& uses_so_far = *new std::vector<Use>;
Use now{};               // the operation that has begun
const Clock* now_after;  // and its stream's clock

CUstream_st& stream_of(cudaStream_t stream)
{
    usual[chosen_device()].number = usual[chosen_device()].device = chosen_device();
    return stream ? *stream : usual[chosen_device()];
}

int devices()
{
    const char* number = getenv("HYBRID_LAB_DEVICES");
    return number ? min(atoi(number), MOST_DEVICES) : 1;
}

cudaError_t of_device(Call&& call, int number)
{
    return call.ends_with(number < 0 || number >= devices() ? cudaErrorInvalidDevice : cudaSuccess,
                          "device " + std::to_string(number) + " is not there, only device 0: --devices N gives N");
}

bool is_over(const Use& use, const Clock& clock)
{
    auto found = clock.find(use.stream);
    return found != clock.end() && found->second >= use.work;
}

bool clock_was_read, launch_is_timed, is_reading;

cudaError_t waited(Call&& call)
{
    order::host_waits();
    return call.waits();
}

}  // namespace

namespace cuda_on_cpu::order {

int device_of(cudaStream_t stream) { return stream_of(stream).device; }

void begins(cudaStream_t in, const std::string& what, Place place)
{
    CUstream_st& stream = stream_of(in);
    Clock& after = stream.after;
    merge(after, host);
    // The default stream and others, but for non-blocking ones, wait for each other.
    if (in && stream.waits_for_default) merge(after, usual[stream.device].after);
    for (cudaStream_t other : streams)
        if (!in && other->waits_for_default && other->device == chosen_device()) merge(after, other->after);
    now = {nullptr, nullptr, false, stream.number, ++after[stream.number], what, place};
    now_after = &after;
}

void uses(const char* begin, const char* end, bool writes, const Region* region)
{
    for (const Use& each : uses_so_far) {
        if (each.end <= begin || end <= each.begin || !(writes || each.writes) || is_over(each, *now_after)) continue;
        std::string text = now.what + (writes ? " writes " : " reads ") + (region ? named(*region, true) : "host memory") +
                           " while " + each.what + " may still " + (each.writes ? "write" : "read") +
                           " it in another stream: cudaStreamWaitEvent, or waiting on the host, orders them";
        tell("finding", "kind", "order", Members(now.place), "text", text, "kernel", "");
    }
    Use use = now;
    use.begin = begin, use.end = end, use.writes = writes;
    for (Use& each : uses_so_far)  // an earlier one of this stream
        if (each.stream == use.stream && each.begin == begin && each.end == end && each.writes == writes) return void(each = use);
    uses_so_far.push_back(use);
    memory_check::copies_run = true;
}

// Whether this is the C++ library, where std::chrono reads the clock.
static bool is_of_the_library(void* at)
{
    Dl_info library;
    return dladdr(at, &library) && strstr(library.dli_fname, "libstdc++");
}

void forget_what_is_over()
{
    clock_was_read = launch_is_timed = false;
    uses_so_far.erase(std::remove_if(uses_so_far.begin(), uses_so_far.end(), [](const Use& use) { return is_over(use, host); }),
                      uses_so_far.end());
    memory_check::copies_run = !uses_so_far.empty();
}

void host_waits()
{
    merge(host, usual[chosen_device()].after);
    for (cudaStream_t stream : streams)
        if (stream->device == chosen_device()) merge(host, stream->after);
    forget_what_is_over();
}

void host_waits(cudaStream_t stream)
{
    merge(host, stream_of(stream).after);
    forget_what_is_over();
}

const std::string* may_still_use(const char* at, bool writes)
{
    for (const Use& each : uses_so_far)
        if (at >= each.begin && at < each.end && (writes || each.writes)) return &each.what;
    return nullptr;
}

// A host that reads the clock before a launch and after it, without waiting, measures only the launch.
void clock_is_read()
{
    if (current || is_reading) return;
    if (!launch_is_timed) {
        clock_was_read = true;
        return;
    }
    is_reading = true;  // backtrace may read the clock, too
    void* frames[8];
    int count = backtrace(frames, 8), i = 2;
    while (i < count && !offset_of(frames[i])) ++i;
    bool is_own = i < count && (i == 2 || is_of_the_library(frames[2]));
    if (is_own)
        tell("finding", "kind", "clock", "at", offset_of(frames[i]), "launch", under_way.line, "of", under_way.kernel, "kernel",
             "");
    launch_is_timed = launch_is_timed && !is_own;
    is_reading = false;
}

void launched() { launch_is_timed = clock_was_read; }

}  // namespace cuda_on_cpu::order

cudaError_t cudaGetDeviceCount(int* count, Place) { return *count = devices(), cudaSuccess; }
cudaError_t cudaGetDevice(int* number, Place) { return *number = chosen_device(), cudaSuccess; }
cudaError_t cudaSetDevice(int number, Place place)
{
    cudaError_t error = of_device({__func__, place}, number);
    if (!error) chosen_device() = number;
    return error;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int number, int peer, Place place)
{
    *can = number != peer;
    return of_device({__func__, place}, max(number, peer));
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned, Place place)
{
    cudaError_t error = of_device({__func__, place}, peer);
    if (!error) reached[chosen_device()] |= 1u << peer;
    return error;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int number, Place place)
{
    if (cudaError_t error = of_device({__func__, place}, number)) return error;
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
    properties->multiProcessorCount = properties->unifiedAddressing = properties->managedMemory = properties->deviceOverlap = 1;
    properties->canMapHostMemory = 1;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, AnyKernel, int threads, size_t dynamic_shared)
{
    *blocks = min(32, 2048 / max(1, (threads + 31) / 32 * 32));
    if (dynamic_shared) *blocks = min(*blocks, static_cast<int>(USUAL_SHARED / dynamic_shared));
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, AnyKernel, size_t, int limit)
{
    *block = limit ? min(limit, 1024) : 1024;
    *grid = 2048 / *block;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(Place place) { return waited({__func__, place}); }
cudaError_t cudaThreadSynchronize(Place place) { return waited({__func__, place}); }
cudaError_t cudaDeviceReset(Place place)
{
    cudaError_t error = waited({__func__, place});
    for (Region* each : live_regions()) release(*each, "cudaDeviceReset in line " + std::to_string(place.line));
    events.clear();
    for (cudaStream_t each : streams) delete each;
    streams.clear();
    lasting = last_error = cudaSuccess;
    return error;
}

namespace {

cudaError_t of_event(Call&& call, cudaEvent_t event, bool recorded = false)
{
    if (!events.count(event))
        return call.ends_with(cudaErrorInvalidResourceHandle, "its event was not created, or destroyed already");
    return call.ends_with(!recorded || event->recorded ? cudaSuccess : cudaErrorInvalidResourceHandle,
                          "its event was never recorded: cudaEventRecord does that");
}
cudaError_t of_stream(Call&& call, cudaStream_t stream)
{
    bool is_valid = !stream || streams.count(stream);
    return call.ends_with(is_valid ? cudaSuccess : cudaErrorInvalidResourceHandle,
                          "its stream was not created, or destroyed already");
}

bool is_over(const Clock& clock)
{
    return std::all_of(clock.begin(), clock.end(), [](auto& each) { return host[each.first] >= each.second; });
}

// A query of work that the host has not waited for: the first says that the work is not over, and the next one waits for it.
cudaError_t queried(Call&& call, const Clock& after, bool& was_queried)
{
    if (!is_over(after) && !was_queried) {
        was_queried = true;
        return cudaErrorNotReady;  // no error
    }
    was_queried = false;
    merge(host, after);
    order::forget_what_is_over();
    return call.waits();
}

}  // namespace

cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned, Place)
{
    events.insert(*event = new CUevent_st{});
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream, Place place)
{
    if (cudaError_t error = of_stream({__func__, place}, stream)) return error;
    if (cudaError_t error = of_event({__func__, place}, event)) return error;
    order::begins(stream, "", place);
    *event = {1e3 * seconds_now(), true, stream_of(stream).after, false, stream_of(stream).number, launches, under_way};
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event, Place place)
{
    if (cudaError_t error = of_event({__func__, place}, event)) return error;
    merge(host, event->after);
    order::forget_what_is_over();
    return Call(__func__, place).waits();
}
cudaError_t cudaEventQuery(cudaEvent_t event, Place place)
{
    if (cudaError_t error = of_event({__func__, place}, event)) return error;
    return queried({__func__, place}, event->after, event->was_queried);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop, Place place)
{
    tell_note("times");
    for (cudaEvent_t each : {start, stop})
        if (cudaError_t error = of_event({__func__, place}, each, true)) return error;
    if (!is_over(start->after) || !is_over(stop->after))
        return Call(__func__, place)
            .ends_with(cudaErrorNotReady, "the host has not waited for the work before its events: cudaEventSynchronize does that");
    *milliseconds = static_cast<float>(stop->milliseconds - start->milliseconds);
    Clock none_between = start->after;
    ++none_between[stop->stream];
    if (start->stream == stop->stream && start->launches < stop->launches && none_between == stop->after)
        tell("finding", "kind", "events", "launch", stop->latest.line, "of", stop->latest.kernel, "kernel", "", Members(place));
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event, Place place)
{
    if (cudaError_t error = of_event({__func__, place}, event)) return error;
    events.erase(event);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream, Place)
{
    tell_note("streams");
    streams.insert(*stream = new CUstream_st{streams_made++, chosen_device(), true, {}, false});
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags, Place place)
{
    cudaError_t error = cudaStreamCreate(stream, place);
    (*stream)->waits_for_default = flags != cudaStreamNonBlocking;
    return error;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream, Place place)
{
    if (cudaError_t error = of_stream({__func__, place}, stream)) return error;
    order::host_waits(stream);
    return Call(__func__, place).waits();
}
cudaError_t cudaStreamQuery(cudaStream_t stream, Place place)
{
    if (cudaError_t error = of_stream({__func__, place}, stream)) return error;
    return queried({__func__, place}, stream_of(stream).after, stream_of(stream).was_queried);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned, Place place)
{
    if (cudaError_t error = of_stream({__func__, place}, stream)) return error;
    if (cudaError_t error = of_event({__func__, place}, event)) return error;
    merge(stream_of(stream).after, event->after);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream, Place place)
{
    if (cudaError_t error = of_stream({__func__, place}, stream)) return error;
    merge(usual[stream->device].after, stream->after);  // its work is still to be waited for
    streams.erase(stream);
    delete stream;
    return cudaSuccess;
}

#define READS_CLOCK(Type, name, parameters, arguments)                                     \
    extern "C" __attribute__((visibility("default"))) Type name parameters                 \
    {                                                                                      \
        static auto* real = reinterpret_cast<Type(*) parameters>(dlsym(RTLD_NEXT, #name)); \
        order::clock_is_read();                                                            \
        return real arguments;                                                             \
    }
READS_CLOCK(clock_t, clock, () noexcept, ())
READS_CLOCK(int, gettimeofday, (struct timeval * time, void* zone) noexcept, (time, zone))
READS_CLOCK(int, clock_gettime, (clockid_t which, struct timespec* time) noexcept, (which, time))
