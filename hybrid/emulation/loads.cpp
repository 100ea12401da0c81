// SPDX-License-Identifier: MIT
// Counts how often a kernel reads and writes each element of its matrices.
#include "cuda_on_cpu.h"

namespace {

struct Watched {
    cuda_on_cpu::Array array;
    double *reads, *writes;  // per element; an access to half of its bytes counts 0.5
    double* writers;         // 1 where one thread has written, 2 where several have
    double* last_writer;     // the thread's number in the grid, from 1 on; 0 where none has
};

Watched watched[3];

// Atomic updates of an element by several threads are in order.
void note_writer(Watched& one, long long number, bool atomic)
{
    const cuda_on_cpu::Thread& thread = *cuda_on_cpu::current;
    const auto &size = cuda_on_cpu::block_size, &grid = cuda_on_cpu::grid_size;
    const uint3& at = cuda_on_cpu::block_index;
    unsigned long long block = (static_cast<unsigned long long>(at.z) * grid.y + at.y) * grid.x + at.x;
    double writer = static_cast<double>(block * size.x * size.y * size.z + thread.number + 1);
    double& last = one.last_writer[number];
    one.writers[number] = last != 0 && last != writer && !atomic ? 2 : max(one.writers[number], 1.0);
    last = writer;
}

void count(const volatile void* address, long long bytes, double* Watched::* counts, bool atomic = false)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(address);
    while (bytes > 0) {
        long long taken = bytes;
        for (Watched& one : watched) {
            const cuda_on_cpu::Array& array = one.array;
            long long offset = static_cast<long long>(at - reinterpret_cast<uintptr_t>(array.data));
            if (!array.data || offset < 0 || !array.columns) continue;
            long long element = offset / array.item;
            long long row = array.rows > 1 ? element / array.stride : 0, column = element - row * array.stride;
            if (row >= array.rows || column >= array.columns) continue;
            taken = min(bytes, array.item - offset % array.item);
            long long number = row * array.columns + column;
            (one.*counts)[number] += static_cast<double>(taken) / array.item;
            if (counts == &Watched::writes) note_writer(one, number, atomic);
            break;
        }
        if (taken == bytes) return;
        at += taken;
        bytes -= taken;
    }
}

void accessed(void* address, int bytes, bool writes, void*) { count(address, bytes, writes ? &Watched::writes : &Watched::reads); }

}  // namespace

extern "C" {

void count_atomic(void* to, int bytes, void*) { count(to, bytes, &Watched::writes, true); }

__attribute__((visibility("default"))) void watch(int number, const cuda_on_cpu::Array* array, double* reads, double* writes,
                                                  double* writers, double* last_writer)
{
    if (!number) watched[1] = watched[2] = {};
    if (number >= 3) return;
    watched[number] = {*array, reads, writes, writers, last_writer};
}
}

#include "accesses.h"
