// SPDX-License-Identifier: MIT
// malloc and new of the program's host code: blocks between red zones, for memory_check.cpp; freed blocks stay for a while.
// Libraries get their memory from the C library.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <memory_resource>
#include <new>

#include "runtime.h"

#define C_LIBRARY(Type, name, parameters) extern "C" Type __libc_##name parameters
C_LIBRARY(void*, malloc, (size_t));
C_LIBRARY(void*, calloc, (size_t, size_t));
C_LIBRARY(void*, realloc, (void*, size_t));
C_LIBRARY(void*, memalign, (size_t, size_t));
C_LIBRARY(void, free, (void*));

namespace cuda_on_cpu::heap {

int8_t* parts[PARTS];

namespace {

// Bytes of a red zone; of all freed blocks that stay; of a block that are marked as unwritten.
constexpr size_t MOST_ZONE = 1 << 20, LATELY = 64 << 20, MOST_MARKED = 16 << 20;
constexpr int8_t FREED = -1, ZONE = -2;                   // granules

// A stack frame: the runtime and the program are compiled with frame pointers.
struct Frame {
    const Frame* caller;
    const void* instruction;
};

struct Block {
    char *slot, *begin;       // from the C library, of the program
    size_t room, bytes;       // of these
    Block* next;              // the next freed one
    int number;               // in messages
    unsigned freed, made[6];  // the instruction that freed it; the call stack that allocated it
    Maker maker;
    struct {  // by MPI, or by cudaMemcpy: the call, bytes from the begin on, and the copies if they lie one behind the other
        const char* call;
        Place place;
        size_t bytes;
        int copies;
    } filled;
};

// Memory apart from the program's, which writes beyond a block do not reach.
struct Pages : std::pmr::memory_resource {
    void* do_allocate(size_t bytes, size_t) override
    {
        void* room = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return room == MAP_FAILED ? throw std::bad_alloc() : room;
    }
    void do_deallocate(void* room, size_t bytes, size_t) override { munmap(room, bytes); }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};
struct Kept {
    Pages pages;
    std::pmr::unsynchronized_pool_resource pool{&pages};
    std::pmr::map<const char*, Block> blocks{&pool};  // by slots
};
std::pmr::map<const char*, Block>& blocks()
{
    alignas(Kept) static char room[sizeof(Kept)];
    static Kept& all = *new (room) Kept;  // never destroyed: used at exit
    return all.blocks;
}

Block *oldest, *latest;  // of the freed blocks
size_t bytes_freed;
int told;
std::recursive_mutex one_at_a_time;  // recursive: a signal handler may allocate, too

void set(const void* of, size_t bytes, int8_t to)
{
    for (size_t at = reinterpret_cast<size_t>(of), end = at + bytes; at < end; at = (at / PART + 1) * PART) {
        int8_t*& part = parts[at / PART % PARTS];
        if (!part) part = static_cast<int8_t*>(__libc_calloc(PART / GRANULE, 1));
        if (part) memset(part + at % PART / GRANULE, to, (min(end, (at / PART + 1) * PART) - at + GRANULE - 1) / GRANULE);
    }
}

// Returns the oldest freed blocks to the C library.
void give_back_all_but(size_t most)
{
    while (bytes_freed > most) {
        Block* last = oldest;
        oldest = last->next;
        bytes_freed -= last->room;
        set(last->slot, last->room, 0);
        __libc_free(last->slot);
        blocks().erase(last->slot);
    }
}

void* allocate(size_t bytes, const Frame& frame, Maker maker, size_t alignment, bool is_zero)
{
    size_t before = max(4 * GRANULE, alignment), zone = 4 * GRANULE + min(bytes / 2, MOST_ZONE), room = before + bytes + zone;
    if (!offset_of(frame.instruction) || room < bytes) return nullptr;
    std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
    auto slot_of_libc = [&] { return is_zero ? __libc_calloc(room, 1) : __libc_memalign(alignment, room); };
    void* slot = slot_of_libc();
    if (!slot) give_back_all_but(0), slot = slot_of_libc();
    if (!slot) return nullptr;
    char *first = static_cast<char*>(slot), *at = first + before;
    Block& block = blocks()[first] = {first, at, room, bytes, nullptr, 0, 0, {}, maker};
    const Frame* each = &frame;
    for (unsigned& made : block.made) {
        if (!(made = offset_of(each->instruction))) break;
        each = each->caller;
    }
    size_t whole = bytes / GRANULE * GRANULE, rest = bytes % GRANULE;
    set(first, before, ZONE), set(at, whole, GRANULE), set(at + whole, zone / GRANULE * GRANULE, ZONE);
    if (rest) set(at + whole, 1, static_cast<int8_t>(rest));
    auto* words = reinterpret_cast<uint32_t*>(at);
    for (size_t i = 0, end = is_zero ? 0 : min(bytes, MOST_MARKED) + 7; i < end / 8 * 2; ++i) words[i] = unwritten_word(words + i);
    return at;
}

// The block that this byte, or this red zone, belongs to.
Block& block_around(const char* at) { return std::prev(blocks().upper_bound(at))->second; }

int number_of(Block& block)
{
    if (!block.number)
        tell("allocation", "number", block.number = --told, "bytes", block.bytes, "frames",
             std::vector{block.made[0], block.made[1], block.made[2], block.made[3], block.made[4], block.made[5]});
    return block.number;
}

void misused(const char* kind, const char* at, size_t bytes, bool writes, Block& block, const void* instruction, Maker by = MALLOC)
{
    tell_of_host(kind, instruction,
                 {"writes", writes, "bytes", bytes, "number", number_of(block), "offset", at - block.begin, "other_at", block.freed,
                  "maker", static_cast<int>(block.maker), "by", static_cast<int>(by)});
}

bool is_untouched(const char* at, size_t bytes)
{
    auto* words = reinterpret_cast<const uint32_t*>(at);
    for (size_t i = 0; i < bytes / 4; ++i)
        if (words[i] && words[i] != unwritten_word(words + i)) return false;
    return bytes >= 4;
}

void release(void* pointer, const Frame& frame, Maker maker)
{
    const void* instruction = frame.instruction;
    char* at = static_cast<char*>(pointer);
    if (!granule_at(at)) return __libc_free(pointer);
    std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
    Block& block = block_around(at);
    if (block.begin != at) return misused("not to free", at, 1, true, block, instruction);
    if (block.freed) return misused("freed twice", at, 1, true, block, instruction);
    if (block.maker != maker) return misused("freed by another", at, 1, true, block, instruction, maker);
    if (block.filled.call && (block.filled.copies > 1 || !strcmp(block.filled.call, "MPI_Gather"))) look_at_tail(at, block.bytes);
    unpin(at);
    block.freed = max(1u, offset_of(instruction));
    set(at, block.bytes, FREED);
    (oldest ? latest->next : oldest) = &block;
    latest = &block;
    bytes_freed += block.room;
    give_back_all_but(max(LATELY, block.room));
}

void* given(size_t bytes, const Frame& frame, Maker maker = MALLOC, size_t alignment = GRANULE, bool is_zero = false)
{
    if (void* block = allocate(bytes, frame, maker, max(alignment, GRANULE), is_zero)) return block;
    return is_zero ? __libc_calloc(bytes, 1) : alignment > GRANULE ? __libc_memalign(alignment, bytes) : __libc_malloc(bytes);
}

void* moved(void* pointer, size_t bytes, const Frame& frame)
{
    if (pointer && !granule_at(pointer)) return __libc_realloc(pointer, bytes);
    void* to = pointer && !bytes ? nullptr : given(bytes, frame);
    if (pointer && to) memcpy(to, pointer, min(bytes, block_around(static_cast<char*>(pointer)).bytes));
    if (pointer && (to || !bytes)) release(pointer, frame, MALLOC);
    return to;
}

void* given_or_thrown(size_t bytes, const Frame& frame, Maker maker)
{
    void* block = given(bytes, frame, maker);
    return block ? block : throw std::bad_alloc();
}

}  // namespace

size_t look_at(const void* at, size_t bytes, bool writes, const void* instruction, bool is_range)
{
    auto *begin = static_cast<const char*>(at), *first = begin;
    while (is_range && may_use(first, 1)) ++first;
    std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
    Block& block = block_around(first);
    misused(block.freed ? "freed" : is_range ? "range" : "bounds", begin, bytes, writes, block, instruction);
    return first - begin;
}

void read_unwritten(const void* at, size_t bytes, const void* instruction)
{
    std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
    auto* begin = static_cast<const char*>(at);
    if (failed_calls) return;  // such as the copy that would have written it
    if (granule_at(at) > 0) misused("unwritten by the host", begin, bytes, false, block_around(begin), instruction);
}

Parts unwritten_in(const char* from, size_t bytes)
{
    if (bytes < 4 || offset_of(from)) return {};
    std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
    if (granule_at(from) <= 0) {
        bool is_all = std::all_of(from, from + bytes, [](char each) { return each == UNWRITTEN_LOCAL; });
        return is_all ? Parts{{0, bytes}} : Parts{};
    }
    const Block& block = block_around(from);
    bytes = min(bytes, static_cast<size_t>(block.begin + block.bytes - from));
    Parts found;
    size_t first = -reinterpret_cast<size_t>(from) % 4, run = 0, at = first;
    auto ends = [&] {
        if (run >= 8 || (run && (at - run == first || at + 4 > bytes))) found.push_back({at - run, run});
        run = 0;
    };
    for (; at + 4 <= bytes; at += 4) {
        auto* word = reinterpret_cast<const uint32_t*>(from + at);
        if (*word == unwritten_word(word))
            run += 4;
        else
            ends();
    }
    ends();
    return found;
}

void look_at_tail(const char* at, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
    if (granule_at(at) <= 0) return;
    Block& block = block_around(at);
    const auto& [call, place, filled, copies] = block.filled;
    bool is_beyond = filled && (copies > 1 || strncmp(call, "cuda", 4)) && filled % 4 == 0 && at + bytes > block.begin + filled;
    if (!is_beyond || !is_untouched(block.begin + filled, block.bytes - filled)) return;
    tell_of_mpi(std::string(call) + " has filled " + grouped(filled) + " of the " + grouped(block.bytes) + " bytes of {" +
                    std::to_string(number_of(block)) + ":}, and nothing the others: is a count too small, or a remainder left out?",
                place, copies > 1 ? "left out" : "mpi");
}

int number_of_untouched(size_t bytes)
{
    std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
    for (auto& [slot, block] : blocks())
        if (block.bytes == bytes && is_untouched(block.begin, bytes)) return number_of(block);
    return 0;
}

void note_filled(const char* at, size_t bytes, const char* call, Place place)
{
    std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
    if (granule_at(at) <= 0) return;
    Block& block = block_around(at);
    size_t offset = at - block.begin;
    bool follows = offset && offset == block.filled.bytes && block.filled.copies;
    block.filled = {call, place, max(block.filled.bytes, offset + bytes), follows ? block.filled.copies + 1 : !offset};
}

int number_at(const char* at)
{
    std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
    return granule_at(at) > 0 ? number_of(block_around(at)) : 0;
}

bool hand_over(void* begin, Maker from, Maker to)
{
    std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
    Block* block = granule_at(begin) ? &block_around(static_cast<char*>(begin)) : nullptr;
    if (!block || block->begin != begin || block->freed || block->maker != from) return false;
    block->maker = to;
    return true;
}

}  // namespace cuda_on_cpu::heap

