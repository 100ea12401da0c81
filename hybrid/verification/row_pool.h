// SPDX-License-Identifier: MIT
// Threads that take rows from one queue and sum them, for row_checksums.c.
#pragma once

#include <pthread.h>
#include <stdlib.h>

#include "row_checksums.h"

enum {
    BYTES_AT_ONCE = 1 << 20,  // of rows that a thread takes: few enough that all end together, too many for the lock to matter
    WEIGHTED_ROWS = 32,  // one of so many rows has weights
    AGAIN = 256,  // one of so many rows is summed again
    NEVER = 1 << 30  // no row until the end has weights
};

struct Piece;

// The rows of one product.
typedef struct {
    int64_t left;  // how many rows have not been summed
    struct Piece* again;  // rows that are to be summed once more
    int complete;  // no more rows will be put
    int dropped;
    int failure;  // what `wait` of EventWait returned when it failed
} Batch;

// How a thread waits for an event, as by cuCtxSetCurrent and cuEventSynchronize. Both return 0, or an error.
typedef struct {
    int (*enter)(void* context);
    void* context;
    int (*wait)(void* event);
} EventWait;

// Rows of a matrix that have not been taken yet, each of `columns` elements of `item_size` bytes. The next row begins `row_bytes`
// after a row, and its checksum is `step` elements after the row's. In some rows the elements are multiplied by their columns'
// weights.
typedef struct Piece {
    struct Piece* next;
    Batch* batch;
    const char* row;
    int64_t rows, columns, row_bytes, item_size, until_weighted;
    const uint64_t* weights;
    uint64_t* sums;
    int64_t step;  // 1, or more where only some rows of a piece are summed again
    uint64_t number;  // of the first row
    uint64_t* total;  // of all rows' checksums, each mixed with the row's number
} Piece;

// Rows that are there after an event.
typedef struct Copy {
    struct Copy* next;
    Piece *piece, *again;
    EventWait how;
    void* event;
} Copy;

// Copies whose events follow each other, and which one thread waits for.
typedef struct {
    struct Pool* pool;
    pthread_cond_t some;
    Copy *first, *last;
    int has_thread;
} Line;

enum { LINES = 16 };  // copies to each of eight devices and from it; more devices share lines

typedef struct Pool {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    Piece *first, *last;
    int threads, allowed, working;
    Line lines[LINES];
} Pool;

static void sum_rows(const Piece* piece)
{
    int64_t columns = piece->columns, until_weighted = piece->until_weighted;
    int shift = columns ? __builtin_ctzll(piece->weights[0]) : 0;  // a column's weight is odd, but for the shift
    int again = piece->step > 1;
    uint64_t total = 0, number = piece->number;
    for (int64_t i = 0; i < piece->rows; ++i, --until_weighted, number += piece->step) {
        const char* row = piece->row + i * piece->row_bytes;
        uint64_t sum, *before = &piece->sums[i * piece->step];
        if (until_weighted == 0) {
            until_weighted = WEIGHTED_ROWS;
            sum = weighted_sum(row, piece->weights, columns, piece->item_size);
        } else {
            const char* next_row = row + piece->row_bytes;
            sum = piece->item_size == 8 ? sum_of_words(row, columns, next_row)
                                        : sum_of_parts(row, columns, piece->item_size, shift, next_row);
        }
        if (again) total -= mixed(*before, number);
        total += mixed(sum, number);
        *before = sum;
    }
    __atomic_fetch_add(piece->total, total, __ATOMIC_RELAXED);
}

// How many rows are left until the next one with weights, after so many rows have been taken.
static int64_t after(int64_t until_weighted, int64_t rows)
{
    if (until_weighted == NEVER) return NEVER;
    return (until_weighted + WEIGHTED_ROWS - rows % WEIGHTED_ROWS) % WEIGHTED_ROWS;
}

// Takes the next rows of the first piece; the others stay in the queue. Called with the lock.
static Piece take(Pool* pool)
{
    Piece *piece = pool->first, taken = *piece;
    int64_t at_once = 1 + BYTES_AT_ONCE / (piece->columns * piece->item_size + 1);
    if (piece->rows <= at_once) {
        pool->first = piece->next;
        free(piece);
        return taken;
    }
    taken.rows = at_once;
    piece->row += at_once * piece->row_bytes;
    piece->rows -= at_once;
    piece->sums += at_once * piece->step;
    piece->number += at_once * piece->step;
    piece->until_weighted = after(piece->until_weighted, at_once);
    return taken;
}

// Puts rows, which count as left already, into the queue. Called with the lock.
static void append(Pool* pool, Piece* piece)
{
    piece->next = NULL;
    if (pool->first)
        pool->last->next = piece;
    else
        pool->first = piece;
    pool->last = piece;
    pthread_cond_signal(&pool->work);
}

// So many rows have been summed. Called with the lock.
static void finished(Pool* pool, Batch* batch, int64_t rows)
{
    batch->left -= rows;
    if (batch->left) return;
    Piece* again = batch->complete && !batch->dropped ? batch->again : NULL;
    if (again) batch->again = NULL;
    while (again) {
        Piece* piece = again;
        again = piece->next;
        batch->left += piece->rows;
        append(pool, piece);
    }
    if (!batch->left) pthread_cond_broadcast(&pool->done);
}

static void* work(void* of_pool)
{
    Pool* pool = of_pool;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->first || pool->working >= pool->allowed) pthread_cond_wait(&pool->work, &pool->lock);
        Piece taken = take(pool);
        ++pool->working;
        if (pool->first) pthread_cond_signal(&pool->work);  // each wakes the next: to wake all would keep `put` too long
        pthread_mutex_unlock(&pool->lock);
        sum_rows(&taken);
        pthread_mutex_lock(&pool->lock);
        --pool->working;
        finished(pool, taken.batch, taken.rows);
    }
    return NULL;
}
