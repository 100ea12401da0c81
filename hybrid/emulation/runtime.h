// SPDX-License-Identifier: MIT
// What the parts of the runtime know of each other.
#pragma once
#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "host_api.h"

namespace cuda_on_cpu {

// --- findings.cpp: what a program tells the process that has started it, a line of JSON for each finding, in the file that the
// environment variable HYBRID_LAB_FINDINGS names, followed by a dot and the rank. Each begins with the secret mark of
// HYBRID_LAB_MARK and a space, which the program's own code does not get to see: what it writes there itself is no finding.

struct UnderWay {  // the launch whose kernel runs, or the last one
    const char *kernel, *file;
    int line;
};
extern UnderWay under_way;

void tell(const char* format, ...) __attribute__((format(printf, 1, 2)));
void tell_note(const char* kind);  // once
std::string quoted(const std::string& text);  // as a string of JSON
std::string as_json(Place place);              // members "file" and "line"

constexpr size_t MOST_OF_ARRAYS = 64 << 20;  // bytes
extern char* arrays;                           // memory that is shared with that process; null for none
bool has_room(size_t bytes);                   // there
void reserve(size_t bytes);                    // at its beginning
std::string handed_over(const void* from, size_t bytes);  // there: [place, bytes], as JSON
void restart_clock();                          // by which the time is up

extern uintptr_t first_byte, last_byte;  // of the program or the library in memory
extern const char *constants, *constants_end;
std::pair<char*, char*> find_segments();  // these; and the thread-local variables of the thread that calls
inline unsigned offset_of(const void* at)  // in that file, for addr2line; 0 of what is elsewhere
{
    uintptr_t address = reinterpret_cast<uintptr_t>(at);
    return address >= first_byte && address < last_byte ? static_cast<unsigned>(address - first_byte) : 0;
}

std::string frames();  // the calls that have led here, as a list of JSON, the innermost first
// A finding of host code, told once of an instruction; `members`: of JSON.
WHERE_WATCHED void tell_of_host(const char* kind, const void* instruction, const std::string& members);
std::string where();  // members "kernel", "launched", "block", "thread" of the thread that runs, if there is one

// --- device_memory.cpp: what cudaMalloc allocates, and for each byte who has used it, and whether it was written

// Of four bytes: the last write and the last read of a kernel. A segment is the part of a block's run between two barriers;
// segments are numbered in the order in which they run, and a mask has a bit for each byte.
struct Cell {
    unsigned write_segment, write_at, read_segment, read_at;  // `at`: the instruction
    uint16_t writer, reader;                                  // threads of the block
    uint8_t write_epoch, read_epoch;                          // how many __syncwarp the thread had called
    uint8_t write_mask : 4, read_mask : 4, written : 4;       // written: by the host or by any kernel
    uint8_t several_lanes : 1, several_warps : 1;             // have read it in that segment
    uint8_t other_block : 1;                                  // has read it in that launch, too
    uint8_t atomic : 1;                                       // the last write
};

struct Region {
    enum Kind { ALLOCATION, MANAGED, VARIABLES, SHARED, DYNAMIC_SHARED } kind;
    char* begin;
    size_t bytes;
    Cell* cells;
    int number;  // of an allocation
    bool freed;
    std::string freed_by;                      // the call and its line
    unsigned used_by, written_by;              // the last launch that has used or written it, by its first segment; 0 for none
    struct Used {
        long long count;
        const char *begin, *end;

        void note(const char* at, size_t size)
        {
            begin = count ? std::min(begin, at) : at;
            end = count++ ? std::max(end, at + size) : at + size;
        }
    } reads, writes;  // of the launch that has used it last
    bool is_filled, is_read, was_written, is_consumed;  // by the host; by a kernel; by one; and that read or copied later
    size_t copied_out;                         // bytes from its begin on, to the host
    unsigned item;                             // bytes of the last write of a kernel
    int device;         // that it is allocated on
    size_t row, pitch;  // of a matrix whose rows are so many bytes long, and begin so far apart; else 0

