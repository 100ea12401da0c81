// SPDX-License-Identifier: MIT
// Checksums of the rows of matrices in host memory, by threads that take rows from one queue. hybrid/host/row_sums.py computes the
// same with NumPy, but each of NumPy's calls waits for Python's GIL when it ends, and then the thread that submits copies and
// kernels waits for the GIL, too. These threads are not Python's, and neither are those that wait for the copies which bring the
// rows. They stay from product to product, because starting them takes longer than waking them.
#include "row_pool.h"

// A new pool, without threads; NULL if there is no memory. It is never freed: its threads wait for work until the process ends.
Pool* new_pool(void)
{
    Pool* pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (int i = 0; i < LINES; ++i) {
        pool->lines[i].pool = pool;
        pthread_cond_init(&pool->lines[i].some, NULL);
    }
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

// Rows that are there go to the threads that sum. Called with the lock.
static void hand_over(Pool* pool, Piece* piece, Piece* again)
{
    append(pool, piece);
    if (again) {
        again->next = piece->batch->again;
        piece->batch->again = again;
    }
}

static void discard(Pool* pool, Copy* copy)
{
    finished(pool, copy->piece->batch, copy->piece->rows);
    free(copy->piece);
    free(copy->again);
}

static void* wait_for_copies(void* of_line)
{
    Line* line = of_line;
    Pool* pool = line->pool;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!line->first) pthread_cond_wait(&line->some, &pool->lock);
        Copy* copy = line->first;
        Batch* batch = copy->piece->batch;
        line->first = copy->next;
        if (!batch->dropped && !batch->failure) {
            pthread_mutex_unlock(&pool->lock);
            int failure = copy->how.enter(copy->how.context);
            if (!failure) failure = copy->how.wait(copy->event);
            pthread_mutex_lock(&pool->lock);
            if (failure) batch->failure = failure;  // another line's may have failed meanwhile
        }
        if (batch->dropped || batch->failure)
            discard(pool, copy);
        else
            hand_over(pool, copy->piece, copy->again);
        free(copy);
    }
    return NULL;
}

// Puts a copy into its line. Returns 0, or 1 if no thread can be started that waits for it. Called with the lock.
static int put_into(Line* line, Copy* copy)
{
    pthread_t thread;
    if (!line->has_thread) {
        if (pthread_create(&thread, NULL, wait_for_copies, line)) return 1;
        pthread_detach(thread);
        line->has_thread = 1;
    }
    if (line->first)
        line->last->next = copy;
    else
        line->first = copy;
    line->last = copy;
    pthread_cond_signal(&line->some);
    return 0;
}

// Has rows summed, of which the first one has weights; those of C (`again`) some of them twice. `how`: after this event, which
// follows those put before with the same number of a line; NULL: at once. Returns 0, or 1 if there is no memory, or no thread.
int put(Pool* pool, Batch* batch, const void* first_row, int64_t rows, int64_t columns, int64_t row_bytes, int64_t item_size,
        const uint64_t* weights, uint64_t* sums, uint64_t number, uint64_t* total, int again, const EventWait* how, void* event,
        int line)
{
    if (!rows) return 0;
    Piece *piece = malloc(sizeof *piece), *some = again ? malloc(sizeof *some) : NULL;
    Copy* copy = how ? malloc(sizeof *copy) : NULL;
    int failed = !piece || (again && !some) || (how && !copy);
    if (!failed) {
        *piece = (Piece){NULL, batch, first_row, rows, columns, row_bytes, item_size, 0, weights, sums, 1, number, total};
        if (again) *some = rows_again(piece);
        pthread_mutex_lock(&pool->lock);
        if (how) {
            *copy = (Copy){NULL, piece, some, *how, event};
            failed = put_into(&pool->lines[line], copy);
        } else {
            hand_over(pool, piece, some);
        }
        if (!failed) batch->left += rows;
        pthread_mutex_unlock(&pool->lock);
    }
    if (failed) {
        free(piece);
        free(some);
        free(copy);
    }
    return failed;
}

// To be called when no more rows will be put: when all have been summed, some are summed again.
void complete(Pool* pool, Batch* batch)
{
    pthread_mutex_lock(&pool->lock);
    batch->complete = 1;
    finished(pool, batch, 0);
    pthread_mutex_unlock(&pool->lock);
}

// After `complete`: waits until all rows have been summed. Returns 0, or the error of an event that could not be waited for.
int wait_for(Pool* pool, Batch* batch)
{
    pthread_mutex_lock(&pool->lock);
    while (batch->left) pthread_cond_wait(&pool->done, &pool->lock);
    int failure = batch->failure;
    pthread_mutex_unlock(&pool->lock);
    return failure;
}

// Drops the rows of a batch that no thread has taken, and waits for those that are being summed and for events that are awaited.
// Frees the batch.
void drop(Pool* pool, Batch* batch)
{
    pthread_mutex_lock(&pool->lock);
    batch->dropped = 1;  // the threads of the lines drop what they take now
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
