// SPDX-License-Identifier: MIT
// A pool of threads for loops over rows of matrices in host memory (row_sums.c). Python's threads would wait for the GIL before
// and after each part of a loop. The threads live until the process ends: starting one takes longer than waking one.
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LANES = 16 };  // one for each direction of up to eight links

typedef struct Batch Batch;
typedef struct Loop Loop;

// How to wait for an event: cuCtxSetCurrent and cuEventSynchronize, or the like. Both return 0 or an error.
typedef struct {
    int (*enter)(void* context);
    void* context;
    int (*wait)(void* event);
} EventWait;

// A loop over rows, from which threads take some at a time.
struct Loop {
    Loop* next;
    Batch* batch;
    void (*body)(const void* operands, int64_t first, int64_t end);
    const void* operands;
    int64_t begun, end, unit, most;  // rows before `begun` are taken; a thread takes a multiple of `unit` at a time, up to `most`
    int working;  // threads
    int freed;  // whether the last thread frees it
    EventWait how;
    void* event;  // the loop begins after it
};

typedef struct {
    Loop *first, *last;
} Queue;

// Loops whose events complete in order, so that one thread waits for them one after the other.
typedef struct Lane {
    struct Lane* next;
    Batch* batch;
    Queue loops;
    int served;  // a thread serves it, or the pool's list of lanes has it
} Lane;

// Loops that are waited for together: one that its caller runs, or all checksums of a product.
struct Batch {
    int64_t left;  // rows that are not done
    int threads, working;  // threads that may work on these loops at once, and that do
    int waiting;  // threads that serve a lane
    int dropped;
    int failure;  // the error of EventWait
    Lane lanes[LANES];
};

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    Queue loops;  // ready loops with rows that no thread has taken
    Lane* lanes;  // that no thread serves yet
    int threads;
} Pool;

// Zeroed memory for a few numbers, without which the process ends, and says why.
static void* zeroed(size_t bytes)
{
    void* memory = calloc(1, bytes);
    if (!memory) {
        fputs("hybrid: no memory is left for copies and checks\n", stderr);
        abort();
    }
    return memory;
}

// A new pool, without threads. It is never freed.
Pool* new_pool(void)
{
    Pool* pool = zeroed(sizeof *pool);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    return pool;
}

// All static functions below are called with the lock, unless noted.

static void append(Queue* queue, Loop* loop)
{
    loop->next = NULL;
    if (queue->first)
        queue->last->next = loop;
    else
        queue->first = loop;
    queue->last = loop;
}

static void leave(Queue* queue, const Loop* loop)
{
    Loop* before = NULL;
    for (Loop* each = queue->first; each && each != loop; each = each->next) before = each;
    if (before)
        before->next = loop->next;
    else
        queue->first = loop->next;
    if (queue->last == loop) queue->last = before;
}

static void signal_if_done(Pool* pool, const Batch* batch)
{
    if (!batch->working && !batch->waiting && !batch->left) pthread_cond_broadcast(&pool->done);
}

// The number of rows to take next: fewer towards the end, so that all threads end together (guided scheduling).
static int64_t next_rows(const Loop* loop)
{
    int64_t left = loop->end - loop->begun, some = left / (2 * loop->batch->threads);
    if (some > loop->most) some = loop->most;
    some -= some % loop->unit;
    if (some < loop->unit) some = loop->unit;
    return some < left ? some : left;
}

// The first loop that another thread may work on.
static Loop* open_loop(const Pool* pool)
{
    Loop* loop = pool->loops.first;
    while (loop && loop->batch->working >= loop->batch->threads) loop = loop->next;
    return loop;
}

// A thread that took work wakes another if there is more, without the lock, since waking may take longer than the work.
static void unlock_and_wake(Pool* pool)
{
    int wakes = pool->lanes || open_loop(pool);
    pthread_mutex_unlock(&pool->lock);
    if (wakes) pthread_cond_signal(&pool->work);
}

// Works on the loop until all rows are taken. Releases the lock while it works.
static void work_at(Pool* pool, Loop* loop)
{
    Batch* batch = loop->batch;
    ++loop->working;
    ++batch->working;
    while (loop->begun < loop->end) {
        int64_t first = loop->begun, end = batch->failure ? loop->end : first + next_rows(loop);
        int failed = batch->failure;
        loop->begun = end;
        if (end == loop->end) leave(&pool->loops, loop);
        unlock_and_wake(pool);
        if (!failed) loop->body(loop->operands, first, end);
        pthread_mutex_lock(&pool->lock);
        batch->left -= end - first;
    }
    if (!--loop->working && loop->freed) free(loop);
    --batch->working;
    signal_if_done(pool, batch);
}

