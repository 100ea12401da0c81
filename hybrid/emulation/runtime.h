// SPDX-License-Identifier: MIT
// The interfaces between the parts of the runtime.
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "host_api.h"

namespace cuda_on_cpu {

// --- findings.cpp: reports to the parent process, as lines of JSON in the file HYBRID_LAB_FINDINGS + "." + rank. Each line begins
// with the secret HYBRID_LAB_MARK and a space: the program's own code never sees the mark, so it cannot forge a finding.

struct UnderWay {  // the running or the last launch
    const char *kernel, *file;
    int line;
};
extern UnderWay under_way;

std::string as_json(const std::string& text);
template <typename Number, typename = std::enable_if_t<std::is_arithmetic_v<Number>>>
std::string as_json(Number number)
{
    if constexpr (!std::is_floating_point_v<Number>) return std::to_string(number);
    char text[32];
    snprintf(text, sizeof(text), "%.9g", static_cast<double>(number));
    return std::isfinite(number) ? text : number > 0 ? "Infinity" : number < 0 ? "-Infinity" : "NaN";
}
template <typename Value>
std::string as_json(const std::vector<Value>& list)
{
    std::string text;
    for (const Value& each : list) text += (text.empty() ? "" : ", ") + as_json(each);
    return "[" + text + "]";
}

struct Members {  // of a JSON object
    std::string text;
    Members() = default;
    // Alternating names and values; Members may stand between these pairs.
    template <typename Value, typename... More>
    Members(const char* name, const Value& value, const More&... more)
        : text(", \"" + std::string(name) + "\": " + as_json(value) + Members(more...).text)
    {
    }
    template <typename... More>
    Members(const Members& first, const More&... more) : text(first.text + Members(more...).text)
    {
    }
    Members(Place place) : Members("file", place.file, "line", place.line) {}
};

void write_line(const std::string& text);
template <typename... All>
void tell(const char* event, const All&... all)  // `all`: arguments of Members
{
    write_line("{\"event\": " + as_json(event) + Members(all...).text + "}");
}
void tell_note(const char* kind);  // once
// Whether nothing of this kind was told for these, as of an instruction or a line; false after MOST_TOLD.
bool is_new(const std::string& kind, size_t one = 0, size_t other = 0);

constexpr size_t MOST_OF_ARRAYS = 64 << 20;                       // bytes
extern char* arrays;                                              // memory shared with the parent process, or null
bool has_room(size_t bytes);                                      // in `arrays`
void reserve(size_t bytes);                                       // the beginning of `arrays`
std::vector<size_t> handed_over(const void* from, size_t bytes);  // copies to `arrays`; returns offset and bytes
void restart_clock();                                             // of the time limit

extern uintptr_t first_byte, last_byte;        // of the loaded program or library
extern const char *constants, *constants_end;  // its read-only segments
std::pair<char*, char*> find_segments();       // sets these; returns the calling thread's thread-local variables
inline unsigned offset_of(const void* at)      // in the program, for addr2line; 0 elsewhere
{
    uintptr_t address = reinterpret_cast<uintptr_t>(at);
    return address >= first_byte && address < last_byte ? static_cast<unsigned>(address - first_byte) : 0;
}

std::vector<unsigned> frames();  // the call stack as offsets, the innermost first
// Reports a finding of host code, once for an instruction.
WHERE_WATCHED void tell_of_host(const char* kind, const void* instruction, const Members& members);
Members where();  // "kernel", "launched", "block", "thread", "block_size" of the running thread, if any

// --- device_memory.cpp: cudaMalloc's allocations, with shadow cells

// The shadow of four bytes: the last write and the last read by a kernel. A segment is a block's run between two barriers; segments
// are numbered in the order in which they run. A mask has a bit for each byte.
struct Cell {
    unsigned write_segment, write_at, read_segment, read_at;  // `at`: the instruction
    uint16_t writer, reader;  // threads of the block
    uint8_t write_epoch, read_epoch;  // __syncwarp() calls of the thread before
    uint8_t write_mask : 4, read_mask : 4, written : 4;  // written: by the host or by any kernel
    uint8_t several_lanes : 1, several_warps : 1;  // have read it in that segment
    uint8_t other_block : 1;  // has read it in that launch, too
    uint8_t atomic : 1;  // the last write
};

struct Region {
    enum Kind { ALLOCATION, MANAGED, VARIABLES, SHARED, DYNAMIC_SHARED } kind;
    char* begin;
    size_t bytes;
    Cell* cells;
    int number;  // of an allocation
    bool freed;
    std::string freed_by;  // the call and its line
    unsigned used_by, written_by;  // first segment of the last launch that used or wrote it; 0 for none
    struct Used {
        long long count;
        const char *begin, *end;

