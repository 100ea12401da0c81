// SPDX-License-Identifier: MIT
// What group_sums.py and comparison.py compute of rows in host memory. NumPy needs a dozen calls for it, each of which writes
// temporary arrays and waits for Python's GIL in the end, so that many threads would wait for each other; this is one call at the
// memory's rate, whose threads never want the GIL.
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "loop_pool.h"

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
typedef double Pair __attribute__((vector_size(16)));

enum { WIDTH = VECTOR_BYTES / sizeof(double), LANES = 8 };  // numbers in a vector, and those that a loop looks at in turn
// The columns whose sums stay in registers, the terms of a sum before it is added to the others (sums of few terms are more
// accurate), the terms for which a part of the right operand stays in a core's first cache, and the rows for which all of it is read
// once, a multiple of ROWS.
enum { COLUMNS = 2 * WIDTH, TERMS = 128, BLOCK = 256, ROWS_AT_ONCE = 72 };
enum { CACHE_LINE = 64, AHEAD = 4096 };  // bytes: how far ahead a row is asked for, since hardware stops to do so at every page
enum { CHUNK = 64 };  // groups that are compared together
enum { BYTES_AT_ONCE = 1 << 20 };  // of rows that a thread takes at most

static const double UNDERFLOWN = DBL_MIN;  // a sum of squares that were too small to count
static const double LEAST_SQUARE = 1e-280, MOST_SQUARE = 1e280;  // as _SQUARES of group_sums.py
static const double MOST_SIZE = 1e300, MOST_IN_TOTAL = 4, MOST_KEPT = 1e30;  // NOT_INTEGRAL and others of comparison.py

const int columns_together = COLUMNS;

// Rows of elements. `row_length`: elements from one row to the next.
typedef struct {
    const void* elements;
    int64_t columns, row_length;
} Rows;

// What rows of elements are like. After the first element that is no integer, they are looked at no more.
typedef struct {
    double largest;  // magnitude
    int64_t integral;  // whether all elements are integers; infinity counts as one
} Look;

// What sums of C's rows are compared with, and what is found. Of each row: the total of the sizes, how many are not 0, the largest
// and its group, how many sums are not judged. A row whose squares may have overflowed or underflowed gets NOT_COMPARED as a total.
typedef struct {
    const double *sums, *norms_a, *norms_b;  // of A·(B·x), of A's rows, and of B's groups
    double deviation, per_term, flushed, overflow;
    int64_t integral;  // whether elements with a fraction are wrong
    float* kept;  // NULL, or where all sizes go
    int64_t kept_length;
    double (*found)[5];
} Comparison;

static const double NOT_COMPARED = -1;

// One call of a function below: its operands, and what it makes.
typedef struct {
    LoopPool* pool;
    const Rows* matrix;
    const double* x;
    int64_t group, together;
    double *sums, *squares;
    Look* look;
    const double* y;  // the right operand: COLUMNS of its columns at a time, those behind its last ones of zeros
    int64_t width;  // of its columns
    const Comparison* comparison;
} Call;

static double total(Vector sums)
{
    enum { PAIRS = VECTOR_BYTES / sizeof(Pair) };
    Pair pairs[PAIRS];
    memcpy(pairs, &sums, sizeof pairs);
    for (int count = PAIRS / 2; count; count /= 2) {
        for (int k = 0; k < count; ++k) pairs[k] += pairs[k + count];
    }
    return pairs[0][0] + pairs[0][1];
}

static void merge(LoopPool* pool, Look* into, const Look* look)
{
    pthread_mutex_lock(&pool->lock);
    if (look->largest > into->largest) into->largest = look->largest;
    if (!look->integral) __atomic_store_n(&into->integral, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&pool->lock);
}

// Whether a part of a loop has to look at its elements.
static int looks(const Look* look) { return look && __atomic_load_n(&look->integral, __ATOMIC_RELAXED); }

// product[r, w] += the sum of values[r, j]·y[j, w] for `rows` rows of BLOCK elements, of which the first `terms` count. `y`: from the
// first of these terms on, COLUMNS of its columns at a time, which are `next_columns` numbers apart.
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

