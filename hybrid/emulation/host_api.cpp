// SPDX-License-Identifier: MIT
// Calls of the runtime API about memory and errors: with CUDA's errors, and findings that a GPU would not report.
#include "runtime.h"

#include <assert.h>
#include <stdarg.h>

#include <map>
#include <tuple>

namespace cuda_on_cpu {

cudaError_t last_error, in_flight, lasting;
std::string printed;
int launches, failed_calls;

void show_printed()
{
    fputs(printed.c_str(), stdout);
    printed.clear();
}

cudaError_t Call::ends_with(cudaError_t code, const std::string& why)
{
    constexpr int MOST_ERRORS = 100;
    if (!code) return code;
    last_error = code;
    if (++failed_calls <= MOST_ERRORS)
        tell("error", members(), "code", static_cast<int>(code), "name", cudaGetErrorName(code), "text", cudaGetErrorString(code),
             "of_kernel", code == lasting, "why", why);
    return code;
}

cudaError_t Call::waits()
{
    show_printed();
    memory_check::kernels_run = false;
    if (in_flight) lasting = in_flight;
    in_flight = cudaSuccess;
    return ends_with(lasting);
}

std::string grouped(unsigned long long number)
{
    std::string text = std::to_string(number);
    for (int place = static_cast<int>(text.size()) - 3; place > 0; place -= 3) text.insert(place, ",");
    return text;
}

std::string named(const Region& region, bool with_line) { return "{" + std::to_string(region.number) + (with_line ? ":}" : "}"); }

std::string misuse(const Region& region, const void* at, size_t bytes, const char* preposition)
{
    if (region.freed) return named(region, true) + " was freed by " + region.freed_by;
    if (region.has(static_cast<const char*>(at), bytes)) return "";
    long long begin = static_cast<const char*>(at) - region.begin;
    return grouped(bytes) + " bytes " + preposition + " " + named(region, true) + ", which has " + grouped(region.bytes) +
           (begin ? ", from its byte " + std::to_string(begin) + " on" : "");
}

namespace {

constexpr const char* KINDS[] = {"cudaMemcpyHostToHost", "cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost",
                                 "cudaMemcpyDeviceToDevice", "cudaMemcpyDefault"};

std::map<const char*, size_t>& known_symbols = *new std::map<const char*, size_t>;  // variables whose address the host has

bool is_known_symbol(const void* at, size_t bytes)
{
    auto after = known_symbols.upper_bound(static_cast<const char*>(at));
    return after != known_symbols.begin() &&
           static_cast<const char*>(at) + bytes <= std::prev(after)->first + std::prev(after)->second;
}

Region* region_of(const void* at) { return region_around(static_cast<const char*>(at)); }

// The rule that a copy breaks; "" for none.
std::string broken_by_copy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind)
{
    if (!to || !from) return std::string("its ") + (to ? "source" : "destination") + " is a null pointer";
    const Region *target = region_of(to), *source = region_of(from);
    auto fits = [bytes](const Region* region, const void* at, bool on_device) {
        return region ? on_device || region->kind == Region::MANAGED : is_known_symbol(at, bytes) == on_device;
    };
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault && !(fits(target, to, to_device) && fits(source, from, from_device))) {
        auto is_variable = [](const void* at) { return memory_check::is_of_device(static_cast<const char*>(at)); };
        auto place = [is_variable](const Region* region, const void* at) {
            return region            ? named(*region, true) + " in device memory"
                   : is_variable(at) ? "a variable of the device"
                                     : "host memory";
        };
        bool is_reversed = fits(target, to, from_device) && fits(source, from, to_device) && to_device != from_device;
        std::string instead = is_variable(to)     ? ": cudaMemcpyToSymbol copies there"
                              : is_variable(from) ? ": cudaMemcpyFromSymbol copies from there"
                              : is_reversed       ? ": the two are swapped, or the direction is " + std::string(KINDS[3 - kind])
                                                  : "";
        return std::string("it says ") + KINDS[kind] + ", but its destination is " + place(target, to) + " and its source " +
               place(source, from) + instead;
    }
    for (auto [region, at, preposition] : {std::tuple{target, to, "into"}, {source, from, "from"}})
        if (std::string why = region ? misuse(*region, at, bytes, preposition) : ""; !why.empty())
            return (region->freed ? "" : "it copies ") + why;
    return "";
}

const cudaStream_t WAITS = reinterpret_cast<cudaStream_t>(-1);  // of synchronous copies

