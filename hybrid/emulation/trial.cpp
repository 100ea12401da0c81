// SPDX-License-Identifier: MIT
// Launches a student's kernel on arrays that Python has handed over, once for each order of the threads, and hands over what they
// have become, and what the observers have counted.
#include <string.h>

#include "api_call.h"
#include "findings.h"
#include "memory_check.h"

namespace cuda_on_cpu {

OneLaunch one_launch;

int trial(char** words, const char* kernel, void (*launch)(Launched&, void* const*, const long long*))
{
    long long given[12];
    for (long long& each : given) each = atoll(*++words);
    auto [x, y, z, block_x, block_y, block_z, shared, orders, seed, watch, item, count] = given;
    struct Array {
        size_t bytes;
        bool has_values;
    };
    std::vector<Array> own;
    for (int i = 0; i < count; ++i, words += 2) own.push_back({static_cast<size_t>(atoll(words[1])), atoll(words[2]) != 0});
    std::vector<long long> numbers;
    while (*++words) numbers.push_back(atoll(*words));
    one_launch.is_trial = true;
    one_launch.seed = seed;
    allow_shared(static_cast<int>(shared));
    for (one_launch.order = 0; one_launch.order < orders; ++one_launch.order) {
        restart_clock();
        std::vector<void*> arrays_of_launch;
        size_t place = 0;
        for (const Array& each : own) {
            arrays_of_launch.push_back(nullptr);
            if (cudaMalloc(&arrays_of_launch.back(), each.bytes)) return 1;
            if (each.has_values) (void)cudaMemcpy(arrays_of_launch.back(), arrays + place, each.bytes, cudaMemcpyHostToDevice);
            place += (each.bytes + 7) / 8 * 8;
        }
        reserve(place);
        memory_check::looks(one_launch.order == 0 && watch != observers::REQUESTS);
        observers::launch_begins(one_launch.order == 0 ? static_cast<int>(watch) : static_cast<int>(watch) & observers::ELEMENTS,
                                 item, item ? own.back().bytes / item : 0);
        Launched launched(kernel, dim3(x, y, z), dim3(block_x, block_y, block_z), shared);
        launch(launched, arrays_of_launch.data(), numbers.data());
        cudaError_t error = cudaDeviceSynchronize();
        if (error && watch & observers::TRACE) tell("{\"event\": \"outcome\"%s}", observers::counted().c_str());
        if (error) return error;
        std::string ended;
        let_host_use_device_memory(true);
        for (size_t i = 0; i < own.size(); ++i) ended += (i ? ", " : "") + handed_over(arrays_of_launch[i], own[i].bytes);
        let_host_use_device_memory(false);
        tell("{\"event\": \"outcome\", \"ended\": [%s]%s}", ended.c_str(), observers::counted().c_str());
        for (void* each : arrays_of_launch) (void)cudaFree(each);
        // What it prints in other orders says nothing new.
        if (!freopen("/dev/null", "w", stdout)) return 1;
    }
    return 0;
}

}  // namespace cuda_on_cpu
