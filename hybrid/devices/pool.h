// SPDX-License-Identifier: MIT
// One pool of threads for loops over rows of matrices in host memory (row_sums.c). The threads are not Python's, which would
// wait for the GIL before and after each part of a loop. They stay from product to product: starting a thread takes longer than
// waking one.
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

enum { LANES = 16 };  // one for each direction of up to eight links

// Loops that are waited for together: one that its caller runs, or all checksums of a product.
typedef struct {
    int64_t left;  // rows that are not done
    int threads, working;  // that may work at these loops at once, and that do
    int waiting;  // threads that wait for events
    char awaited[LANES];  // whether one waits for an event of this lane; the others come later, and waiting keeps a core
    int failure;  // what `wait` of EventWait returned when it failed
} Batch;

// How a thread waits for an event, as by cuCtxSetCurrent and cuEventSynchronize. Both return 0, or an error.
typedef struct {
    int (*enter)(void* context);
    void* context;
    int (*wait)(void* event);
} EventWait;

enum State { READY, COPYING, AWAITED };  // COPYING: the loop begins after an event, and no thread waits for it yet

// A loop over rows, which threads take some at a time.
typedef struct Loop {
    struct Loop* next;
    Batch* batch;
    void (*body)(const void* operands, int64_t first, int64_t end);
    const void* operands;
    int64_t begun, end, unit, most;  // rows before `begun` are taken; a thread takes a multiple of `unit` at a time, up to `most`
    int working;
    int freed;  // whether the thread that ends it frees it
    int lane;  // events of one lane are complete in the order in which their loops came
    enum State state;
    EventWait how;
    void* event;
} Loop;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    Loop* first;  // loops with rows that no thread has taken, in the order in which they came
    int threads;
} Pool;

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

// All functions below that are static are called with the lock.

static void leave(Pool* pool, const Loop* loop)
{
    Loop** at = &pool->first;
    while (*at && *at != loop) at = &(*at)->next;
    if (*at) *at = loop->next;
}

// The number of rows to take next: fewer and fewer towards the end, so that all threads end together.
static int64_t next_rows(const Loop* loop)
{
    int64_t left = loop->end - loop->begun, some = left / (2 * loop->batch->threads);
    if (some > loop->most) some = loop->most;
    some -= some % loop->unit;
    if (some < loop->unit) some = loop->unit;
    return some < left ? some : left;
}

// Does rows of the loop until all are taken, after its event. Gives up the lock while it works or waits.
static void work_at(Pool* pool, Loop* loop)
{
    Batch* batch = loop->batch;
    ++loop->working;
    if (loop->state == COPYING && !batch->failure) {
        loop->state = AWAITED;
        ++batch->waiting;
        batch->awaited[loop->lane] = 1;
        pthread_mutex_unlock(&pool->lock);
        int failure = loop->how.enter(loop->how.context);
        if (!failure) failure = loop->how.wait(loop->event);
        pthread_mutex_lock(&pool->lock);
        --batch->waiting;
        batch->awaited[loop->lane] = 0;
        if (failure) batch->failure = failure;
        loop->state = READY;
        pthread_cond_signal(&pool->work);
    }
    ++batch->working;
    while (loop->begun < loop->end) {
        int64_t first = loop->begun, end = batch->failure ? loop->end : first + next_rows(loop);
        loop->begun = end;
        if (end == loop->end) leave(pool, loop);
        if (!batch->failure) {
            pthread_mutex_unlock(&pool->lock);
            loop->body(loop->operands, first, end);
            pthread_mutex_lock(&pool->lock);
        }
        batch->left -= end - first;
    }
    if (!--loop->working && loop->freed) free(loop);
    if (!--batch->working && !batch->waiting && !batch->left) pthread_cond_broadcast(&pool->done);
}

