// SPDX-License-Identifier: MIT
// Copies between a GPU and pageable host memory. Threads copy parts of that memory to or from small pinned slots, which stay in a
// core's cache, and enqueue each slot's copy on a stream of their own. Pinning the memory instead takes as long as such a copy, and
// several times as long in a process with contexts on several GPUs.
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "pool.h"

enum { SLOTS = 2 };  // of an H2D worker: one is filled while the other is copied
enum { LINE = 64, AHEAD = 4096 };  // bytes; AHEAD: prefetch distance, since hardware prefetchers stop at every page
enum { WIDTH = 4096 };  // contiguous bytes of a part of a transposed matrix
enum { POPULATING = 4 };  // threads that prefault pages as fast as copies need them
enum { LEAST_PART = 512 << 10, POPULATED = 2 << 20 };  // bytes: least part of a small matrix; a huge page
enum { FAILED = 999 };  // cudaErrorUnknown: of cancelled copies
enum { HOST = 1, DEVICE = 2 };  // of CUmemorytype

// CUDA_MEMCPY2D
typedef struct {
    size_t x, y;
    unsigned kind;
    const void* host;
    uint64_t device;
    void* array;
    size_t pitch;
} Side;
typedef struct {
    Side from, to;
    size_t width, rows;
} Copy;

// The driver's cuCtxSetCurrent with its context, cuMemcpy2DAsync, cuEventRecord, cuStreamWaitEvent and cuEventSynchronize. All
// return 0 or an error.
typedef struct {
    int (*enter)(void* context);
    void* context;
    int (*copy)(const Copy* copy, void* stream);
    int (*record)(void* event, void* stream);
    int (*follow)(void* stream, void* event, unsigned flags);
    int (*wait)(void* event);
} Driver;

// Slots and their stream, for one thread at a time. Each slot's event marks the end of its last copy.
typedef struct Worker {
    struct Worker* next;
    char* memory;
    void* stream;
    void* events[SLOTS];
    int slots, latest;  // the slot used last
} Worker;

// The workers of one GPU. Each serves one direction, and never waits for copies of the other.
typedef struct {
    Driver driver;
    int64_t slot_bytes;
    pthread_mutex_t lock;
    pthread_cond_t freed;
    Worker* free[2];  // H2D, D2H
    int count;
    Worker workers[];
} Workers;

// A matrix in host memory and on the device. In host memory rows are contiguous, or, only H2D, columns. The copy starts after the
// CUDA event `ready`, unless NULL; H2D: `done` is recorded after it.
typedef struct {
    char *host, *device;
    int64_t rows, columns, item;  // item: bytes of an element
    int64_t row_bytes, column_bytes, pitch;  // row and column stride in host memory; row stride on the device
    void *ready, *done;
} Matrix;

typedef struct Copies Copies;

// The copy of one matrix, in parts. Copies of one direction are reached in the order of the calls of `copy`.
typedef struct Transfer {
    struct Transfer* next;
    Copies* of;
    int out;  // D2H
    Matrix matrix;
    int64_t part_rows, part_columns, parts_across;
    int64_t left;  // H2D: parts that are not enqueued; D2H: that are not in host memory
    uint64_t workers;  // bit mask of those that enqueued parts
    void* ipc_event;  // H2D: to be recorded with `done`
    int64_t *flag, round;  // then this flag is set to `round`
    int reached;  // H2D: all parts are enqueued, and `done` is recorded; D2H: all are in host memory
    int failure;
    int unowned;  // to be freed when reached
    double begun, ended;  // seconds; `ended`: D2H only
} Transfer;

// The copies of one device.
struct Copies {
    Workers* workers;
    Pool* pool;
    Batch* batches[3];  // H2D and D2H transfers, pages to populate
    int threads;  // per direction
    void* stream;  // on which `done` is recorded
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Transfer* orders[2];  // H2D and D2H transfers that are not reached, in order
    int failure;
};

static int (*wait_for_cuda)(void* event);

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// ---- workers

