// SPDX-License-Identifier: MIT
// A call of CUDA's runtime API. Calls are made one at a time, and their errors are kept and told.
#pragma once
#include <mutex>
#include <string>

#include "device_memory.h"
#include "host_api.h"

namespace cuda_on_cpu {

constexpr size_t USUAL_SHARED = 48 << 10, MOST_SHARED = 227 << 10;

// in_flight: of a kernel that no call has waited for; lasting: then.
extern cudaError_t last_error, in_flight, lasting;
extern std::string printed;  // by kernels, and not yet shown
extern int launches;

class Call {
public:
    Call(const char* name, Place place) : place_(place), lock_(one_at_a_time), name_(name) {}
    // `why`: the rule that is broken, with its values; {N} stands for the name of allocation N, {N:} for it and its line.
    cudaError_t ends_with(cudaError_t code, const std::string& why = "");
    std::string text() const { return std::string(name_) + " in line " + std::to_string(place_.line); }
    // Waits for the kernels: what they printed is shown, and what went wrong in them is told.
    cudaError_t waits();
    void reads(const Region& region, const void* at, size_t bytes) const;
    std::string as_json() const;  // members "call", "file" and "line"

    const Place place_;

private:
    static inline std::recursive_mutex one_at_a_time;
    std::lock_guard<std::recursive_mutex> lock_;
    const char* name_;
};

struct ForDevice {  // device memory can be used
    ForDevice() { let_host_use_device_memory(true); }
    ~ForDevice() { let_host_use_device_memory(false); }
};

void show_printed();
std::string grouped(unsigned long long number);  // 4096 as 4,096
std::string named(const Region& region, bool with_line = false);
// The rule that an operation breaks on this range of device memory; "" for none. `preposition`: into or from.
std::string misuse(const Region& region, const void* at, size_t bytes, const char* preposition);

}  // namespace cuda_on_cpu

// What is known to be over when: the order that streams, events and waiting give to the device's work and to the host.
namespace cuda_on_cpu::order {

// Work in a stream, from now on: what it is, for messages. Uses of memory are its until the next work.
int device_of(cudaStream_t stream);
void begins(cudaStream_t stream, const std::string& what, Place place);
// That work reads or writes these bytes. Tells a race if other work may use them at the same time.
void uses(const char* begin, const char* end, bool writes, const Region* region);
void host_waits();                     // for all work of the device
void host_waits(cudaStream_t stream);  // for its work
WHERE_WATCHED bool host_may_use(const char* at, bool writes,
                                std::string& meanwhile);  // page-locked memory, as far as copies are done
void forget_what_is_over();
void launched();  // a kernel, by the work that has begun
void clock_is_read();

}  // namespace cuda_on_cpu::order
