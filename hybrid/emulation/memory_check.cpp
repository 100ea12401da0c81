// SPDX-License-Identifier: MIT
// Replaces the functions of ThreadSanitizer, which the compiler calls at each access with -fsanitize=thread. Blocks run one after
// the other, each from barrier to barrier. Two accesses are ordered by a barrier of their block between them, a __syncwarp() of
// their warp, or the end of a launch.
#include "runtime.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <set>

// Variables that kernels may use (see cuda_on_cpu.h), if there are any; blockIdx and the like.
extern "C" char __start_cuda_variables[] __attribute__((weak)), __stop_cuda_variables[] __attribute__((weak));
extern "C" char __start_cuda_managed[] __attribute__((weak)), __stop_cuda_managed[] __attribute__((weak));
extern "C" char __start_cuda_built_ins[], __stop_cuda_built_ins[];

namespace cuda_on_cpu {

namespace {

// Up to ALL_READS by the launches of one line all blocks are checked; then, up to MOST_READS, one block in SOME; and the grid's
// corners up to twice as many.
constexpr unsigned long long ALL_READS = 20'000'000, MOST_READS = 2 * ALL_READS;
constexpr unsigned long long FEW_READS = 1 << 22;
constexpr unsigned SOME = 61;
constexpr size_t MOST_CHECKED = 60, FIRST_PAGE = 4096, SITES = 256;

struct Access {
    const char* at;
    int bytes;
    bool writes, atomic;
    unsigned instruction;
    bool needs_value;
};

unsigned segment = 1, first_of_block, first_of_launch;
bool fenced, fenced_in_block;
bool looks_at_reads = true;  // of this block
unsigned long long* reads;   // by the launches of this line
int sampled_launches;
bool is_sampled;
Region variables{Region::VARIABLES, nullptr, 0, nullptr, 0, false}, statics{Region::SHARED, nullptr, 0, nullptr, 0, false},
    dynamics{Region::DYNAMIC_SHARED, nullptr, 0, nullptr, 0, false};
size_t cells_of_dynamics;
const char *parameters, *parameters_end;
struct LastUse {
    Region* region;
    unsigned instruction;
} last_used[SITES];  // a cache of instructions' regions

// Plain reads of words that other threads update atomically, by the read's instruction, until the launch ends. They are races, but
// for reads before an update by their own thread, as in loops around atomicCAS. Of global memory only those after an own update are
// told: a graph's vertices may be read at any time.
std::set<unsigned> before_own_update, after_own_update;
struct MixedRace {
    unsigned read;
    bool is_shared;
    Members finding;
};
std::vector<MixedRace> mixed_races;
struct PlainRead {
    const char* at;
    unsigned segment, thread, instruction;
} last_reads[8];
unsigned next_read;

struct Other {  // the earlier access of a race
    unsigned instruction;
    bool writes;
    int thread;  // -1: of another block, or unknown
};

bool is_library;  // of kernels whose matrices `watch` tells

void found(const char* kind, const Access& access, const Region* region, Other other = {0, false, -1}, unsigned mixed_read = 0)
{
    if (mixed_read && (fenced_in_block || is_library)) return;
    if (is_library) {  // kernel.py replaces @INSTRUCTION by a line
        std::string where = !region                            ? "memory that is no matrix"
                            : region->kind < Region::VARIABLES ? "matrix " + std::to_string(region->number)
                                                               : "shared memory";
        stop_thread("memory", std::string(kind) + ": " + (access.writes ? "writes" : "reads") + " byte " +
                                  std::to_string(region ? access.at - region->begin : 0) + " of " + where + " in @" +
                                  std::to_string(access.instruction) +
                                  (other.instruction ? " and @" + std::to_string(other.instruction) : ""));
    }
    if (!is_new(kind, access.instruction, other.instruction)) return;
    long long offset = region ? access.at - region->begin : reinterpret_cast<long long>(access.at);
    unsigned variable = !region || region->kind == Region::VARIABLES ? offset_of(access.at) : 0;
    Members finding("kind", kind, "at", access.instruction, "writes", access.writes, "bytes", access.bytes, "space",
                    region ? region->kind : -1, "number", region ? region->number : 0, "offset", offset, "variable", variable,
                    "other_at", other.instruction, "other_writes", other.writes, "other_thread", other.thread, "mixed",
                    mixed_read != 0, "copied_in", region ? region->gap.line : 0, "source", region ? region->gap.source : 0,
                    "freed_by", region ? region->freed_by : "", "part", region ? region->part.line : 0, "part_bytes",
                    region ? region->part.bytes : 0, "latest", under_way.kernel, "latest_line", under_way.line, where());
    if (mixed_read)
        mixed_races.push_back({mixed_read, region->kind >= Region::SHARED, finding});
    else
        tell("finding", finding);
}

[[noreturn]] void refuse(const char* kind, const Access& access, const Region* region)
{
    found(kind, access, region);
    stop_thread("illegal", kind);
}

bool is_built_in(const char* at)
{
    const char* thread = reinterpret_cast<const char*>(current);
    return (at >= __start_cuda_built_ins && at < __stop_cuda_built_ins) || (at >= thread && at < thread + sizeof(Thread));
}

// Whether reads of unwritten values are errors: not in variables, which begin as 0; in managed memory, which the host writes
// unseen; nor in our own kernels, which prefetch operands beyond the last that they use.
bool is_followed(const Region& region) { return region.kind != Region::VARIABLES && region.kind != Region::MANAGED && !is_library; }

// The region of an access; null for registers, parameters and constants, which need no check. An access outside of all regions is
// reported as beyond `before`, the region that the instruction used last, or beyond the nearest one.
Region* region_of(const Access& access, Region* before)
{
    const char* at = access.at;
    if (is_built_in(at) || (at >= current->stack && at < current->stack + STACK)) return nullptr;
    for (Region* each : {&statics, &dynamics, &variables})
        if (each->has(at, access.bytes)) return each;
    if (at >= parameters && at < parameters_end) return nullptr;
    if (at >= constants && at < constants_end && !access.writes) return nullptr;
    if (Region* around = is_library ? pinned_around(at, FIRST_PAGE) : region_around(at)) {
        bool is_beyond = !around->has(at, access.bytes);
        if (is_beyond) refuse("bounds", access, before && before->kind < Region::VARIABLES && !before->freed ? before : around);
        if (around->freed) refuse("freed", access, around);
        bool is_reached =
            around->kind == Region::MANAGED || around->device == chosen_device() || reached[chosen_device()] >> around->device & 1;
        if (!is_reached) refuse("device", access, around);
        return around;
    }
    if (Region* host = pinned_around(at); host && host->has(at, access.bytes)) {
        host->is_mapped = true;
        return host;
    }
    if (dynamics.bytes && at + FIRST_PAGE > dynamics.begin && at < dynamics.begin + dynamics.bytes + FIRST_PAGE)
        refuse("bounds", access, &dynamics);
    refuse(reinterpret_cast<uintptr_t>(at) < FIRST_PAGE ? "null" : "host", access, nullptr);
}

// Whether nothing orders this thread after an access of `thread` in the segment `then`.
bool unordered(const Region& region, unsigned then, unsigned thread, uint8_t epoch)
{
    if (then < first_of_launch) return false;
    if (then < first_of_block) return region.kind < Region::SHARED && !fenced;
    if (then != segment || thread == current->number) return false;
    return thread / 32 != current->number / 32 || epoch == static_cast<uint8_t>(current->warp_syncs);
}

int told_thread(unsigned then, unsigned thread)
{
    return then < first_of_block || thread == current->number ? -1 : static_cast<int>(thread);
}

const char* race_of(unsigned then) { return then < first_of_block ? "race of blocks" : "race"; }

void after_write(Cell& cell, const Access& access, const Region& region, unsigned mask)
{
    if (!(cell.write_mask & mask) || (cell.atomic && access.atomic)) return;
    bool is_mixed_read = cell.atomic && !access.writes;
    if (is_mixed_read && cell.write_segment >= first_of_block && cell.writer == current->number)
        after_own_update.insert(access.instruction);
    if (!unordered(region, cell.write_segment, cell.writer, cell.write_epoch)) return;
    found(race_of(cell.write_segment), access, &region, {cell.write_at, true, told_thread(cell.write_segment, cell.writer)},
          is_mixed_read ? access.instruction : 0);
}

void after_reads(Cell& cell, const Access& access, const Region& region, unsigned mask)
{
    if (!(cell.read_mask & mask) || cell.read_segment < first_of_launch) return;
    bool others = cell.other_block && region.kind < Region::SHARED && !fenced;
    bool here = cell.read_segment == segment &&
                (cell.several_warps || (cell.several_lanes && cell.read_epoch == static_cast<uint8_t>(current->warp_syncs)));
    if (!others && !here && !unordered(region, cell.read_segment, cell.reader, cell.read_epoch)) return;
    const char* kind = others && !here ? "race of blocks" : race_of(cell.read_segment);
    found(kind, access, &region, {cell.read_at, false, told_thread(cell.read_segment, cell.reader)},
          access.atomic ? cell.read_at : 0);
}

void note_read(Cell& cell, const Access& access, unsigned mask)
{
    last_reads[next_read++ % 8] = {access.at, segment, current->number, access.instruction};
    uint8_t epoch = static_cast<uint8_t>(current->warp_syncs);
    bool is_other = cell.reader != current->number;
    if (cell.read_segment == segment && (cell.read_mask & mask) && is_other) {
        cell.read_mask &= mask;
        if (cell.reader / 32 != current->number / 32)
            cell.several_warps = 1;
        else if (cell.read_epoch == epoch)
            cell.several_lanes = 1;
        return;
    }
    cell.other_block = cell.read_segment >= first_of_launch && (cell.read_segment < first_of_block || cell.other_block);
    if (cell.read_segment != segment || is_other) cell.several_lanes = cell.several_warps = 0;
    cell.read_segment = segment;
    cell.read_at = access.instruction;
    cell.reader = static_cast<uint16_t>(current->number);
    cell.read_epoch = epoch;
    cell.read_mask = mask;
}

void note_write(Cell& cell, const Access& access, unsigned mask)
{
    bool is_own = cell.write_segment == segment && cell.writer == current->number && cell.write_mask == mask;
    if (access.atomic && is_own && !cell.atomic) return;  // the plain write may still race with others' atomics
    cell.write_segment = segment;
    cell.write_at = access.instruction;
    cell.writer = static_cast<uint16_t>(current->number);
    cell.write_epoch = static_cast<uint8_t>(current->warp_syncs);
    cell.write_mask = mask;
    cell.atomic = access.atomic;
    cell.written |= mask;
}

// A read like others in this segment, of what was written in an earlier segment of this block or before the launch. (For speed.)
bool is_known_read(const Cell& cell, const Access& access, unsigned mask)
{
    bool is_ordered =
        cell.write_segment < first_of_launch || (cell.write_segment >= first_of_block && cell.write_segment != segment);
    bool by_warp = cell.several_lanes && cell.reader / 32 == current->number / 32 &&
                   cell.read_epoch == static_cast<uint8_t>(current->warp_syncs);
    return !access.writes && is_ordered && cell.read_segment == segment && (cell.several_warps || by_warp) &&
           cell.read_mask == mask && (cell.written & mask) == mask;
}

void note_use(Region& region, const Access& access)
{
    if (region.used_by != first_of_launch) region.reads.count = region.writes.count = 0;
    region.used_by = first_of_launch;
    if (!access.writes || access.atomic) {
        region.reads.note(access.at, access.bytes);
        region.is_read = true;
        if (region.was_written && region.written_by != first_of_launch) region.is_consumed = region.is_seen = true;
    }
    if (access.writes) {
        region.writes.note(access.at, access.bytes);
        region.was_written = true;
        if (region.written_by != first_of_launch) region.is_seen = false;
        region.written_by = first_of_launch;
        if (region.kind == Region::MANAGED) memory_check::wrote_elsewhere = first_of_launch;
        region.item = access.bytes;
    }
}

// Whether unwritten bytes of an access came with others from the host's memory, as between the members of a struct; or may have
// values, as bytes of a local array.
bool is_padding(const Region& region, size_t first, size_t end)
{
    if (region.gap.line && !region.gap.source && end - first < 4) return true;
    for (size_t byte = first; region.gap.line && byte < end; ++byte)
        if (is_written(region, byte)) return true;
    return false;
}

void look_at(const Access& access)
{
    LastUse& last = last_used[access.instruction / 4 % SITES];
    if (!last.region || last.region->freed || !last.region->has(access.at, access.bytes)) {
        Region* region = region_of(access, last.instruction == access.instruction ? last.region : nullptr);
        if (!region) return;
        last.region = region;
    }
    last.instruction = access.instruction;
    Region& region = *last.region;
    size_t first = access.at - region.begin, end = first + access.bytes;
    if (region.pitch && first % region.pitch + access.bytes > region.row) refuse("bounds", access, &region);
    if (region.loads && !access.writes)
        for (size_t byte = first; byte < end; ++byte) region.loads[byte / region.item] += 1.0 / region.item;
    if (observers::watched) observers::accessed(region, first, access.bytes, access.writes, access.atomic, access.instruction);
    if (!memory_check::checks || !(looks_at_reads || access.writes)) return;
    if (!access.writes && ++*reads > MOST_READS) looks_at_reads = false, is_sampled = true;
    if (region.kind < Region::VARIABLES) note_use(region, access);
    if (region.kind == Region::VARIABLES && access.writes) memory_check::wrote_elsewhere = first_of_launch;
    for (auto [variable, rest] : memory_check::parts) {
        if (access.writes || access.at < variable || access.at >= rest.end || access.at + access.bytes <= rest.begin) continue;
        if (region.kind != Region::VARIABLES || region.cells[first / 4].written) continue;
        region.part = {rest.line, static_cast<size_t>(rest.begin - variable)};
        found("unwritten", access, &region);
    }
    for (size_t i = first / 4; i <= (end - 1) / 4; ++i) {
        size_t low = first > 4 * i ? first - 4 * i : 0, high = end < 4 * i + 4 ? end - 4 * i : 4;
        unsigned mask = (15u >> (4 - (high - low))) << low;
        Cell& cell = region.cells[i];
        if (is_known_read(cell, access, mask)) continue;
        if (region.kind >= Region::SHARED && cell.write_segment < first_of_block) cell.written = 0;
        if (access.needs_value && (cell.written & mask) != mask && is_followed(region) && !is_padding(region, first, end))
            found("unwritten", access, &region);
        after_write(cell, access, region, mask);
        if (access.writes) {
            for (const PlainRead& each : last_reads)
                if (access.atomic && each.at == access.at && each.segment == segment && each.thread == current->number)
                    before_own_update.insert(each.instruction);
            after_reads(cell, access, region, mask);
            note_write(cell, access, mask);
        } else {
            note_read(cell, access, mask);
        }
    }
}

// Reports a host's access to memory that kernels or copies may still use; returns whether it is one.
bool is_early(const Access& access)
{
    if (memory_check::kernels_run && is_managed(access.at)) return found("early", access, region_around(access.at)), true;
    auto* meanwhile = memory_check::copies_run ? order::may_still_use(access.at, access.writes) : nullptr;
    if (meanwhile && is_new("pinned", access.instruction))
        tell("finding", "kind", "pinned", "at", access.instruction, "writes", access.writes, "text", *meanwhile, "kernel", "");
    return meanwhile;
}

void note_slowly(const void* at, size_t bytes, bool writes, const void* instruction)
{
    Access access{static_cast<const char*>(at), static_cast<int>(bytes), writes, false, offset_of(instruction), !writes};
    if (current)
        look_at(access);
    else if (heap::parts && !heap::may_use(access.at, bytes))
        heap::look_at(at, bytes, writes, instruction, false);
    else if (heap::parts && memory_check::is_of_device(access.at))
        tell_of_host("variable", instruction, {"writes", writes, "bytes", bytes, "variable", offset_of(at)});
    else if (!is_early(access) && heap::parts && !writes && heap::is_unwritten(access.at, bytes))
        heap::read_unwritten(at, bytes, instruction);
}

const void* last_written;  // in a block whose reads are not checked
const Thread* last_writer;

// Whether this is the block's or the thread's memory, or what the thread wrote last.
bool is_own(const char* at)
{
    if (at == last_written && current == last_writer) return true;
    last_written = at, last_writer = current;
    return statics.has(at, 1) || dynamics.has(at, 1) || (at >= current->stack && at < current->stack + STACK);
}

inline void note(const void* at, size_t bytes, bool writes, const void* instruction)
{
    bool may_pass = current ? !looks_at_reads && !observers::watched && (!writes || is_own(static_cast<const char*>(at)))
                            : !memory_check::kernels_run && !memory_check::copies_run &&
                                  !memory_check::is_of_device(static_cast<const char*>(at)) &&
                                  (!heap::parts || (heap::may_use(static_cast<const char*>(at), bytes) &&
                                                    (writes || !heap::is_unwritten(static_cast<const char*>(at), bytes))));
    if (may_pass) return;
    note_slowly(at, bytes, writes, instruction);
}

// `is_aligned`: the address must be a multiple of `bytes`.
void accessed(void* address, int bytes, bool writes, void* instruction, bool is_aligned)
{
    if (is_aligned && reinterpret_cast<uintptr_t>(address) & (bytes - 1) && current) {
        Access access{static_cast<const char*>(address), bytes, writes, false, offset_of(instruction), false};
        if (Region* region = region_of(access, nullptr)) refuse("misaligned", access, region);
    }
    note(address, bytes, writes, instruction);
}

// New cells if the region has outgrown its own.
void give_cells(Region& region, size_t& room, size_t bytes)
{
    if (bytes <= room && region.cells) return;
    region.cells = new_cells(bytes);
    room = bytes;
}

}  // namespace

void note_atomic(void* to, size_t bytes, void* instruction, bool needs_value)
{
    if (current) look_at({static_cast<const char*>(to), static_cast<int>(bytes), true, true, offset_of(instruction), needs_value});
}

void note_copy(void* at, size_t bytes, bool writes, void* instruction)
{
    look_at({static_cast<const char*>(at), static_cast<int>(bytes), writes, false, offset_of(instruction), !writes});
}

void fence(bool of_all_blocks)
{
    fenced_in_block = true;
    fenced |= of_all_blocks;
}

void undefined_shuffle(Place place)
{
    if (is_new("undefined", place.line)) tell("undefined", Members(place));
}

namespace memory_check {

bool checks = true, kernels_run, copies_run;
unsigned wrote_elsewhere;
std::map<const char*, Rest>& parts = *new std::map<const char*, Rest>;

std::pair<char*, char*> launch_begins(char* first, char* last, size_t dynamic_bytes, const Work& work)
{
    static size_t room_of_statics, room_of_variables;
    first_of_launch = ++segment;
    for (LastUse& each : last_used) each = {};
    fenced = fenced_in_block = false;
    sampled_launches += is_sampled;
    is_sampled = false;
    static std::map<std::pair<std::string, int>, unsigned long long>& of_places =
        *new std::map<std::pair<std::string, int>, unsigned long long>;
    reads = &of_places[{under_way.file, under_way.line}];
    auto [of_thread, end_of_thread] = find_segments();
    statics.begin = first ? first : of_thread;
    statics.bytes = (first ? last : end_of_thread) - statics.begin;
    parameters = static_cast<const char*>(work.argument);
    parameters_end = parameters + work.bytes;
    variables.begin = variables_of_device().first;
    variables.bytes = variables_of_device().second - variables.begin;
    give_cells(statics, room_of_statics, statics.bytes);
    give_cells(variables, room_of_variables, variables.bytes);
    give_cells(dynamics, cells_of_dynamics, dynamic_bytes);
    return {statics.begin, statics.begin + statics.bytes};
}

void block_begins(char* dynamic_shared, size_t bytes)
{
    dynamics.begin = dynamic_shared;
    dynamics.bytes = bytes;
    first_of_block = ++segment;
    last_writer = nullptr;
    auto is_edge = [](unsigned index, unsigned size) { return index == 0 || index == size - 1; };
    bool is_corner = is_edge(block_index.x, grid_size.x) && is_edge(block_index.y, grid_size.y);
    unsigned number = block_index.x + 7 * block_index.y + 13 * block_index.z;
    looks_at_reads = *reads < ALL_READS || (*reads < MOST_READS && number % SOME == 0) || (is_corner && *reads < 2 * MOST_READS);
    is_sampled |= checks && !looks_at_reads;
    observers::block_ends();
}

void barrier_passed() { ++segment; }

void launch_ends()
{
    for (const MixedRace& each : mixed_races)
        if (!before_own_update.count(each.read) && (each.is_shared || after_own_update.count(each.read)))
            tell("finding", each.finding);
    mixed_races.clear();
}

void note_range(const void* at, size_t bytes, bool writes, const void* instruction)
{
    if (!host_may) is_early({static_cast<const char*>(at), static_cast<int>(bytes), writes, false, offset_of(instruction), false});
}

std::pair<char*, char*> variables_of_device()  // the linker places the two sections side by side
{
    char *begin = __start_cuda_variables, *end = __stop_cuda_variables, *first = __start_cuda_managed, *last = __stop_cuda_managed;
    if (!begin || !first) return begin ? std::pair{begin, end} : std::pair{first, last};
    return {std::min(begin, first), std::max(end, last)};
}

bool is_of_device(const char* at) { return at >= __start_cuda_variables && at < __stop_cuda_variables; }

int sampled() { return sampled_launches + is_sampled; }

bool has_few_reads() { return *reads <= FEW_READS; }

bool was_used(const Region& region) { return region.used_by == first_of_launch; }

bool was_written(const Cell& cell) { return cell.write_segment >= first_of_launch; }

bool was_only_read(const Cell& cell) { return cell.read_segment >= first_of_launch && !cell.write_segment; }

}  // namespace memory_check

}  // namespace cuda_on_cpu