// `each`: workers per direction. `memory`, pinned: SLOTS slots for each H2D worker, and one for each D2H worker, which waits for
// each copy. `streams`: one per worker; `events`: one per slot.
Workers* new_workers(const Driver* driver, int each, char* memory, int64_t slot_bytes, void** streams, void** events)
{
    Workers* workers = zeroed(sizeof *workers + 2 * (size_t)each * sizeof *workers->workers);
    workers->driver = *driver;
    workers->slot_bytes = slot_bytes;
    workers->count = 2 * each;
    wait_for_cuda = driver->wait;
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->freed, NULL);
    for (int i = 0; i < 2 * each; ++i) {
        int out = i >= each, slots = out ? 1 : SLOTS;
        Worker* worker = &workers->workers[i];
        *worker = (Worker){.next = workers->free[out], .memory = memory, .stream = streams[i], .slots = slots};
        workers->free[out] = worker;
        for (int k = 0; k < slots; ++k, memory += slot_bytes) worker->events[k] = *events++;
    }
    return workers;
}

// Call it when no copy uses them.
void free_workers(Workers* workers)
{
    pthread_mutex_destroy(&workers->lock);
    pthread_cond_destroy(&workers->freed);
    free(workers);
}

// A free worker: the one put back last, whose slots are most likely in this thread's cache.
static Worker* take(Workers* workers, int out)
{
    pthread_mutex_lock(&workers->lock);
    while (!workers->free[out]) pthread_cond_wait(&workers->freed, &workers->lock);
    Worker* worker = workers->free[out];
    workers->free[out] = worker->next;
    pthread_mutex_unlock(&workers->lock);
    return worker;
}

static void put_back(Workers* workers, Worker* worker, int out)
{
    pthread_mutex_lock(&workers->lock);
    worker->next = workers->free[out];
    workers->free[out] = worker;
    pthread_cond_broadcast(&workers->freed);
    pthread_mutex_unlock(&workers->lock);
}

// ---- parts

typedef struct {
    int64_t row, column, rows, columns;
} Part;

static Part part_of(const Transfer* transfer, int64_t number)
{
    int64_t row = number / transfer->parts_across * transfer->part_rows;
    int64_t column = number % transfer->parts_across * transfer->part_columns;
    int64_t rows = transfer->matrix.rows - row, columns = transfer->matrix.columns - column;
    if (rows > transfer->part_rows) rows = transfer->part_rows;
    if (columns > transfer->part_columns) columns = transfer->part_columns;
    return (Part){row, column, rows, columns};
}

// Copies one row by ordinary stores, which stay in the cache: a large memcpy may use streaming stores.
static void copy_row(char* to, const char* from, int64_t bytes)
{
    for (; bytes >= LINE; to += LINE, from += LINE, bytes -= LINE) {
        __builtin_prefetch(from + AHEAD, 0, 0);
        memcpy(to, from, LINE);
    }
    memcpy(to, from, (size_t)bytes);
}

// Transposes a part: writes `rows` rows of `columns` elements of `item` bytes (at most LINE), reads columns that are `step` bytes
// apart. Writes whole cache lines.
static inline void transpose(char* to, const char* from, int64_t rows, int64_t columns, int64_t step, int64_t item)
{
    int64_t together = LINE / item;
    for (int64_t j = 0; j < columns; j += together) {
        int64_t some = columns - j < together ? columns - j : together;
        for (int64_t i = 0; i < rows; ++i) {
            char line[LINE];
            const char* at = from + j * step + i * item;
            for (int64_t k = 0; k < some; ++k) memcpy(line + k * item, at + k * step, (size_t)item);
            memcpy(to + (i * columns + j) * item, line, (size_t)(some * item));
        }
    }
}

static void fill(char* slot, const Matrix* of, const Part* part)
{
    const char* from = of->host + part->row * of->row_bytes + part->column * of->column_bytes;
    int64_t width = part->columns * of->item;
    if (of->column_bytes == of->item)
        for (int64_t i = 0; i < part->rows; ++i) copy_row(slot + i * width, from + i * of->row_bytes, width);
    else if (of->item == 8)
        transpose(slot, from, part->rows, part->columns, of->column_bytes, 8);
    else if (of->item == 4)
        transpose(slot, from, part->rows, part->columns, of->column_bytes, 4);
    else if (of->item == 2)
        transpose(slot, from, part->rows, part->columns, of->column_bytes, 2);
    else
        transpose(slot, from, part->rows, part->columns, of->column_bytes, of->item);
}