using namespace cuda_on_cpu;

void cuda_on_cpu::tell_of_mpi(const std::string& text, Place place, const char* kind)
{
    if (is_new(kind, place.line)) tell("finding", "kind", kind, "text", text, "kernel", "", Members(place));
}

void cuda_on_cpu::tell_collective(const char* call, int root, long long bytes, Place place)
{
    constexpr int MOST = 1000;
    static int told;
    if (++told <= MOST) tell("collective", "call", call, "root", root, "bytes", bytes, Members(place));
}

void cuda_on_cpu::look_at_for_mpi(const char* call, const void* at, size_t bytes, bool writes, Place place)
{
    auto* begin = static_cast<const char*>(at);
    if (region_around(begin)) return;
    if (!heap::may_use(begin, bytes)) {  // MPI would overwrite other memory, or end the program
        heap::look_at(at, bytes, writes, __builtin_return_address(0), true);
        sleep(1);  // other ranks are about to report, and the launcher will kill them
        _exit(1);
    }
    if (writes && (!strcmp(call, "MPI_Bcast") || !strcmp(call, "MPI_Gather"))) heap::note_filled(begin, bytes, call, place);
    if (auto* meanwhile = order::may_still_use(begin, writes))
        return tell_of_mpi(std::string(call) + " uses memory that " + *meanwhile + " may still use", place);
    if (writes) return;
    if (heap::unwritten_in(begin, bytes) == heap::Parts{{0, bytes}})
        return tell_of_mpi(std::string(call) + " sends what nothing has written", place);
    // Zeros from calloc in place of a kernel's result, which no copy has brought to the host yet.
    if (heap::is_untouched(begin, bytes))
        for (const Region* each : live_regions())
            if (each->bytes == bytes && each->was_written && !each->is_consumed && each->kind == Region::ALLOCATION)
                return tell_of_mpi(std::string(call) + " sends zeros, before any copy of what line " +
                                       std::to_string(each->launched) + " computes in " + named(*each),
                                   place);
}