// Waits for the events of a lane until it is empty. Releases the lock while it waits.
static void serve(Pool* pool, Lane* lane)
{
    Batch* batch = lane->batch;
    ++batch->waiting;
    for (Loop* loop; (loop = lane->loops.first);) {
        leave(&lane->loops, loop);
        if (!batch->failure && !batch->dropped) {
            unlock_and_wake(pool);
            int failure = loop->how.enter(loop->how.context);
            if (!failure) failure = loop->how.wait(loop->event);
            pthread_mutex_lock(&pool->lock);
            if (failure) batch->failure = failure;
        }
        if (batch->dropped || batch->failure) {
            batch->left -= loop->end;
            free(loop);
        } else {
            append(&pool->loops, loop);
        }
    }
    lane->served = 0;
    --batch->waiting;
    signal_if_done(pool, batch);
}

static void* work(void* of_pool)
{
    Pool* pool = of_pool;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        Lane* lane = pool->lanes;
        Loop* loop = open_loop(pool);
        if (!lane && !loop) {
            pthread_cond_wait(&pool->work, &pool->lock);
            continue;
        }
        if (lane) {
            pool->lanes = lane->next;
            serve(pool, lane);
        } else {
            work_at(pool, loop);
        }
    }
    return NULL;
}

// Grows the pool to `threads`, or fewer if the system refuses. Returns the pool's size.
static int have_threads(Pool* pool, int threads)
{
    pthread_t thread;
    while (pool->threads < threads && !pthread_create(&thread, NULL, work, pool)) {
        pthread_detach(thread);
        ++pool->threads;
    }
    return pool->threads;
}

// Enqueues a loop, to start at once or, in a lane, after its event. Called without the lock.
static void submit(Pool* pool, Loop* loop, Lane* lane)
{
    pthread_mutex_lock(&pool->lock);
    loop->batch->left += loop->end;
    append(lane ? &lane->loops : &pool->loops, loop);
    int wakes = !(lane && lane->served);
    if (lane && wakes) {
        lane->served = 1;
        lane->next = pool->lanes;
        pool->lanes = lane;
    }
    pthread_mutex_unlock(&pool->lock);
    if (wakes) pthread_cond_signal(&pool->work);  // without the lock, since waking takes some time
}

static void wait_until_done(Pool* pool, const Batch* batch)
{
    while (batch->left || batch->working || batch->waiting) pthread_cond_wait(&pool->done, &pool->lock);
}

// Runs `body` for rows first..end-1, by this thread and up to threads - 1 others, in parts that begin at `first` plus a multiple
// of `unit`. Completes even if no other thread is free or can be started. Called without the lock.
static void run_loop(Pool* pool, int threads, int64_t first, int64_t end, int64_t unit, int64_t most,
                     void (*body)(const void* operands, int64_t first, int64_t end), const void* operands)
{
    int64_t units = (end - first + unit - 1) / unit;
    if (threads > units) threads = (int)units;
    if (threads < 1) threads = 1;
    if (threads == 1 && end - first <= most) {
        body(operands, first, end);
        return;
    }
    Batch batch = {.left = end - first, .threads = threads};
    Loop loop = {.batch = &batch, .body = body, .operands = operands, .begun = first, .end = end, .unit = unit, .most = most};
    pthread_mutex_lock(&pool->lock);
    if (threads > 1) {
        have_threads(pool, threads - 1);
        append(&pool->loops, &loop);
    }
    work_at(pool, &loop);
    wait_until_done(pool, &batch);
    pthread_mutex_unlock(&pool->lock);
}

// A new batch, worked on by up to `threads` threads, and by one for each of `lanes` to wait for events; by fewer if no more can be
// started. NULL without any thread.
Batch* new_batch(Pool* pool, int threads, int lanes)
{
    pthread_mutex_lock(&pool->lock);
    int some = have_threads(pool, threads + lanes);
    pthread_mutex_unlock(&pool->lock);
    if (!some) return NULL;
    Batch* batch = zeroed(sizeof *batch);
    batch->threads = threads;
    for (int i = 0; i < LANES; ++i) batch->lanes[i].batch = batch;
    return batch;
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

// Drops a batch's rows that no thread has taken, waits for the others and for events that a thread waits for, and frees the batch.
void drop(Pool* pool, Batch* batch)
{
    pthread_mutex_lock(&pool->lock);
    batch->dropped = 1;
    for (Loop *loop = pool->loops.first, *next; loop; loop = next) {
        next = loop->next;
        if (loop->batch != batch) continue;
        leave(&pool->loops, loop);
        batch->left -= loop->end - loop->begun;
        loop->begun = loop->end;
        if (!loop->working) free(loop);
    }
    for (Lane** at = &pool->lanes; *at;) {
        Lane* lane = *at;
        if (lane->batch == batch) {
            *at = lane->next;
            serve(pool, lane);  // which only frees its loops
        } else {
            at = &lane->next;
        }
    }
    wait_until_done(pool, batch);
    pthread_mutex_unlock(&pool->lock);
    free(batch);
}
