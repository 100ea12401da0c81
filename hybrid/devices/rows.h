// SPDX-License-Identifier: MIT
// Rows of matrices in host memory.
#pragma once

#include <stdint.h>

enum { LINE = 64, AHEAD = 4096 };  // bytes; AHEAD: prefetch distance, since hardware prefetchers stop at every page
enum { BYTES_AT_ONCE = 1 << 20 };  // of rows that a thread takes: few enough that all end together, enough to amortize the lock

// Rows of floats or doubles.
typedef struct {
    const char* elements;
    int64_t columns, row_bytes, item_size;
} Rows;
