// SPDX-License-Identifier: MIT
// Runs a kernel's blocks one after the other, each thread of a block as a fiber, and notifies memory_check.cpp if that is linked.
//
// A warp runs until all of its lanes wait at a block barrier or have left; only then the next warp runs. A fairer schedule would
// keep the warps close together, and so hide missing barriers.
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <numeric>
#include <random>

#ifndef __x86_64__
#include <ucontext.h>
#endif

// In a library, the kernels' .bss lies between these two (see build.py) and has only __shared__ variables. (GCC ignores section
// attributes of static variables in templates, so they cannot have a section.) In a program, __shared__ variables are thread-local
// ones of the thread that launches.
extern "C" char shared_begin[] __attribute__((weak)), shared_end[] __attribute__((weak));

namespace cuda_on_cpu {

#ifdef __x86_64__
using Context = void*;  // a stack's top, with the callee-saved registers

// Saves these registers on the stack that is left, and restores them from the one that is entered.
extern "C" void cuda_on_cpu_switch(Context* leave, Context enter) __attribute__((visibility("hidden")));
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
#else
using Context = ucontext_t;
#define cuda_on_cpu_switch(leave, enter) swapcontext(leave, &enter)
#endif

#define BUILT_IN __attribute__((section("cuda_built_ins")))  // memory_check.cpp lets kernels read them
BUILT_IN Thread* current;
BUILT_IN uint3 block_index;
BUILT_IN dim3 block_size, grid_size;

namespace {

enum Order { FORWARD, REVERSE, SHUFFLED };
enum Copies { LATE, EARLY, MIXED };
enum class State { READY, AT_BLOCK, AT_WARP, AT_ACTIVE, AT_CLUSTER, AT_PHASE, AT_WGMMA, LEFT };

constexpr unsigned MAX_THREADS = 1024;
constexpr size_t MOST_KEPT = 512;  // fibers between launches; each keeps some pages of memory
constexpr int INSTALL_GUARD = 102;  // MADV_GUARD_INSTALL, which older headers lack
constexpr size_t FENCE = 256;  // bytes of NaN on both sides of the dynamic shared memory

bool operator==(const Place& one, const Place& other)
{
    return one.line == other.line && one.call == other.call && (one.file == other.file || !strcmp(one.file, other.file));
}

std::string text_of(const Place& place) { return std::string(place.file) + ":" + std::to_string(place.line); }

struct Copy {
    void* to;
    const void* from;
    int bytes, there;
    unsigned group;
    void* instruction;
};

// A thread's part of d (64×256) = or += a (64×32) · b (32×256): two rows, and two of every eight columns.
struct Wgmma {
    int* d;
    unsigned a, b;  // shared addresses
    bool adding, is_signed;
    unsigned group;
};

struct Fiber : Thread {
    State state;
    Place at;  // where it waits
    // The warp operation in which it waits:
    unsigned mask;
    Combine combine;
    const void* input;
    void* output;
    // Its asynchronous copies in flight, the oldest first:
    std::vector<Copy> copies;
    unsigned groups_committed;
    // In a cluster: the mbarrier and the parity of the phase for which it waits; its matrix instructions, in groups.
    unsigned barrier, parity, wgmma_groups, wgmmas_awaited;
    std::vector<Wgmma> wgmmas;
    Context context;
};

struct BlockVotes {
    int barrier;  // the barrier's number in the block
    unsigned yes;
} block_vote[2];  // used alternately, as barriers are

Fiber* fibers;  // of a block; the launch's next block uses them again
std::mt19937_64 random_engine;
std::string failure;
Order turns;  // of threads
Copies copy_completion;
Work work_of_threads;
char* dynamic_shared;  // the block's dynamic shared memory
size_t dynamic_bytes;
char *shared_first, *shared_last;  // its __shared__ variables
const bool is_watched = memory_check::launch_begins;
Context main_context;

Fiber& this_fiber() { return *static_cast<Fiber*>(current); }

// Ends this fiber's turn; it continues once another part of the runtime has made it READY again.
void wait_in(State state)
{
    this_fiber().state = state;
    cuda_on_cpu_switch(&this_fiber().context, main_context);
}

std::string extents(const uint3& index, const dim3& size)
{
    std::string z = size.z > 1 ? ", " + std::to_string(index.z) : "";
    return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + z + ")";
}

std::string thread_text(const Fiber& fiber) { return "thread " + extents(fiber.index, block_size); }

// Records the first failure.
void fail(const Fiber& fiber, const char* kind, const std::string& text)
{
    if (!failure.empty()) return;
    failure = std::string(kind) + "|block " + extents(block_index, grid_size) + ", " + thread_text(fiber) + ": " + text;
}

void perform(const Copy& copy)
{
    if (is_watched && copy.there) note_copy(const_cast<void*>(copy.from), copy.there, false, copy.instruction);
    if (is_watched) note_copy(copy.to, copy.bytes, true, copy.instruction);
    memcpy(copy.to, copy.from, copy.there);
    memset(static_cast<char*>(copy.to) + copy.there, 0, copy.bytes - copy.there);
}

bool in_shared_memory(const void* at, int bytes)
{
    auto within = [&](const char* first, const char* last) { return at >= first && static_cast<const char*>(at) + bytes <= last; };
    return within(dynamic_shared, dynamic_shared + dynamic_bytes) || within(shared_first, shared_last);
}

// What a fiber runs: the kernel, once for each block.
void fiber_main()
{
    for (;;) {
        work_of_threads.thread(work_of_threads.argument);
        if (!this_fiber().copies.empty()) stop_thread("copy", "left the kernel with asynchronous copies under way");
        wait_in(State::LEFT);
    }
}

void prepare(Fiber& fiber, int number)
{
#ifdef __x86_64__
    // At different offsets within a page, since the tops of 1024 stacks would compete for the same cache set.
    void** top = reinterpret_cast<void**>(fiber.stack + STACK - number % 32 * 128);
    *--top = nullptr;  // the return address of fiber_main, which aligns the stack as a call would
    *--top = reinterpret_cast<void*>(fiber_main);
    fiber.context = top - 6;  // the callee-saved registers
#else
    (void)number;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_main, 0);
#endif
}

// Fibers with a guard page below each stack. The next launch reuses them, since creating them takes longer than most launches run.
// Before Linux 6.13 they are not kept: guard pages then are mappings, whose number is limited (vm.max_map_count). Each block starts
// them anew, even after a failure within the kernel.
class Fibers {
public:
    explicit Fibers(size_t threads)
    {
        if (threads <= kept_count) return;
        drop();
        char* memory = static_cast<char*>(
            mmap(nullptr, threads * EACH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (memory == MAP_FAILED) return;
        may_stay = threads <= MOST_KEPT;
        fibers = new Fiber[kept_count = threads]();
        for (size_t i = 0; i < threads; ++i) {
            may_stay = may_stay && !madvise(memory + i * EACH, PAGE, INSTALL_GUARD);
            if (!may_stay) mprotect(memory + i * EACH, PAGE, PROT_NONE);
            fibers[i].stack = memory + i * EACH + PAGE;
        }
    }

    ~Fibers()
    {
        if (!may_stay) drop();
    }

    Fibers(const Fibers&) = delete;

private:
    static inline const size_t PAGE = std::max<size_t>(4096, sysconf(_SC_PAGESIZE)), EACH = STACK + PAGE;
    static inline size_t kept_count = 0;
    static inline bool may_stay = false;

    static void drop()
    {
        if (fibers) munmap(fibers[0].stack - PAGE, kept_count * EACH);
        delete[] fibers;
        fibers = nullptr;
        kept_count = 0;
    }
};

// Completes each warp operation that all lanes of its mask have reached; they continue.
void complete_collectives(Fiber* lanes, unsigned count)
{
    unsigned running = 0, waiting = 0;  // masks of lanes that have not left, and of those in a warp operation
    for (unsigned lane = 0; lane < count; ++lane) {
        running |= unsigned{lanes[lane].state != State::LEFT} << lane;
        waiting |= unsigned{lanes[lane].state == State::AT_WARP} << lane;
    }
    for (unsigned left = waiting; left; left &= left - 1) {
        int first = __builtin_ctz(left);
        const Fiber& one = lanes[first];
        if (!(waiting >> first & 1) || (one.mask & running & ~waiting)) continue;
        Lanes group{one.mask & running, {}, {}};
        for (int lane = 0; lane < 32; ++lane) {
            if (!(group.mask >> lane & 1)) continue;
            const Fiber& other = lanes[lane];
            if (other.mask != one.mask || other.combine != one.combine || !(other.at == one.at))
                return fail(one, "warp",
                            "waits for its warp in " + text_of(one.at) + ", " + thread_text(other) + " in " + text_of(other.at) +
                                (other.at == one.at ? " with another mask" : ""));
            group.input[lane] = other.input;
            group.output[lane] = other.output;
        }
        if (one.combine) {  // its accesses to memory belong to no thread
            Thread* running = current;
            current = nullptr;
            one.combine(group);
            current = running;
        }
        waiting &= ~group.mask;
        for (int lane = 0; lane < 32; ++lane)
            if (group.mask >> lane & 1) lanes[lane].state = State::READY;
    }
}

// When no lane of the warp can do anything else, answers __activemask() with the lanes that call it at the same place.
bool tell_active(Fiber* lanes, unsigned count)
{
    const Fiber* first = std::find_if(lanes, lanes + count, [](const Fiber& lane) { return lane.state == State::AT_ACTIVE; });
    if (first == lanes + count) return false;
    Place at = first->at;
    unsigned active = 0;
    auto asks = [&](const Fiber& lane) { return lane.state == State::AT_ACTIVE && lane.at == at; };
    for (unsigned lane = 0; lane < count; ++lane)
        if (asks(lanes[lane])) active |= 1u << lane;
    for (unsigned lane = 0; lane < count; ++lane) {
        if (!(active >> lane & 1)) continue;
        lanes[lane].mask = active;
        lanes[lane].state = State::READY;
    }
    return true;
}

// The order in which the warps of a block, or the lanes of a warp, run.
void make_order(std::vector<unsigned>& turn, size_t count)
{
    turn.resize(count);
    std::iota(turn.begin(), turn.end(), 0);
    if (turns == REVERSE) std::reverse(turn.begin(), turn.end());
    if (turns == SHUFFLED) std::shuffle(turn.begin(), turn.end(), random_engine);
}

// Runs a warp until none of its lanes can continue without other warps.
void run_warp(unsigned number, unsigned threads)
{
    static std::vector<unsigned> turn;
    Fiber* lanes = fibers + 32 * number;
    unsigned count = std::min(32u, threads - 32 * number);
    for (bool moved = true; moved;) {
        moved = false;
        make_order(turn, count);
        for (unsigned lane : turn) {
            if (lanes[lane].state != State::READY) continue;
            moved = true;
            current = &lanes[lane];
            cuda_on_cpu_switch(&main_context, lanes[lane].context);
            if (!failure.empty()) return;
        }
        complete_collectives(lanes, count);
        if (!failure.empty()) return;
        if (!moved) moved = tell_active(lanes, count);
    }
}

// Explains a deadlock: no thread of the block can continue, and not all have left.
void fail_at_barrier(unsigned threads)
{
    const Fiber& first = fibers[0];
    for (unsigned i = 0; i < threads; ++i) {
        const Fiber& fiber = fibers[i];
        if (fiber.state == State::AT_WARP)
            return fail(fiber, "warp", "waits in " + text_of(fiber.at) + " for lanes of its warp that do not come");
        if (fiber.state == first.state && (first.state == State::LEFT || fiber.at == first.at)) continue;
        const Fiber& waiting = fiber.state == State::AT_BLOCK ? fiber : first;
        const Fiber& other = &waiting == &fiber ? first : fiber;
        std::string which = thread_text(other);
        std::string does = which + " has left the kernel";
        if (other.state != State::LEFT) {
            bool is_same_line = text_of(other.at) == text_of(waiting.at);
            does = which + (is_same_line ? " waits at another one in this line" : " waits in " + text_of(other.at));
        }
        return fail(waiting, "barrier", "waits at the barrier in " + text_of(waiting.at) + ", but " + does);
    }
}

#include "clusters.h"

// A block's dynamic shared memory between two fences, all NaN. Also fills the __shared__ variables with NaN.
char* allocate_shared(size_t bytes)
{
    memset(shared_first, 0xFF, shared_last - shared_first);
    void* memory = nullptr;
    if (posix_memalign(&memory, 128, bytes + 2 * FENCE)) return nullptr;
    memset(memory, 0xFF, bytes + 2 * FENCE);
    return static_cast<char*>(memory) + FENCE;
}

void free_shared(char* memory, size_t bytes)
{
    for (size_t i = 0; i < FENCE; ++i)
        if (memory[i - FENCE] != static_cast<char>(0xFF) || memory[bytes + i] != static_cast<char>(0xFF)) {
            fail(fibers[0], "memory", "its block wrote beyond the " + std::to_string(bytes) + " bytes of dynamic shared memory");
            break;
        }
    free(memory - FENCE);
}

// Whether a launch of so many groups of blocks takes longer than there is time, judged by the last second of those that ran: the
// first ones take longer, since all of their reads are checked.
class Pace {
public:
    bool is_too_slow(unsigned long long done, unsigned long long all)
    {
        double now = seconds_now();
        if (now - since_ < 1) return false;
        double needed = (now - since_) / (done - done_) * (all - done);
        since_ = now, done_ = done;
        return now - begun_ > std::min(4.0, seconds_left / 8) && now - begun_ + needed > seconds_left;
    }
    ~Pace() { seconds_left -= seconds_now() - begun_; }

private:
    const double begun_ = seconds_now();
    double since_ = begun_;
    unsigned long long done_ = 0;
};

}  // namespace

double seconds_left = INFINITY;
unsigned long long blocks_left_out;

// Another thread sets this to stop a launch after the current block.
extern "C" __attribute__((visibility("default"))) volatile int stop_asked = 0;

double seconds_now()
{
    timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

bool is_within(const dim3& size, unsigned x, unsigned y, unsigned z)
{
    return size.x && size.y && size.z && size.x <= x && size.y <= y && size.z <= z;
}

const char* run(const Launch& launch, const Work& work)
{
    grid_size = {launch.grid[0], launch.grid[1], launch.grid[2]};
    block_size = {launch.block[0], launch.block[1], launch.block[2]};
    unsigned threads = block_size.x * block_size.y * block_size.z, clustered = std::max(1u, launch.cluster);
    if (!is_within(grid_size, 0x7fffffff, 65535, 65535))
        return "launch|a grid has 1 to 2^31-1 blocks in x and 1 to 65535 in y and z";
    if (!is_within(block_size, MAX_THREADS, MAX_THREADS, 64) || threads > MAX_THREADS)
        return "launch|a block has 1 to 1024 threads, at most 64 in z";
    std::tie(shared_first, shared_last) = std::pair(shared_begin, shared_end);
    if (is_watched)
        std::tie(shared_first, shared_last) = memory_check::launch_begins(shared_begin, shared_end, launch.shared_bytes, work);
    size_t statics = &observers::watched && observers::watched & observers::VERSIONS ? 0 : shared_last - shared_first;
    if (statics > USUAL_SHARED || launch.shared_bytes + statics > MOST_SHARED)
        return "launch|a block has at most 48 KiB of static and 227 KiB of all shared memory";
    if (clustered > 1 && (threads % 32 || launch.grid[0] % clustered))
        return "launch|a cluster has whole warps, and a grid whole clusters";
    Fibers taken(threads * clustered);
    if (!fibers) return "launch|no memory for the threads' stacks";

    failure.clear();
    turns = static_cast<Order>(launch.order);
    copy_completion = static_cast<Copies>(launch.copies);
    random_engine.seed(launch.seed);
    work_of_threads = work;
    dynamic_bytes = launch.shared_bytes;
    for (unsigned i = 0; i < threads * clustered; ++i) {
        Fiber& fiber = fibers[i];
        fiber.number = i % threads;
        fiber.index = {fiber.number % block_size.x, fiber.number / block_size.x % block_size.y,
                       fiber.number / (block_size.x * block_size.y)};
        fiber.lane = i % 32;
        fiber.block_barriers = fiber.warp_syncs = 0;
        prepare(fiber, i);
    }

    unsigned long long of_plane = static_cast<unsigned long long>(grid_size.x) * grid_size.y;
    unsigned long long groups = of_plane * grid_size.z / clustered;
    std::vector<unsigned long long> turn;
    if (turns == SHUFFLED) {
        turn.resize(groups);
        std::iota(turn.begin(), turn.end(), 0);
        std::shuffle(turn.begin(), turn.end(), random_engine);
    }
    stop_asked = 0;
    Pace pace;
    blocks_left_out = 0;
    for (unsigned long long i = 0; i < groups && failure.empty(); ++i) {
        if (stop_asked) return "launch|stopped between two blocks";
        if (i + 1 < groups && pace.is_too_slow(i, groups)) blocks_left_out = groups - 1 - i, i = groups - 1;
        unsigned long long first = (turns == SHUFFLED ? turn[i] : turns == REVERSE ? groups - 1 - i : i) * clustered;
        std::vector<char*> memory;
        cluster.clear();
        for (unsigned long long block = first; block < first + clustered; ++block) {
            block_index = {static_cast<unsigned>(block % grid_size.x), static_cast<unsigned>(block % of_plane / grid_size.x),
                           static_cast<unsigned>(block / of_plane)};
            dynamic_shared = allocate_shared(dynamic_bytes);
            if (!dynamic_shared) return "launch|no memory for the block's shared memory";
            memory.push_back(dynamic_shared);
            cluster.push_back({block_index, dynamic_shared, {}});
            if (clustered > 1) cluster.back().statics.assign(shared_first, shared_last);
        }
        if (is_watched) memory_check::block_begins(dynamic_shared, dynamic_bytes);
        active = clustered - 1;
        run_together(threads);
        for (char* each : memory) free_shared(each, dynamic_bytes);
    }
    current = nullptr;
    return failure.empty() ? nullptr : failure.c_str();
}

uint3 thread_index() { return current->index; }
uint3 index_of_block() { return block_index; }
dim3 size_of_block() { return block_size; }
dim3 size_of_grid() { return grid_size; }

void stop_thread(const char* kind, const std::string& text)
{
    fail(this_fiber(), kind, text);
    for (;;) wait_in(State::LEFT);
}

void block_barrier(Place place)
{
    Fiber& fiber = this_fiber();
    ++fiber.block_barriers;
    fiber.at = place;
    wait_in(State::AT_BLOCK);
}

Votes block_votes(bool yes, Place place)
{
    int barrier = this_fiber().block_barriers;
    BlockVotes& votes = block_vote[barrier % 2];
    if (votes.barrier != barrier) votes = {barrier, 0};
    votes.yes += yes;
    block_barrier(place);
    return {votes.yes, block_size.x * block_size.y * block_size.z};
}

unsigned active_mask(Place place)
{
    this_fiber().at = place;
    wait_in(State::AT_ACTIVE);
    return this_fiber().mask;
}

void warp_sync(unsigned mask, Combine combine, const void* input, void* output, bool orders_memory, Place place)
{
    Fiber& fiber = this_fiber();
    fiber.at = place;
    if (!(mask >> fiber.lane & 1)) stop_thread("warp", "is not in the mask that it names in " + text_of(fiber.at));
    fiber.mask = mask;
    fiber.combine = combine;
    fiber.input = input;
    fiber.output = output;
    fiber.warp_syncs += orders_memory;  // a shuffle is no memory barrier
    wait_in(State::AT_WARP);
}

void* dynamic_shared_memory()
{
    if (!dynamic_bytes) stop_thread("launch", "uses dynamic shared memory, and the launch gives none");
    return dynamic_shared;
}

void copy(void* to, const void* from, int bytes, int there, Place place, void* instruction)
{
    auto refuse_here = [&](const std::string& why) { stop_thread("copy", "copy_async in " + text_of(place) + " " + why); };
    if (there < 0 || there > bytes) refuse_here("reads " + std::to_string(there) + " of " + std::to_string(bytes) + " bytes");
    if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
        refuse_here("has an address that is no multiple of " + std::to_string(bytes));
    if (!in_shared_memory(to, bytes)) refuse_here("does not write to shared memory");
    Copy copy{to, from, bytes, there, this_fiber().groups_committed, instruction};
    if (copy_completion == EARLY || (copy_completion == MIXED && random_engine() & 1))
        perform(copy);
    else
        this_fiber().copies.push_back(copy);
}

void copies_commit() { ++this_fiber().groups_committed; }

void wait_copies(int pending)
{
    Fiber& fiber = this_fiber();
    auto under_way = [&](const Copy& copy) { return copy.group + pending >= fiber.groups_committed; };
    auto end = std::find_if(fiber.copies.begin(), fiber.copies.end(), under_way);
    std::for_each(fiber.copies.begin(), end, perform);
    fiber.copies.erase(fiber.copies.begin(), end);
}

unsigned shared_address(const void* at)
{
    const char* byte = static_cast<const char*>(at);
    if (byte >= dynamic_shared && byte < dynamic_shared + dynamic_bytes) return static_cast<unsigned>(byte - dynamic_shared);
    if (byte < shared_first || byte >= shared_last)
        stop_thread("memory", "takes the shared address of what is not in shared memory");
    return STATICS + static_cast<unsigned>(byte - shared_first);
}

unsigned rank_in_cluster() { return block_of(this_fiber()); }

void cluster_barrier() { wait_in(State::AT_CLUSTER); }

void barrier_init(unsigned barrier, int arrivals)
{
    unsigned count = static_cast<unsigned>(arrivals);
    mbarriers[{rank_in_cluster(), barrier}] = {count, count, 0, 0};
}

void barrier_wait(unsigned barrier, unsigned parity)
{
    Fiber& fiber = this_fiber();
    mbarrier_at(block_of(fiber), barrier);
    fiber.barrier = barrier;
    fiber.parity = parity;
    while (!phase_ended(fiber)) wait_in(State::AT_PHASE);
}

void barrier_expect(unsigned barrier, int bytes)
{
    mbarrier_at(rank_in_cluster(), barrier).bytes += bytes;
    barrier_arrive(barrier, rank_in_cluster());
}

void barrier_arrive(unsigned barrier, unsigned block)
{
    if (block >= cluster.size()) stop_thread("barrier", "arrives at a barrier of a block that its cluster does not have");
    Mbarrier& there = mbarrier_at(block, barrier);
    if (!there.pending) stop_thread("barrier", "arrives at a barrier once more than its phase awaits");
    --there.pending;
    end_phase_if_complete(there);
}

void bulk_copy(unsigned blocks, unsigned to, const void* from, unsigned bytes, unsigned barrier)
{
    if (!blocks || blocks >> cluster.size()) stop_thread("copy", "copies to a block that its cluster does not have");
    if (to % 16 || bytes % 16 || reinterpret_cast<uintptr_t>(from) % 16) stop_thread("copy", "is not aligned to 16 bytes");
    if (to >= STATICS || to + bytes > dynamic_bytes) stop_thread("copy", "copies beyond the dynamic shared memory");
    for (unsigned block = 0; block < cluster.size(); ++block)
        if (blocks >> block & 1) mbarrier_at(block, barrier);
    BulkCopy copy{blocks, to, bytes, barrier, static_cast<const char*>(from)};
    if (copy_completion == EARLY || (copy_completion == MIXED && random_engine() & 1))
        complete(copy);
    else
        bulk_copies.push_back(copy);
}

void wgmma(int* d, unsigned a, unsigned b, bool adding, bool is_signed)
{
    Fiber& fiber = this_fiber();
    fiber.wgmmas.push_back({d, a, b, adding, is_signed, fiber.wgmma_groups});
}

void wgmma_commit()
{
    Fiber& fiber = this_fiber();
    ++fiber.wgmma_groups;
    if (copy_completion == EARLY) execute_wgmmas(fiber, fiber.wgmma_groups);
}

void wait_wgmmas(unsigned pending)
{
    Fiber& fiber = this_fiber();
    if (fiber.wgmma_groups <= pending) return;
    fiber.wgmmas_awaited = fiber.wgmma_groups - pending;
    while (!warpgroup_has_committed(fiber)) wait_in(State::AT_WGMMA);
    Fiber* first = &fiber - fiber.index.x % 128;
    for (Fiber* other = first; other < first + 128; ++other) execute_wgmmas(*other, fiber.wgmmas_awaited);
}

}  // namespace cuda_on_cpu
