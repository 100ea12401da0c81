// SPDX-License-Identifier: MIT
// Looks at each access of instrumented kernels: is it to memory that they may use, is it ordered, was it written?
#pragma once
#include <utility>

#include "device_memory.h"

namespace cuda_on_cpu::memory_check {

// Called by runtime.cpp where this is linked. Returns the beginning and the end of __shared__ variables: those that are given, or the
// calling thread's where these are null.
WHERE_WATCHED std::pair<char*, char*> launch_begins(char* first, char* last, const Launch& launch);
WHERE_WATCHED void block_begins(char* dynamic_shared, size_t bytes);
WHERE_WATCHED void barrier_passed();

void looks(bool may);  // whether races and missing values are looked for in the next launches
int sampled();         // launches of which not all blocks were looked at
void kernels_may_run(bool may);  // the host has not waited for them
extern bool copies_may_run;
bool was_used(const Region& region);       // by the launch that runs, or the last one
bool was_written(const Cell& cell);

}  // namespace cuda_on_cpu::memory_check