    bool has(const char* at, size_t size) const { return at >= begin && at + size <= begin + bytes; }
};

constexpr size_t DEVICE_MEMORY = 256 << 20;  // bytes of all devices; each has six more of its cell
int& chosen_device();                        // by the host's thread that calls
constexpr int MOST_DEVICES = 32;
extern unsigned reached[MOST_DEVICES];  // of each device, a mask of those whose memory its kernels may use

Region* allocate(size_t bytes, Region::Kind kind, Place place);  // null where there is no room
void release(Region& region, std::string by);
std::vector<Region*> live_regions();
Region* region_around(
    const char* at);  // an allocation that contains it or lies nearest, also one that was freed; null where none is
size_t free_bytes();
bool is_managed(const char* at);
void let_host_use_device_memory(bool may);
void mark_written(Region& region, size_t offset, size_t bytes);
void mark_as(Region& to, size_t to_offset, const Region& from, size_t from_offset, size_t bytes);  // as far as `from` is written
long long first_unwritten(const Region& region, size_t offset, size_t bytes);                      // -1 where there is none
void tell_use(const Region& region);  // what kernels and copies have done with it
Cell* new_cells(size_t bytes);  // of so many bytes of memory; null where there is no room

// --- host_memory.cpp: what the host's malloc and new give, between red zones

namespace heap {

constexpr size_t GRANULE = 16, PART = 16 << 20, PARTS = 1 << 23;  // bytes; of addresses below 2^47
WHERE_WATCHED extern int8_t* parts[PARTS];
// Of 16 bytes how many the host may use, from the first on; less than 0: none; 0: they are no block's.
inline int granule_at(const void* at)
{
    size_t place = reinterpret_cast<size_t>(at);
    const int8_t* part = parts[place / PART % PARTS];
    return part ? part[place % PART / GRANULE] : 0;
}
inline bool may_use(const char* at, size_t bytes)
{
    for (size_t last = reinterpret_cast<size_t>(at) % GRANULE + bytes; bytes; at += GRANULE, last -= GRANULE) {
        int granule = granule_at(at), needed = static_cast<int>(min(last, GRANULE));
        if (granule && granule < needed) return false;
        if (last <= GRANULE) break;
    }
    return true;
}
// Tells what is wrong there, and returns how many bytes from the first on may be used.
WHERE_WATCHED size_t look_at(const void* at, size_t bytes, bool writes, const void* instruction, bool is_range);

}  // namespace heap

constexpr size_t STACK = 256 << 10;  // bytes of a kernel's thread

// --- memory_check.cpp looks at each access of instrumented kernels: is it to memory that they may use, is it ordered, was it written?

namespace memory_check {

// Called by runtime.cpp where this is linked. Returns the beginning and the end of __shared__ variables: those that are given, or the
// calling thread's where these are null.
WHERE_WATCHED std::pair<char*, char*> launch_begins(char* first, char* last, size_t dynamic_bytes, const Work& work);
WHERE_WATCHED void block_begins(char* dynamic_shared, size_t bytes);
WHERE_WATCHED void barrier_passed();

void looks(bool may);  // whether races and missing values are looked for in the next launches
int sampled();  // launches of which not all blocks were looked at
bool has_few_reads();  // the first launch at its place
std::pair<char*, char*> variables_of_device();  // where those with __device__ and the like begin and end
void kernels_may_run(bool may);  // the host has not waited for them
extern bool copies_may_run;
bool was_used(const Region& region);  // by the launch that runs, or the last one
bool was_written(const Cell& cell);

}  // namespace memory_check

// Counts, besides, a launch's accesses and branches: observers.cpp.
namespace observers {

enum Watch {  // bits
    ELEMENTS = 1,  // how much of A, B and C is read and written, and by which threads C
    REQUESTS = 2,  // how instructions use memory, and at which branches the lanes of warps diverge
    TRACE = 4  // each access, in their order
};
extern int watched;

// Of the arrays that are allocated next, which are A, B and C, in this order. `item`: bytes of an element.
void launch_begins(int watch, size_t item, size_t elements_of_c);
void block_ends();
void accessed(const Region& region, size_t offset, int bytes, bool writes, bool atomic, unsigned instruction);
// What was counted since, handed over: members of JSON that follow others.
std::string counted();

}  // namespace observers

// --- host_api.cpp: calls of CUDA's runtime API are made one at a time, and their errors are kept and told

constexpr size_t USUAL_SHARED = 48 << 10, MOST_SHARED = 227 << 10;

// in_flight: of a kernel that no call has waited for; lasting: then.
extern cudaError_t last_error, in_flight, lasting;
extern std::string printed;  // by kernels, and not yet shown
extern int launches;

class Call {
public:
    Call(const char* name, Place place) : place_(place), lock_(one_at_a_time), name_(name) {}
    // `why`: the rule that is broken, with its values; {N} stands for the name of allocation N, {N:} for it and its line.
    cudaError_t ends_with(cudaError_t code, const std::string& why = "");
    std::string text() const { return std::string(name_) + " in line " + std::to_string(place_.line); }
    // Waits for the kernels: what they printed is shown, and what went wrong in them is told.
    cudaError_t waits();
    void reads(const Region& region, const void* at, size_t bytes) const;
    std::string as_json() const;  // members "call", "file" and "line"

    const Place place_;

private:
    static inline std::recursive_mutex one_at_a_time;
    std::lock_guard<std::recursive_mutex> lock_;
    const char* name_;
};

struct ForDevice {  // device memory can be used
    ForDevice() { let_host_use_device_memory(true); }
    ~ForDevice() { let_host_use_device_memory(false); }
};

void show_printed();
std::string grouped(unsigned long long number);  // 4096 as 4,096
std::string named(const Region& region, bool with_line = false);
// The rule that an operation breaks on this range of device memory; "" for none. `preposition`: into or from.
std::string misuse(const Region& region, const void* at, size_t bytes, const char* preposition);

// What is known to be over when: the order that streams, events and waiting give to the device's work and to the host.
namespace order {

// Work in a stream, from now on: what it is, for messages. Uses of memory are its until the next work.
int device_of(cudaStream_t stream);
void begins(cudaStream_t stream, const std::string& what, Place place);
// That work reads or writes these bytes. Tells a race if other work may use them at the same time.
void uses(const char* begin, const char* end, bool writes, const Region* region);
void host_waits();  // for all work of the device
void host_waits(cudaStream_t stream);  // for its work
WHERE_WATCHED bool host_may_use(const char* at, bool writes,
                                std::string& meanwhile);  // page-locked memory, as far as copies are done
void forget_what_is_over();
void launched();  // a kernel, by the work that has begun
void clock_is_read();

}  // namespace order

}  // namespace cuda_on_cpu
