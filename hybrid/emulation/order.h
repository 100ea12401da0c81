// SPDX-License-Identifier: MIT
// What is known to be over when: the order that streams, events and waiting give to the device's work and to the host.
#pragma once
#include <string>

#include "device_memory.h"
#include "host_api.h"

namespace cuda_on_cpu::order {

// Work in a stream, from now on: what it is, for messages. Uses of memory are its until the next work.
void begins(cudaStream_t stream, const std::string& what, const char* file, int line);
// That work reads or writes these bytes. Tells a race if other work may use them at the same time.
void uses(const char* begin, const char* end, bool writes, const Region* region);
void host_waits();                     // for all work
void host_waits(cudaStream_t stream);  // for its work
bool host_may_use(const char* at, bool writes, std::string& meanwhile);  // page-locked memory, as far as copies are done
void forget_what_is_over();
void launched();  // a kernel, by the work that has begun
void clock_is_read();
extern bool is_busy;                   // whether work may be under way that the host has not waited for

}  // namespace cuda_on_cpu::order
