// SPDX-License-Identifier: MIT
// What is counted of a launch's accesses to memory and of its branches, besides what memory_check.cpp looks for.
#pragma once
#include <string>

#include "device_memory.h"

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
