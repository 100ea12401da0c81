// SPDX-License-Identifier: MIT
// Sums over the rows of matrices in host memory, as kernels/check.cu makes them on a GPU: checksums of rows, sums of groups of
// columns, their comparison with the expected ones, and A·(B·x). hybrid/devices/row_sums.py has the same in NumPy, as reference
// and where there is no C compiler.
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "pool.h"

// The bytes that one instruction takes, and the rows of a product whose sums stay in registers.
#ifdef __AVX512F__
enum { VECTOR_BYTES = 64, ROWS = 12 };
#elif defined __AVX__
enum { VECTOR_BYTES = 32, ROWS = 6 };
#else
enum { VECTOR_BYTES = 16, ROWS = 6 };
#endif
typedef double Vector __attribute__((vector_size(VECTOR_BYTES)));
typedef double InMemory __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(double)), may_alias));  // anywhere in an array

enum { WIDTH = VECTOR_BYTES / sizeof(double), COLUMNS = 2 * WIDTH };  // numbers in a vector; columns whose sums stay in registers
// The terms of a sum before it is added to the others (sums of few terms are more accurate), the elements of a row for which
// everything stays in a core's first cache, and the rows for which the right operand is read once, a multiple of ROWS.
enum { TERMS = 128, BLOCK = 256, ROWS_AT_ONCE = 72 };
enum { LINE = 64, AHEAD = 4096 };  // bytes: how far ahead a row is asked for, since hardware stops to do so at every page
enum { CHUNK = 64 };  // groups that are compared together
enum { BYTES_AT_ONCE = 1 << 20 };  // of rows that a thread takes: few enough that all end together, too many for the lock to matter

static const double LEAST_SQUARE = 1e-280,
                    MOST_SQUARE = 1e280;  // between these, sums of squares have neither over- nor underflowed
static const double NOT_INTEGRAL = 1e300, NOT_JUDGED = -1;

const int columns_together = COLUMNS;

// Rows of elements, of float or double.
typedef struct {
    const char* elements;
    int64_t columns, row_bytes, item_size;
} Rows;

// What elements are like. After the first that is no integer, they are looked at no more.
typedef struct {
    double largest;  // magnitude
    int64_t integral;  // whether all elements are integers; infinity counts as one
} Look;

// ---- checksums

// The bits of a word, and of an element of 2 or 4 bytes, which need not be aligned.
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

// The sum of elements of 4 or 2 bytes, which are shifted so that neighbours form a word; the first one by `shift` bits.
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

// The checksum of each `step`-th line of a row, from line `first` on; weighted, or as `sum_of_parts` computes it.
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
            for (int64_t k = 0; k < count; ++k)
                sum += element(line + k * item_size, item_size) << (shift + 8 * item_size * k) % 64;
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

enum { WEIGHTED_ROWS = 32 };  // in one of so many rows, elements are multiplied by their columns' weights

// Rows to be summed: `from`, from + step, from + 2·step …, of a piece of a matrix. Of row i those lines are summed whose number plus i
// plus `first_line` is a multiple of `lines`.
typedef struct {
    Loop loop;
    Rows rows;
    int64_t from, step;
    const uint64_t* weights;
    uint64_t* sums;  // of all rows of the piece
    uint64_t number;  // of the piece's first row
    uint64_t* total;  // of the rows' checksums, each mixed with the row's number
    int64_t lines, first_line;
} Checksums;

static void sum_bits(const void* of_checksums, int64_t first, int64_t end)
{
    const Checksums* of = of_checksums;
    int64_t columns = of->rows.columns, item_size = of->rows.item_size;
    int shift = columns ? __builtin_ctzll(of->weights[0]) : 0;  // a column's weight is odd, but for the shift
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
        if (of->step > 1) total -= mixed(of->sums[i], number);  // these rows have been summed before
        total += mixed(sum, number);
        of->sums[i] = sum;
    }
    __atomic_fetch_add(of->total, total, __ATOMIC_RELAXED);
}

