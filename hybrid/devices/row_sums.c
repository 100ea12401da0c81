// SPDX-License-Identifier: MIT
// Sums over rows of matrices in host memory, as kernels/check.cu makes them on a GPU: checksums here, Freivalds' check in
// product_check.h. hybrid/devices/row_sums.py has the same in NumPy, as a reference and for machines without a C compiler.
#include <stdint.h>
#include <string.h>

#include "pool.h"
#include "product_check.h"

// ---- checksums

enum { WEIGHTED_ROWS = 32 };  // in one of these rows, elements are multiplied by their columns' weights

// The bits of an unaligned element of 2, 4 or 8 bytes.
static INLINE uint64_t element(const char* at, int64_t item_size)
{
    uint64_t bits = 0;  // little-endian
    memcpy(&bits, at, (size_t)item_size);
    return bits;
}

// The sum of elements times their weights, or times the weights' lowest set bits, which shift elements of 4 or 2 bytes so that
// neighbours form a word.
static INLINE uint64_t sum_of_some(const char* at, const uint64_t* weights, int64_t count, int64_t item_size, int weighted)
{
    uint64_t sum = 0;
    for (int64_t j = 0; j < count; ++j)
        sum += element(at + j * item_size, item_size) * (weighted ? weights[j] : weights[j] & -weights[j]);
    return sum;
}

static uint64_t sum_of_elements(const char* at, const uint64_t* weights, int64_t count, int64_t item_size, int weighted)
{
    if (item_size == 8) return sum_of_some(at, weights, count, 8, weighted);
    if (item_size == 4) return sum_of_some(at, weights, count, 4, weighted);
    return sum_of_some(at, weights, count, 2, weighted);
}

// Rows to sum, of a piece of a matrix. In row i, a line is summed if its number plus i plus `first_line` is a multiple of `lines`.
typedef struct {
    Rows rows;
    int64_t column_bytes;  // column stride: item_size, or more if the matrix is a transpose
    int64_t count;  // of rows
    const uint64_t* weights;
    uint64_t *sums, *total;  // of each row, and of their sums, each mixed with the row's number
    uint64_t number;  // of the first row
    int64_t lines, first_line;
} Piece;

// The checksum of row i. One row of WEIGHTED_ROWS is weighted.
static uint64_t sum_of_row(const Piece* of, int64_t i)
{
    const int64_t item_size = of->rows.item_size, of_line = LINE / item_size, columns = of->rows.columns;
    const char* row = of->rows.elements + i * of->rows.row_bytes;
    int weighted = i % WEIGHTED_ROWS == 0;
    uint64_t sum = 0;
    int64_t gap = of->rows.row_bytes - columns * item_size;  // to the next row
    int64_t j = (of->lines - (i + of->first_line) % of->lines) % of->lines * of_line;
    if (of->lines == 1) {
        if (weighted) return sum_of_elements(row, of->weights, columns, item_size, weighted);
        while (j < columns && !(of->weights[j] & 1)) ++j;  // up to the first element that begins a word
        sum = sum_of_elements(row, of->weights, j, item_size, weighted);
    }
    for (int in_words = !weighted && j < columns && of->weights[j] & 1; j < columns; j += of->lines * of_line) {
        const char* line = row + j * item_size;
        int64_t left = columns - j;
        if (of->lines == 1) __builtin_prefetch(line + AHEAD + (left * item_size > AHEAD ? 0 : gap), 0, 1);
        if (in_words && left >= of_line)
            for (int k = 0; k < LINE; k += 8) sum += element(line + k, 8);
        else
            sum += sum_of_elements(line, of->weights + j, left < of_line ? left : of_line, item_size, weighted);
    }
    return sum;
}

// A row's checksum mixed with the row's number, by the finalizer of SplitMix64.
static uint64_t mixed(uint64_t checksum, uint64_t number)
{
    uint64_t bits = checksum + number * 0x9E3779B97F4A7C15;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
    return bits ^ (bits >> 31);
}