        void note(const char* at, size_t size)
        {
            begin = count ? std::min(begin, at) : at;
            end = count++ ? std::max(end, at + size) : at + size;
        }
    } reads, writes;  // by the launch that used it last
    bool is_filled;  // by the host
    bool is_read, was_written;  // by a kernel
    bool is_consumed;  // a later launch or a copy read what a kernel wrote
    size_t copied_out;  // bytes from its begin on, to the host
    unsigned item;  // bytes of a kernel's last write, or of a matrix's element
    double* loads;  // of each element of a matrix; null where they are not counted
    int device;
    size_t row, pitch;  // of a matrix: bytes of a row, and from row to row; else 0
    struct {  // a copy of host memory of which nothing had written some bytes
        int line, source;  // line: 0 for none; source: the host array's number, or 0
    } gap;
    struct {  // the only copy of host memory that filled a part; line: 0 for none or a whole one, -1 for several
        int line;
        size_t bytes;
    } part;
    struct {  // cudaMemset of floating-point numbers to what is not 0
        Place place;
        int value;
        double item;
        size_t items;
    } set;
    int launched;  // the line of the last launch that wrote it
    std::string too_small;  // the grid of that launch, which has fewer threads than it needs: why
    bool is_mapped;  // page-locked memory that kernels use
    bool is_seen;  // a later launch or a copy read what the last launch that wrote it has written

