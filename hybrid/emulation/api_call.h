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
    cudaError_t ends_with(cudaError_t code);
    // Waits for the kernels: what they printed is shown, and what went wrong in them is told.
    cudaError_t waits();
    // Of an operation on so many bytes from `at`: the region, or null where it is no device memory.
    Region* device_memory(const void* at, size_t bytes, bool& is_valid);
    void reads(Region& region, const void* at, size_t bytes);

private:
    std::lock_guard<std::recursive_mutex> lock_;
    const char *name_, *file_;
    int line_;
};

void show_printed();

}  // namespace cuda_on_cpu
