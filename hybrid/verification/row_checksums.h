// SPDX-License-Identifier: MIT
// The checksum of one row, and how it is mixed with the row's number.
#pragma once

#include <stdint.h>
#include <string.h>

// Elements' bits. They need not be aligned.
static uint64_t word(const char* at)
{
    uint64_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

static uint64_t half(const char* at)
{
    uint32_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

static uint64_t sum_of_words(const char* row, int64_t columns)
{
    uint64_t sum = 0;
    for (int64_t j = 0; j < columns; ++j) sum += word(row + 8 * j);
    return sum;
}

// Of float32: the bits of odd columns are shifted by 32, so two neighbours are one word.
static uint64_t sum_of_halves(const char* row, int64_t columns, int begins_odd)
{
    uint64_t sum = begins_odd ? half(row) << 32 : 0;
    int64_t j = begins_odd;
    for (; j + 1 < columns; j += 2) sum += word(row + 4 * j);
    return j < columns ? sum + half(row + 4 * j) : sum;
}

static uint64_t weighted_sum(const char* row, const uint64_t* weights, int64_t columns, int64_t item_size)
{
    uint64_t sum = 0;
    if (item_size == 8)
        for (int64_t j = 0; j < columns; ++j) sum += word(row + 8 * j) * weights[j];
    else
        for (int64_t j = 0; j < columns; ++j) sum += half(row + 4 * j) * weights[j];
    return sum;
}

// The finalizer of SplitMix64, of a checksum and the row's number.
static uint64_t mixed(uint64_t checksum, uint64_t number)
{
    uint64_t bits = checksum + number * 0x9E3779B97F4A7C15;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
    return bits ^ (bits >> 31);
}