cudaError_t copied(Call&& call, void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
    if (stream == WAITS)
        if (cudaError_t error = call.waits()) return error;
    if (lasting) return call.ends_with(lasting);
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return call.ends_with(cudaErrorInvalidMemcpyDirection);
    if (!bytes) return cudaSuccess;
    if (std::string why = broken_by_copy(to, from, bytes, kind); !why.empty()) return call.ends_with(cudaErrorInvalidValue, why);
    Region *target = region_of(to), *source = region_of(from);
    if (source && !target) {
        long long first = first_unwritten(*source, static_cast<const char*>(from) - source->begin, bytes);
        if (first >= 0 && !source->gap.line)
            tell("finding", "kind", "copies unwritten", call.members(), "number", source->number, "offset", first, "kernel", "");
        const char* end = static_cast<const char*>(from) + bytes;
        source->copied_out = max(source->copied_out, size_t(end - source->begin));
        bool is_left_out = !source->has(end, 1) && !source->cells[(source->bytes - 1) / 4].write_segment;
        if (is_left_out && !source->too_small.empty())
            tell("finding", "kind", "too small", "text", std::exchange(source->too_small, ""), "kernel", "",
                 Members(Place{call.place_.file, source->launched, 0}));
    }
    if (source) source->is_consumed = source->is_seen = true;
    if (source && !target && source->used_by > max(source->written_by, memory_check::wrote_elsewhere))
        tell("operand", call.members(), "number", source->number, "launch", source->used_by, "written", source->was_written);
    order::begins(stream == WAITS ? nullptr : stream, call.text(), call.place_);
    for (auto [region, at, writes] : {std::tuple{source, from, false}, {target, const_cast<const void*>(to), true}})
        if (auto* begin = static_cast<const char*>(at); region || (stream != WAITS && pinned_around(begin)))
            order::uses(begin, begin + bytes, writes, region);
    if (stream == WAITS) order::host_waits(nullptr);
    ForDevice now;
    heap::Parts unwritten;
    if (target && !source) unwritten = heap::unwritten_in(static_cast<const char*>(from), bytes);
    if (target && !source) heap::look_at_tail(static_cast<const char*>(from), bytes);
    memmove(to, from, bytes);
    if (source && !target) heap::note_filled(static_cast<const char*>(to), bytes, "cudaMemcpy", call.place_);
    size_t offset = target ? static_cast<char*>(to) - target->begin : 0;
    if (target && bytes == target->bytes)
        target->gap = {}, target->set = {}, target->part = {};
    else if (target && !target->part.line && !target->is_filled)
        target->part = {call.place_.line, bytes};
    else if (target)
        target->part.line = -1;
    if (target) target->is_filled = true;
    if (target && source && source->kind != Region::MANAGED) {  // the host's writes to managed memory are not seen
        mark_as(*target, offset, *source, static_cast<const char*>(from) - source->begin, bytes);
        if (source->gap.line) target->gap = source->gap;
    } else if (target) {
        mark_written(*target, offset, bytes);
        for (auto [begin, size] : unwritten) {
            mark_written(*target, offset + begin, size, false);
            target->gap = {call.place_.line, heap::number_at(static_cast<const char*>(from))};
        }
    }
    return cudaSuccess;
}

// Copies rows of `width` bytes that lie a pitch apart.
cudaError_t rows_copied(Call&& call, void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                        cudaMemcpyKind kind, cudaStream_t stream)
{
    if (width > to_pitch || width > from_pitch) return call.ends_with(cudaErrorInvalidPitchValue);
    for (size_t row = 0; row < height; ++row) {
        char* target = static_cast<char*>(to) + row * to_pitch;
        const char* source = static_cast<const char*>(from) + row * from_pitch;
        bool is_whole = heap::may_use(target, width) && heap::may_use(source, width);  // what lies beyond it is told once
        if (cudaError_t error = copied(std::move(call), target, source, width, kind, stream); error || !is_whole) return error;
    }
    return cudaSuccess;
}

cudaError_t filled(Call&& call, void* to, int value, size_t bytes, cudaStream_t stream)
{
    if (lasting) return call.ends_with(lasting);
    if (!bytes) return cudaSuccess;
    Region* target = region_of(to);
    std::string why = target                       ? misuse(*target, to, bytes, "of")
                      : is_known_symbol(to, bytes) ? ""
                                                   : "its memory is not the device's";
    if (!why.empty()) return call.ends_with(cudaErrorInvalidValue, target && !target->freed ? "it sets " + why : why);
    order::begins(stream, call.text(), call.place_);
    order::uses(static_cast<char*>(to), static_cast<char*>(to) + bytes, true, target);
    ForDevice now;
    memset(to, value, bytes);
    if (target) mark_written(*target, static_cast<char*>(to) - target->begin, bytes), target->set = {}, target->part.line = -1;
    return cudaSuccess;
}

struct AtEnd {
    ~AtEnd()
    {
        if (!printed.empty()) tell_note("unflushed");
        if (in_flight) tell("unseen", "kernel", under_way.kernel, "line", under_way.line);
        if (!lasting && !in_flight) {  // after a failure a program can free nothing
            for (const Region* each : live_regions()) {
                tell_use(*each);
                tell("leak", "number", each->number);
            }
        }
        tell("end", "launches", launches, "sampled", memory_check::sampled());
    }
} at_end;

}  // namespace