using cuda_on_cpu::accessed;

extern "C" {

#define HERE __builtin_return_address(0)
#define ACCESSES(bytes)                                                                                \
    void __tsan_read##bytes(void* address) { accessed(address, bytes, false, HERE, true); }            \
    void __tsan_write##bytes(void* address) { accessed(address, bytes, true, HERE, true); }            \
    void __tsan_unaligned_read##bytes(void* address) { accessed(address, bytes, false, HERE, false); } \
    void __tsan_unaligned_write##bytes(void* address) { accessed(address, bytes, true, HERE, false); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void* address, unsigned long bytes) { accessed(address, static_cast<int>(bytes), false, HERE, false); }
void __tsan_write_range(void* address, unsigned long bytes) { accessed(address, static_cast<int>(bytes), true, HERE, false); }

// Other functions that instrumented code calls.
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}

void* __tsan_memcpy(void* to, const void* from, size_t bytes) { return memcpy(to, from, bytes); }
void* __tsan_memmove(void* to, const void* from, size_t bytes) { return memmove(to, from, bytes); }
void* __tsan_memset(void* to, int value, size_t bytes) { return memset(to, value, bytes); }
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}

#define ATOMICS(Type, bits)                                                                                  \
    Type __tsan_atomic##bits##_load(const volatile Type* at, int) { return __atomic_load_n(at, 5); }         \
    void __tsan_atomic##bits##_store(volatile Type* at, Type value, int) { __atomic_store_n(at, value, 5); } \
    COMPARES(Type, bits, strong)                                                                             \
    COMPARES(Type, bits, weak)                                                                               \
    GIVES(Type, bits, exchange, __atomic_exchange_n)                                                         \
    GIVES(Type, bits, fetch_add, __atomic_fetch_add)                                                         \
    GIVES(Type, bits, fetch_sub, __atomic_fetch_sub)                                                         \
    GIVES(Type, bits, fetch_and, __atomic_fetch_and)                                                         \
    GIVES(Type, bits, fetch_or, __atomic_fetch_or)                                                           \
    GIVES(Type, bits, fetch_xor, __atomic_fetch_xor)
