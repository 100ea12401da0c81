// SPDX-License-Identifier: MIT
// malloc and new of the program's host code: blocks between red zones, for memory_check.cpp; freed blocks stay for a while.
// Libraries get their memory from the C library.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

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

constexpr size_t MOST_ZONE = 1 << 20, LATELY = 64 << 20;  // bytes of a red zone; of all freed blocks that stay
constexpr int8_t FREED = -1, BEGINS = -2, ZONE = -3;      // granules

// A stack frame: the runtime and the program are compiled with frame pointers.
struct Frame {
    const Frame* caller;
    const void* instruction;
};

struct alignas(GRANULE) Block {  // a header before the program's bytes
    void* slot;                  // from the C library
    size_t room, bytes;          // of the slot, of the program
    Block* next;                 // the next freed one
    int number;                  // in messages
    unsigned freed, made[6];     // the instruction that freed it; the call stack that allocated it
    char* begin() { return reinterpret_cast<char*>(this + 1); }
};

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
        set(last, static_cast<char*>(last->slot) + last->room - reinterpret_cast<char*>(last), 0);
        __libc_free(last->slot);
    }
}

void* allocate(size_t bytes, const Frame& frame, size_t alignment, bool is_zero)
{
    size_t before = max(sizeof(Block), alignment), zone = 4 * GRANULE + min(bytes / 2, MOST_ZONE), room = before + bytes + zone;
    if (!offset_of(frame.instruction) || room < bytes) return nullptr;
    std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
    auto slot_of_libc = [&] { return is_zero ? __libc_calloc(room, 1) : __libc_memalign(alignment, room); };
    void* slot = slot_of_libc();
    if (!slot) give_back_all_but(0), slot = slot_of_libc();
    if (!slot) return nullptr;
    char* at = static_cast<char*>(slot) + before;
    Block* block = new (at - sizeof(Block)) Block{slot, room, bytes, nullptr, 0, 0, {}};
    const Frame* each = &frame;
    for (unsigned& made : block->made) {
        if (!(made = offset_of(each->instruction))) break;
        each = each->caller;
    }
    size_t whole = bytes / GRANULE * GRANULE, rest = bytes % GRANULE;
    set(block, sizeof(Block), BEGINS), set(at, whole, GRANULE), set(at + whole, zone / GRANULE * GRANULE, ZONE);
    if (rest) set(at + whole, 1, static_cast<int8_t>(rest));
    return at;
}

// The block that this byte, or this red zone, belongs to.
Block& block_around(const char* at)
{
    at -= reinterpret_cast<size_t>(at) % GRANULE;
    while (granule_at(at) != BEGINS) at -= GRANULE;
    while (granule_at(at) == BEGINS) at += GRANULE;
    return *(reinterpret_cast<Block*>(const_cast<char*>(at)) - 1);
}

void misused(const char* kind, const char* at, size_t bytes, bool writes, Block& block, const void* instruction)
{
    if (!block.number)
        tell("allocation", "number", block.number = --told, "bytes", block.bytes, "frames",
             std::vector{block.made[0], block.made[1], block.made[2], block.made[3], block.made[4], block.made[5]});
    tell_of_host(kind, instruction,
                 {"writes", writes, "bytes", bytes, "number", block.number, "offset", at - block.begin(), "other_at", block.freed});
}

void release(void* pointer, const Frame& frame)
{
    const void* instruction = frame.instruction;
    char* at = static_cast<char*>(pointer);
    if (!granule_at(at)) return __libc_free(pointer);
    std::lock_guard<std::recursive_mutex> lock(one_at_a_time);
    Block& block = block_around(at);
    if (block.begin() != at) return misused("not to free", at, 1, true, block, instruction);
    if (block.freed) return misused("freed twice", at, 1, true, block, instruction);
    block.freed = max(1u, offset_of(instruction));
    set(at, block.bytes, FREED);
    (oldest ? latest->next : oldest) = &block;
    latest = &block;
    bytes_freed += block.room;
    give_back_all_but(max(LATELY, block.room));
}

void* given(size_t bytes, const Frame& frame, size_t alignment = GRANULE, bool is_zero = false)
{
    if (void* block = allocate(bytes, frame, max(alignment, GRANULE), is_zero)) return block;
    return is_zero ? __libc_calloc(bytes, 1) : alignment > GRANULE ? __libc_memalign(alignment, bytes) : __libc_malloc(bytes);
}

void* moved(void* pointer, size_t bytes, const Frame& frame)
{
    if (pointer && !granule_at(pointer)) return __libc_realloc(pointer, bytes);
    void* to = pointer && !bytes ? nullptr : given(bytes, frame);
    if (pointer && to) memcpy(to, pointer, min(bytes, block_around(static_cast<char*>(pointer)).bytes));
    if (pointer && (to || !bytes)) release(pointer, frame);
    return to;
}

void* given_or_thrown(size_t bytes, const Frame& frame)
{
    void* block = given(bytes, frame);
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

}  // namespace cuda_on_cpu::heap

using namespace cuda_on_cpu;

#define HERE __builtin_return_address(0)
#define FRAME *static_cast<const heap::Frame*>(__builtin_frame_address(0))
#define FOR_ALL __attribute__((visibility("default"), weak))  // a program may have its own
#define NEW(name)                                                                             \
    FOR_ALL void* operator name(size_t bytes) { return heap::given_or_thrown(bytes, FRAME); } \
    FOR_ALL void* operator name(size_t bytes, const std::nothrow_t&) noexcept { return heap::given(bytes, FRAME); }
#define DELETE(name)                                                                      \
    FOR_ALL void operator name(void* pointer) noexcept { heap::release(pointer, FRAME); } \
    FOR_ALL void operator name(void* pointer, size_t) noexcept { heap::release(pointer, FRAME); }
NEW(new)
NEW(new[])
DELETE(delete)
DELETE(delete[])

extern "C" {

FOR_ALL void* malloc(size_t bytes) { return heap::given(bytes, FRAME); }
FOR_ALL void* calloc(size_t count, size_t bytes)
{
    size_t all;
    return __builtin_mul_overflow(count, bytes, &all) ? nullptr : heap::given(all, FRAME, heap::GRANULE, true);
}
FOR_ALL void* realloc(void* pointer, size_t bytes) { return heap::moved(pointer, bytes, FRAME); }
FOR_ALL void* aligned_alloc(size_t alignment, size_t bytes) { return heap::given(bytes, FRAME, alignment); }
FOR_ALL int posix_memalign(void** pointer, size_t alignment, size_t bytes)
{
    *pointer = heap::given(bytes, FRAME, alignment);
    return *pointer ? 0 : ENOMEM;
}
FOR_ALL void free(void* pointer) { heap::release(pointer, FRAME); }

// The linker redirects the program's calls of these functions. Bytes beyond a block are reported and left out.
#define WRAPPED(name, Source, looks)                                             \
    void* __real_##name(void*, Source, size_t);                                  \
    void* __wrap_##name(void* to, Source from, size_t bytes)                     \
    {                                                                            \
        auto look_at = [at = HERE, &bytes](const void* of, bool writes) {        \
            if (!current && !heap::may_use(static_cast<const char*>(of), bytes)) \
                bytes = heap::look_at(of, bytes, writes, at, true);              \
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