void note_bytes(void* to, int value, size_t item, size_t items, bool is_real, Place place)
{
    if (value <= 0 || value >= 32 || item == 1 || item > 8) return;
    uint64_t bits = 0x0101010101010101u * value >> (64 - 8 * item);
    double number = !is_real    ? static_cast<double>(bits)
                    : item == 8 ? same_bits<double>(bits)
                                : same_bits<float>(static_cast<uint32_t>(bits));
    if (Region* region = region_of(to); region && is_real) region->set = {place, value, number, items};
    tell("bytes", place, "value", value, "item", number, "items", items);
}

}  // namespace cuda_on_cpu

using namespace cuda_on_cpu;

cudaError_t cudaPeekAtLastError(Place)
{
    if (last_error) tell("looked");
    return last_error;
}
cudaError_t cudaGetLastError(Place place)
{
    cudaError_t error = cudaPeekAtLastError(place);
    last_error = lasting;
    return error;
}
static std::pair<const char*, const char*> name_and_text(cudaError_t error)
{
    switch (error) {
#define ERROR(name, code, text) \
    case name:                  \
        return {#name, text};
        CUDA_ERRORS(ERROR)
#undef ERROR
    }
    return {"unrecognized error code", "unrecognized error code"};
}
const char* cudaGetErrorString(cudaError_t error) { return name_and_text(error).second; }
const char* cudaGetErrorName(cudaError_t error) { return name_and_text(error).first; }

static cudaError_t allocated(Call&& call, void** pointer, size_t bytes, Region::Kind kind = Region::ALLOCATION)
{
    if (lasting) return call.ends_with(lasting);
    if (!pointer || (kind == Region::MANAGED && !bytes)) return call.ends_with(cudaErrorInvalidValue);
    *pointer = nullptr;
    if (!bytes) return cudaSuccess;
    Region* region = allocate(bytes, kind, call.place_);
    if (!region)
        return call.ends_with(cudaErrorMemoryAllocation, "it asks for " + grouped(bytes) + " bytes, and of the device's " +
                                                             grouped(DEVICE_MEMORY) + " there are " + grouped(free_bytes()) +
                                                             " free: a GPU has more, here try smaller sizes");
    *pointer = region->begin;
    return cudaSuccess;
}
cudaError_t cudaMalloc(PointerTo pointer, size_t bytes, Place place) { return allocated({__func__, place}, pointer.at, bytes); }
cudaError_t cudaMallocAsync(PointerTo pointer, size_t bytes, cudaStream_t, Place place)
{
    return allocated({__func__, place}, pointer.at, bytes);
}
cudaError_t cudaMallocPitch(PointerTo pointer, size_t* pitch, size_t width, size_t height, Place place)
{
    *pitch = (width + 511) / 512 * 512;
    return allocated({__func__, place}, pointer.at, *pitch * height);
}
cudaError_t cudaMallocManaged(PointerTo pointer, size_t bytes, unsigned, Place place)
{
    return allocated({__func__, place}, pointer.at, bytes, Region::MANAGED);
}
cudaError_t cudaMallocHost(PointerTo pointer, size_t bytes, unsigned, Place place)
{
    *pointer.at = malloc(bytes);
    if (*pointer.at && heap::hand_over(*pointer.at, heap::MALLOC, heap::PINNED))
        if (Region* region = pin(static_cast<char*>(*pointer.at), bytes)) region->number = heap::number_at(region->begin);
    return Call(__func__, place).ends_with(*pointer.at || !bytes ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaHostAlloc(PointerTo pointer, size_t bytes, unsigned flags, Place place)
{
    return cudaMallocHost(pointer, bytes, flags, place);
}
cudaError_t cudaHostGetDevicePointer(PointerTo pointer, void* host, unsigned, Place place)
{
    *pointer.at = host;
    return Call(__func__, place)
        .ends_with(pinned_around(static_cast<char*>(host)) ? cudaSuccess : cudaErrorInvalidValue,
                   "its host memory is not page-locked: cudaHostAlloc gives such memory, and cudaHostRegister makes it so");
}

static cudaError_t symbol_copied(Call&& call, const Symbol& symbol, size_t offset, void* host, const void* from, size_t bytes)
{
    if (cudaError_t error = call.waits()) return error;
    order::begins(nullptr, call.text(), call.place_);
    order::host_waits(nullptr);
    if (offset > symbol.bytes || bytes > symbol.bytes - offset) return call.ends_with(cudaErrorInvalidValue);
    char* at = symbol.begin + offset;
    if (auto* given = static_cast<const char*>(from); given && heap::unwritten_in(given, bytes) == heap::Parts{{0, bytes}})
        tell("finding", "kind", "copies unwritten of the host", call.members(), "number", heap::number_at(given), "kernel", "");
    // Elements are counted, or a pointer's bytes, where bytes of elements are meant. Otherwise the rest may be meant to stay 0.
    bool is_wrong = bytes % symbol.item || bytes * symbol.item == symbol.bytes || (bytes == sizeof(void*) && bytes > symbol.item);
    if (!host) memory_check::parts.erase(symbol.begin);
    if (!host && !offset && bytes < symbol.bytes && is_wrong)
        memory_check::parts[symbol.begin] = {symbol.begin + bytes, symbol.begin + symbol.bytes, call.place_.line};
    ForDevice now;
    memmove(host ? host : at, host ? at : from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const Symbol& symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind, Place place)
{
    return symbol_copied({__func__, place}, symbol, offset, nullptr, from, bytes);
}
cudaError_t cudaMemcpyFromSymbol(void* to, const Symbol& symbol, size_t bytes, size_t offset, cudaMemcpyKind, Place place)
{
    return symbol_copied({__func__, place}, symbol, offset, to, nullptr, bytes);
}
cudaError_t cudaGetSymbolAddress(void** pointer, const Symbol& symbol)
{
    known_symbols[static_cast<char*>(*pointer = symbol.begin)] = symbol.bytes;
    memory_check::parts.erase(symbol.begin);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer, Place place)
{
    Call call(__func__, place);
    if (pointer && !heap::hand_over(pointer, heap::PINNED, heap::MALLOC))
        return call.ends_with(cudaErrorInvalidValue, "its pointer is not what cudaMallocHost gave, or was freed already");
    free(pointer);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned, Place place)
{
    Call call(__func__, place);
    if (!pointer || !bytes) return call.ends_with(cudaErrorInvalidValue);
    Region* region = pin(static_cast<char*>(pointer), bytes);
    if (region) region->number = heap::number_at(region->begin);
    return call.ends_with(region ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* pointer, Place place)
{
    return Call(__func__, place).ends_with(unpin(pointer) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

static cudaError_t freed(Call&& call, void* pointer)
{
    if (!pointer) return cudaSuccess;
    Region* region = region_around(static_cast<char*>(pointer));
    std::string why = !region         ? "its pointer is not the device's: free() takes what malloc() gave"
                      : region->freed ? named(*region, true) + " was freed already, by " + region->freed_by
                      : region->begin != pointer
                          ? "its pointer is " + grouped(static_cast<char*>(pointer) - region->begin) +
                                " bytes after the begin of " + named(*region, true) + ", and what cudaMalloc gave is freed"
                          : "";
    if (!why.empty()) return call.ends_with(cudaErrorInvalidValue, why);
    release(*region, call.text());
    return cudaSuccess;
}

cudaError_t cudaFree(void* pointer, Place place)
{
    Call call(__func__, place);
    if (cudaError_t error = call.waits()) return error;
    order::host_waits();
    return freed(std::move(call), pointer);
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream, Place place)
{
    Call call(__func__, place);
    if (lasting) return call.ends_with(lasting);
    Region* region = region_of(pointer);
    order::begins(stream, call.text() + ", which frees it,", place);
    if (region && !region->freed) order::uses(region->begin, region->begin + region->bytes, true, region);
    return freed(std::move(call), pointer);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Place place)
{
    return copied({__func__, place}, to, from, bytes, kind, WAITS);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream, Place place)
{
    return copied({__func__, place}, to, from, bytes, kind, stream);
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind, Place place)
{
    return rows_copied({__func__, place}, to, to_pitch, from, from_pitch, width, height, kind, WAITS);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream, Place place)
{
    return rows_copied({__func__, place}, to, to_pitch, from, from_pitch, width, height, kind, stream);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes, Place place)
{
    return filled({__func__, place}, to, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream, Place place)
{
    return filled({__func__, place}, to, value, bytes, stream);
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total, Place place)
{
    Call call(__func__, place);
    *available = free_bytes();
    *total = DEVICE_MEMORY;
    return call.ends_with(lasting);
}
cudaError_t cudaMemPrefetchAsync(const void* at, size_t bytes, int, cudaStream_t, Place place)
{
    Call call(__func__, place);
    Region* region = region_of(at);
    bool is_valid = region && region->kind == Region::MANAGED && misuse(*region, at, bytes, "of").empty();
    return call.ends_with(lasting    ? lasting
                          : is_valid ? cudaSuccess
                                     : cudaErrorInvalidValue,
                          "it takes memory of cudaMallocManaged");
}

// Kernels' output is kept until the host waits for them, as with a GPU. Programs are compiled with -fno-builtin-printf.
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
    if (current) stop_thread("assert", what);
    fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, assertion);
    abort();
}