static void empty(const char* slot, const Matrix* of, const Part* part)
{
    char* to = of->host + part->row * of->row_bytes + part->column * of->item;
    int64_t width = part->columns * of->item;
    for (int64_t i = 0; i < part->rows; ++i) memcpy(to + i * of->row_bytes, slot + i * width, (size_t)width);
}

static int copy_slot(const Driver* driver, const Transfer* transfer, const Part* part, char* slot, void* stream)
{
    const Matrix* of = &transfer->matrix;
    size_t width = (size_t)(part->columns * of->item), rows = (size_t)part->rows;
    char* at = of->device + part->row * of->pitch + part->column * of->item;
    Side in_slot = {.kind = HOST, .host = slot, .pitch = width};
    Side on_device = {.kind = DEVICE, .device = (uint64_t)(uintptr_t)at, .pitch = (size_t)of->pitch};
    Copy copy = transfer->out ? (Copy){on_device, in_slot, width, rows} : (Copy){in_slot, on_device, width, rows};
    return driver->copy(&copy, stream);
}

// ---- transfers

// Records an H2D transfer's `done` after the copies of its workers, and signals other ranks. Called with the lock.
static int join(Copies* copies, Transfer* transfer)
{
    Workers* workers = copies->workers;
    const Driver* driver = &workers->driver;
    int failure = 0;
    for (int i = 0; i < workers->count && !failure; ++i) {
        Worker* worker = &workers->workers[i];
        // This event may be of a later part: its copy runs after this transfer's, on the same stream.
        if (transfer->workers >> i & 1)
            failure = driver->follow(copies->stream, worker->events[__atomic_load_n(&worker->latest, __ATOMIC_RELAXED)], 0);
    }
    if (!failure) failure = driver->record(transfer->matrix.done, copies->stream);
    if (!failure && transfer->ipc_event) failure = driver->record(transfer->ipc_event, copies->stream);
    if (!failure && transfer->flag) __atomic_store_n(transfer->flag, transfer->round, __ATOMIC_RELEASE);
    return failure;
}

// Called with the lock.
static void end_transfer(Transfer* transfer, int failure)
{
    transfer->failure = failure;
    transfer->reached = 1;
    pthread_cond_broadcast(&transfer->of->changed);
    if (transfer->unowned) free(transfer);
}

// Counts a part as done. Transfers are reached in order: a thread that ends the first also ends complete ones after it.
static void end_part(Transfer* transfer, const Worker* worker, int failure)
{
    Copies* copies = transfer->of;
    Transfer** order = &copies->orders[transfer->out];
    pthread_mutex_lock(&copies->lock);
    transfer->workers |= (uint64_t)1 << (worker - copies->workers->workers);
    if (failure && !copies->failure) copies->failure = failure;
    --transfer->left;
    for (Transfer* first; (first = *order) && !first->left;) {
        *order = first->next;
        first->ended = now();
        if (!copies->failure && !first->out) copies->failure = join(copies, first);
        end_transfer(first, copies->failure);
    }
    pthread_mutex_unlock(&copies->lock);
}

// Enters the context. Returns 0, or the first error of the copies.
static int begin_part(Transfer* transfer)
{
    Copies* copies = transfer->of;
    pthread_mutex_lock(&copies->lock);
    int failure = copies->failure;
    if (!transfer->begun) transfer->begun = now();
    pthread_mutex_unlock(&copies->lock);
    return failure ? failure : copies->workers->driver.enter(copies->workers->driver.context);
}

static void copy_part(const void* of_transfer, int64_t number, int64_t end)
{
    (void)end;  // one at a time
    Transfer* transfer = (Transfer*)of_transfer;
    Workers* workers = transfer->of->workers;
    const Driver* driver = &workers->driver;
    Part part = part_of(transfer, number);
    int out = transfer->out, failure = begin_part(transfer);
    Worker* worker = take(workers, out);
    int slot = (worker->latest + 1) % worker->slots;
    char* memory = worker->memory + slot * workers->slot_bytes;
    if (!failure) failure = driver->wait(worker->events[slot]);
    if (!failure && !out) fill(memory, &transfer->matrix, &part);
    if (!failure && !out && transfer->matrix.ready) failure = driver->follow(worker->stream, transfer->matrix.ready, 0);
    if (!failure) failure = copy_slot(driver, transfer, &part, memory, worker->stream);
    if (!failure) failure = driver->record(worker->events[slot], worker->stream);
    if (!failure) __atomic_store_n(&worker->latest, slot, __ATOMIC_RELAXED);
    if (!failure && out) failure = driver->wait(worker->events[slot]);
    if (!failure && out) empty(memory, &transfer->matrix, &part);
    end_part(transfer, worker, failure);  // which may free the transfer
    put_back(workers, worker, out);
}

