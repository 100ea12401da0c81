// Runs a kernel's blocks one after the other, each thread of a block as a fiber. Never compiled with a sanitizer itself:
// CHECKS_ADDRESS and CHECKS_THREADS tell it to tell theirs about fibers.
//
// A warp runs until all its lanes wait for the block or have left; only then the next one starts. Fairer turns would hide
// missing barriers: they keep the warps close together.
#include "cuda_on_cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#ifdef CHECKS_ADDRESS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CHECKS_THREADS
#include <sanitizer/tsan_interface.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

// The kernel's .bss lies between these two (see build.py), and all that is in it are arrays in shared memory: GCC puts no
// template's static variable into a section of one's choice.
extern "C" char shared_first[], shared_last[];

namespace cuda_on_cpu {

Thread* current;
uint3 block_index;
dim3 block_size, grid_size;

namespace {

enum Order { FORWARD, REVERSE, SHUFFLED };
enum Copies { LATE, EARLY, MIXED };
enum class State { READY, AT_BLOCK, AT_WARP, LEFT };

constexpr size_t STATIC_SHARED = 48 << 10, MOST_SHARED = 227 << 10;
constexpr size_t STACK = 256 << 10, GUARD = 4096, MOST_THREADS = 1024;
constexpr size_t FENCE = 256;  // bytes of NaN on both sides of the launched shared memory

struct Place {
    const char* file;
    int line;
    bool operator==(const Place& other) const { return line == other.line && (file == other.file || !strcmp(file, other.file)); }
    std::string text() const { return std::string(file) + ":" + std::to_string(line); }
};

struct Copy {
    void* to;
    const void* from;
    int bytes, there;
    unsigned group;
};

struct Fiber : Thread {
    State state;
    int warp;
    Place at;  // where it waits
    // What it brings to its warp:
    unsigned mask;
    Combine combine;
    const void* brought;
    void* answer;
    bool orders_memory;
    // Its asynchronous copies under way, the oldest first:
    std::vector<Copy> copies;
    unsigned groups_closed;
    int block_meetings, warp_meetings;
    char* stack;
#ifdef __x86_64__
    void* context;
#else
    ucontext_t context;
#endif
    void *race_checker, *fake_stack;
};

struct Warp {
    unsigned running, waiting;  // lanes that have not left; lanes that wait for others of the warp
    char ordered[2];            // the two stand for what its __syncwarps order, by turns
};

Fiber* fibers;  // of one block; used again by the launch's next
std::vector<Warp> warps;
std::mt19937_64 chance;
std::string failure;
Order order;
Copies copies_done;
void (*thread_body)(void*);
void* thread_argument;
char* launched;  // the block's shared memory of the launched size
size_t launched_bytes;
// What barriers order, for the race checker. Two by turns: a fast fiber comes to the next barrier before a slow one left this.
[[maybe_unused]] char block_ordered[2], block_begins, block_ends;

#ifdef __x86_64__
void* main_context;
#else
ucontext_t main_context;
#endif
[[maybe_unused]] void *main_race_checker, *main_fake_stack;
[[maybe_unused]] const void* main_stack;
[[maybe_unused]] size_t main_stack_bytes;

Fiber& me() { return *static_cast<Fiber*>(current); }

#ifdef __x86_64__
// Keeps what a called function must keep on the stack that is left, and takes it from the other one.
extern "C" void cuda_on_cpu_switch(void** leave, void* enter) __attribute__((visibility("hidden")));
asm(".text\n"
    ".hidden cuda_on_cpu_switch\n"
    ".globl cuda_on_cpu_switch\n"
    ".type cuda_on_cpu_switch, @function\n"
    "cuda_on_cpu_switch:\n"
    "    push %rbx\n    push %rbp\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp, (%rdi)\n"
    "    mov %rsi, %rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbp\n    pop %rbx\n"
    "    ret\n"
    ".size cuda_on_cpu_switch, . - cuda_on_cpu_switch\n");
#endif

void change_to_main()
{
    Fiber& fiber = me();
#ifdef CHECKS_ADDRESS
    __sanitizer_start_switch_fiber(&fiber.fake_stack, main_stack, main_stack_bytes);
#endif
#ifdef CHECKS_THREADS
    __tsan_switch_to_fiber(main_race_checker, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef __x86_64__
    cuda_on_cpu_switch(&fiber.context, main_context);
#else
    swapcontext(&fiber.context, &main_context);
#endif
#ifdef CHECKS_ADDRESS
    __sanitizer_finish_switch_fiber(fiber.fake_stack, &main_stack, &main_stack_bytes);
#endif
}

void change_to(Fiber& fiber)
{
    current = &fiber;
#ifdef CHECKS_ADDRESS
    __sanitizer_start_switch_fiber(&main_fake_stack, fiber.stack, STACK);
#endif
#ifdef CHECKS_THREADS
    __tsan_switch_to_fiber(fiber.race_checker, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef __x86_64__
    cuda_on_cpu_switch(&main_context, fiber.context);
#else
    swapcontext(&main_context, &fiber.context);
#endif
#ifdef CHECKS_ADDRESS
    __sanitizer_finish_switch_fiber(main_fake_stack, nullptr, nullptr);
#endif
}

void orders_before([[maybe_unused]] char& event)
{
#ifdef CHECKS_THREADS
    __tsan_release(&event);
#endif
}

void orders_after([[maybe_unused]] char& event)
{
#ifdef CHECKS_THREADS
    __tsan_acquire(&event);
#endif
}

std::string pair(unsigned x, unsigned y) { return "(" + std::to_string(x) + ", " + std::to_string(y) + ")"; }

// Notes the first failure. The fiber that reports one never goes on.
void fail(const Fiber& fiber, const char* kind, const std::string& text)
{
    if (!failure.empty()) return;
    failure = std::string(kind) + "|block " + pair(block_index.x, block_index.y) + ", thread " + pair(fiber.index.x, fiber.index.y) +
              ": " + text;
}

void fail_here(const char* kind, const std::string& text)
{
    fail(me(), kind, text);
    for (;;) change_to_main();
}

// Not memcpy: a sanitizer takes that over, and would see accesses that are no thread's own.
void move_bytes(volatile char* to, const volatile char* from, int bytes)
{
    for (int i = 0; i < bytes; ++i) to[i] = from[i];
}

void fill_nan(volatile char* at, size_t bytes)
{
    for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<char>(0xFF);
}

void carry_out(const Copy& copy)
{
    volatile char* to = static_cast<volatile char*>(copy.to);
    move_bytes(to, static_cast<const volatile char*>(copy.from), copy.there);
    for (int i = copy.there; i < copy.bytes; ++i) to[i] = 0;
}

bool in_shared_memory(const void* at, int bytes)
{
    auto within = [&](const char* first, const char* last) { return at >= first && static_cast<const char*>(at) + bytes <= last; };
    return within(launched, launched + launched_bytes) || within(shared_first, shared_last);
}

// A fiber's life: the kernel, once for each block.
void live()
{
#ifdef CHECKS_ADDRESS
    __sanitizer_finish_switch_fiber(nullptr, &main_stack, &main_stack_bytes);
#endif
    for (;;) {
        orders_after(block_begins);
        thread_body(thread_argument);
        if (!me().copies.empty()) fail_here("copy", "left the kernel with asynchronous copies under way");
        orders_before(block_ends);
        me().state = State::LEFT;
        change_to_main();
    }
}

void make_ready(Fiber& fiber, int number)
{
#ifdef CHECKS_ADDRESS
    __asan_unpoison_memory_region(fiber.stack, STACK);  // a failed launch leaves frames behind
#endif
#ifdef __x86_64__
    // Not all at the same place of a page: 1024 stacks would share one set of the cache.
    void** top = reinterpret_cast<void**>(fiber.stack + STACK - number % 32 * 128);
    *--top = nullptr;  // where `live` would return to; now the stack is aligned as if it had been called
    *--top = reinterpret_cast<void*>(live);
    fiber.context = top - 6;  // the kept registers
#else
    (void)number;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, live, 0);
#endif
}

// A launch's fibers, with a page that faults below each stack. Not kept: every such page is an entry in the kernel's list of
// a process's mappings, whose length is limited.
struct Fibers {
    size_t count, page = std::max<size_t>(GUARD, sysconf(_SC_PAGESIZE)), each = STACK + page;
    void* memory;

    explicit Fibers(size_t threads) : count(threads)
    {
        memory = mmap(nullptr, count * each, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (!there()) return;
        fibers = new Fiber[count]();
        for (size_t i = 0; i < count; ++i) {
            char* below = static_cast<char*>(memory) + i * each;
            mprotect(below, page, PROT_NONE);
            fibers[i].stack = below + page;
        }
    }

    ~Fibers()
    {
        if (!there()) return;
#ifdef CHECKS_ADDRESS
        __asan_unpoison_memory_region(memory, count * each);
#endif
        delete[] fibers;
        munmap(memory, count * each);
    }

    Fibers(const Fibers&) = delete;
    bool there() const { return memory != MAP_FAILED; }
};

// The lanes that wait for each other and are all there go on, with their answers.
void let_meet(Warp& warp, Fiber* lanes)
{
    for (unsigned left = warp.waiting; left; left &= left - 1) {
        int first = __builtin_ctz(left);
        const Fiber& one = lanes[first];
        if (!(warp.waiting >> first & 1) || (one.mask & warp.running & ~warp.waiting)) continue;
        Lanes group{one.mask & warp.running, {}, {}};
        for (int lane = 0; lane < 32; ++lane) {
            if (!(group.mask >> lane & 1)) continue;
            const Fiber& other = lanes[lane];
            if (other.mask != one.mask || other.combine != one.combine || !(other.at == one.at))
                return fail(one, "warp", "waits for its warp in " + one.at.text() + ", thread " + pair(other.index.x, other.index.y) +
                                         " in " + other.at.text() + (other.at == one.at ? " with another mask" : ""));
            group.brought[lane] = other.brought;
            group.answer[lane] = other.answer;
        }
        if (one.combine) one.combine(group);
        warp.waiting &= ~group.mask;
        for (int lane = 0; lane < 32; ++lane)
            if (group.mask >> lane & 1) lanes[lane].state = State::READY;
    }
}

// The order of one turn.
void arrange(std::vector<unsigned>& turn, size_t count)
{
    turn.resize(count);
    std::iota(turn.begin(), turn.end(), 0);
    if (order == REVERSE) std::reverse(turn.begin(), turn.end());
    if (order == SHUFFLED) std::shuffle(turn.begin(), turn.end(), chance);
}

// Until no lane can go on alone.
void run_warp(unsigned number, unsigned threads)
{
    static std::vector<unsigned> turn;
    Warp& warp = warps[number];
    Fiber* lanes = fibers + 32 * number;
    for (bool moved = true; moved && failure.empty();) {
        moved = false;
        arrange(turn, std::min(32u, threads - 32 * number));
        for (unsigned lane : turn) {
            if (lanes[lane].state != State::READY) continue;
            moved = true;
            change_to(lanes[lane]);
            if (!failure.empty()) return;
            if (lanes[lane].state == State::LEFT) warp.running &= ~(1u << lane);
            if (lanes[lane].state == State::AT_WARP) warp.waiting |= 1u << lane;
            if (warp.waiting) let_meet(warp, lanes);
        }
    }
}

// True when all threads wait at the same barrier, false when all have left; anything else is a failure.
bool all_wait(unsigned threads)
{
    const Fiber& first = fibers[0];
    for (unsigned i = 0; i < threads; ++i) {
        const Fiber& fiber = fibers[i];
        if (fiber.state == State::AT_WARP) {
            fail(fiber, "warp", "waits in " + fiber.at.text() + " for lanes of its warp that do not come");
            return false;
        }
        if (fiber.state == first.state && (first.state == State::LEFT || fiber.at == first.at)) continue;
        const Fiber& waiting = fiber.state == State::AT_BLOCK ? fiber : first;
        const Fiber& other = &waiting == &fiber ? first : fiber;
        std::string which = "thread " + pair(other.index.x, other.index.y);
        std::string does = other.state == State::LEFT ? which + " has left the kernel" : which + " waits in " + other.at.text();
        fail(waiting, "barrier", "waits at the barrier in " + waiting.at.text() + ", but " + does);
        return false;
    }
    return first.state == State::AT_BLOCK;
}

void run_block(unsigned threads)
{
    static std::vector<unsigned> turn;
    for (unsigned i = 0; i < threads; ++i) {
        Fiber& fiber = fibers[i];
        fiber.state = State::READY;
        fiber.copies.clear();
        fiber.groups_closed = 0;
    }
    for (size_t i = 0; i < warps.size(); ++i) {
        unsigned lanes = std::min<unsigned>(32, threads - 32 * i);
        warps[i].running = lanes == 32 ? ~0u : (1u << lanes) - 1;
        warps[i].waiting = 0;
    }
    orders_before(block_begins);
    do {
        for (unsigned i = 0; i < threads; ++i) fibers[i].state = State::READY;
        arrange(turn, warps.size());
        for (unsigned warp : turn) {
            run_warp(warp, threads);
            if (!failure.empty()) return;
        }
    } while (all_wait(threads));
    orders_after(block_ends);
}

// After a failure no thread goes on; for the race checker too all they did is over, and their memory may be freed.
void abandon([[maybe_unused]] unsigned threads)
{
#ifdef CHECKS_THREADS
    for (unsigned i = 0; i < threads; ++i) {
        __tsan_switch_to_fiber(fibers[i].race_checker, __tsan_switch_to_fiber_no_sync);
        orders_before(block_ends);
        __tsan_switch_to_fiber(main_race_checker, __tsan_switch_to_fiber_no_sync);
    }
    orders_after(block_ends);
#endif
}

// The block's shared memory, all NaN: of exactly the launched size where ASan guards it, else between two fences.
char* make_shared(size_t bytes)
{
    fill_nan(shared_first, shared_last - shared_first);
#ifdef CHECKS_ADDRESS
    size_t fence = 0;
#else
    size_t fence = FENCE;
#endif
    void* memory = nullptr;
    if (posix_memalign(&memory, 128, bytes + 2 * fence)) return nullptr;
    fill_nan(static_cast<char*>(memory), bytes + 2 * fence);
    return static_cast<char*>(memory) + fence;
}

void drop_shared(char* memory, [[maybe_unused]] size_t bytes)
{
#ifdef CHECKS_ADDRESS
    free(memory);
#else
    for (size_t i = 0; i < FENCE; ++i)
        if (memory[i - FENCE] != static_cast<char>(0xFF) || memory[bytes + i] != static_cast<char>(0xFF)) {
            fail(fibers[0], "memory", "its block wrote beyond the " + std::to_string(bytes) + " bytes of launched shared memory");
            break;
        }
    free(memory - FENCE);
#endif
}

int report(char* error, size_t error_size)
{
    snprintf(error, error_size, "%s", failure.c_str());
    return failure.empty() ? 0 : 1;
}

}  // namespace

// Set by another thread to end a launch early.
extern "C" __attribute__((visibility("default"))) volatile int stop_asked = 0;

int refuse(const char* text, char* error, size_t error_size)
{
    failure = text;
    return report(error, error_size);
}

int run(const Launch& launch, void (*thread)(void*), void* argument, char* error, size_t error_size)
{
    unsigned threads = launch.block[0] * launch.block[1];
    if (!launch.grid[0] || !launch.grid[1] || launch.grid[1] > 65535 || launch.grid[0] > 0x7fffffff)
        return refuse("launch|a grid has 1 to 2^31-1 blocks in x and 1 to 65535 in y", error, error_size);
    if (shared_last - shared_first > STATIC_SHARED || launch.shared_bytes + (shared_last - shared_first) > MOST_SHARED)
        return refuse("launch|a block has 48 KiB of declared shared memory and at most 227 KiB with what is launched", error, error_size);
    if (!launch.block[0] || !launch.block[1] || launch.block[0] > 1024 || launch.block[1] > 1024 || threads > MOST_THREADS)
        return refuse("launch|a block has 1 to 1024 threads", error, error_size);
    Fibers its_fibers(threads);
    if (!its_fibers.there()) return refuse("launch|no memory for the threads' stacks", error, error_size);

    failure.clear();
    grid_size = {launch.grid[0], launch.grid[1]};
    block_size = {launch.block[0], launch.block[1]};
    order = static_cast<Order>(launch.order);
    copies_done = static_cast<Copies>(launch.copies);
    chance.seed(launch.seed);
    thread_body = thread;
    thread_argument = argument;
    launched_bytes = launch.shared_bytes;
    warps.assign((threads + 31) / 32, {});
#ifdef CHECKS_THREADS
    main_race_checker = __tsan_get_current_fiber();
#endif
    for (unsigned i = 0; i < threads; ++i) {
        Fiber& fiber = fibers[i];
        fiber.index = {i % launch.block[0], i / launch.block[0], 0};
        fiber.lane = i % 32;
        fiber.warp = i / 32;
        fiber.block_meetings = fiber.warp_meetings = 0;
        make_ready(fiber, i);
#ifdef CHECKS_THREADS
        fiber.race_checker = __tsan_create_fiber(0);
#endif
    }

    unsigned long long blocks = static_cast<unsigned long long>(launch.grid[0]) * launch.grid[1];
    std::vector<unsigned long long> turn;
    if (order == SHUFFLED) {
        turn.resize(blocks);
        std::iota(turn.begin(), turn.end(), 0);
        std::shuffle(turn.begin(), turn.end(), chance);
    }
    stop_asked = 0;
    for (unsigned long long i = 0; i < blocks && failure.empty(); ++i) {
        if (stop_asked) return refuse("launch|stopped between two blocks", error, error_size);
        unsigned long long block = order == SHUFFLED ? turn[i] : order == REVERSE ? blocks - 1 - i : i;
        block_index = {static_cast<unsigned>(block % launch.grid[0]), static_cast<unsigned>(block / launch.grid[0]), 0};
        launched = make_shared(launched_bytes);
        if (!launched) return refuse("launch|no memory for the block's shared memory", error, error_size);
        run_block(threads);
        if (!failure.empty()) abandon(threads);
        drop_shared(launched, launched_bytes);
    }
#ifdef CHECKS_THREADS
    for (unsigned i = 0; i < threads; ++i) __tsan_destroy_fiber(fibers[i].race_checker);
#endif
    return report(error, error_size);
}

void meet_block(const char* file, int line)
{
    Fiber& fiber = me();
    char& event = block_ordered[fiber.block_meetings++ % 2];
    fiber.at = {file, line};
    fiber.state = State::AT_BLOCK;
    orders_before(event);
    change_to_main();
    orders_after(event);
}

void meet_warp(unsigned mask, Combine combine, const void* brought, void* answer, bool orders_memory, const char* file, int line)
{
    Fiber& fiber = me();
    fiber.at = {file, line};
    if (!(mask >> fiber.lane & 1)) fail_here("warp", "is not in the mask that it names in " + fiber.at.text());
    fiber.mask = mask;
    fiber.combine = combine;
    fiber.brought = brought;
    fiber.answer = answer;
    fiber.state = State::AT_WARP;
    char& event = warps[fiber.warp].ordered[fiber.warp_meetings % 2];
    if (orders_memory) {  // a shuffle does not: it moves registers
        ++fiber.warp_meetings;
        orders_before(event);
    }
    change_to_main();
    if (orders_memory) orders_after(event);
}

void* launched_memory()
{
    if (!launched_bytes) fail_here("launch", "uses launched shared memory, and the launch gives none");
    return launched;
}

void copy(void* to, const void* from, int bytes, int there, const char* file, int line)
{
    auto refuse_here = [&](const std::string& why) { fail_here("copy", "copy_async in " + Place{file, line}.text() + " " + why); };
    if (there < 0 || there > bytes) refuse_here("reads " + std::to_string(there) + " of " + std::to_string(bytes) + " bytes");
    if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
        refuse_here("has an address that is no multiple of " + std::to_string(bytes));
    if (!in_shared_memory(to, bytes)) refuse_here("does not write to shared memory");
    Copy copy{to, from, bytes, there, me().groups_closed};
    if (copies_done == EARLY || (copies_done == MIXED && chance() & 1))
        carry_out(copy);
    else
        me().copies.push_back(copy);
}

void close_copies() { ++me().groups_closed; }

void wait_copies(int pending)
{
    Fiber& fiber = me();
    auto under_way = [&](const Copy& copy) { return copy.group + pending >= fiber.groups_closed; };
    auto end = std::find_if(fiber.copies.begin(), fiber.copies.end(), under_way);
    std::for_each(fiber.copies.begin(), end, carry_out);
    fiber.copies.erase(fiber.copies.begin(), end);
}

}  // namespace cuda_on_cpu
