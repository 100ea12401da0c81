// SPDX-License-Identifier: MIT
// How a kernel's instructions use memory. The n-th execution of an instruction by the lanes of a warp in a block counts as one
// request of the warp, as if the lanes ran in step. A request to global memory is served in sectors of 32 bytes. Shared memory has
// 32 banks of 4 bytes, which serve a request in as many steps as one bank has different words to give.
#include "cuda_on_cpu.h"
#include "library.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

extern "C" char shared_first[], shared_last[];

namespace {

constexpr int MATRICES = 3, SHARED = MATRICES, NOWHERE = -1;
constexpr int SECTOR = 32, BANKS = 32, WORD = 4, LANES = 32;

enum Kind { LOAD, STORE, ATOMIC };

struct Request {  // of one warp
    int space, bytes;
    Kind kind;
    std::vector<uintptr_t> addresses;
};

struct Site {  // an instruction; as Python reads it
    unsigned long long offset;  // of the instruction in the library
    long long space, kind, requests, lanes, addresses, sectors, bytes, steps, least_steps;
};

cuda_on_cpu::Array matrices[MATRICES];
std::map<std::tuple<uintptr_t, unsigned, unsigned>, Request> requests;  // of this block, by instruction, warp and execution
std::unordered_map<uintptr_t, std::vector<unsigned>> executions;  // of this block, by instruction, for each thread
std::map<std::pair<uintptr_t, int>, Site> sites;  // by instruction and space
std::vector<Site> told;
uint3 block;

int space_of(uintptr_t at)
{
    for (int i = 0; i < MATRICES; ++i) {
        const cuda_on_cpu::Array& each = matrices[i];
        uintptr_t first = reinterpret_cast<uintptr_t>(each.data);
        if (each.data && at >= first && at < first + static_cast<uintptr_t>(each.rows * each.stride * each.item)) return i;
    }
    auto* address = reinterpret_cast<const char*>(at);
    if (address >= shared_first && address < shared_last) return SHARED;
    return cuda_on_cpu::is_dynamic_shared(address) ? SHARED : NOWHERE;
}

// How many different parts of so many bytes the request touches: sectors, or bytes.
long long parts_of(const Request& request, uintptr_t size)
{
    std::vector<uintptr_t> parts;
    for (uintptr_t at : request.addresses)
        for (uintptr_t part = at / size; part <= (at + request.bytes - 1) / size; ++part) parts.push_back(part);
    std::sort(parts.begin(), parts.end());
    return std::unique(parts.begin(), parts.end()) - parts.begin();
}

// In how many steps the banks serve a request, and the fewest for so many lanes. Accesses of 8 bytes are served by half-warps,
// those of 16 bytes by quarters of a warp.
std::pair<long long, long long> steps_of(const Request& request)
{
    size_t together = std::max(1, LANES * WORD / std::max(WORD, request.bytes));
    long long steps = 0, least = 0;
    for (size_t first = 0; first < request.addresses.size(); first += together, ++least) {
        std::vector<uintptr_t> words;
        for (size_t i = first; i < std::min(first + together, request.addresses.size()); ++i)
            for (int byte = 0; byte < request.bytes; byte += WORD) words.push_back((request.addresses[i] + byte) / WORD);
        std::sort(words.begin(), words.end());
        words.erase(std::unique(words.begin(), words.end()), words.end());
        long long of_bank[BANKS] = {};
        for (uintptr_t word : words) ++of_bank[word % BANKS];
        steps += *std::max_element(of_bank, of_bank + BANKS);
    }
    return {steps, least};
}

void end_block()
{
    for (const auto& [key, request] : requests) {
        uintptr_t instruction = std::get<0>(key);
        Site& site = sites[{instruction, request.space}];
        site.space = request.space;
        site.kind = request.kind;
        site.requests += 1;
        site.lanes += static_cast<long long>(request.addresses.size());
        if (request.space == SHARED) {
            auto [steps, least] = steps_of(request);
            site.steps += steps;
            site.least_steps += least;
        } else {
            long long bytes = parts_of(request, 1);
            site.sectors += parts_of(request, SECTOR);
            site.bytes += bytes;
            site.addresses += bytes / request.bytes;
        }
    }
    requests.clear();
    executions.clear();
}

void count(void* address, int bytes, Kind kind, void* instruction)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(address), where = reinterpret_cast<uintptr_t>(instruction);
    int space = space_of(at);
    if (space == NOWHERE) return;
    const uint3& now = cuda_on_cpu::block_index;
    if (now.x != block.x || now.y != block.y || now.z != block.z) {
        end_block();
        block = now;
    }
    const cuda_on_cpu::Thread& thread = *cuda_on_cpu::current;
    unsigned number = thread.number;
    std::vector<unsigned>& of_thread = executions[where];
    of_thread.resize(cuda_on_cpu::block_size.x * cuda_on_cpu::block_size.y * cuda_on_cpu::block_size.z);
    Request& request = requests[{where, number / LANES, of_thread[number]++}];
    request.space = space;
    request.bytes = bytes;
    request.kind = kind;
    request.addresses.push_back(at);
}

void accessed(void* address, int bytes, bool writes, void* instruction)
{
    count(address, bytes, writes ? STORE : LOAD, instruction);
}

}  // namespace

extern "C" {

void count_atomic(void* to, int bytes, void* instruction) { count(to, bytes, ATOMIC, instruction); }

__attribute__((visibility("default"))) void watch_requests(int number, const cuda_on_cpu::Array* array)
{
    if (!number) {
        std::fill(matrices, matrices + MATRICES, cuda_on_cpu::Array{});
        requests.clear();
        executions.clear();
        sites.clear();
    }
    if (number < MATRICES) matrices[number] = *array;
}

// Returns how many sites there are. `first` becomes the address of the first, which is valid until the next call.
__attribute__((visibility("default"))) int sites_of_requests(const Site** first)
{
    end_block();
    told.clear();
    for (auto& [key, site] : sites) {
        site.offset = cuda_on_cpu::offset_in_library(key.first);
        told.push_back(site);
    }
    *first = told.data();
    return static_cast<int>(told.size());
}
}

#include "accesses.h"