    bool has(const char* at, size_t size) const { return at >= begin && at + size <= begin + bytes; }
};

constexpr size_t DEVICE_MEMORY = 256 << 20;  // bytes of all devices; each byte has six bytes of shadow
int& chosen_device();  // by the calling host thread
constexpr int MOST_DEVICES = 32;
extern unsigned reached[MOST_DEVICES];  // for each device a mask of the peers that its kernels may access

Region* allocate(size_t bytes, Region::Kind kind, Place place);  // null if memory is short
void release(Region& region, std::string by);
std::vector<Region*> live_regions(bool with_mapped = false);
Region* pin(char* begin, size_t bytes);  // page-locks host memory; null if some of it already is
bool unpin(const void* begin);
Region* pinned_around(const char* at, size_t near = 0);  // the page-locked host memory of, or near, this byte; null for none
Region* region_around(const char* at);  // the nearest allocation of that address range, also a freed one; null for none
size_t free_bytes();
bool is_managed(const char* at);
extern bool host_may;  // use device memory: the runtime itself copies
void let_host_use_device_memory(bool may);
void mark_written(Region& region, size_t offset, size_t bytes, bool is_written = true);
bool is_written(const Region& region, size_t byte);
void mark_as(Region& to, size_t to_offset, const Region& from, size_t from_offset, size_t bytes);  // copies the written marks
long long first_unwritten(const Region& region, size_t offset, size_t bytes);  // -1 for none
void tell_use(const Region& region);  // by kernels and copies
Cell* new_cells(size_t bytes);  // the shadow of so many bytes; null if memory is short

// --- host_memory.cpp: the host's malloc and new, with red zones

namespace heap {

constexpr size_t GRANULE = 16, PART = 16 << 20, PARTS = 1 << 23;  // bytes; PARTS cover the addresses below 2^47
WHERE_WATCHED extern int8_t* parts[PARTS];
// How many of these 16 bytes the host may use, from the first on; < 0: none; 0: they belong to no block.
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
enum Maker { MALLOC, NEW, NEW_ARRAY, PINNED };  // Python has their names
// What marks four bytes of new host memory until something writes them: NaN as a float, and in a double.
inline uint32_t unwritten_word(const void* at)
{
    return 0x7ff40000u | static_cast<uint32_t>(reinterpret_cast<size_t>(at) / 4 * 0x9e3779b97f4a7c15u >> 46);
}
#ifdef __clang__
constexpr char UNWRITTEN_LOCAL = static_cast<char>(0xaa);  // by -ftrivial-auto-var-init=pattern
#else
constexpr char UNWRITTEN_LOCAL = static_cast<char>(0xfe);
#endif
// Whether a host's read gets only what nothing has written, in whole eight bytes.
inline bool is_unwritten(const char* at, size_t bytes)
{
    auto is_marked = [](const char* byte) {
        auto* words = reinterpret_cast<const uint32_t*>(reinterpret_cast<size_t>(byte) / 8 * 8);
        return words[0] == unwritten_word(words) && words[1] == unwritten_word(words + 1);
    };
    return bytes >= 4 && is_marked(at) && is_marked(at + bytes - 1);
}
WHERE_WATCHED void read_unwritten(const void* at, size_t bytes, const void* instruction);
using Parts = std::vector<std::pair<size_t, size_t>>;  // of memory: offset and bytes
// The parts of host memory that nothing has written; of a local array only all of it.
Parts unwritten_in(const char* from, size_t bytes);
// The number of a block of so many bytes that has zeros alone, or what nothing has written, also of a freed one; 0 for none.
WHERE_WATCHED int number_of_untouched(size_t bytes);
// Reports a block of which MPI, or several copies one behind the other, have filled a part, and nothing the rest, if the host's
// memory from here on is read beyond that part.
void look_at_tail(const char* at, size_t bytes);
void note_filled(const char* at, size_t bytes, const char* call, Place place);
int number_at(const char* at);  // of the block that has this byte, in messages; 0 for none
bool hand_over(void* begin, Maker from, Maker to);  // changes who frees it; false if it is no such block
// Reports a bad access, and returns how many of its bytes, from the first on, may be used.
WHERE_WATCHED size_t look_at(const void* at, size_t bytes, bool writes, const void* instruction, bool is_range);

}  // namespace heap

void tell_of_mpi(const std::string& text, Place place, const char* kind = "mpi");  // see mpi_calls.h
void tell_collective(const char* call, int root, long long bytes, Place place);
void look_at_for_mpi(const char* call, const void* at, size_t bytes, bool writes, Place place);

constexpr size_t STACK = 256 << 10;  // bytes of a kernel's thread

// --- runtime.cpp

constexpr size_t USUAL_SHARED = 48 << 10, MOST_SHARED = 227 << 10;  // bytes of a block's shared memory
double seconds_now();  // not by a function that programs call to measure, see READS_CLOCK
bool is_within(const dim3& size, unsigned x, unsigned y, unsigned z);
[[noreturn]] void stop_thread(const char* kind, const std::string& text);  // the launch fails, and the thread never continues

// A launch that would take longer is cut short: after some of its blocks only the last one runs.
extern double seconds_left;  // for this launch and later ones
extern unsigned long long blocks_left_out;  // of the last launch

// --- memory_check.cpp checks each access of instrumented kernels: is the memory theirs, is the access ordered, was a value
// written?

namespace memory_check {

// runtime.cpp calls these if they are linked. launch_begins returns the begin and the end of the __shared__ variables: those
// given, or the calling thread's thread-local variables for null.
WHERE_WATCHED std::pair<char*, char*> launch_begins(char* first, char* last, size_t dynamic_bytes, const Work& work);
WHERE_WATCHED void block_begins(char* dynamic_shared, size_t bytes);
WHERE_WATCHED void barrier_passed();
void launch_ends();

void note_range(const void* at, size_t bytes, bool writes, const void* instruction);  // by a function of the host's C library
extern bool checks;  // the next launches for races and missing values
extern bool kernels_run;  // the host has not waited for them
extern unsigned wrote_elsewhere;  // the last launch that wrote a variable, or memory that the host reads
extern bool copies_run;  // nor for other work in streams
int sampled();  // launches of which not all blocks were checked
bool has_few_reads();  // all launches of this line together
std::pair<char*, char*> variables_of_device();  // begin and end of __device__ variables and the like
struct Rest {  // of a variable that a copy has filled in part
    const char *begin, *end;
    int line;  // of the copy
};
extern std::map<const char*, Rest>& parts;  // by the variable's begin
bool is_of_device(const char* at);  // whether it is such a variable, and no __managed__ one
bool was_used(const Region& region);  // by the running or the last launch
bool was_written(const Cell& cell);
bool was_only_read(const Cell& cell);  // by the last launch, and written by none

}  // namespace memory_check

// observers.cpp counts a launch's accesses and branches.
namespace observers {

enum Watch {  // bits
    ELEMENTS = 1,  // bytes of A, B and C read and written, and the writers of C
    REQUESTS = 2,  // a line's requests to memory, and divergent branches
    TRACE = 4,  // each access, in order
    VERSIONS = 8  // of a kernel there are several, whose shared memory together may be more than a block has
};
extern int watched __attribute__((weak));

// The next three allocations are A, B and C. `item`: bytes of an element.
void launch_begins(int watch, size_t item, size_t elements_of_c);
void block_ends();
void accessed(const Region& region, size_t offset, int bytes, bool writes, bool atomic, unsigned instruction);
Members counted();  // since launch_begins

}  // namespace observers

// --- host_api.cpp: calls of CUDA's runtime API run one at a time, and their errors are kept and reported

// in_flight: of a kernel that no call has waited for; it becomes lasting when one does.
extern cudaError_t last_error, in_flight, lasting;
extern std::string printed;  // by kernels, and not yet shown
extern int launches, failed_calls;

class Call {
public:
    Call(const char* name, Place place) : place_(place), lock_(one_at_a_time), name_(name) {}
    // `why`: the broken rule with its values; {N} stands for the name of allocation N, {N:} for the name with its line.
    cudaError_t ends_with(cudaError_t code, const std::string& why = "");
    std::string text() const { return std::string(name_) + " in line " + std::to_string(place_.line); }
    cudaError_t waits();  // for the kernels: shows what they printed, and returns their error
    Members members() const { return {"call", name_, Members(place_)}; }

