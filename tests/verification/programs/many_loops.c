// SPDX-License-Identifier: MIT
// Threads that run loops at once, all by the threads of one pool: many_loops. Each row must be taken once, and rows of a unit by one
// thread. Compiled with ThreadSanitizer, it also tells whether two threads have written the same at once.
#include <stdio.h>
#include <unistd.h>

#include "loop_pool.h"

enum { ROUNDS = 60, USERS = 5, LOOPS = 8, MOST_ROWS = 500, MOST_UNIT = 64 };

typedef struct {
    int first, unit, slow;
    int taken[MOST_ROWS], of_unit[MOST_ROWS];  // how often; in how many rows of the unit
} Rows;

static int wrong, loops;

static void take(const void* of_rows, int64_t first, int64_t end)
{
    Rows* rows = (Rows*)of_rows;
    if ((first - rows->first) % rows->unit) __atomic_store_n(&wrong, 1, __ATOMIC_RELAXED);
    for (int64_t i = first; i < end; ++i) {
        ++rows->taken[i];
        ++rows->of_unit[(i - rows->first) / rows->unit];
    }
    usleep(first % 4 * rows->slow);  // so that those who called wait for others
}

static void* use(void* pool)
{
    for (int mine = 0; mine < LOOPS; ++mine) {
        int k = __atomic_fetch_add(&loops, 1, __ATOMIC_RELAXED);
        Rows rows = {.first = k % 3 * MOST_UNIT, .unit = 1 + k * 7 % MOST_UNIT, .slow = 10 + k % 5 * 20};
        int end = rows.first + k * 11 % (MOST_ROWS - rows.first);
        run_loop(pool, 1 + k % 4, rows.first, end, rows.unit, k % 90, take, &rows);
        for (int i = 0; i < MOST_ROWS; ++i) {
            int left = end - rows.first - i * rows.unit, in_unit = left < 0 ? 0 : left < rows.unit ? left : rows.unit;
            if (rows.taken[i] != (i >= rows.first && i < end) || rows.of_unit[i] != in_unit) {
                __atomic_store_n(&wrong, 1, __ATOMIC_RELAXED);
            }
        }
    }
    return NULL;
}

int main(void)
{
    LoopPool* pool = new_loop_pool();
    alarm(30);  // kills a program that waits for ever
    for (int round = 0; round < ROUNDS; ++round) {  // one who was not woken is woken by others' loops, but not after the last ones
        pthread_t users[USERS];
        for (int i = 0; i < USERS; ++i) pthread_create(&users[i], NULL, use, pool);
        for (int i = 0; i < USERS; ++i) pthread_join(users[i], NULL);
    }
    puts(wrong ? "wrong" : "right");
    return wrong;
}
