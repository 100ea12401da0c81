// SPDX-License-Identifier: MIT
// Rows of matrices in host memory, for loops over them.
#pragma once

#include <stdint.h>

enum { LINE = 64, AHEAD = 4096 };  // bytes: how far ahead a row is asked for, since hardware stops to do so at every page
enum { BYTES_AT_ONCE = 1 << 20 };  // of rows that a thread takes: few enough that all end together, too many for the lock to matter

// Rows of elements, of float or double.
typedef struct {
    const char* elements;
    int64_t columns, row_bytes, item_size;
} Rows;