// Has the rows of a piece summed, after this event of a lane; where `how` is NULL, at once. Returns 0, or 1 if there is no memory.
int put(Pool* pool, Batch* batch, const void* first_row, int64_t rows, int64_t columns, int64_t row_bytes, int64_t item_size,
        const uint64_t* weights, uint64_t* sums, uint64_t number, uint64_t* total, int64_t lines, int64_t first_line,
        const EventWait* how, void* event, int lane)
{
    if (!rows) return 0;
    Checksums* of = malloc(sizeof *of);
    if (!of) return 1;
    // Always as many, since the lock matters where parts are smaller. What is sampled is mostly one part.
    int64_t together = 1 + (lines > 1 ? 2 * lines : 1) * BYTES_AT_ONCE / (columns * item_size + 1);
    Loop loop = {.batch = batch, .body = sum_bits, .operands = of, .end = rows, .unit = together, .most = together, .freed = 1};
    if (how) {
        loop.how = *how;
        loop.event = event;
    }
    *of = (Checksums){loop, {first_row, columns, row_bytes, item_size}, 0, 1, weights, sums, number, total, lines, first_line};
    pthread_mutex_lock(&pool->lock);
    batch->left += rows;
    int wakes = enqueue(pool, &of->loop, how ? &batch->lanes[lane % LANES] : NULL);
    pthread_mutex_unlock(&pool->lock);
    if (wakes) pthread_cond_signal(&pool->work);
    return 0;
}

// Sums again one of `step` rows of a piece that has been summed.
void sum_again(const void* first_row, int64_t rows, int64_t columns, int64_t row_bytes, int64_t item_size, const uint64_t* weights,
               uint64_t* sums, uint64_t number, uint64_t* total, int64_t lines, int64_t first_line, int64_t step)
{
    int64_t from = rows > 1;  // the first row has weights: it takes longer than all the rest
    Checksums of = {{0}, {first_row, columns, row_bytes, item_size}, from, step, weights, sums, number, total, lines, first_line};
    sum_bits(&of, 0, (rows - from + step - 1) / step);
}

// ---- sums of groups of columns

// `count` elements of a row, from column `first` on, as doubles: where they lie, or in `buffer`.
static const double* doubles(const Rows* rows, int64_t i, int64_t first, int64_t count, double* buffer)
{
    const char* row = rows->elements + i * rows->row_bytes + first * rows->item_size;
    if (rows->item_size == sizeof(double)) return (const double*)row;
    const float* floats = (const float*)row;
    for (int64_t j = 0; j < count; ++j) buffer[j] = floats[j];
    return buffer;
}

static double total_of(Vector sums)
{
    double numbers[WIDTH], total = 0;
    memcpy(numbers, &sums, sizeof numbers);
    for (int k = 0; k < WIDTH; ++k) total += numbers[k];
    return total;
}

// Adds the sum of x[j]·values[j] and that of their squares; without x those of values[j].
static inline void add_terms(const double* values, const double* x, int64_t count, double* sum, double* square)
{
    Vector sums[2] = {0}, squares[2] = {0};
    int64_t j = 0;
    for (; j + 2 * WIDTH <= count; j += 2 * WIDTH) {
        for (int k = 0; k < 2; ++k) {
            Vector term = *(const InMemory*)&values[j + k * WIDTH];
            if (x) term *= *(const InMemory*)&x[j + k * WIDTH];
            sums[k] += term;
            squares[k] += term * term;
        }
    }
    *sum += total_of(sums[0] + sums[1]);
    *square += total_of(squares[0] + squares[1]);
    for (; j < count; ++j) {
        double term = x ? values[j] * x[j] : values[j];
        *sum += term;
        *square += term * term;
    }
}

static void look_at(const double* values, int64_t count, Look* look)
{
    double largest = look->largest;
    int fractions = 0;
    for (int64_t j = 0; j < count; ++j) {
        double size = fabs(values[j]);
        largest = size > largest ? size : largest;
        fractions |= rint(values[j]) != values[j];  // NaN is no integer
    }
    look->largest = largest;
    if (fractions) look->integral = 0;
}

// Whether a part of a loop has to look at its elements.
static int looks(const Look* look) { return look && __atomic_load_n(&look->integral, __ATOMIC_RELAXED); }

static void merge(Pool* pool, Look* into, const Look* look)
{
    pthread_mutex_lock(&pool->lock);
    if (look->largest > into->largest) into->largest = look->largest;
    if (!look->integral) __atomic_store_n(&into->integral, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&pool->lock);
}

// What sums are compared with, beside the expected ones: `compare` of row_sums.py explains it.
typedef struct {
    const double *norms_a, *norms_b, *flushed,
        *overflow;  // of each row; of each group, for each `rows_together` rows; of each group
    int64_t rows_together;
    double deviation, per_term, flushed_of_a;
    int64_t integral;  // whether elements with a fraction are wrong
} Comparison;