enum { COLUMNS_AHEAD = 4 };
enum { ROWS_BY_COLUMNS = 512 };  // rows of a transposed matrix that are summed together: 4 KiB of each column

// Adds one column's elements in summed lines to the sums of some rows.
static INLINE void add_column(const Piece* of, int64_t j, int64_t first, int64_t end, int64_t item_size)
{
    const char* column = of->rows.elements + j * of->column_bytes;
    int64_t row_bytes = of->rows.row_bytes, lines = of->lines, line = j * item_size / LINE + of->first_line;
    uint64_t weight = of->weights[j];
    int shift = __builtin_ctzll(weight);
    for (int64_t i = first + (lines - (line + first) % lines) % lines; i < end; i += lines) {
        __builtin_prefetch(column + i * row_bytes + COLUMNS_AHEAD * of->column_bytes, 0, 1);
        of->sums[i] += element(column + i * row_bytes, item_size) << shift;
    }
    if (line % lines) return;  // WEIGHTED_ROWS is a multiple of `lines`
    for (int64_t i = (first + WEIGHTED_ROWS - 1) / WEIGHTED_ROWS * WEIGHTED_ROWS; i < end; i += WEIGHTED_ROWS)
        of->sums[i] += element(column + i * row_bytes, item_size) * (weight - ((uint64_t)1 << shift));
}

// `sum_of_row` for rows first..end-1 of a transposed matrix, in memory order.
static void sum_by_columns(const Piece* of, int64_t first, int64_t end)
{
    memset(of->sums + first, 0, (size_t)(end - first) * sizeof *of->sums);
    for (int64_t j = 0; j < of->rows.columns; ++j)
        if (of->rows.item_size == 8)
            add_column(of, j, first, end, 8);
        else if (of->rows.item_size == 4)
            add_column(of, j, first, end, 4);
        else
            add_column(of, j, first, end, 2);
}

static void sum_bits(const void* of_piece, int64_t first, int64_t end)
{
    const Piece* of = of_piece;
    uint64_t total = 0;
    int by_columns = of->column_bytes != of->rows.item_size;
    if (by_columns) sum_by_columns(of, first, end);
    for (int64_t i = first; i < end; ++i) {
        if (!by_columns) of->sums[i] = sum_of_row(of, i);
        total += mixed(of->sums[i], of->number + (uint64_t)i);
    }
    __atomic_fetch_add(of->total, total, __ATOMIC_RELAXED);
}

// Enqueues the rows of a piece, to be summed after this event of a lane, or at once if `how` is NULL.
void put(Pool* pool, Batch* batch, const Piece* piece, const EventWait* how, void* event, int lane)
{
    typedef struct {
        Loop loop;
        Piece piece;
    } Work;  // freed together
    if (!piece->count) return;
    Work* work = zeroed(sizeof *work);
    // Fixed: smaller parts would contend for the lock.
    int64_t together = 1 + piece->lines * BYTES_AT_ONCE / (piece->rows.columns * piece->rows.item_size + 1);
    if (piece->column_bytes != piece->rows.item_size) together = ROWS_BY_COLUMNS;
    work->piece = *piece;
    work->loop = (Loop){.batch = batch, .body = sum_bits, .operands = &work->piece, .end = piece->count, .freed = 1};
    work->loop.unit = work->loop.most = together;
    if (how) {
        work->loop.how = *how;
        work->loop.event = event;
    }
    submit(pool, &work->loop, how ? &batch->lanes[lane % LANES] : NULL);
}

// Sums one of `step` rows of a piece again.
void sum_again(const Piece* piece, int64_t step)
{
    for (int64_t i = piece->count > 1; i < piece->count; i += step) {  // not the first row: weighted, it would take longest
        *piece->total -= mixed(piece->sums[i], piece->number + (uint64_t)i);
        sum_bits(piece, i, i + 1);
    }
}
