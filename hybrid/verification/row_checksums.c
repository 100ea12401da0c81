// SPDX-License-Identifier: MIT
// Checksums of the rows of matrices in host memory, by threads that take rows from one queue. hybrid/host/row_sums.py computes the
// same with NumPy, but each of NumPy's calls waits for Python's GIL when it ends, and then the thread that submits copies and
// kernels waits for the GIL, too. These threads are not Python's. They stay from product to product, because starting them takes
// longer than waking them.
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
} Batch;

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

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    Piece *first, *last;
    int threads, allowed, working;
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

static void append(Pool* pool, Piece* piece)
{
    piece->batch->left += piece->rows;
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
    Piece* again = batch->complete ? batch->again : NULL;
    if (again) batch->again = NULL;
    while (again) {
        Piece* piece = again;
        again = piece->next;
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

// A new pool, without threads; NULL if there is no memory. It is never freed: its threads wait for work until the process ends.
Pool* new_pool(void)
{
    Pool* pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    return pool;
}

// A new batch for a product, to be summed by so many threads, or by fewer if no more can be started. NULL if there is no thread, or
// no memory.
Batch* new_batch(Pool* pool, int threads)
{
    pthread_t thread;
    pthread_mutex_lock(&pool->lock);
    pool->allowed = threads;
    while (pool->threads < threads && !pthread_create(&thread, NULL, work, pool)) {
        pthread_detach(thread);
        ++pool->threads;
    }
    int some = pool->threads;
    pthread_mutex_unlock(&pool->lock);
    return some ? calloc(1, sizeof(Batch)) : NULL;
}

// Some rows of a piece, to be summed once more when all of the batch have been summed: a tile's copy may have written into another
// tile. They begin with the second row, since the first has weights, which would take longer than all the rest.
static Piece rows_again(const Piece* piece)
{
    Piece some = *piece;
    int skipped = piece->rows > 1;
    some.row += skipped * piece->row_bytes;
    some.row_bytes *= AGAIN;
    some.sums += skipped;
    some.number += skipped;
    some.step = AGAIN;
    some.rows = (piece->rows - skipped + AGAIN - 1) / AGAIN;
    some.until_weighted = skipped ? NEVER : 0;
    return some;
}

// Puts rows into the queue. Returns 0, or 1 if there is no memory. The first row has weights. `again`: some rows are summed twice.
int put(Pool* pool, Batch* batch, const void* first_row, int64_t rows, int64_t columns, int64_t row_bytes, int64_t item_size,
        const uint64_t* weights, uint64_t* sums, uint64_t number, uint64_t* total, int again)
{
    if (!rows) return 0;
    Piece *piece = malloc(sizeof *piece), *some = again ? malloc(sizeof *some) : NULL;
    if (!piece || (again && !some)) {
        free(piece);
        free(some);
        return 1;
    }
    *piece = (Piece){NULL, batch, first_row, rows, columns, row_bytes, item_size, 0, weights, sums, 1, number, total};
    if (again) *some = rows_again(piece);
    pthread_mutex_lock(&pool->lock);
    append(pool, piece);
    if (again) {
        some->next = batch->again;
        batch->again = some;
    }
    pthread_mutex_unlock(&pool->lock);
    return 0;
}

// To be called when no more rows will be put: when all have been summed, some are summed again.
void complete(Pool* pool, Batch* batch)
{
    pthread_mutex_lock(&pool->lock);
    batch->complete = 1;
    finished(pool, batch, 0);
    pthread_mutex_unlock(&pool->lock);
}

// After `complete`: waits until all rows have been summed.
void wait_for(Pool* pool, Batch* batch)
{
    pthread_mutex_lock(&pool->lock);
    while (batch->left) pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

// Drops the rows of a batch that no thread has taken, and waits for those that are being summed. Frees the batch.
void drop(Pool* pool, Batch* batch)
{
    pthread_mutex_lock(&pool->lock);
    Piece *kept = NULL, **end = &pool->first;
    while (*end) {
        Piece* piece = *end;
        if (piece->batch == batch) {
            *end = piece->next;
            batch->left -= piece->rows;
            free(piece);
        } else {
            kept = piece;
            end = &piece->next;
        }
    }
    pool->last = kept;
    while (batch->left) pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    while (batch->again) {
        Piece* piece = batch->again;
        batch->again = piece->next;
        free(piece);
    }
    free(batch);
}