#define COMPARES(Type, bits, how)                                                                             \
    int __tsan_atomic##bits##_compare_exchange_##how(volatile Type* at, Type* expected, Type value, int, int) \
    {                                                                                                         \
        return __atomic_compare_exchange_n(at, expected, value, false, 5, 5);                                 \
    }
#define GIVES(Type, bits, name, function) \
    Type __tsan_atomic##bits##_##name(volatile Type* at, Type value, int) { return function(at, value, 5); }
ATOMICS(uint8_t, 8)
ATOMICS(uint16_t, 16)
ATOMICS(uint32_t, 32)
ATOMICS(uint64_t, 64)

// Handlers of UBSan (-fsanitize=bounds and others), in place of its library.
struct CheckedType {
    uint16_t kind, info;  // info: 1 for a signed integer, plus 2 · log2 of its bits
    char name[1];

    long long value(unsigned long given) const
    {
        unsigned bits = 1u << (info >> 1);
        long long all = static_cast<long long>(given);
        return bits >= 64 ? all : info & 1 ? all << (64 - bits) >> (64 - bits) : all & ((1ll << bits) - 1);
    }
};
struct Checked {
    const char* file;
    unsigned line, column;
    const CheckedType *type, *other_type;
};

static bool is_new(const Checked* what)
{
    static auto& told = *new std::set<std::pair<unsigned, unsigned>>;
    static std::mutex one_at_a_time;  // of the host's threads
    std::lock_guard<std::mutex> lock(one_at_a_time);
    return told.size() < cuda_on_cpu::MOST_CHECKED && told.insert({what->line, what->column}).second;
}