// One call of `group_sums`, `compare` or `products`.
typedef struct {
    Pool* pool;
    const Rows* rows;
    const double* x;
    int64_t group, groups;
    double *sums, *squares;
    Look* look;
    const Comparison* with;
    const double* y;  // the right operand: COLUMNS of its columns at a time, those behind its last ones of zeros
} Call;

// The sums of a row's group, and what its elements are like. At the end of the row the next one is asked for.
static void sum_group(const Call* call, int64_t i, int64_t g, double* sum, double* square, Look* look)
{
    const Rows* rows = call->rows;
    double buffer[BLOCK];
    int64_t end = (g + 1) * call->group < rows->columns ? (g + 1) * call->group : rows->columns;
    *sum = *square = 0;
    for (int64_t j = g * call->group; j < end; j += BLOCK) {
        int64_t count = end - j < BLOCK ? end - j : BLOCK;
        const char *at = rows->elements + i * rows->row_bytes + j * rows->item_size, *last = at + count * rows->item_size;
        const char* end_of_row = rows->elements + i * rows->row_bytes + rows->columns * rows->item_size;
        for (; at < last; at += LINE) {
            __builtin_prefetch(at + AHEAD < end_of_row ? at + AHEAD
                                                       : at + AHEAD + (rows->row_bytes - rows->columns * rows->item_size));
        }
        const double* values = doubles(rows, i, j, count, buffer);
        add_terms(values, call->x + j, count, sum, square);
        if (look && look->integral) look_at(values, count, look);
    }
}

static void sum_rows(const void* of_call, int64_t first, int64_t end)
{
    const Call* call = of_call;
    Look look = {0, 1};
    int looks_at = looks(call->look);
    for (int64_t i = first; i < end; ++i) {
        for (int64_t g = 0, k = i * call->groups; g < call->groups; ++g, ++k) {
            sum_group(call, i, g, &call->sums[k], &call->squares[k], looks_at ? &look : NULL);
        }
    }
    if (looks_at) merge(call->pool, call->look, &look);
}

// Replaces the expected sums of some of a row's groups, from `first` on, by the sizes of their differences.
static void compare_groups(const Call* call, int64_t i, int64_t first, int64_t groups, const double* sums, const double* squares)
{
    const Comparison* with = call->with;
    const double *norms_b = with->norms_b + i / with->rows_together * call->groups + first, *flushed = with->flushed + first;
    const double* overflow = with->overflow + first;
    double norm_a = with->norms_a[i], *sizes = call->sums + i * call->groups + first;
    for (int64_t g = 0; g < groups; ++g) {
        double norm_b = norms_b[g], both = norm_a * norm_b, difference = fabs(sums[g] - sizes[g]);
        int is_zero = ((norm_a == 0) & (norm_b <= INFINITY)) | ((norm_b == 0) & (norm_a <= INFINITY));
        both = is_zero ? 0 : both;  // 0 times what overflowed is 0
        double part = sqrt(squares[g]) / both;
        int in_range = (squares[g] == 0) | ((squares[g] > LEAST_SQUARE) & (squares[g] < MOST_SQUARE));
        part = in_range & (part < 1) ? part : 1;
        double lost = flushed[g] * (1 + norm_a) + with->flushed_of_a * norm_b;
        double size = difference / (sqrt(part * part + with->per_term) * both * with->deviation + lost);
        size = size <= NOT_INTEGRAL ? size : NOT_INTEGRAL;
        size = difference != 0 ? size : 0;
        sizes[g] = both < overflow[g] ? size : NOT_JUDGED;
    }
}

static void compare_rows(const void* of_call, int64_t first, int64_t end)
{
    const Call* call = of_call;
    for (int64_t i = first; i < end; ++i) {
        for (int64_t g = 0; g < call->groups; g += CHUNK) {
            double sums[CHUNK], squares[CHUNK];
            int64_t some = call->groups - g < CHUNK ? call->groups - g : CHUNK;
            for (int64_t k = 0; k < some; ++k) {
                Look look = {0, 1};
                sum_group(call, i, g + k, &sums[k], &squares[k], call->with->integral ? &look : NULL);
                if (!look.integral) sums[k] = INFINITY;
            }
            compare_groups(call, i, g, some, sums, squares);
        }
    }
}

// For the rows from `first` to `end` - 1 and each group of columns: the sum of the terms x[j]·row[j], and that of their
// squares. `look`: NULL, or what the elements are like, to be continued. `with`: NULL, or `sums` are the expected ones, which
// are replaced by the sizes of their differences from the rows'.
void group_sums(Pool* pool, int threads, const Rows* rows, const double* x, int64_t group, double* sums, double* squares,
                Look* look, const Comparison* with, int64_t first, int64_t end)
{
    Call call = {pool, rows, x, group, (rows->columns + group - 1) / group, sums, squares, look, with, NULL};
    int64_t most = 1 + BYTES_AT_ONCE / (rows->columns * rows->item_size + 1);
    run_loop(pool, threads, first, end, 1, most, with ? compare_rows : sum_rows, &call);
}