    const Place place_;

private:
    static inline std::recursive_mutex one_at_a_time;
    std::lock_guard<std::recursive_mutex> lock_;
    const char* name_;
};

struct ForDevice {  // while one exists, host code can use device memory
    ForDevice() { let_host_use_device_memory(true); }
    ~ForDevice() { let_host_use_device_memory(false); }
};

void show_printed();
std::string grouped(unsigned long long number);  // 4096 as 4,096
std::string named(const Region& region, bool with_line = false);
// The rule that an operation on this range of device memory breaks; "" for none. `preposition`: into, from or of.
std::string misuse(const Region& region, const void* at, size_t bytes, const char* preposition);

// host_api_events.cpp: the order that streams, events and waiting give to the work of device and host (vector clocks)
namespace order {

int device_of(cudaStream_t stream);
// Work begins in a stream; later `uses` are of this work. `what`: for messages.
void begins(cudaStream_t stream, const std::string& what, Place place);
// The work reads or writes these bytes. Reports a race if other work may use them at the same time.
void uses(const char* begin, const char* end, bool writes, const Region* region);
void host_waits();  // for all work of the device
void host_waits(cudaStream_t stream);  // for the stream's work
// The text of a copy that may still use this page-locked memory; null for none.
WHERE_WATCHED const std::string* may_still_use(const char* at, bool writes);
void forget_what_is_over();
void launched();  // the work that has begun was a kernel
void clock_is_read();

}  // namespace order

}  // namespace cuda_on_cpu
