// SPDX-License-Identifier: MIT
// Sums over rows of matrices in host memory, as kernels/check.cu makes them on a GPU: checksums here, Freivalds' check in
// product_check.h. hybrid/devices/row_sums.py has the same in NumPy, as a reference and for machines without a C compiler.
#include <stdint.h>
#include <string.h>

#include "pool.h"
#include "product_check.h"

// ---- checksums

// The bits of an unaligned word, or of an unaligned element of 2 or 4 bytes.
static uint64_t word(const char* at)
{
    uint64_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

static uint64_t element(const char* at, int64_t item_size)
{
    uint64_t bits = 0;  // little-endian
    memcpy(&bits, at, (size_t)item_size);
    return bits;
}

static uint64_t sum_of_words(const char* row, int64_t words, const char* next_row)
{
    int64_t j = 0, left = 8 * words;
    uint64_t sum = 0;
    for (; left >= LINE; j += LINE / 8, left -= LINE) {
        const char* line = row + 8 * j;
        __builtin_prefetch(left > AHEAD ? line + AHEAD : next_row + (AHEAD - left), 0, 1);
        for (int k = 0; k < LINE; k += 8) sum += word(line + k);
    }
    for (; j < words; ++j) sum += word(row + 8 * j);
    return sum;
}

// The sum of elements of 4 or 2 bytes, shifted so that neighbours form a word; the first by `shift` bits.
static uint64_t sum_of_parts(const char* row, int64_t columns, int64_t item_size, int shift, const char* next_row)
{
    int64_t j = 0, per_word = 8 / item_size;
    int bits = (int)(8 * item_size);
    uint64_t sum = 0;
    for (; shift % 64 && j < columns; ++j, shift += bits) sum += element(row + j * item_size, item_size) << shift;
    int64_t words = (columns - j) / per_word;
    sum += sum_of_words(row + j * item_size, words, next_row);
    j += words * per_word;
    for (shift = 0; j < columns; ++j, shift += bits) sum += element(row + j * item_size, item_size) << shift;
    return sum;
}

static uint64_t weighted_sum(const char* row, const uint64_t* weights, int64_t columns, int64_t item_size)
{
    uint64_t sum = 0;
    if (item_size == 8)
        for (int64_t j = 0; j < columns; ++j) sum += word(row + 8 * j) * weights[j];
    else if (item_size == 4)
        for (int64_t j = 0; j < columns; ++j) sum += element(row + 4 * j, 4) * weights[j];
    else
        for (int64_t j = 0; j < columns; ++j) sum += element(row + 2 * j, 2) * weights[j];
    return sum;
}

// The checksum of every `step`-th line of a row, from line `first` on; weighted, or as in `sum_of_parts`.
static uint64_t sum_of_lines(const char* row, int64_t columns, int64_t item_size, int64_t first, int64_t step,
                             const uint64_t* weights, int weighted, int shift)
{
    int64_t of_line = LINE / item_size;
    uint64_t sum = 0;
    for (int64_t j = first * of_line; j < columns; j += step * of_line) {
        const char* line = row + j * item_size;
        int64_t count = columns - j < of_line ? columns - j : of_line;
        if (weighted)
            sum += weighted_sum(line, weights + j, count, item_size);
        else if (count == of_line && !shift)
            for (int k = 0; k < LINE; k += 8) sum += word(line + k);
        else
            for (int64_t k = 0; k < count; ++k) sum += element(line + k * item_size, item_size) << (shift + 8 * item_size * k) % 64;
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
enum { WEIGHTED_ROWS = 32 };  // in one of these rows, elements are multiplied by their columns' weights

// Rows to sum: `from`, from + step, from + 2·step …, of a piece of a matrix. In row i, a line is summed if its number plus i plus
// `first_line` is a multiple of `lines`.
typedef struct {
    Loop loop;
    Rows rows;
    int64_t from, step;
    const uint64_t* weights;
    uint64_t* sums;  // of all rows of the piece
    uint64_t number;  // of the piece's first row
    uint64_t* total;  // of the rows' checksums, each mixed with the row's number
    int64_t lines, first_line;
    int64_t column_bytes;  // column stride: item_size, or more if the matrix is a transpose
} Checksums;

// Adds one column's elements in summed lines to the sums of some rows: `sum_of_lines`, column by column.
static INLINE void add_column(const Checksums* of, int64_t j, int64_t first, int64_t end, int64_t item_size)
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

// `sum_bits` of a transposed matrix, in memory order.
static void sum_bits_by_columns(const void* of_checksums, int64_t first, int64_t end)
{
    const Checksums* of = of_checksums;
    uint64_t total = 0;
    memset(of->sums + first, 0, (size_t)(end - first) * sizeof *of->sums);
    for (int64_t j = 0; j < of->rows.columns; ++j)
        if (of->rows.item_size == 8)
            add_column(of, j, first, end, 8);
        else if (of->rows.item_size == 4)
            add_column(of, j, first, end, 4);
        else
            add_column(of, j, first, end, 2);
    for (int64_t i = first; i < end; ++i) total += mixed(of->sums[i], of->number + (uint64_t)i);
    __atomic_fetch_add(of->total, total, __ATOMIC_RELAXED);
}

static void sum_bits(const void* of_checksums, int64_t first, int64_t end)
{
    const Checksums* of = of_checksums;
    int64_t columns = of->rows.columns, item_size = of->rows.item_size;
    int shift = columns ? __builtin_ctzll(of->weights[0]) : 0;  // a weight is an odd number, shifted
    uint64_t total = 0;
    for (int64_t i = of->from + first * of->step, k = first; k < end; ++k, i += of->step) {
        const char *row = of->rows.elements + i * of->rows.row_bytes, *next_row = row + of->step * of->rows.row_bytes;
        uint64_t sum, number = of->number + (uint64_t)i;
        if (of->lines > 1)
            sum = sum_of_lines(row, columns, item_size, (of->lines - (i + of->first_line) % of->lines) % of->lines, of->lines,
                               of->weights, i % WEIGHTED_ROWS == 0, shift);
        else if (i % WEIGHTED_ROWS == 0)
            sum = weighted_sum(row, of->weights, columns, item_size);
        else if (item_size == 8)
            sum = sum_of_words(row, columns, next_row);
        else
            sum = sum_of_parts(row, columns, item_size, shift, next_row);
        if (of->step > 1) total -= mixed(of->sums[i], number);  // `sum_again`: replace the earlier sum
        total += mixed(sum, number);
        of->sums[i] = sum;
    }
    __atomic_fetch_add(of->total, total, __ATOMIC_RELAXED);
}

// Enqueues the rows of a piece, to be summed after this event of a lane, or at once if `how` is NULL. Returns 0, or 1 without
// memory.
int put(Pool* pool, Batch* batch, int64_t column_bytes, const void* first_row, int64_t rows, int64_t columns, int64_t row_bytes,
        int64_t item_size, const uint64_t* weights, uint64_t* sums, uint64_t number, uint64_t* total, int64_t lines,
        int64_t first_line, const EventWait* how, void* event, int lane)
{
    if (!rows) return 0;
    Checksums* of = malloc(sizeof *of);
    if (!of) return 1;
    int64_t together = 1 + lines * BYTES_AT_ONCE / (columns * item_size + 1);  // fixed: smaller parts would contend for the lock
    int by_columns = column_bytes != item_size;
    if (by_columns) together = ROWS_BY_COLUMNS;
    Loop loop = {.batch = batch, .operands = of, .end = rows, .unit = together, .most = together, .freed = 1};
    loop.body = by_columns ? sum_bits_by_columns : sum_bits;
    if (how) {
        loop.how = *how;
        loop.event = event;
    }
    *of = (Checksums){
        loop, {first_row, columns, row_bytes, item_size}, 0, 1, weights, sums, number, total, lines, first_line, column_bytes};
    pthread_mutex_lock(&pool->lock);
    batch->left += rows;
    int wakes = enqueue(pool, &of->loop, how ? &batch->lanes[lane % LANES] : NULL);
    pthread_mutex_unlock(&pool->lock);
    if (wakes) pthread_cond_signal(&pool->work);
    return 0;
}

// Sums one of `step` rows again, of a piece that has been summed.
void sum_again(int64_t column_bytes, const void* first_row, int64_t rows, int64_t columns, int64_t row_bytes, int64_t item_size,
               const uint64_t* weights, uint64_t* sums, uint64_t number, uint64_t* total, int64_t lines, int64_t first_line,
               int64_t step)
{
    int64_t from = rows > 1;  // without the first row: weighted, it would take longer than all the rest
    Checksums of = {
        {0}, {first_row, columns, row_bytes, item_size}, from, step, weights, sums, number, total, lines, first_line, column_bytes};
    if (column_bytes == item_size)
        sum_bits(&of, 0, (rows - from + step - 1) / step);
    else
        for (int64_t i = from; i < rows; i += step) {
            *total -= mixed(sums[i], number + (uint64_t)i);
            sum_bits_by_columns(&of, i, i + 1);
        }
}