#define HERE __builtin_return_address(0)
#define FRAME *static_cast<const heap::Frame*>(__builtin_frame_address(0))
#define FOR_ALL __attribute__((visibility("default"), weak))  // a program may have its own
#define NEW(name, maker)                                                                             \
    FOR_ALL void* operator name(size_t bytes) { return heap::given_or_thrown(bytes, FRAME, maker); } \
    FOR_ALL void* operator name(size_t bytes, const std::nothrow_t&) noexcept { return heap::given(bytes, FRAME, maker); }
#define DELETE(name, maker)                                                                      \
    FOR_ALL void operator name(void* pointer) noexcept { heap::release(pointer, FRAME, maker); } \
    FOR_ALL void operator name(void* pointer, size_t) noexcept { heap::release(pointer, FRAME, maker); }
NEW(new, heap::NEW)
NEW(new[], heap::NEW_ARRAY)
DELETE(delete, heap::NEW)
DELETE(delete[], heap::NEW_ARRAY)

extern "C" {

FOR_ALL void* malloc(size_t bytes) { return heap::given(bytes, FRAME); }
FOR_ALL void* calloc(size_t count, size_t bytes)
{
    size_t all;
    return __builtin_mul_overflow(count, bytes, &all) ? nullptr : heap::given(all, FRAME, heap::MALLOC, heap::GRANULE, true);
}
FOR_ALL void* realloc(void* pointer, size_t bytes) { return heap::moved(pointer, bytes, FRAME); }
FOR_ALL void* aligned_alloc(size_t alignment, size_t bytes) { return heap::given(bytes, FRAME, heap::MALLOC, alignment); }
FOR_ALL int posix_memalign(void** pointer, size_t alignment, size_t bytes)
{
    *pointer = heap::given(bytes, FRAME, heap::MALLOC, alignment);
    return *pointer ? 0 : ENOMEM;
}
FOR_ALL void free(void* pointer) { heap::release(pointer, FRAME, heap::MALLOC); }

// The linker redirects the program's calls of these functions. Bytes beyond a block are reported and left out.
#define WRAPPED(name, Source, looks)                                             \
    void* __real_##name(void*, Source, size_t);                                  \
    void* __wrap_##name(void* to, Source from, size_t bytes)                     \
    {                                                                            \
        auto look_at = [at = HERE, &bytes](const void* of, bool writes) {        \
            if (!current && !heap::may_use(static_cast<const char*>(of), bytes)) \
                bytes = heap::look_at(of, bytes, writes, at, true);              \
            else if (!current)                                                   \
                memory_check::note_range(of, bytes, writes, at);                 \
        };                                                                       \
        looks;                                                                   \
        return __real_##name(to, from, bytes);                                   \
    }
WRAPPED(memcpy, const void*, (look_at(to, true), look_at(from, false)))
WRAPPED(memmove, const void*, (look_at(to, true), look_at(from, false)))
WRAPPED(memset, int, look_at(to, true))

void __stack_chk_fail()  // the stack is corrupt: there are no callers to report
{
    if (current) stop_thread("illegal", "stack");
    tell("finding", "kind", "stack", "at", offset_of(HERE), where());
    _exit(128 + SIGABRT);
}
}
