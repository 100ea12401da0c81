// SPDX-License-Identifier: MIT
// Thread-block clusters: blocks that run together, with mbarriers, bulk copies from global memory to any block's shared memory, and
// matrix instructions of warpgroups (wgmma). A part of runtime.cpp.
//
// A bulk copy completes as late as possible: when no fiber can continue. Matrix instructions execute, and so read shared memory, as
// late as possible, too: when they are waited for; with early copies as early as possible: when they are committed.
#pragma once

struct ClusterBlock {
    uint3 index;
    char* shared;  // dynamic shared memory
    std::vector<char> statics;  // its __shared__ variables, while another block's are in .bss
};

struct Mbarrier {
    unsigned count, pending, phase;
    long long bytes;  // expected and not yet copied
};

struct BulkCopy {
    unsigned blocks, to, bytes, barrier;
    const char* from;
};

constexpr unsigned STATICS = 1 << 20;  // shared addresses from here on are those of __shared__ variables

std::vector<ClusterBlock> cluster;  // a single block in a launch without clusters
unsigned active;  // the block whose __shared__ variables are in .bss
std::map<std::pair<unsigned, unsigned>, Mbarrier> mbarriers;  // by block and shared address
std::vector<BulkCopy> bulk_copies;  // in flight

unsigned block_of(const Fiber& fiber)
{
    return static_cast<unsigned>(&fiber - fibers) / (block_size.x * block_size.y * block_size.z);
}

void activate(unsigned block)
{
    if (block != active) {
        cluster[active].statics.assign(shared_first, shared_last);
        memcpy(shared_first, cluster[block].statics.data(), shared_last - shared_first);
    }
    active = block;
    block_index = cluster[block].index;
    dynamic_shared = cluster[block].shared;
}

char* shared_at(unsigned block, unsigned address)
{
    if (address < STATICS) return cluster[block].shared + address;
    return (block == active ? shared_first : cluster[block].statics.data()) + (address - STATICS);
}

Mbarrier& mbarrier_at(unsigned block, unsigned address)
{
    auto found = mbarriers.find({block, address});
    if (found == mbarriers.end()) stop_thread("barrier", "uses a barrier in shared memory that was not initialized");
    return found->second;
}

void end_phase_if_complete(Mbarrier& barrier)
{
    if (barrier.pending || barrier.bytes) return;
    barrier.pending = barrier.count;
    ++barrier.phase;
}

void complete(const BulkCopy& copy)
{
    for (unsigned block = 0; block < cluster.size(); ++block) {
        if (!(copy.blocks >> block & 1)) continue;
        memcpy(shared_at(block, copy.to), copy.from, copy.bytes);
        Mbarrier& barrier = mbarriers.at({block, copy.barrier});
        barrier.bytes -= copy.bytes;
        end_phase_if_complete(barrier);
    }
}

bool phase_ended(const Fiber& fiber)
{
    const Mbarrier& barrier = mbarriers.at({block_of(fiber), fiber.barrier});
    return barrier.phase % 2 != fiber.parity;
}

// Byte k of a 128-byte line, with the 128-byte swizzle of its 16-byte pieces.
int byte_at(const Fiber& fiber, unsigned first, unsigned line, unsigned k, bool is_signed)
{
    unsigned linear = first + 128 * line + k;
    char byte = *shared_at(block_of(fiber), linear ^ (linear >> 7 & 7) << 4);
    return is_signed ? static_cast<signed char>(byte) : static_cast<unsigned char>(byte);
}

void execute(const Fiber& fiber, const Wgmma& one)
{
    unsigned thread = fiber.index.x % 128, row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    int lines_of_a[2][32], line_of_b[32];  // contiguous, so that the compiler vectorizes
    for (unsigned half = 0; half < 2; ++half)
        for (unsigned k = 0; k < 32; ++k) lines_of_a[half][k] = byte_at(fiber, one.a, row + 8 * half, k, one.is_signed);
    for (unsigned j = 0; j < 64; ++j) {
        for (unsigned k = 0; k < 32; ++k) line_of_b[k] = byte_at(fiber, one.b, j / 2 * 8 + column + j % 2, k, one.is_signed);
        for (unsigned half = 0; half < 2; ++half) {
            int& d = one.d[j / 2 * 4 + 2 * half + j % 2];
            unsigned sum = one.adding ? d : 0;
            for (unsigned k = 0; k < 32; ++k) sum += lines_of_a[half][k] * line_of_b[k];
            d = static_cast<int>(sum);
        }
    }
}

