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

class Call {
public:
    Call(const char* name, const char* file, int line);
    // `why`: the rule that is broken, with its values; {N} stands for the name of allocation N, {N:} for it and its line.
    cudaError_t ends_with(cudaError_t code, const std::string& why = "");
    std::string place() const { return std::string(name_) + " in line " + std::to_string(line_); }
    // Waits for the kernels: what they printed is shown, and what went wrong in them is told.
    cudaError_t waits();
    void reads(Region& region, const void* at, size_t bytes);

private:
    std::lock_guard<std::recursive_mutex> lock_;
    const char *name_, *file_;
    int line_;
};

void show_printed();
std::string grouped(unsigned long long number);  // 4096 as 4,096
std::string named(const Region& region, bool with_line = false);
// The rule that an operation breaks on this range of device memory; "" for none. `preposition`: into or from.
std::string misuse(const Region& region, const void* at, size_t bytes, const char* preposition);

}  // namespace cuda_on_cpu
