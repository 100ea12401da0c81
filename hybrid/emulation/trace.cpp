// SPDX-License-Identifier: MIT
// Records which thread accesses which memory, in the order of the accesses, for pictures of small products.
#include "cuda_on_cpu.h"
#include "library.h"

#include <vector>

extern "C" char shared_first[], shared_last[];

namespace {

constexpr int MATRICES = 3, SHARED = MATRICES, DYNAMIC = SHARED + 1, NOWHERE = -1;
constexpr size_t MOST = 1 << 20;

struct Access {  // as Python reads it
    unsigned long long instruction;  // its offset in the library
    long long byte;                  // in the matrix; of __shared__ variables in the library; in dynamic shared memory
    int space, bytes, writes;
    unsigned block_x, block_y, thread, barriers;  // barriers: that the thread has passed
};

cuda_on_cpu::Array matrices[MATRICES];
std::vector<Access> trace;
bool too_many;

// The space that an address is in, and where in it.
std::pair<int, long long> place_of(uintptr_t at)
{
    for (int i = 0; i < MATRICES; ++i) {
        const cuda_on_cpu::Array& each = matrices[i];
        long long byte = static_cast<long long>(at - reinterpret_cast<uintptr_t>(each.data));
        if (each.data && byte >= 0 && byte < each.rows * each.stride * each.item) return {i, byte};
    }
    auto* address = reinterpret_cast<const char*>(at);
    if (address >= shared_first && address < shared_last) return {SHARED, cuda_on_cpu::offset_in_library(at)};
    if (!cuda_on_cpu::is_dynamic_shared(address)) return {NOWHERE, 0};
    return {DYNAMIC, address - static_cast<const char*>(cuda_on_cpu::dynamic_shared_memory())};
}

void accessed(void* address, int bytes, bool writes, void* instruction)
{
    if (!cuda_on_cpu::current) return;
    auto [space, byte] = place_of(reinterpret_cast<uintptr_t>(address));
    if (space == NOWHERE) return;
    too_many = trace.size() == MOST;
    if (too_many) return;
    const cuda_on_cpu::Thread& thread = *cuda_on_cpu::current;
    unsigned long long offset = cuda_on_cpu::offset_in_library(reinterpret_cast<uintptr_t>(instruction));
    trace.push_back({offset, byte, space, bytes, writes, cuda_on_cpu::block_index.x, cuda_on_cpu::block_index.y, thread.number,
                     static_cast<unsigned>(thread.block_barriers)});
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void watch_trace(int number, const cuda_on_cpu::Array* array)
{
    if (!number) {
        std::fill(matrices, matrices + MATRICES, cuda_on_cpu::Array{});
        trace.clear();
        too_many = false;
    }
    if (number < MATRICES) matrices[number] = *array;
}

// Returns how many accesses there are, or -1 for more than are kept. `first` becomes the address of the first, which is valid until
// the next launch.
__attribute__((visibility("default"))) long long accesses_traced(const Access** first)
{
    *first = trace.data();
    return too_many ? -1 : static_cast<long long>(trace.size());
}
}

#include "accesses.h"