// ---- A·(B·x)

// product[r, w] += the sum of values[r, j]·y[j, w] for `rows` rows of BLOCK elements, of which the first `terms` count. `y`:
// from the first of these terms on, COLUMNS of its columns at a time, which are `next_columns` numbers apart.
static void add_product(double values[ROWS][BLOCK], int64_t rows, int64_t terms, const double* y, int64_t next_columns,
                        int64_t width, double* product)
{
    for (int64_t w = 0; w < width; w += COLUMNS, y += next_columns) {
        int64_t columns = width - w < COLUMNS ? width - w : COLUMNS;
        for (int64_t first = 0; first < terms; first += TERMS) {
            int64_t last = first + TERMS < terms ? first + TERMS : terms;
            Vector sums[ROWS][COLUMNS / WIDTH] = {0};
            for (int64_t j = first; j < last; ++j) {
                const InMemory* of_y = (const InMemory*)&y[j * COLUMNS];
                for (int r = 0; r < ROWS; ++r) {
                    for (int k = 0; k < COLUMNS / WIDTH; ++k) sums[r][k] += values[r][j] * of_y[k];
                }
            }
            double of_terms[ROWS][COLUMNS];
            for (int r = 0; r < ROWS; ++r) {  // memcpy of all would keep the sums in memory
                for (int k = 0; k < COLUMNS / WIDTH; ++k) *(InMemory*)&of_terms[r][k * WIDTH] = sums[r][k];
            }
            for (int64_t r = 0; r < rows; ++r) {
                for (int64_t k = 0; k < columns; ++k) product[r * width + w + k] += of_terms[r][k];
            }
        }
    }
}

static void multiply_rows(const void* of_call, int64_t from, int64_t to)
{
    const Call* call = of_call;
    const Rows* rows = call->rows;
    int64_t columns = rows->columns, width = call->groups;
    double values[ROWS][BLOCK] = {0}, buffer[BLOCK], unused = 0, *product = call->sums, *squares = call->squares;
    Look look = {0, 1};
    int looks_at = looks(call->look);
    memset(product + from * width, 0, (size_t)((to - from) * width) * sizeof *product);
    memset(squares + from, 0, (size_t)(to - from) * sizeof *squares);
    for (int64_t here = from; here < to; here += ROWS_AT_ONCE) {
        int64_t end = to - here < ROWS_AT_ONCE ? to : here + ROWS_AT_ONCE;
        for (int64_t first = 0; first < columns; first += BLOCK) {
            int64_t terms = columns - first < BLOCK ? columns - first : BLOCK;
            for (int64_t i = here; i < end; i += ROWS) {
                int64_t some = end - i < ROWS ? end - i : ROWS;
                for (int64_t r = 0; r < some; ++r) {
                    const char* row = rows->elements + (i + r) * rows->row_bytes;
                    // Processors fetch ahead while a row is read on, which this one is only after BLOCK elements of each other row.
                    for (int64_t j = first + BLOCK; j < first + 2 * BLOCK && j < columns; j += LINE / rows->item_size) {
                        __builtin_prefetch(row + j * rows->item_size);
                    }
                    const double* of_row = doubles(rows, i + r, first, terms, buffer);
                    memcpy(values[r], of_row, (size_t)terms * sizeof *of_row);
                    add_terms(of_row, NULL, terms, &unused, &squares[i + r]);
                    if (looks_at && look.integral) look_at(of_row, terms, &look);
                }
                add_product(values, some, terms, call->y + first * COLUMNS, columns * COLUMNS, width, product + i * width);
            }
        }
    }
    if (looks_at) merge(call->pool, call->look, &look);
}

// product = the rows times y, with `width` columns; of each row the sum of squares, and `look`, as above. `y`: COLUMNS of its
// columns at a time.
void products(Pool* pool, int threads, const Rows* rows, const double* y, int64_t width, double* product, double* squares,
              Look* look, int64_t first, int64_t end)
{
    Call call = {pool, rows, NULL, 0, width, product, squares, look, NULL, y};
    run_loop(pool, threads, first, end, ROWS, ROWS_AT_ONCE, multiply_rows, &call);
}
