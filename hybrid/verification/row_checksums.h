// SPDX-License-Identifier: MIT
// The checksum of one row, and how it is mixed with the row's number.
#pragma once

#include <stdint.h>
#include <string.h>

// The bits of a word, and of an element of 2 or 4 bytes, which need not be aligned.
static uint64_t word(const char* at)
{
    uint64_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

static uint64_t element(const char* at, int64_t item_size)
{
    uint32_t bits = 0;
    uint16_t few;
    if (item_size == 2) {
        memcpy(&few, at, sizeof few);
        return few;
    }
    memcpy(&bits, at, sizeof bits);
    return bits;
}

// A core waits for memory most of the time. If each cache line is asked for early, it waits for more lines at once and sums twice
// as many bytes a second: the hardware's own prefetching stops at every page. At the end of a row the next row's lines are asked
// for.
enum { LINE = 64, AHEAD = 4096 };

static uint64_t sum_of_words(const char* row, int64_t columns, const char* next_row)
{
    int64_t j = 0, left = 8 * columns;
    uint64_t sum = 0;
    for (; left >= LINE; j += LINE / 8, left -= LINE) {
        const char* line = row + 8 * j;
        __builtin_prefetch(left > AHEAD ? line + AHEAD : next_row + (AHEAD - left), 0, 1);
        for (int k = 0; k < LINE; k += 8) sum += word(line + k);
    }
    for (; j < columns; ++j) sum += word(row + 8 * j);
    return sum;
}

// The sum of elements of 4 or 2 bytes, which are shifted so that neighbours form a word; the first one by `shift` bits.
static uint64_t sum_of_parts(const char* row, int64_t columns, int64_t item_size, int shift, const char* next_row)
{
    int64_t j = 0, per_word = 8 / item_size;
    int bits = (int)(8 * item_size);
    uint64_t sum = 0;
    for (; shift % 64 && j < columns; ++j, shift += bits) sum += element(row + j * item_size, item_size) << shift;
    int64_t words = (columns - j) / per_word;
    sum += sum_of_words(row + j * item_size, words, next_row);
    j += words * per_word;
    for (shift = 0; j < columns; ++j, shift += bits) sum += element(row + j * item_size, item_size) << shift;
    return sum;
}

static uint64_t weighted_sum(const char* row, const uint64_t* weights, int64_t columns, int64_t item_size)
{
    uint64_t sum = 0;
    if (item_size == 8)
        for (int64_t j = 0; j < columns; ++j) sum += word(row + 8 * j) * weights[j];
    else if (item_size == 4)
        for (int64_t j = 0; j < columns; ++j) sum += element(row + 4 * j, 4) * weights[j];
    else
        for (int64_t j = 0; j < columns; ++j) sum += element(row + 2 * j, 2) * weights[j];
    return sum;
}

// A row's checksum mixed with the row's number, by the finalizer of SplitMix64.
static uint64_t mixed(uint64_t checksum, uint64_t number)
{
    uint64_t bits = checksum + number * 0x9E3779B97F4A7C15;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
    return bits ^ (bits >> 31);
}