void __ubsan_handle_out_of_bounds(Checked* what, unsigned long index)
{
    if (is_new(what))
        cuda_on_cpu::tell("finding", "kind", "index", "file", what->file, "line", what->line, "column", what->column, "index",
                          what->other_type->value(index), "type", std::string(what->type->name), cuda_on_cpu::where());
    if (cuda_on_cpu::current) cuda_on_cpu::stop_thread("illegal", "index");
}

static void undefined(const Checked* what, const std::string& text)
{
    cuda_on_cpu::tell("arithmetic", "file", what->file, "line", what->line, "text", text + what->type->name);
}
#define ARITHMETIC(operation, sign)                                                                     \
    void __ubsan_handle_##operation##_overflow(Checked* what, unsigned long a, unsigned long b)         \
    {                                                                                                   \
        auto text = [what](unsigned long number) { return std::to_string(what->type->value(number)); }; \
        if (is_new(what)) undefined(what, text(a) + sign + text(b) + " overflows ");                    \
    }
ARITHMETIC(add, " + ")
ARITHMETIC(sub, " - ")
ARITHMETIC(mul, " * ")
ARITHMETIC(divrem, " / ")
void __ubsan_handle_negate_overflow(Checked* what, unsigned long a)
{
    if (is_new(what)) undefined(what, "-(" + std::to_string(what->type->value(a)) + ") overflows ");
}
void __ubsan_handle_shift_out_of_bounds(Checked* what, unsigned long, unsigned long by)
{
    if (is_new(what)) undefined(what, std::to_string(what->other_type->value(by)) + " bits are too many, or too few, to shift ");
}
void __ubsan_handle_missing_return(Checked* what)
{
    cuda_on_cpu::tell("finding", "kind", "return", "file", what->file, "line", what->line, cuda_on_cpu::where());
    if (cuda_on_cpu::current) cuda_on_cpu::stop_thread("illegal", "return");
    _exit(1);
}
}

// Adds a matrix of the next launch; number 0 begins anew. `loads`: counts those of each element, also between the rows, and only
// bounds are checked; null: all is checked.
extern "C" __attribute__((visibility("default"))) void watch(int number, const cuda_on_cpu::Array* array, double* loads)
{
    using namespace cuda_on_cpu;
    static auto& matrices = *new std::vector<void*>;
    if (!number)
        for (void* each : std::exchange(matrices, {})) unpin(each);
    size_t item = array->item, row = array->columns * item, pitch = array->rows > 1 ? array->stride * item : row;
    is_library = true;
    memory_check::checks = !loads;
    matrices.push_back(array->data);
    Region* region = pin(static_cast<char*>(array->data), array->rows ? (array->rows - 1) * pitch + row : 0);
    if (!region) return;  // an operand twice
    region->number = number, region->item = item;
    region->row = row, region->pitch = pitch;
    region->loads = loads;
}
