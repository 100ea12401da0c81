// SPDX-License-Identifier: MIT
// Cooperative groups within a block (the block, tiles of a warp, coalesced lanes), in place of CUDA's header.
#pragma once

namespace cooperative_groups {

struct thread_block {
    static unsigned size() { return cuda_on_cpu::block_size.x * cuda_on_cpu::block_size.y * cuda_on_cpu::block_size.z; }
    static unsigned num_threads() { return size(); }
    static unsigned thread_rank() { return cuda_on_cpu::current->number; }
    static dim3 thread_index() { return threadIdx; }
    static dim3 group_index() { return blockIdx; }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
    static void sync(CALLED_FROM) { cuda_on_cpu::block_barrier(place); }
};
inline thread_block this_thread_block() { return {}; }

// Lanes of a warp; their ranks are in the order of the lanes.
class coalesced_group {
public:
    explicit coalesced_group(unsigned mask) : mask_(mask) {}
    unsigned size() const { return __builtin_popcount(mask_); }
    unsigned num_threads() const { return size(); }
    unsigned thread_rank() const { return __builtin_popcount(mask_ & ((1u << cuda_on_cpu::current->lane) - 1)); }
    unsigned meta_group_size() const { return (thread_block::size() + size() - 1) / size(); }
    unsigned meta_group_rank() const { return thread_block::thread_rank() / size(); }
    void sync(CALLED_FROM) const { __syncwarp(mask_, place); }
#define SHUFFLE(name, By, rank)               \
    template <typename T>                     \
    T name(T value, By by, CALLED_FROM) const \
    {                                         \
        return from(value, rank, place);      \
    }
    SHUFFLE(shfl, int, by&(size() & (size() - 1) ? 31 : static_cast<int>(size()) - 1))
    SHUFFLE(shfl_down, unsigned, static_cast<int>(thread_rank() + by))
    SHUFFLE(shfl_up, unsigned, static_cast<int>(thread_rank() - by))
    SHUFFLE(shfl_xor, int, static_cast<int>(thread_rank()) ^ by)
#undef SHUFFLE
    int any(int predicate, CALLED_FROM) const { return __any_sync(mask_, predicate, place); }
    int all(int predicate, CALLED_FROM) const { return __all_sync(mask_, predicate, place); }
    unsigned ballot(int predicate, CALLED_FROM) const { return by_rank(__ballot_sync(mask_, predicate, place)); }

private:
    template <typename T>
    T from(T value, int rank, cuda_on_cpu::Place place) const  // the thread's own value for an invalid rank
    {
        int lane = cuda_on_cpu::current->lane;
        if (rank >= 0 && rank < static_cast<int>(size()))
            for (lane = 0; !(mask_ >> lane & 1) || rank--;) ++lane;
        return cuda_on_cpu::shuffled(mask_, value, lane, place);
    }

    unsigned by_rank(unsigned lanes) const
    {
        unsigned ranks = 0, rank = 0;
        for (int lane = 0; lane < 32; ++lane)
            if (mask_ >> lane & 1) ranks |= (lanes >> lane & 1) << rank++;
        return ranks;
    }

    unsigned mask_;
};
inline coalesced_group coalesced_threads(CALLED_FROM) { return coalesced_group(cuda_on_cpu::active_mask(place)); }

inline unsigned mask_of_tile(unsigned size) { return (size < 32 ? (1u << size) - 1 : ~0u) << (cuda_on_cpu::current->lane & -size); }

template <unsigned Size, typename Parent = void>
struct thread_block_tile : coalesced_group {
    static_assert(Size && Size <= 32 && !(Size & (Size - 1)), "a tile has 1, 2, 4, 8, 16 or 32 threads");
    thread_block_tile() : coalesced_group(mask_of_tile(Size)) {}
    thread_block_tile(const thread_block_tile<Size, thread_block>&) : thread_block_tile() {}
};

template <unsigned Size, typename Group>
thread_block_tile<Size, Group> tiled_partition(const Group&)
{
    return {};
}

// A block or a tile of a warp: the type of programs before CUDA 11.
class thread_group {
public:
    thread_group(thread_block) : lanes_(0), is_block_(true) {}
    thread_group(coalesced_group lanes) : lanes_(lanes), is_block_(false) {}
    unsigned size() const { return is_block_ ? thread_block::size() : lanes_.size(); }
    unsigned num_threads() const { return size(); }
    unsigned thread_rank() const { return is_block_ ? thread_block::thread_rank() : lanes_.thread_rank(); }
    void sync(CALLED_FROM) const { is_block_ ? thread_block::sync(place) : lanes_.sync(place); }

private:
    coalesced_group lanes_;
    bool is_block_;
};

inline thread_group tiled_partition(const thread_group&, unsigned size) { return coalesced_group(mask_of_tile(size)); }

template <typename Group>
void sync(const Group& group, CALLED_FROM)
{
    group.sync(place);
}

#define OPERATION(name, result)                                       \
    template <typename T>                                             \
    struct name {                                                     \
        T operator()(const T& x, const T& y) const { return result; } \
    };
OPERATION(plus, x + y)
OPERATION(less, y < x ? y : x)
OPERATION(greater, x < y ? y : x)
OPERATION(bit_and, x& y)
OPERATION(bit_or, x | y)
OPERATION(bit_xor, x ^ y)
#undef OPERATION

template <typename Group, typename T, typename Operation>
T reduce(const Group& group, T value, Operation operation, CALLED_FROM)
{
    unsigned size = group.size(), distance = 1;
    T result = value;
    for (; !(size & (size - 1)) && distance < size; distance *= 2)
        result = operation(result, group.shfl_xor(result, distance, place));
    if (distance >= size) return result;
    result = group.shfl(value, 0, place);
    for (unsigned rank = 1; rank < size; ++rank) result = operation(result, group.shfl(value, rank, place));
    return result;
}

}  // namespace cooperative_groups
