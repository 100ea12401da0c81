// SPDX-License-Identifier: MIT
// Counts at which branches the lanes of a warp diverge. With -fsanitize-coverage=trace-pc,trace-cmp the compiler calls a function
// at the beginning of each basic block and at each comparison. A basic block that ends with a comparison is a branch, and the next
// one that the thread enters is the way it takes. The n-th execution of a branch by the lanes of a warp counts as one of the warp,
// as if the lanes ran in step; it diverges if they go different ways.
#include "cuda_on_cpu.h"
#include "library.h"

#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace {

constexpr unsigned LANES = 32;

struct Execution {  // of a branch, by a warp
    uintptr_t way;
    bool diverges;
};

struct Branch {  // as Python reads it
    unsigned long long offset;  // of its last comparison in the library
    long long executions, divergent;
};

struct Place {  // of a thread
    uintptr_t block, comparison;  // the basic block that it is in, and the last comparison there
};

std::vector<Place> places;
std::map<std::tuple<uintptr_t, unsigned, unsigned>, Execution> executions;  // of this thread block, by branch, warp and number
std::unordered_map<uintptr_t, std::vector<unsigned>> counts;                // of this thread block, by branch, for each thread
std::map<uintptr_t, uintptr_t> comparisons;                                 // by branch
std::map<uintptr_t, Branch> branches;
std::vector<Branch> told;
uint3 thread_block;

void end_thread_block()
{
    for (const auto& [key, execution] : executions) {
        Branch& branch = branches[comparisons[std::get<0>(key)]];
        branch.executions += 1;
        branch.divergent += execution.diverges;
    }
    executions.clear();
    counts.clear();
    places.clear();
}

Place& place_of_thread()
{
    const uint3& now = cuda_on_cpu::block_index;
    if (now.x != thread_block.x || now.y != thread_block.y || now.z != thread_block.z) {
        end_thread_block();
        thread_block = now;
    }
    unsigned threads = cuda_on_cpu::block_size.x * cuda_on_cpu::block_size.y * cuda_on_cpu::block_size.z;
    if (places.size() < threads) places.resize(threads);
    return places[cuda_on_cpu::current->number];
}

void enter(uintptr_t block)
{
    if (!cuda_on_cpu::current) return;
    Place& place = place_of_thread();
    if (place.comparison) {
        unsigned number = cuda_on_cpu::current->number;
        std::vector<unsigned>& of_thread = counts[place.block];
        of_thread.resize(places.size());
        comparisons[place.block] = place.comparison;
        auto [found, is_first] =
            executions.try_emplace({place.block, number / LANES, of_thread[number]++}, Execution{block, false});
        if (!is_first && found->second.way != block) found->second.diverges = true;
    }
    place = {block, 0};
}

void compare(uintptr_t where)
{
    if (cuda_on_cpu::current) place_of_thread().comparison = where;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void watch_branches()
{
    end_thread_block();
    comparisons.clear();
    branches.clear();
}

// Returns how many branches there are. `first` becomes the address of the first, which is valid until the next call.
__attribute__((visibility("default"))) int branches_taken(const Branch** first)
{
    end_thread_block();
    told.clear();
    for (auto& [comparison, branch] : branches) {
        branch.offset = cuda_on_cpu::offset_in_library(comparison);
        told.push_back(branch);
    }
    *first = told.data();
    return static_cast<int>(told.size());
}

#define HERE reinterpret_cast<uintptr_t>(__builtin_return_address(0))
void __sanitizer_cov_trace_pc() { enter(HERE); }
void __sanitizer_cov_trace_cmp1(uint8_t, uint8_t) { compare(HERE); }
void __sanitizer_cov_trace_cmp2(uint16_t, uint16_t) { compare(HERE); }
void __sanitizer_cov_trace_cmp4(uint32_t, uint32_t) { compare(HERE); }
void __sanitizer_cov_trace_cmp8(uint64_t, uint64_t) { compare(HERE); }
void __sanitizer_cov_trace_const_cmp1(uint8_t, uint8_t) { compare(HERE); }
void __sanitizer_cov_trace_const_cmp2(uint16_t, uint16_t) { compare(HERE); }
void __sanitizer_cov_trace_const_cmp4(uint32_t, uint32_t) { compare(HERE); }
void __sanitizer_cov_trace_const_cmp8(uint64_t, uint64_t) { compare(HERE); }
void __sanitizer_cov_trace_cmpf(float, float) { compare(HERE); }
void __sanitizer_cov_trace_cmpd(double, double) { compare(HERE); }
void __sanitizer_cov_trace_switch(uint64_t, void*) { compare(HERE); }
}