// The first loop that can be worked at, or else the first of a lane in which nobody waits.
static Loop* open_loop(const Pool* pool)
{
    Loop* copying = NULL;
    for (Loop* loop = pool->first; loop; loop = loop->next) {
        const Batch* batch = loop->batch;
        if (loop->state == READY && batch->working < batch->threads) return loop;
        if (loop->state == COPYING && !batch->awaited[loop->lane] && !copying) copying = loop;
    }
    return copying;
}

static void* work(void* of_pool)
{
    Pool* pool = of_pool;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        Loop* loop = open_loop(pool);
        if (!loop) {
            pthread_cond_wait(&pool->work, &pool->lock);
            continue;
        }
        pthread_cond_signal(&pool->work);  // each wakes the next: to wake all would keep the submitting thread too long
        work_at(pool, loop);
    }
    return NULL;
}

// Has at least so many threads, or fewer if the system refuses. Returns how many there are.
static int have_threads(Pool* pool, int threads)
{
    pthread_t thread;
    while (pool->threads < threads && !pthread_create(&thread, NULL, work, pool)) {
        pthread_detach(thread);
        ++pool->threads;
    }
    return pool->threads;
}

static void enqueue(Pool* pool, Loop* loop)
{
    Loop** at = &pool->first;
    while (*at) at = &(*at)->next;
    *at = loop;
    pthread_cond_signal(&pool->work);
}

static void wait_until_done(Pool* pool, const Batch* batch)
{
    while (batch->left || batch->working || batch->waiting) pthread_cond_wait(&pool->done, &pool->lock);
}

// Runs `body` for the rows from `first` to `end` - 1, by this thread and up to threads - 1 others, in parts that begin at
// `first` or a multiple of `unit` after it. All rows are done even if the others are busy, or no thread can be started. Called
// without the lock.
static void run_loop(Pool* pool, int threads, int64_t first, int64_t end, int64_t unit, int64_t most,
                     void (*body)(const void* operands, int64_t first, int64_t end), const void* operands)
{
    int64_t units = (end - first + unit - 1) / unit;
    if (threads > units) threads = (int)units;
    if (threads < 1) threads = 1;
    Batch batch = {.left = end - first, .threads = threads};
    Loop loop = {.batch = &batch, .body = body, .operands = operands, .begun = first, .end = end, .unit = unit, .most = most};
    pthread_mutex_lock(&pool->lock);
    if (threads > 1) {
        have_threads(pool, threads - 1);
        enqueue(pool, &loop);
    }
    work_at(pool, &loop);
    wait_until_done(pool, &batch);
    pthread_mutex_unlock(&pool->lock);
}

// A new batch, for so many threads besides those that wait for events of so many lanes, or for fewer if no more can be started. NULL
// if there is no thread, or no memory.
Batch* new_batch(Pool* pool, int threads, int lanes)
{
    Batch* batch = calloc(1, sizeof *batch);
    pthread_mutex_lock(&pool->lock);
    int some = have_threads(pool, threads + lanes);
    pthread_mutex_unlock(&pool->lock);
    if (batch && some) {
        batch->threads = threads;
        return batch;
    }
    free(batch);
    return NULL;
}

// Waits until all loops of the batch are done. Returns 0, or the error of an event.
int wait_for(Pool* pool, Batch* batch)
{
    pthread_mutex_lock(&pool->lock);
    wait_until_done(pool, batch);
    int failure = batch->failure;
    pthread_mutex_unlock(&pool->lock);
    return failure;
}

// Drops the rows of a batch that no thread has taken, and waits for those that are under way and for events that are awaited.
// Frees the batch.
void drop(Pool* pool, Batch* batch)
{
    pthread_mutex_lock(&pool->lock);
    for (Loop** at = &pool->first; *at;) {
        Loop* loop = *at;
        if (loop->batch != batch) {
            at = &loop->next;
            continue;
        }
        *at = loop->next;
        batch->left -= loop->end - loop->begun;
        loop->begun = loop->end;
        if (!loop->working) free(loop);
    }
    wait_until_done(pool, batch);
    pthread_mutex_unlock(&pool->lock);
    free(batch);
}
