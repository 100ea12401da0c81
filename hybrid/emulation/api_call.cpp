// SPDX-License-Identifier: MIT
// What all calls of the runtime API have in common, and those that tell errors.
#include "api_call.h"

#include "findings.h"
#include "memory_check.h"

namespace cuda_on_cpu {

cudaError_t last_error, in_flight, lasting;
std::string printed;

namespace {

constexpr int MOST_ERRORS = 100;
std::recursive_mutex one_at_a_time;
int errors;

}  // namespace

void show_printed()
{
    fputs(printed.c_str(), stdout);
    printed.clear();
}

Call::Call(const char* name, const char* file, int line) : lock_(one_at_a_time), name_(name), file_(file), line_(line) {}

cudaError_t Call::ends_with(cudaError_t code, const std::string& why)
{
    if (!code) return code;
    last_error = code;
    if (++errors <= MOST_ERRORS)
        tell(
            "{\"event\": \"error\", \"call\": %s, \"file\": %s, \"line\": %d, \"code\": %d, \"name\": \"%s\", \"text\": "
            "\"%s\", "
            "\"of_kernel\": %d, \"why\": %s}",
            quoted(name_).c_str(), quoted(file_).c_str(), line_, code, cudaGetErrorName(code), cudaGetErrorString(code),
            code == lasting, quoted(why.c_str()).c_str());
    return code;
}

cudaError_t Call::waits()
{
    show_printed();
    memory_check::kernels_may_run(false);
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

void Call::reads(Region& region, const void* at, size_t bytes)
{
    size_t offset = static_cast<const char*>(at) - region.begin;
    long long first = first_unwritten(region, offset, bytes);
    if (first >= 0)
        tell(
            "{\"event\": \"finding\", \"kind\": \"copies unwritten\", \"call\": %s, \"file\": %s, \"line\": %d, \"number\": "
            "%d, "
            "\"offset\": %lld, \"kernel\": \"\"}",
            quoted(name_).c_str(), quoted(file_).c_str(), line_, region.number, first);
}

}  // namespace cuda_on_cpu

using namespace cuda_on_cpu;

cudaError_t cudaPeekAtLastError(const char*, int)
{
    if (last_error) tell("{\"event\": \"looked\"}");
    return last_error;
}
cudaError_t cudaGetLastError(const char* file, int line)
{
    cudaError_t error = cudaPeekAtLastError(file, line);
    last_error = lasting;
    return error;
}
const char* cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define ERROR(name, code, text) \
    case name:                  \
        return text;
        CUDA_ERRORS(ERROR)
#undef ERROR
    }
    return "unrecognized error code";
}
const char* cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define ERROR(name, code, text) \
    case name:                  \
        return #name;
        CUDA_ERRORS(ERROR)
#undef ERROR
    }
    return "unrecognized error code";
}
