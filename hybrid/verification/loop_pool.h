// SPDX-License-Identifier: MIT
// Threads that share loops over rows, for group_sums.c. They are not Python's: Python's would wait for its GIL before and after each
// part of a loop, one after another. They stay from loop to loop, because starting them takes longer than waking them.
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

// A loop over rows. The thread that runs it takes rows, too; so all are done even if the others are busy or cannot be started.
typedef struct Loop {
    struct Loop* next;
    void (*body)(const void* operands, int64_t first, int64_t end);
    const void* operands;
    int64_t begun, end, unit, most;  // rows before `begun` are taken; a thread takes a multiple of `unit` at a time, up to `most`
    int threads, working;  // that may work at it, and that do
} Loop;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t some, done;
    Loop* first;  // those of which not all rows are taken, except where no other thread may work at them
    int threads;
} LoopPool;

// A new pool, without threads; NULL if there is no memory. It is never freed: its threads wait for loops until the process ends.
LoopPool* new_loop_pool(void)
{
    LoopPool* pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->some, NULL);
    pthread_cond_init(&pool->done, NULL);
    return pool;
}

static int64_t at_least(int64_t least, int64_t value) { return value < least ? least : value; }

// The number of rows to take next: fewer and fewer towards the end, so that all threads end together.
static int64_t next_rows(const Loop* loop)
{
    int64_t left = loop->end - loop->begun, some = left / (2 * loop->threads);
    if (some > loop->most) some = loop->most;
    some = at_least(loop->unit, some - some % loop->unit);
    return some < left ? some : left;
}

static void leave(LoopPool* pool, Loop* loop)
{
    Loop** at = &pool->first;
    while (*at && *at != loop) at = &(*at)->next;
    if (*at) *at = loop->next;
}

// Does rows of the loop until all are taken. Called with the lock, which it gives up while it works.
static void take_part(LoopPool* pool, Loop* loop)
{
    ++loop->working;
    while (loop->begun < loop->end) {
        int64_t first = loop->begun, end = first + next_rows(loop);
        loop->begun = end;
        pthread_mutex_unlock(&pool->lock);
        loop->body(loop->operands, first, end);
        pthread_mutex_lock(&pool->lock);
    }
    leave(pool, loop);
    if (!--loop->working) pthread_cond_broadcast(&pool->done);
}

static Loop* open_loop(LoopPool* pool)
{
    Loop* loop = pool->first;
    while (loop && (loop->working >= loop->threads || loop->begun >= loop->end)) loop = loop->next;
    return loop;
}

static void* help(void* of_pool)
{
    LoopPool* pool = of_pool;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        Loop* loop = open_loop(pool);
        if (loop)
            take_part(pool, loop);
        else
            pthread_cond_wait(&pool->some, &pool->lock);
    }
    return NULL;
}

// Runs `body` for the rows from `first` to `end` - 1, by up to so many threads, in parts that begin at `first` or a multiple of `unit`
// after it.
static void run_loop(LoopPool* pool, int threads, int64_t first, int64_t end, int64_t unit, int64_t most,
                     void (*body)(const void* operands, int64_t first, int64_t end), const void* operands)
{
    int64_t units = (end - first + unit - 1) / unit;
    if (threads > units) threads = (int)at_least(1, units);
    Loop loop = {NULL, body, operands, first, end, unit, at_least(unit, most - most % unit), threads, 0};
    pthread_t thread;
    pthread_mutex_lock(&pool->lock);
    while (pool->threads < threads - 1 && !pthread_create(&thread, NULL, help, pool)) {
        pthread_detach(thread);
        ++pool->threads;
    }
    if (threads > 1) {
        loop.next = pool->first;
        pool->first = &loop;
    }
    for (int i = 1; i < threads; ++i) pthread_cond_signal(&pool->some);
    take_part(pool, &loop);
    while (loop.working) pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}
