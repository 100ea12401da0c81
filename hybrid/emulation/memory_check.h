// SPDX-License-Identifier: MIT
// Looks at each access of a whole program's kernels: is it to memory that they may use, is it ordered, was it written?
#pragma once
#include <utility>

#include "device_memory.h"

namespace cuda_on_cpu::memory_check {

std::pair<char*, char*> launch_begins(size_t dynamic_bytes);  // the beginning and the end of __shared__ variables
void block_begins(char* dynamic_shared, size_t bytes);
void launch_ends();
void barrier_passed();
void looks(bool may);  // whether races and missing values are looked for in the next launches
int sampled();  // launches of which not all blocks were looked at
void parameters_are(const void* at, size_t bytes);  // of the kernel that is launched
void kernels_may_run(bool may);  // the host has not waited for them

}  // namespace cuda_on_cpu::memory_check

namespace cuda_on_cpu {

bool written_by_launch(const Cell& cell);  // that runs, or the last one

}  // namespace cuda_on_cpu