void execute_wgmmas(Fiber& fiber, unsigned until)
{
    auto later = [&](const Wgmma& one) { return one.group >= until; };
    auto end = std::find_if(fiber.wgmmas.begin(), fiber.wgmmas.end(), later);
    std::for_each(fiber.wgmmas.begin(), end, [&](const Wgmma& one) { execute(fiber, one); });
    fiber.wgmmas.erase(fiber.wgmmas.begin(), end);
}

// A warpgroup's matrix instructions complete when all of its four warps have committed them.
bool warpgroup_has_committed(const Fiber& fiber)
{
    const Fiber* first = &fiber - fiber.index.x % 128;
    return std::all_of(first, first + 128, [&](const Fiber& other) { return other.wgmma_groups >= fiber.wgmmas_awaited; });
}

bool may_continue(const Fiber& fiber)
{
    return (fiber.state == State::AT_PHASE && phase_ended(fiber)) ||
           (fiber.state == State::AT_WGMMA && warpgroup_has_committed(fiber));
}

// Lets these fibers continue if all of them wait in this state (at a block's barrier: at the same place); returns whether they do.
bool release(unsigned first, unsigned count, State state)
{
    auto waits = [&](const Fiber& fiber) {
        return fiber.state == state && (state != State::AT_BLOCK || fiber.at == fibers[first].at);
    };
    if (!std::all_of(fibers + first, fibers + first + count, waits)) return false;
    for (unsigned i = first; i < first + count; ++i) fibers[i].state = State::READY;
    return true;
}

// Runs once each warp that can continue; returns whether any could.
bool run_ready_warps(unsigned threads)
{
    static std::vector<unsigned> turn;
    unsigned all = threads * static_cast<unsigned>(cluster.size());
    bool moved = false;
    make_order(turn, (all + 31) / 32);
    for (unsigned number : turn) {
        bool ready = false;
        for (unsigned i = 32 * number; i < std::min(all, 32 * number + 32); ++i) {
            if (may_continue(fibers[i])) fibers[i].state = State::READY;
            ready |= fibers[i].state == State::READY;
        }
        if (!ready) continue;
        moved = true;
        activate(number * 32 / threads);
        run_warp(number, all);
        if (!failure.empty()) return true;
    }
    return moved;
}

// Runs a block, or the blocks of a cluster.
void run_together(unsigned threads)
{
    unsigned all = threads * static_cast<unsigned>(cluster.size());
    block_vote[0] = block_vote[1] = {-1, 0};
    mbarriers.clear();
    bulk_copies.clear();
    for (unsigned i = 0; i < all; ++i) {
        Fiber& fiber = fibers[i];
        fiber.state = State::READY;
        fiber.copies.clear();
        fiber.wgmmas.clear();
        fiber.groups_committed = fiber.wgmma_groups = fiber.block_barriers = 0;
    }
    auto have_left = [all] {
        return std::all_of(fibers, fibers + all, [](const Fiber& each) { return each.state == State::LEFT; });
    };
    for (bool moved = true; moved && failure.empty();) {
        if (is_watched) memory_check::barrier_passed();
        moved = run_ready_warps(threads);
        if (!failure.empty()) return;
        for (unsigned block = 0; block < cluster.size(); ++block) moved |= release(block * threads, threads, State::AT_BLOCK);
        moved |= release(0, all, State::AT_CLUSTER);
        if (moved || bulk_copies.empty() || have_left()) continue;
        moved = true;
        auto one = bulk_copies.begin() + (copy_completion == MIXED ? random_engine() % bulk_copies.size() : 0);
        BulkCopy copy = *one;
        bulk_copies.erase(one);
        complete(copy);
    }
    if (!bulk_copies.empty()) fail(fibers[0], "copy", "its cluster has left with bulk copies under way");
    if (!have_left() && cluster.size() > 1) fail(fibers[0], "barrier", "some threads of its cluster wait for what never comes");
    if (!have_left()) fail_at_barrier(threads);
}
