// SPDX-License-Identifier: MIT
// Device and managed memory are two address ranges. Allocations lie far apart, so that an index beyond one array does not reach
// another. Host code that touches device memory gets a segmentation fault, as with a GPU.
#include "runtime.h"

#include <pthread.h>
#include <sys/mman.h>

#include <map>

namespace cuda_on_cpu {

unsigned reached[MOST_DEVICES];
bool host_may;

int& chosen_device()  // no thread_local variable: those are __shared__
{
    static auto& of_threads = *new std::map<pthread_t, int>;
    return of_threads[pthread_self()];
}

namespace {

constexpr size_t ADDRESSES = 1 << 30, PAGE = 64 << 10;

size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

struct Range {
    char* begin = nullptr;
    char* next = nullptr;
    std::map<const char*, Region*>& regions = *new std::map<const char*, Region*>;  // never destroyed: used at exit

    // Free room for so many bytes, and as many to each side. Freed addresses are used again only when the others run out.
    char* room_for(size_t bytes)
    {
        size_t all = 3 * whole_pages(bytes);
        if (!begin) {
            void* memory = mmap(nullptr, ADDRESSES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (memory == MAP_FAILED) return nullptr;
            begin = next = static_cast<char*>(memory);
        }
        if (next + all > begin + ADDRESSES) {
            for (auto each = regions.begin(); each != regions.end();)
                each = each->second->freed ? regions.erase(each) : std::next(each);
            next = begin;
            if (!regions.empty()) next = regions.rbegin()->second->begin + 2 * whole_pages(regions.rbegin()->second->bytes);
            if (next + all > begin + ADDRESSES) return nullptr;
        }
        char* found = next + whole_pages(bytes);
        next += all;
        return found;
    }
};

Range device, managed;
std::map<const char*, Region*>& pinned()  // page-locked host memory
{
    static auto& all = *new std::map<const char*, Region*>;
    return all;
}
size_t in_use;
int allocations;
bool is_in(const Range& range, const char* at) { return range.begin && at >= range.begin && at < range.begin + ADDRESSES; }

}  // namespace

Cell* new_cells(size_t bytes)
{
    void* memory =
        mmap(nullptr, (bytes / 4 + 1) * sizeof(Cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<Cell*>(memory);
}

Region* allocate(size_t bytes, Region::Kind kind, Place place)
{
    Range& range = kind == Region::MANAGED ? managed : device;
    if (bytes > free_bytes()) return nullptr;
    char* begin = range.room_for(bytes);
    Cell* cells = begin ? new_cells(bytes) : nullptr;
    if (!cells) return nullptr;
    mprotect(begin, whole_pages(bytes), PROT_READ | PROT_WRITE);
    memset(begin, 0xFF, bytes);  // NaN
    if (kind != Region::MANAGED && !host_may) mprotect(begin, whole_pages(bytes), PROT_NONE);
    in_use += bytes;
    tell("allocation", "number", ++allocations, "bytes", bytes, Members(place));
    Region& region = *(range.regions[begin] = new Region{kind, begin, bytes, cells, allocations});
    region.device = chosen_device();
    return &region;
}

void tell_use(const Region& region)
{
    tell("use", "number", region.number, "managed", region.kind == Region::MANAGED, "filled", region.is_filled, "read",
         region.is_read, "written", region.was_written, "consumed", region.is_consumed, "written_by", region.written_by, "seen",
         region.is_seen, "launched", region.launched, "untouched",
         region.was_written && !region.is_consumed && heap::parts ? heap::number_of_untouched(region.bytes) : 0, "copied_out",
         region.copied_out, "bytes", region.bytes);
}

void release(Region& region, std::string by)
{
    tell_use(region);
    region.freed = true;
    region.freed_by = std::move(by);
    in_use -= region.bytes;
    munmap(region.cells, (region.bytes / 4 + 1) * sizeof(Cell));
    madvise(region.begin, whole_pages(region.bytes), MADV_DONTNEED);
    mprotect(region.begin, whole_pages(region.bytes), PROT_NONE);
}

Region* region_around(const char* at)
{
    for (Range* range : {&device, &managed}) {
        if (!is_in(*range, at) || range->regions.empty()) continue;
        auto after = range->regions.upper_bound(at);
        if (after == range->regions.begin()) return after->second;
        Region* before = std::prev(after)->second;
        bool is_nearer = after == range->regions.end() || at - (before->begin + before->bytes) < after->first - at;
        return is_nearer ? before : after->second;
    }
    return nullptr;
}

Region* pin(char* begin, size_t bytes)
{
    auto after = pinned().lower_bound(begin + bytes);
    bool is_free = after == pinned().begin() || std::prev(after)->first + std::prev(after)->second->bytes <= begin;
    Cell* cells = is_free ? new_cells(bytes) : nullptr;
    if (!cells) return nullptr;
    return pinned()[begin] = new Region{Region::MANAGED, begin, bytes, cells};
}

bool unpin(const void* begin)
{
    auto found = pinned().find(static_cast<const char*>(begin));
    if (found == pinned().end()) return false;
    munmap(found->second->cells, (found->second->bytes / 4 + 1) * sizeof(Cell));
    delete found->second;
    pinned().erase(found);
    return true;
}

Region* pinned_around(const char* at, size_t near)
{
    auto after = pinned().upper_bound(at + near);
    Region* before = after == pinned().begin() ? nullptr : std::prev(after)->second;
    return before && at < before->begin + before->bytes + near ? before : nullptr;
}

size_t free_bytes() { return DEVICE_MEMORY - in_use; }

bool is_managed(const char* at) { return is_in(managed, at); }

void let_host_use_device_memory(bool may)
{
    host_may = may;
    for (auto& [begin, region] : device.regions)
        if (!region->freed) mprotect(region->begin, whole_pages(region->bytes), may ? PROT_READ | PROT_WRITE : PROT_NONE);
}

bool is_written(const Region& region, size_t byte) { return region.cells[byte / 4].written >> byte % 4 & 1; }

void mark(Region& region, size_t byte, bool is_written)
{
    Cell& cell = region.cells[byte / 4];
    cell.written = (cell.written & ~(1 << byte % 4)) | is_written << byte % 4;
}

void mark_written(Region& region, size_t offset, size_t bytes, bool is_written)
{
    for (size_t byte = offset, end = offset + bytes; byte < end;) {
        if (byte % 4 || end - byte < 4)
            mark(region, byte++, is_written);
        else
            region.cells[byte / 4].written = is_written ? 15 : 0, byte += 4;
    }
}

void mark_as(Region& to, size_t to_offset, const Region& from, size_t from_offset, size_t bytes)
{
    for (size_t i = 0; i < bytes; ++i) mark(to, to_offset + i, is_written(from, from_offset + i));
}

long long first_unwritten(const Region& region, size_t offset, size_t bytes)
{
    for (size_t byte = offset; byte < offset + bytes; byte += byte % 4 || region.cells[byte / 4].written != 15 ? 1 : 4)
        if (!is_written(region, byte)) return static_cast<long long>(byte);
    return -1;
}

std::vector<Region*> live_regions(bool with_mapped)
{
    std::vector<Region*> live;
    for (const Range* range : {&device, &managed})
        for (const auto& [begin, region] : range->regions)
            if (!region->freed) live.push_back(region);
    for (const auto& [begin, region] : pinned())
        if (with_mapped && region->is_mapped) live.push_back(region);
    return live;
}

}  // namespace cuda_on_cpu