// Whether no sum of squares has overflowed or lost what counts to underflow.
static int are_sure(const double* squares, int64_t groups)
{
    int64_t sure = 0;
    for (int64_t g = 0; g < groups; ++g) {
        sure += (squares[g] == 0) | ((squares[g] > LEAST_SQUARE) & (squares[g] < MOST_SQUARE));
    }
    return sure == groups;
}

// Replaces the sums of some of a row's groups, from `first` on, by their sizes, as `sizes` of comparison.py does, and adds them to
// what is found of the row. `in_row`: the groups of a row.
static void add_sizes(const Comparison* with, int64_t row, int64_t in_row, int64_t first, int64_t groups, const double* squares,
                      double* sums, double* found)
{
    const double *expected = with->sums + row * in_row + first, *norms_b = with->norms_b + first;
    double norm_a = with->norms_a[row], deviation = with->deviation, per_term = with->per_term, overflow = with->overflow;
    double flushed = with->flushed, *sizes = sums;
    int64_t judged = 0, counted = 0;
    for (int64_t g = 0; g < groups; ++g) {
        double norm_b = norms_b[g], both = norm_a * norm_b, difference = fabs(sums[g] - expected[g]);
        int is_zero = ((norm_a == 0) & (norm_b <= INFINITY)) | ((norm_b == 0) & (norm_a <= INFINITY));
        both = is_zero ? 0 : both;  // 0 times what overflowed is 0
        double part = sqrt(squares[g]) / both;
        part = part < 1 ? part : 1;  // no part of C is larger, unless it is wrong
        double size = difference / (sqrt(part * part + per_term) * both * deviation + flushed * (1 + norm_a + norm_b));
        int is_judged = both < overflow;  // else A·B may overflow, or holds NaN or infinities
        int counts = is_judged & (difference != 0);
        judged += is_judged;
        counted += counts;
        size = size <= MOST_SIZE ? size : MOST_SIZE;
        sizes[g] = counts ? size : 0;
    }
    for (int64_t g = 0; g < groups; ++g) {
        found[0] += sizes[g] < MOST_IN_TOTAL ? sizes[g] : MOST_IN_TOTAL;
        if (sizes[g] > found[2]) {
            found[2] = sizes[g];
            found[3] = (double)(first + g);
        }
        if (with->kept) with->kept[row * with->kept_length + first + g] = (float)(sizes[g] < MOST_KEPT ? sizes[g] : MOST_KEPT);
    }
    found[1] += (double)counted;
    found[4] += (double)(groups - judged);
}

// Packs the right operand of `products`: COLUMNS of its columns at a time, with zeros behind the last ones.
typedef struct {
    const double* y;
    int64_t rows, width;
    double* packed;
} Pack;

static void pack_rows(const void* of_pack, int64_t first, int64_t end)
{
    const Pack* pack = of_pack;
    for (int64_t w = 0; w < pack->width; w += COLUMNS) {
        int64_t columns = pack->width - w < COLUMNS ? pack->width - w : COLUMNS;
        double* to = pack->packed + w * pack->rows + first * COLUMNS;
        for (int64_t j = first; j < end; ++j, to += COLUMNS) {
            memset(to, 0, COLUMNS * sizeof *to);
            memcpy(to, pack->y + j * pack->width + w, (size_t)columns * sizeof *to);
        }
    }
}

void pack(LoopPool* pool, int threads, const double* y, int64_t rows, int64_t width, double* packed)
{
    Pack operands = {y, rows, width, packed};
    run_loop(pool, threads, 0, rows, BLOCK, BLOCK, pack_rows, &operands);
}

#define ELEMENT float
#define ABSOLUTE fabsf
#define ROUND rintf
#define NAMED(what) what##_float32
#include "group_sums.h"
#undef ELEMENT
#undef ABSOLUTE
#undef ROUND
#undef NAMED

#define ELEMENT double
#define ABSOLUTE fabs
#define ROUND rint
#define NAMED(what) what##_float64
#include "group_sums.h"