static int enter_nothing(void* context)
{
    (void)context;
    return 0;
}

// Waits for a transfer's `ready`. If that fails, the transfer still begins, and ends with this error.
static int wait_until_ready(void* of_transfer)
{
    Transfer* transfer = of_transfer;
    const Driver* driver = &transfer->of->workers->driver;
    int failure = driver->enter(driver->context);
    if (!failure) failure = driver->wait(transfer->matrix.ready);
    if (!failure) return 0;
    pthread_mutex_lock(&transfer->of->lock);
    if (!transfer->of->failure) transfer->of->failure = failure;
    pthread_mutex_unlock(&transfer->of->lock);
    return 0;
}

static int have_batches(Copies* copies)
{
    const int threads[] = {copies->threads, copies->threads, POPULATING}, lanes[] = {0, 1, 0};
    int all = 1;
    for (int i = 0; i < 3; ++i) {
        if (!copies->batches[i]) copies->batches[i] = new_batch(copies->pool, threads[i], lanes[i]);
        all &= copies->batches[i] != NULL;
    }
    return all;
}

// `stream`: records H2D transfers' `done`. `threads`: per direction. `links`: GPUs that copy at once.
Copies* new_copies(Pool* pool, Workers* workers, void* stream, int threads, int links)
{
    Copies* copies = zeroed(sizeof *copies);
    *copies = (Copies){.workers = workers, .pool = pool, .threads = threads, .stream = stream};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&copies->lock, NULL);
    pthread_cond_init(&copies->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_lock(&pool->lock);
    // For each GPU: all H2D threads, half as many D2H threads, and two to wait for events of multiplications.
    have_threads(pool, links * (threads + threads / 2 + 2) + POPULATING);
    pthread_mutex_unlock(&pool->lock);
    return copies;
}

// Starts a copy. NULL if no thread can be started.
Transfer* copy(Copies* copies, int out, const Matrix* of)
{
    if (!have_batches(copies)) return NULL;
    int64_t rows = of->rows, columns = of->columns, item = of->item, most = copies->workers->slot_bytes;
    int64_t bytes = rows * columns * item / copies->threads;
    if (bytes < LEAST_PART) bytes = LEAST_PART;
    if (bytes > most) bytes = most;
    if (of->column_bytes == item) {
        if (columns > most / item) columns = most / item;
        rows = bytes / (columns * item);
    } else {
        if (rows > WIDTH / item) rows = WIDTH / item;
        columns = bytes / (rows * item);
        if (columns > of->columns) columns = of->columns;
    }
    if (rows < 1) rows = 1;
    if (columns < 1) columns = 1;
    int64_t across = (of->columns + columns - 1) / columns, parts = (of->rows + rows - 1) / rows * across;
    Transfer* transfer = zeroed(sizeof *transfer);
    *transfer = (Transfer){.of = copies, .out = out, .matrix = *of, .parts_across = across, .left = parts};
    transfer->part_rows = rows;
    transfer->part_columns = columns;
    Batch* batch = copies->batches[out];
    Loop* loop = zeroed(sizeof *loop);
    *loop = (Loop){.batch = batch, .body = copy_part, .operands = transfer, .end = parts, .unit = 1, .most = 1, .freed = 1};
    int waits = out && of->ready;
    if (waits) {
        loop->how = (EventWait){enter_nothing, NULL, wait_until_ready};
        loop->event = transfer;
    }
    pthread_mutex_lock(&copies->lock);
    Transfer** end = &copies->orders[out];
    while (*end) end = &(*end)->next;
    *end = transfer;
    pthread_mutex_unlock(&copies->lock);
    submit(copies->pool, loop, waits ? &batch->lanes[0] : NULL);
    return transfer;
}

