// SPDX-License-Identifier: MIT
// The device memory of a whole program: what cudaMalloc allocates, and for each byte who has used it, and whether it was written.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "cuda_on_cpu.h"

namespace cuda_on_cpu {

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

}  // namespace cuda_on_cpu
