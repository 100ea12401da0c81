// SPDX-License-Identifier: MIT
// Checksums of the rows of matrices in host memory, by threads that take rows from one queue. hybrid/host/row_sums.py computes the
// same with NumPy, but each of NumPy's calls waits for Python's GIL when it ends, and the thread that submits copies and kernels
// then waits for it, too. These threads are none of Python's.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES_AT_ONCE = 1 << 20 };  // rows that a thread takes: few enough that all end together, too many for the lock to matter

// Rows of a matrix that have not been taken yet. A row of `columns` elements of `item_size` bytes follows after `row_bytes`.
typedef struct Piece {
    struct Piece* next;
    const char* row;
    int64_t rows, columns, row_bytes, item_size, until_weighted, every;
    const uint64_t* weights;  // for each column; each row at a distance of `every` is multiplied by them
    uint64_t* sums;
} Piece;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Piece *first, *last;
    int closed, threads;  // how many have not ended yet
} Queue;

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

static void sum_rows(const Piece* piece)
{
    int64_t columns = piece->columns, until_weighted = piece->until_weighted;
    int begins_odd = columns && !(piece->weights[0] & 1);  // a column's weight is odd, unless it is shifted
    for (int64_t i = 0; i < piece->rows; ++i, --until_weighted) {
        const char* row = piece->row + i * piece->row_bytes;
        if (until_weighted == 0) {
            until_weighted = piece->every;
            piece->sums[i] = weighted_sum(row, piece->weights, columns, piece->item_size);
        } else {
            piece->sums[i] = piece->item_size == 8 ? sum_of_words(row, columns) : sum_of_halves(row, columns, begins_odd);
        }
    }
}

// The next rows of the first piece, of which the rest stays. Called with the lock.
static Piece take(Queue* queue)
{
    Piece *piece = queue->first, taken = *piece;
    int64_t at_once = 1 + BYTES_AT_ONCE / (piece->columns * piece->item_size + 1);
    if (piece->rows <= at_once) {
        queue->first = piece->next;
        free(piece);
        return taken;
    }
    taken.rows = at_once;
    piece->row += at_once * piece->row_bytes;
    piece->rows -= at_once;
    piece->sums += at_once;
    piece->until_weighted = (piece->until_weighted % piece->every - at_once % piece->every + piece->every) % piece->every;
    return taken;
}

// The first row is weighted. Returns 0, or 1 without memory.
int put(Queue* queue, const void* first_row, int64_t rows, int64_t columns, int64_t row_bytes, int64_t item_size,
        const uint64_t* weights, int64_t every, uint64_t* sums)
{
    Piece* piece = malloc(sizeof *piece);
    if (!piece) return 1;
    *piece = (Piece){NULL, first_row, rows, columns, row_bytes, item_size, 0, every, weights, sums};
    pthread_mutex_lock(&queue->lock);
    if (queue->first)
        queue->last->next = piece;
    else
        queue->first = piece;
    queue->last = piece;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    return 0;
}

// Sum what is put, until the queue is closed and empty.
static void* work(void* of_queue)
{
    Queue* queue = of_queue;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        while (!queue->first && !queue->closed) pthread_cond_wait(&queue->changed, &queue->lock);
        if (!queue->first) break;
        Piece taken = take(queue);
        pthread_mutex_unlock(&queue->lock);
        sum_rows(&taken);
        pthread_mutex_lock(&queue->lock);
    }
    --queue->threads;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

// With so many threads, or fewer if no more can be had. NULL without any, or without memory.
Queue* new_queue(int threads)
{
    Queue* queue = calloc(1, sizeof *queue);
    if (!queue) return NULL;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
    pthread_mutex_lock(&queue->lock);
    pthread_t thread;
    while (queue->threads < threads && !pthread_create(&thread, NULL, work, queue)) {
        pthread_detach(thread);
        ++queue->threads;
    }
    int some = queue->threads;
    pthread_mutex_unlock(&queue->lock);
    if (some) return queue;
    free(queue);
    return NULL;
}

// When this returns, all that was put has been summed, or with `drop` what a thread had begun; the queue is gone.
void end_queue(Queue* queue, int drop)
{
    pthread_mutex_lock(&queue->lock);
    queue->closed = 1;
    while (drop && queue->first) {
        Piece* piece = queue->first;
        queue->first = piece->next;
        free(piece);
    }
    pthread_cond_broadcast(&queue->changed);
    while (queue->threads) pthread_cond_wait(&queue->changed, &queue->lock);
    pthread_mutex_unlock(&queue->lock);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}
