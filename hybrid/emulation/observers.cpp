// SPDX-License-Identifier: MIT
// Counts accesses and branches by warp. The n-th execution of an instruction by each lane of a warp counts as one execution by the
// warp, as if the lanes ran in lockstep.
#include "runtime.h"

#include <map>
#include <unordered_map>

namespace cuda_on_cpu::observers {

int watched;

namespace {

constexpr int MATRICES = 3, C = 2, SHARED = MATRICES, DYNAMIC = SHARED + 1;  // spaces: a matrix's number, or these
constexpr int SECTOR = 32, BANKS = 32, WORD = 4, LANES = 32;
constexpr size_t MOST_TRACED = 1 << 20;    // accesses
constexpr size_t MOST_OF_BLOCK = 1 << 23;  // accesses, comparisons and basic blocks

template <typename Execution>
struct OfWarps {  // of this block
    struct Instruction {
        std::vector<unsigned> counts;       // of executions by each thread
        std::vector<Execution> executions;  // the first of each warp, then the second of each warp
    };
    std::unordered_map<unsigned, Instruction> instructions;

    // This thread's next execution of an instruction.
    Execution& next(unsigned number)
    {
        Instruction& instruction = instructions[number];
        unsigned threads = block_size.x * block_size.y * block_size.z, warps = (threads + LANES - 1) / LANES;
        instruction.counts.resize(threads);
        size_t place = size_t{instruction.counts[current->number]++} * warps + current->number / LANES;
        if (place >= instruction.executions.size()) instruction.executions.resize(place + warps);
        return instruction.executions[place];
    }
};

// --- elements of the matrices

size_t item;
long long bytes_read[MATRICES], bytes_written;  // of C
std::vector<long long> writers;  // of each element of C: the last thread's number in the grid, from 1 on; < 0 if there were several

void count_elements(int matrix, size_t offset, int bytes, bool writes, bool atomic)
{
    if (!writes) bytes_read[matrix] += bytes;
    if (!writes || matrix != C) return;
    bytes_written += bytes;
    unsigned long long block =
        (static_cast<unsigned long long>(block_index.z) * grid_size.y + block_index.y) * grid_size.x + block_index.x;
    auto writer = static_cast<long long>(block * block_size.x * block_size.y * block_size.z + current->number + 1);
    for (size_t element = offset / item; element <= (offset + bytes - 1) / item && element < writers.size(); ++element) {
        long long& last = writers[element];
        bool is_other = last && last != writer && !atomic;  // several threads may update an element atomically
        last = last < 0 || is_other ? -writer : writer;
    }
}

// --- requests: global memory serves a warp's request in sectors of 32 bytes; shared memory has 32 banks of 4 bytes, and takes
// as many steps as the most different words in one bank

enum Kind { LOAD, STORE, ATOMIC };

struct Request {
    int space, bytes;
    Kind kind;
    std::vector<uintptr_t> addresses;
};

struct Site {  // an instruction; Python reads this layout
    long long at, space, kind, requests, lanes, addresses, sectors, bytes, steps, least_steps;
};

OfWarps<Request> requests;
std::map<std::pair<unsigned, int>, Site> sites;  // by instruction and space

// How many different aligned parts of `size` bytes a request touches.
long long parts_of(const Request& request, uintptr_t size)
{
    std::vector<uintptr_t> parts;
    for (uintptr_t at : request.addresses)
        for (uintptr_t part = at / size; part <= (at + request.bytes - 1) / size; ++part) parts.push_back(part);
    std::sort(parts.begin(), parts.end());
    return std::unique(parts.begin(), parts.end()) - parts.begin();
}

// The steps in which the banks serve a request, and the fewest possible. Accesses of 8 bytes are served by half-warps, of 16
// bytes by quarter-warps.
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

void add_to_sites(unsigned instruction, const Request& request)
{
    Site& site = sites[{instruction, request.space}];
    site.at = instruction;
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

// --- branches: with -fsanitize-coverage=trace-pc,trace-cmp the compiler calls a function at the beginning of each basic block
// and at each comparison. A basic block with a comparison ends in a branch, whose target is the basic block that the thread
// enters next. A branch diverges if lanes of a warp take different targets.

struct Branch {  // Python reads this layout
    long long at;  // its last comparison
    long long executions, divergent;
};

struct Way {
    unsigned to;
    bool diverges;
};

struct Progress {  // of a thread
    unsigned block, comparison;  // its basic block, and the last comparison there
};

std::vector<Progress> progress;
OfWarps<Way> ways;
std::map<unsigned, unsigned> comparisons;  // by branch
std::map<unsigned, Branch> branches;
size_t counted_of_block;

// Whether requests and branches are counted: counting ends at a block with too many, as of an endless loop.
bool counts_requests()
{
    if (!(watched & REQUESTS) || ++counted_of_block <= MOST_OF_BLOCK) return watched & REQUESTS;
    watched &= ~REQUESTS;
    requests.instructions.clear(), ways.instructions.clear(), sites.clear(), branches.clear();
    return false;
}

Progress* progress_of_thread()
{
    if (!current || !counts_requests()) return nullptr;
    progress.resize(block_size.x * block_size.y * block_size.z);
    return &progress[current->number];
}

void enter(unsigned block)
{
    Progress* now = progress_of_thread();
    if (!now) return;
    if (now->comparison) {
        comparisons[now->block] = now->comparison;
        Way& way = ways.next(now->block);
        if (!way.to) way.to = block;
        way.diverges |= way.to != block;
    }
    *now = {block, 0};
}

void compare(unsigned where)
{
    if (Progress* now = progress_of_thread()) now->comparison = where;
}

// --- the trace

struct Traced {  // Python reads this layout
    long long at, byte;  // offset in the matrix, the __shared__ variables, or dynamic shared memory
    int space, bytes, writes;
    unsigned block_x, block_y, thread, barriers, unused;  // barriers: that the thread has passed
};
std::vector<Traced> trace;

template <typename Record, typename Key>
std::vector<Record> values_of(const std::map<Key, Record>& records)
{
    std::vector<Record> values;
    for (const auto& [key, each] : records) values.push_back(each);
    return values;
}

}  // namespace

void launch_begins(int watch, size_t bytes_of_item, size_t elements_of_c)
{
    watched = watch;
    item = bytes_of_item;
    std::fill(bytes_read, bytes_read + MATRICES, bytes_written = 0);
    writers.assign(elements_of_c, 0);
    sites.clear(), comparisons.clear(), branches.clear(), trace.clear();
}

void block_ends()
{
    for (const auto& [number, instruction] : requests.instructions)
        for (const Request& request : instruction.executions)
            if (!request.addresses.empty()) add_to_sites(number, request);
    for (const auto& [number, instruction] : ways.instructions) {
        Branch& branch = branches[comparisons[number]];
        branch.at = comparisons[number];
        for (const Way& way : instruction.executions) {
            branch.executions += way.to != 0;
            branch.divergent += way.diverges;
        }
    }
    requests.instructions.clear(), ways.instructions.clear(), progress.clear();
    counted_of_block = 0;
}

void accessed(const Region& region, size_t offset, int bytes, bool writes, bool atomic, unsigned instruction)
{
    if (region.kind == Region::VARIABLES) return;
    bool is_matrix = region.kind < Region::VARIABLES;
    int matrix = (region.number - 1) % MATRICES;
    if (watched & ELEMENTS && is_matrix) count_elements(matrix, offset, bytes, writes, atomic);
    if (counts_requests()) {
        Request& request = requests.next(instruction);
        request.space = is_matrix ? matrix : SHARED;
        request.bytes = bytes;
        request.kind = atomic ? ATOMIC : writes ? STORE : LOAD;
        request.addresses.push_back(reinterpret_cast<uintptr_t>(region.begin) + offset);
    }
    if (watched & TRACE && trace.size() <= MOST_TRACED)
        trace.push_back({instruction, static_cast<long long>(offset),
                         is_matrix                               ? matrix
                         : region.kind == Region::DYNAMIC_SHARED ? DYNAMIC
                                                                 : SHARED,
                         bytes, writes, block_index.x, block_index.y, current->number,
                         static_cast<unsigned>(current->block_barriers), 0});
}

Members counted()
{
    block_ends();
    watched = 0;
    auto handed = [](const auto& records) { return handed_over(records.data(), records.size() * sizeof(records[0])); };
    bool is_all = trace.size() <= MOST_TRACED;
    if (!is_all) trace.clear();
    return {"moved",    std::vector{bytes_read[0], bytes_read[1], bytes_written},
            "is_all",   is_all,
            "writers",  handed(writers),
            "sites",    handed(values_of(sites)),
            "branches", handed(values_of(branches)),
            "trace",    handed(trace)};
}

}  // namespace cuda_on_cpu::observers

using namespace cuda_on_cpu::observers;

extern "C" {

#define HERE cuda_on_cpu::offset_of(__builtin_return_address(0))
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
