// SPDX-License-Identifier: MIT
// Looks at each access of instrumented kernels: is it to memory that they may use, is it ordered, was it written?
#pragma once
#include <string>
#include <utility>

#include "device_memory.h"

namespace cuda_on_cpu::memory_check {

// Called by runtime.cpp where this is linked. Returns the beginning and the end of __shared__ variables: those that are given, or the
// calling thread's where these are null.
WHERE_WATCHED std::pair<char*, char*> launch_begins(char* first, char* last, size_t dynamic_bytes, const Work& work);
WHERE_WATCHED void block_begins(char* dynamic_shared, size_t bytes);
WHERE_WATCHED void barrier_passed();

void looks(bool may);  // whether races and missing values are looked for in the next launches
int sampled();         // launches of which not all blocks were looked at
std::pair<char*, char*> variables_of_device();  // where those with __device__ and the like begin and end
void kernels_may_run(bool may);  // the host has not waited for them
extern bool copies_may_run;
bool was_used(const Region& region);       // by the launch that runs, or the last one
bool was_written(const Cell& cell);

}  // namespace cuda_on_cpu::memory_check

// Counts, besides, a launch's accesses and branches: observers.cpp.
namespace cuda_on_cpu::observers {

enum Watch {  // bits
    ELEMENTS = 1,  // how much of A, B and C is read and written, and by which threads C
    REQUESTS = 2,  // how instructions use memory, and at which branches the lanes of warps diverge
    TRACE = 4      // each access, in their order
};
extern int watched;

// Of the arrays that are allocated next, which are A, B and C, in this order. `item`: bytes of an element.
void launch_begins(int watch, size_t item, size_t elements_of_c);
void block_ends();
void accessed(const Region& region, size_t offset, int bytes, bool writes, bool atomic, unsigned instruction);
// What was counted since, handed over: members of JSON that follow others.
std::string counted();

}  // namespace cuda_on_cpu::observers