// Records an IPC event after an H2D transfer, and then sets this flag to `round`, now or when it is reached. Returns 0 or an error.
int announce(Transfer* transfer, void* ipc_event, int64_t* flag, int64_t round)
{
    Copies* copies = transfer->of;
    int failure = 0;
    pthread_mutex_lock(&copies->lock);
    if (!transfer->reached) {
        transfer->ipc_event = ipc_event;
        transfer->flag = flag;
        transfer->round = round;
    } else {
        failure = transfer->failure ? transfer->failure : copies->workers->driver.record(ipc_event, copies->stream);
        if (!failure) __atomic_store_n(flag, round, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&copies->lock);
    return failure;
}

// Waits until a transfer is reached, up to `milliseconds` (-1: no limit). Returns 0 if it is, an error if it failed, or -1 if not.
int reached(Transfer* transfer, int milliseconds)
{
    Copies* copies = transfer->of;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += milliseconds % 1000 * 1000000L;
    until.tv_sec += milliseconds / 1000 + until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&copies->lock);
    while (!transfer->reached) {
        if (milliseconds < 0)
            pthread_cond_wait(&copies->changed, &copies->lock);
        else if (!milliseconds || pthread_cond_timedwait(&copies->changed, &copies->lock, &until))
            break;
    }
    int found = transfer->reached ? transfer->failure : -1;
    pthread_mutex_unlock(&copies->lock);
    return found;
}

// cuEventSynchronize, also for a transfer, given by its address plus 1: CUDA events have even addresses.
int wait_for_event(void* event)
{
    if (!((uintptr_t)event & 1)) return wait_for_cuda(event);
    Transfer* transfer = (Transfer*)((char*)event - 1);
    int failure = reached(transfer, -1);
    return failure || transfer->out ? failure : wait_for_cuda(transfer->matrix.done);
}

void times(const Transfer* transfer, double* begun, double* ended)
{
    *begun = transfer->begun;
    *ended = transfer->ended;
}

static void populate_pages(const void* address, int64_t first, int64_t end)
{
#ifndef MADV_POPULATE_WRITE
    enum { MADV_POPULATE_WRITE = 23 };
#endif
    for (; first < end; ++first) madvise((char*)address + first * POPULATED, POPULATED, MADV_POPULATE_WRITE);
}

// Prefaults pages that will be written, in the background, so that copies need not wait for page faults.
void populate(Copies* copies, char* memory, int64_t bytes)
{
    char* first = (char*)(((uintptr_t)memory + POPULATED - 1) / POPULATED * POPULATED);
    int64_t parts = (memory + bytes - first) / POPULATED;
    if (parts <= 0 || !have_batches(copies)) return;
    Loop* loop = zeroed(sizeof *loop);
    *loop = (Loop){
        .batch = copies->batches[2], .body = populate_pages, .operands = first, .end = parts, .unit = 1, .most = 1, .freed = 1};
    submit(copies->pool, loop, NULL);
}

// Waits until no thread touches host memory. Call it when all transfers are reached.
void settle(Copies* copies)
{
    for (int i = 0; i < 3; ++i)
        if (copies->batches[i]) wait_for(copies->pool, copies->batches[i]);
    copies->failure = 0;
}

// Cancels all transfers. When this returns, no thread touches host memory, no copy writes to the device, and transfers that were
// not reached have failed. The context must be current.
void give_up(Copies* copies)
{
    for (int i = 0; i < 3; ++i) {
        if (copies->batches[i]) drop(copies->pool, copies->batches[i]);
        copies->batches[i] = NULL;
    }
    Workers* workers = copies->workers;
    for (int i = 0; i < workers->count; ++i)
        for (int k = 0; k < workers->workers[i].slots; ++k) workers->driver.wait(workers->workers[i].events[k]);
    pthread_mutex_lock(&copies->lock);
    for (int i = 0; i < 2; ++i) {
        for (Transfer* first; (first = copies->orders[i]);) {
            copies->orders[i] = first->next;
            end_transfer(first, FAILED);
        }
    }
    copies->failure = 0;
    pthread_mutex_unlock(&copies->lock);
}

// Call it after `give_up`.
void free_copies(Copies* copies)
{
    pthread_mutex_destroy(&copies->lock);
    pthread_cond_destroy(&copies->changed);
    free(copies);
}

// Frees the transfer, now or when it is reached.
void free_transfer(Transfer* transfer)
{
    pthread_mutex_t* lock = &transfer->of->lock;
    pthread_mutex_lock(lock);
    if (transfer->reached)
        free(transfer);
    else
        transfer->unowned = 1;
    pthread_mutex_unlock(lock);
}
