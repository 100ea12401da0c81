// SPDX-License-Identifier: MIT
// Freivalds' check of a product in host memory: sums over groups of columns, A·(B·x), and its comparison with C·x. Part of
// row_sums.c.
#pragma once

#include <fenv.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"

enum { LINE = 64, AHEAD = 4096 };  // bytes; AHEAD: prefetch distance, since hardware prefetchers stop at every page
enum { BYTES_AT_ONCE = 1 << 20 };  // of rows that a thread takes: few enough that all end together, enough to amortize the lock

// Rows of floats or doubles.
typedef struct {
    const char* elements;
    int64_t columns, row_bytes, item_size;
} Rows;

// The bytes of a SIMD vector, and the rows of a product whose sums stay in registers.
#ifdef __AVX512F__
enum { VECTOR_BYTES = 64, ROWS = 12 };
#define EACH_LANE {0, 1, 2, 3, 4, 5, 6, 7}
#elif defined __AVX__
enum { VECTOR_BYTES = 32, ROWS = 6 };
#define EACH_LANE {0, 1, 2, 3}
#else
enum { VECTOR_BYTES = 16, ROWS = 6 };
#define EACH_LANE {0, 1}
#endif
typedef double Vector __attribute__((vector_size(VECTOR_BYTES)));
typedef double InMemory __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(double)), may_alias));  // anywhere in an array
typedef float Floats __attribute__((vector_size(VECTOR_BYTES / 2), aligned(sizeof(float)), may_alias));
typedef long long Bits __attribute__((vector_size(VECTOR_BYTES)));
#define INLINE inline __attribute__((always_inline))

enum { WIDTH = VECTOR_BYTES / sizeof(double), COLUMNS = 2 * WIDTH };  // numbers in a vector; columns whose sums stay in registers
// TERMS: per partial sum, since short sums are more accurate. BLOCK: elements of a row, for which all data stay in the L1 cache.
// ROWS_AT_ONCE: rows for each read of the right operand. TILED: columns from which a product is tiled.
enum { TERMS = 128, BLOCK = 512, ROWS_AT_ONCE = 72, TILED = 6 };
enum { LEAST_BYTES = 1 << 20 };  // of rows per thread: waking a thread takes longer than summing fewer
// BLAS packs all of B in each call, which costs little for up to SMALL_B elements of B, or from MULTIPLIED rows per call on. With
// a small B, a call multiplies rows of A and C with CACHED bytes, which stay in a core's cache, and a thread takes up to
// MOST_BLOCKS such blocks. TERMS_A_BYTE: multiply-adds in the time of summing a byte.
enum { SMALL_B = 1 << 13, MULTIPLIED = 256, CACHED = 1 << 18, TERMS_A_BYTE = 2, MOST_BLOCKS = 8 };
enum { MOST_WORST = 16 };  // rows with the largest differences that are returned

// Sums of squares between these bounds have neither overflowed nor underflowed.
static const double LEAST_SQUARE = 1e-280, MOST_SQUARE = 1e280;
static const double NOT_INTEGRAL = 1e300, NOT_JUDGED = -1, MOST_IN_TOTAL = 4;

// The largest magnitude of elements, and whether all are integers. After the first that is none, the search ends.
typedef struct {
    double largest;  // magnitude
    int64_t integral;  // whether all elements are integers; infinity counts as one
} Look;

static INLINE double element_at(const char* at, int64_t item_size)
{
    return item_size == sizeof(double) ? *(const double*)at : *(const float*)at;
}

static void look_at(const char* row, int64_t item_size, int64_t count, Look* look)
{
    double largest = look->largest;
    int fractions = 0;
    for (int64_t j = 0; j < count; ++j) {
        double value = element_at(row + j * item_size, item_size), size = fabs(value);
        largest = size > largest ? size : largest;
        fractions |= rint(value) != value;  // NaN is no integer
    }
    look->largest = largest;
    if (fractions) look->integral = 0;
}

// A thread's search in some rows of a matrix; ended from the start if that in the whole matrix has ended or is NULL.
static Look look_in(const Look* whole) { return (Look){0, whole && __atomic_load_n(&whole->integral, __ATOMIC_RELAXED)}; }

static void merge(Pool* pool, Look* whole, const Look* look)
{
    if (!look_in(whole).integral) return;
    pthread_mutex_lock(&pool->lock);
    if (look->largest > whole->largest) whole->largest = look->largest;
    if (!look->integral) __atomic_store_n(&whole->integral, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&pool->lock);
}

// ---- sums of WIDTH rows at a time, one per vector lane

// WIDTH contiguous doubles or floats.
static INLINE Vector load(const char* at, int64_t item_size)
{
    if (item_size == sizeof(float)) return __builtin_convertvector(*(const Floats*)at, Vector);
    return (Vector) * (const InMemory*)at;
}

// Lanes of two vectors; those of the second are numbered from WIDTH on.
static INLINE Vector shuffled(Vector one, Vector other, Bits lanes)
{
#if defined __GNUC__ && !defined __clang__
    return __builtin_shuffle(one, other, lanes);
#else
    Vector found;
    for (int k = 0; k < WIDTH; ++k) found[k] = lanes[k] < WIDTH ? one[lanes[k]] : other[lanes[k] - WIDTH];
    return found;
#endif
}

// The total of each of WIDTH vectors, one in each lane.
static INLINE Vector totals_of(Vector sums[WIDTH])
{
    const Bits lane = EACH_LANE;
#pragma GCC unroll 8
    for (int apart = 1; apart < WIDTH; apart *= 2) {  // lanes with this bit belong to the second vector
        Bits second = (lane & apart) != 0, own = lane + (second & WIDTH), other = (lane ^ apart) + (second & WIDTH);
#pragma GCC unroll 8
        for (int k = 0; k < WIDTH; k += 2 * apart)
            sums[k] = shuffled(sums[k], sums[k + apart], own) + shuffled(sums[k], sums[k + apart], other);
    }
    return sums[0];
}

// Adds x[j]·row[j] to each row's `sum`, and row[j]², or with `of_terms` (x[j]·row[j])², to its `square`. `count`: a multiple of
// WIDTH.
static INLINE void add_strip(const char* const rows[WIDTH], int64_t item_size, const double* x, int64_t count, int of_terms,
                             Vector sum[WIDTH], Vector square[WIDTH])
{
    for (int64_t j = 0; j < count; j += WIDTH) {
        Vector factor = *(const InMemory*)&x[j];
#pragma GCC unroll 8
        for (int r = 0; r < WIDTH; ++r) {
            const char* at = rows[r] + j * item_size;
            __builtin_prefetch(at + AHEAD / 4);  // less far, since WIDTH rows are read at once
            Vector value = load(at, item_size), term = value * factor;
            sum[r] += term;
            square[r] += of_terms ? term * term : value * value;
        }
    }
}

// For rows i to i + WIDTH - 1, a lane each: the sums of `add_strip` over `count` columns from `first` on. Rows from `end` on are
// replaced by row i.
static void sum_strip(const Rows* rows, int64_t i, int64_t end, int64_t first, int64_t count, const double* x, int of_terms,
                      Vector* sums, Vector* squares, Look* look)
{
    const char* here[WIDTH];
    for (int r = 0; r < WIDTH; ++r)
        here[r] = rows->elements + (i + r < end ? i + r : i) * rows->row_bytes + first * rows->item_size;
    for (int r = 0; r < WIDTH && look->integral; ++r) look_at(here[r], rows->item_size, count, look);
    Vector total = {0}, of_squares = {0};
    for (int64_t j = 0, some; j < count; j += some) {
        some = count - j < BLOCK ? count - j : BLOCK;
        if (some >= WIDTH) {
            some -= some % WIDTH;
            Vector sum[WIDTH] = {0}, square[WIDTH] = {0};
            if (rows->item_size == sizeof(double))
                add_strip(here, sizeof(double), x + j, some, of_terms, sum, square);
            else
                add_strip(here, sizeof(float), x + j, some, of_terms, sum, square);
            total += totals_of(sum);
            of_squares += totals_of(square);
        } else {  // one of the last columns
            some = 1;
            Vector value = {0};
#pragma GCC unroll 8
            for (int r = 0; r < WIDTH; ++r) value[r] = element_at(here[r], rows->item_size);
            Vector term = value * x[j];
            total += term;
            of_squares += of_terms ? term * term : value * value;
        }
        for (int r = 0; r < WIDTH; ++r) here[r] += some * rows->item_size;
    }
    *sums = total;
    *squares = of_squares;
}

// Writes the first `some` lanes, at a distance of `apart` numbers.
static void put_lanes(Vector lanes, int64_t some, double* into, int64_t apart)
{
    if (some == WIDTH && apart == 1)
        *(InMemory*)into = lanes;
    else
        for (int64_t r = 0; r < some; ++r) into[r * apart] = lanes[r];
}

static double square_of(const double* values, int64_t count)
{
    Vector squares[2] = {0};
    double square = 0;
    int64_t j = 0;
    for (; j + 2 * WIDTH <= count; j += 2 * WIDTH) {
        for (int k = 0; k < 2; ++k) {
            Vector value = *(const InMemory*)&values[j + k * WIDTH];
            squares[k] += value * value;
        }
    }
    for (; j < count; ++j) square += values[j] * values[j];
    squares[0] += squares[1];
    for (int k = 0; k < WIDTH; ++k) square += squares[0][k];
    return square;
}

// The larger of two sizes; NaN if one is.
static double larger(double one, double other) { return (one >= other) | (one != one) ? one : other; }

// The 2-norm of some rows' elements from column `first` on, times x unless NULL, also if squares overflow or underflow.
static double careful_norm(const Rows* rows, int64_t i, int64_t end, int64_t first, int64_t count, const double* x)
{
    double peak = 0, square = 0;
    for (int pass = 0; pass < 2; ++pass) {
        for (int64_t row = i; row < end; ++row) {
            const char* at = rows->elements + row * rows->row_bytes + first * rows->item_size;
            for (int64_t j = 0; j < count; ++j) {
                double size = fabs(element_at(at + j * rows->item_size, rows->item_size));
                if (x) size = fabs(size * x[j]);
                if (pass)
                    square += size / peak * (size / peak);
                else
                    peak = larger(peak, size);
            }
        }
        if (!(peak > 0)) return peak;
    }
    return peak * sqrt(square);
}

// ---- sums of groups of columns

// The tolerances of sums, see `Allowed` of row_sums.py. FINE: `deviation` and errors of flushed numbers are multiplied by it, since
// arithmetic with subnormal numbers takes a hundred times as long.
typedef struct {
    const double* norms_a;  // by row of C
    double *norms_b, *flushed, *overflow;  // by group
    double deviation, per_term, flushed_of_a;
} Comparison;
#define FINE 0x1p40

typedef struct {
    double total, largest;
    int64_t differ, not_judged;
} Totals;

// The results of a comparison: see `Compared` of row_sums.py.
typedef struct {
    Totals totals;
    int64_t rows;  // in the lists below: the row with the largest size first, of equal ones the first in C
    double sizes[MOST_WORST];
    int64_t of_rows[MOST_WORST], of_groups[MOST_WORST];
} Found;

// One call of `group_sums` or `products`, or a part of one of `check`.
typedef struct {
    Pool* pool;
    const Rows* rows;
    const double* x;
    int64_t group, groups;
    double *sums, *squares;
    Look* look;
    const Comparison* with;
    Found* found;
    const double* y;  // the right operand, from `pack`
    int64_t first_row;  // the number of the first row in `found`
    int no_memory;
} Call;

static int64_t columns_of(const Call* call, int64_t g)
{
    int64_t left = call->rows->columns - g * call->group;
    return left < call->group ? left : call->group;
}

static void sum_rows(const void* of_call, int64_t first, int64_t end)
{
    const Call* call = of_call;
    Look look = look_in(call->look);
    for (int64_t i = first; i < end; i += WIDTH) {
        for (int64_t g = 0; g < call->groups; ++g) {
            Vector sums, squares;
            int64_t some = end - i < WIDTH ? end - i : WIDTH, at = i * call->groups + g;
            sum_strip(call->rows, i, end, g * call->group, columns_of(call, g), call->x + g * call->group, 1, &sums, &squares,
                      &look);
            put_lanes(sums, some, call->sums + at, call->groups);
            put_lanes(squares, some, call->squares + at, call->groups);
        }
    }
    merge(call->pool, call->look, &look);
}

// The sizes of WIDTH rows' differences in a group. `squares`: the sums of squares of C's terms.
static void sizes_of(const Comparison* with, int64_t g, const double* norms_a, const double* differences, const double* squares,
                     double* sizes)
{
    double norm_b = with->norms_b[g], flushed = with->flushed[g], overflow = with->overflow[g];
    for (int r = 0; r < WIDTH; ++r) {
        double norm_a = norms_a[r], both = norm_a * norm_b, difference = fabs(differences[r]) * FINE;
        int is_zero = ((norm_a == 0) & (norm_b <= INFINITY)) | ((norm_b == 0) & (norm_a <= INFINITY));
        both = is_zero ? 0 : both;  // 0 times what overflowed is 0
        double inverse = 1 / both, part = squares[r] * inverse * inverse;  // C's part of the variance that the norms allow
        int in_range = (squares[r] == 0) | ((squares[r] > LEAST_SQUARE) & (squares[r] < MOST_SQUARE));
        part = in_range & (part < 1) ? part : 1;
        double lost = flushed * (1 + norm_a) + with->flushed_of_a * norm_b;
        double size = difference / (sqrt(part + with->per_term) * both * with->deviation + lost);
        size = size <= NOT_INTEGRAL ? size : NOT_INTEGRAL;
        size = difference != 0 ? size : 0;
        sizes[r] = both < overflow ? size : NOT_JUDGED;
    }
}

// Inserts a row's worst sum into the list of the rows with the largest.
static void add_row(Found* found, const double* sizes, int64_t groups, int64_t row)
{
    int64_t at = found->rows, group = 0;
    for (int64_t g = 1; g < groups; ++g)
        if (sizes[g] > sizes[group]) group = g;
    double size = sizes[group] > 0 ? sizes[group] : 0;
    while (at && (found->sizes[at - 1] < size || (found->sizes[at - 1] == size && found->of_rows[at - 1] > row))) --at;
    if (at == MOST_WORST) return;
    if (found->rows < MOST_WORST) ++found->rows;
    for (int64_t k = found->rows - 1; k > at; --k) {
        found->sizes[k] = found->sizes[k - 1];
        found->of_rows[k] = found->of_rows[k - 1];
        found->of_groups[k] = found->of_groups[k - 1];
    }
    found->sizes[at] = size;
    found->of_rows[at] = row;
    found->of_groups[at] = group;
}

// Adds WIDTH partial statistics to `found`, and the worst sums of some rows.
static void add_found(const Call* call, int64_t first, int64_t end, const double* totals, const double* differ,
                      const double* not_judged, const double* most)
{
    Found* found = call->found;
    pthread_mutex_lock(&call->pool->lock);
    int adds = found->rows < MOST_WORST;
    for (int r = 0; r < WIDTH; ++r) {
        found->totals.total += totals[r];
        found->totals.differ += (int64_t)differ[r];
        found->totals.not_judged += (int64_t)not_judged[r];
        if (most[r] > found->totals.largest) found->totals.largest = most[r];
        if (most[r] > found->sizes[MOST_WORST - 1]) adds = 1;
    }
    for (int64_t i = first; adds && i < end; ++i) add_row(found, call->sums + i * call->groups, call->groups, call->first_row + i);
    pthread_mutex_unlock(&call->pool->lock);
}

// Replaces the expected sums of rows by the sizes of their differences, and adds up their statistics.
static void compare_rows(const void* of_call, int64_t first, int64_t end)
{
    const Call* call = of_call;
    int64_t apart = call->groups;
    double totals[WIDTH] = {0}, differ[WIDTH] = {0}, not_judged[WIDTH] = {0}, most[WIDTH] = {0};
    Look look = look_in(call->look);
    for (int64_t i = first; i < end; i += WIDTH) {
        int64_t some = end - i < WIDTH ? end - i : WIDTH;
        double norms_a[WIDTH] = {0};
        for (int64_t r = 0; r < some; ++r) norms_a[r] = call->with->norms_a[i + r];
        for (int64_t g = 0; g < apart; ++g) {
            double squares[WIDTH], sizes[WIDTH], differences[WIDTH] = {0}, *expected = call->sums + i * apart + g;
            Vector of_c, of_squares;
            sum_strip(call->rows, i, end, g * call->group, columns_of(call, g), call->x + g * call->group, 1, &of_c, &of_squares,
                      &look);
            *(InMemory*)squares = of_squares;
            if (some == WIDTH && apart == 1)
                *(InMemory*)differences = of_c - *(const InMemory*)expected;
            else
                for (int64_t r = 0; r < some; ++r) differences[r] = of_c[r] - expected[r * apart];
            sizes_of(call->with, g, norms_a, differences, squares, sizes);
            put_lanes(*(const InMemory*)sizes, some, expected, apart);
            for (int64_t r = some; r < WIDTH; ++r) sizes[r] = 0;
            for (int r = 0; r < WIDTH; ++r) {
                double judged = sizes[r] > 0 ? sizes[r] : 0;
                totals[r] += judged < MOST_IN_TOTAL ? judged : MOST_IN_TOTAL;
                differ[r] += judged > 0;
                not_judged[r] += sizes[r] < 0;
                most[r] = judged > most[r] ? judged : most[r];
            }
        }
    }
    merge(call->pool, call->look, &look);
    if (call->found) add_found(call, first, end, totals, differ, not_judged, most);
}

static int enough_threads(int most, int64_t bytes)
{
    return most < 1 + bytes / LEAST_BYTES ? most : (int)(1 + bytes / LEAST_BYTES);
}

static int64_t at_once(int64_t row_bytes) { return WIDTH * (1 + BYTES_AT_ONCE / (WIDTH * row_bytes + 1)); }

// For rows first..end-1 and each group of columns: the sum of the terms x[j]·row[j], and of their squares. `look`: NULL, or to be
// updated. `with`: NULL, or `sums` are expected sums, to be replaced by the sizes of the rows' differences from them.
void group_sums(Pool* pool, int threads, const Rows* rows, const double* x, int64_t group, double* sums, double* squares,
                Look* look, const Comparison* with, int64_t first, int64_t end)
{
    Call call = {.pool = pool, .rows = rows, .x = x, .group = group, .sums = sums, .squares = squares, .look = look, .with = with};
    call.groups = (rows->columns + group - 1) / group;
    int64_t most = at_once(rows->columns * rows->item_size);
    run_loop(pool, threads, first, end, WIDTH, most, with ? compare_rows : sum_rows, &call);
}

// ---- B·x

// NumPy's inner loop of matmul (`matmul_loop` of blas.py).
typedef void (*Matmul)(char** matrices, const intptr_t* sizes, const intptr_t* steps, void* unused);

// The check of some rows of a product. `x`: for C's columns, to be weighted. `y`: gets B·x, packed.
typedef struct {
    Rows a, b, c;
    int64_t rows_of_b, group;
    double *x, *y;
    int64_t step;  // one of `step` rows of B is sampled for the columns' peaks
    int64_t scale, most_scale, most_weight;  // these and the next line: see `Bounds` of row_sums.py
    double largest_integer, flushed_of_b, largest, smallest_x;
    Comparison tolerances;  // without norms of A's rows
    Look in_a, in_b, in_c;  // in_c is not updated if A or B has others than integers
    Matmul multiply;  // computes C; NULL: C is computed
    Pool* pool;
    int64_t block;  // rows of C per call of `multiply`
    int64_t raised;  // its floating-point exceptions, for `warn_as_numpy`
    int64_t no_memory;
    Found found;
} Check;

// For columns first..end-1, over every `step`-th row: the largest magnitude (NaN if there is one), and whether an element is no
// integer.
static INLINE void add_peaks(const Rows* rows, int64_t item_size, int64_t count, int64_t step, int64_t first, int64_t end,
                             double* restrict peaks, double* restrict others)
{
    for (int64_t i = 0; i < count; i += step) {
        const char* row = rows->elements + i * rows->row_bytes;
        for (int64_t j = first; j < end; ++j) {
            double value = element_at(row + j * item_size, item_size);
            peaks[j] = larger(peaks[j], fabs(value));
            others[j] = rint(value) != value ? 1 : others[j];
        }
    }
}

static void find_peaks(const Rows* rows, int64_t count, int64_t step, int64_t first, int64_t end, double* peaks, double* others)
{
    if (rows->item_size == sizeof(double))
        add_peaks(rows, sizeof(double), count, step, first, end, peaks, others);
    else
        add_peaks(rows, sizeof(float), count, step, first, end, peaks, others);
}

// `sampled_peaks` of row_sums.py.
static void sample_peaks(const Check* check, double* peaks, double* others)
{
    const Rows* b = &check->b;
    int any = 0;
    for (int64_t j = 0; j < b->columns; ++j) peaks[j] = others[j] = 0;
    find_peaks(b, check->rows_of_b, check->step, 0, b->columns, peaks, others);
    for (int64_t j = 0; j < b->columns; ++j) any |= others[j] != 0 || !(peaks[j] <= check->largest_integer);
    for (int64_t j = 0; j < b->columns; ++j) {
        if (any && peaks[j] == 0) find_peaks(b, check->rows_of_b, 1, j, j + 1, peaks, others);
        if (!(peaks[j] <= check->largest_integer)) others[j] = 1;
    }
}

// Weights a group's x, as `column_weights` of row_sums.py, and sets its tolerance for flushed numbers and its overflow limit.
static void weigh(const Check* check, int64_t g, int64_t count, const double* peaks, const double* others)
{
    double* x = check->x + g * check->group;
    int of_group = INT_MIN, exponent = 0, any = 0, most = (int)check->most_scale;
    int64_t largest = 0;
    for (int64_t j = 0; j < count; ++j) {
        any |= others[j] != 0;
        if (!(peaks[j] > 0 && peaks[j] < INFINITY)) continue;
        frexp(peaks[j], &exponent);
        if (exponent > of_group) of_group = exponent;
    }
    if (!any || of_group == INT_MIN) of_group = 0;
    int scale = (int)check->scale - (of_group > most ? most : of_group < -most ? -most : of_group);
    for (int64_t j = 0; j < count; ++j) {
        int64_t weight = 0;
        if (any && peaks[j] > 0 && peaks[j] < INFINITY) {
            frexp(peaks[j], &exponent);
            weight = of_group - exponent < check->most_weight ? of_group - exponent : check->most_weight;
        }
        if (weight > largest) largest = weight;
        x[j] = ldexp(x[j], (int)weight + scale);
    }
    check->tolerances.flushed[g] = ldexp(check->flushed_of_b * FINE, (int)largest + scale);
    check->tolerances.overflow[g] = ldexp(check->largest, scale) * check->smallest_x;
}

// ---- A·(B·x)

// product[r, w] += Σ values[r, j]·y[j, w] over j < terms, for `rows` rows. `y`: packed in panels of COLUMNS columns, at a
// distance of `next_columns` numbers, from the first of these terms on.
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
            for (int r = 0; r < ROWS; ++r) {  // with memcpy, the compiler would not keep the sums in registers
                for (int k = 0; k < COLUMNS / WIDTH; ++k) *(InMemory*)&of_terms[r][k * WIDTH] = sums[r][k];
            }
            for (int64_t r = 0; r < rows; ++r) {
                for (int64_t k = 0; k < columns; ++k) product[r * width + w + k] += of_terms[r][k];
            }
        }
    }
}

// Multiplies rows by y if that has many columns.
static void multiply_in_tiles(const Call* call, int64_t from, int64_t to, Look* look)
{
    const Rows* rows = call->rows;
    int64_t columns = rows->columns, width = call->groups;
    double values[ROWS][BLOCK] = {0}, *product = call->sums, *squares = call->squares;
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
                    // Hardware does not prefetch the next BLOCK: this row is read on only after BLOCK elements of each other row.
                    for (int64_t j = first + BLOCK; j < first + 2 * BLOCK && j < columns; j += LINE / rows->item_size) {
                        __builtin_prefetch(row + j * rows->item_size);
                    }
                    row += first * rows->item_size;
                    if (rows->item_size == sizeof(double))
                        memcpy(values[r], row, (size_t)terms * sizeof(double));
                    else
                        for (int64_t j = 0; j < terms; ++j) values[r][j] = ((const float*)row)[j];
                    squares[i + r] += square_of(values[r], terms);
                    if (look->integral) look_at((const char*)values[r], sizeof(double), terms, look);
                }
                add_product(values, some, terms, call->y + first * COLUMNS, columns * COLUMNS, width, product + i * width);
            }
        }
    }
}

// Multiplies rows by y if that has few columns, WIDTH rows at a time.
static void multiply_strips(const Call* call, int64_t from, int64_t to, Look* look)
{
    const Rows* rows = call->rows;
    Look none = look_in(NULL);
    int64_t columns = rows->columns, width = call->groups;
    for (int64_t i = from; i < to; i += WIDTH) {
        int64_t some = to - i < WIDTH ? to - i : WIDTH;
        for (int64_t w = 0; w < width; ++w) {
            Vector sums, squares;
            sum_strip(rows, i, to, 0, columns, call->y + w * columns, 0, &sums, &squares, w ? &none : look);
            put_lanes(sums, some, call->sums + i * width + w, width);
            if (!w) put_lanes(squares, some, call->squares + i, 1);
        }
    }
}

static void multiply_rows(const void* of_call, int64_t from, int64_t to)
{
    const Call* call = of_call;
    Look look = look_in(call->look);
    if (call->groups < TILED)
        multiply_strips(call, from, to, &look);
    else
        multiply_in_tiles(call, from, to, &look);
    merge(call->pool, call->look, &look);
}

// The number of columns of a packed y.
int64_t packed_columns(int64_t width) { return width < TILED ? width : (width + COLUMNS - 1) / COLUMNS * COLUMNS; }

// Packs y for `multiply_rows`: few columns one after the other; many in panels of COLUMNS columns, padded with zeros.
void pack(const double* y, int64_t terms, int64_t width, double* into)
{
    int64_t together = width < TILED ? 1 : COLUMNS, parts = (width + together - 1) / together;
    for (int64_t part = 0; part < parts; ++part) {
        for (int64_t j = 0; j < terms; ++j) {
            for (int64_t k = 0, w = part * together; k < together; ++k, ++w)
                into[(part * terms + j) * together + k] = w < width ? y[j * width + w] : 0;
        }
    }
}

// product = rows times the packed y, of `width` columns; squares = each row's sum of squares. `look`: as above.
void products(Pool* pool, int threads, const Rows* rows, const double* y, int64_t width, double* product, double* squares,
              Look* look, int64_t first, int64_t end)
{
    Call call = {.pool = pool, .rows = rows, .groups = width, .sums = product, .squares = squares, .look = look, .y = y};
    run_loop(pool, threads, first, end, ROWS_AT_ONCE, ROWS_AT_ONCE, multiply_rows, &call);
}

enum { FEW_TERMS = 16 };  // per partial sum: about as few as in a vector lane when rows are summed

// Adds the elements times each number in `y`, and their squares.
static INLINE void add_elements(const char* row, int64_t item_size, int64_t count, const double* y, int64_t width, double* sums,
                                double* squares)
{
    for (int64_t w = 0; w < width; ++w) {
        double factor = y[w], *sum = sums + w * count;
        for (int64_t j = 0; j < count; ++j) sum[j] += factor * element_at(row + j * item_size, item_size);
    }
    for (int64_t j = 0; j < count; ++j) {
        double value = element_at(row + j * item_size, item_size);
        squares[j] += value * value;
    }
}

static void multiply_columns(const void* of_call, int64_t first, int64_t end)
{
    Call* call = (Call*)of_call;
    const Rows* columns = call->rows;
    int64_t count = columns->columns, width = call->groups, numbers = count * (width + 1);
    double *totals = calloc((size_t)(2 * numbers), sizeof *totals), *sums = totals + numbers;
    Look look = look_in(call->look);
    if (!totals) {
        __atomic_store_n(&call->no_memory, 1, __ATOMIC_RELAXED);
        return;
    }
    for (int64_t i = first; i < end;) {
        int64_t last = i + FEW_TERMS < end ? i + FEW_TERMS : end;
        memset(sums, 0, (size_t)numbers * sizeof *sums);
        for (; i < last; ++i) {
            const char* column = columns->elements + i * columns->row_bytes;
            if (columns->item_size == sizeof(double))
                add_elements(column, sizeof(double), count, call->y + i * width, width, sums, sums + count * width);
            else
                add_elements(column, sizeof(float), count, call->y + i * width, width, sums, sums + count * width);
            if (look.integral) look_at(column, columns->item_size, count, &look);
        }
        for (int64_t k = 0; k < numbers; ++k) totals[k] += sums[k];
    }
    pthread_mutex_lock(&call->pool->lock);
    for (int64_t j = 0; j < count; ++j) {
        for (int64_t w = 0; w < width; ++w) call->sums[j * width + w] += totals[w * count + j];
        call->squares[j] += totals[width * count + j];
    }
    pthread_mutex_unlock(&call->pool->lock);
    merge(call->pool, call->look, &look);
    free(totals);
}

// Adds the product of a matrix in Fortran order and y to `product`, in memory order, and each row's sum of squares to `squares`.
// `columns`: the matrix's, `terms` of them. Returns 0, or 1 without memory.
int products_by_columns(Pool* pool, int threads, const Rows* columns, int64_t terms, const double* y, int64_t width,
                        double* product, double* squares, Look* look)
{
    Call call = {.pool = pool, .rows = columns, .groups = width, .sums = product, .squares = squares, .look = look, .y = y};
    int64_t share = terms / threads / TERMS * TERMS, most = share > TERMS ? share : TERMS;
    threads = enough_threads(threads, terms * columns->columns * columns->item_size);
    run_loop(pool, threads, 0, terms, TERMS, most, multiply_columns, &call);
    return call.no_memory;
}

// Copies `rows` rows of a matrix in Fortran order as doubles, a cache line at a time. `at`: the first row.
static INLINE void transpose_some(const char* at, int64_t column_bytes, int64_t item_size, int64_t rows, int64_t columns,
                                  double* into)
{
    enum { TOGETHER = LINE / sizeof(double) };
    for (int64_t j = 0; j < columns; j += TOGETHER, at += TOGETHER * column_bytes) {
        int64_t some = columns - j < TOGETHER ? columns - j : TOGETHER;
        for (int64_t i = 0; i < rows; ++i) {
            for (int64_t k = 0; k < some; ++k)
                into[i * columns + j + k] = element_at(at + k * column_bytes + i * item_size, item_size);
        }
    }
}

void transpose(const char* at, int64_t column_bytes, int64_t item_size, int64_t rows, int64_t columns, double* into)
{
    if (item_size == sizeof(double))
        transpose_some(at, column_bytes, sizeof(double), rows, columns, into);
    else
        transpose_some(at, column_bytes, sizeof(float), rows, columns, into);
}

// ---- the whole check of some rows

// Weights x, and computes B·x and each group's norm and tolerances. Returns 0, or 1 without memory.
int sums_of_b(Check* check, int threads)
{
    const Rows* rows = &check->b;
    int64_t columns = rows->columns, group = check->group, groups = (columns + group - 1) / group, count = check->rows_of_b;
    int64_t bytes = columns * rows->item_size;
    double* peaks = malloc((size_t)(2 * columns + 2 * count * groups + 1) * sizeof *peaks);
    if (!peaks) return 1;
    double *others = peaks + columns, *squares = others + columns, *y = groups == 1 ? check->y : squares + count * groups;
    sample_peaks(check, peaks, others);
    for (int64_t g = 0, j = 0; g < groups; ++g, j += group)
        weigh(check, g, columns - j < group ? columns - j : group, peaks + j, others + j);
    Call call = {.pool = check->pool, .rows = rows, .x = check->x, .group = group, .groups = groups};
    call.sums = y, call.squares = squares, call.look = &check->in_b;
    run_loop(check->pool, enough_threads(threads, count * bytes), 0, count, WIDTH, at_once(bytes), sum_rows, &call);
    for (int64_t g = 0; g < groups; ++g) {
        double square = 0;
        int64_t j = g * group, some = columns - j < group ? columns - j : group;
        for (int64_t i = 0; i < count; ++i) square += squares[i * groups + g];
        int extreme = !(square > LEAST_SQUARE && square < MOST_SQUARE);
        check->tolerances.norms_b[g] = extreme ? careful_norm(rows, 0, count, j, some, check->x + j) : sqrt(square);
    }
    if (groups > 1) pack(y, count, groups, check->y);
    free(peaks);
    return 0;
}

// Computes some rows of C, and notes floating-point exceptions.
static void multiply(Check* check, const Rows* a, const Rows* c, int64_t rows)
{
    const Rows* b = &check->b;
    char* matrices[] = {(char*)a->elements, (char*)b->elements, (char*)c->elements};
    intptr_t sizes[] = {1, rows, check->rows_of_b, b->columns};
    intptr_t steps[] = {0, 0, 0, a->row_bytes, a->item_size, b->row_bytes, b->item_size, c->row_bytes, c->item_size};
    if (fetestexcept(FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW)) feclearexcept(FE_ALL_EXCEPT);
    check->multiply(matrices, sizes, steps, NULL);
    int raised = (fetestexcept(FE_INVALID) != 0) + 2 * (fetestexcept(FE_OVERFLOW) != 0) + 4 * (fetestexcept(FE_UNDERFLOW) != 0);
    if (raised) __atomic_fetch_or(&check->raised, raised, __ATOMIC_RELAXED);
}

// Computes rows of C, if wanted, and compares them with rows of A times y: few at a time, so that they stay in a core's cache.
static void check_rows(const void* of_check, int64_t from, int64_t to)
{
    Check* check = (Check*)of_check;
    enum { SOME = 4 * ROWS_AT_ONCE };
    int64_t groups = (check->c.columns + check->group - 1) / check->group;
    double norms[SOME], few[SOME * TILED], *sizes = groups < TILED ? few : malloc((size_t)(SOME * groups) * sizeof *sizes);
    Rows a = check->a, c = check->c;
    a.elements += from * a.row_bytes;
    c.elements += from * c.row_bytes;
    int64_t made = check->multiply ? from : to;
    Look* in_a = check->in_b.integral ? &check->in_a : NULL;
    Comparison with = check->tolerances;
    with.norms_a = norms;
    Call of_a = {.pool = check->pool, .rows = &a, .y = check->y, .groups = groups, .sums = sizes, .squares = norms, .look = in_a};
    Call of_c = {.pool = check->pool, .rows = &c, .x = check->x, .group = check->group, .groups = groups, .sums = sizes};
    of_c.with = &with, of_c.found = &check->found;
    for (int64_t first = from, rows; sizes && first < to; first += rows) {
        if (first == made) {
            int64_t some = to - made < check->block ? to - made : check->block;
            multiply(check, &a, &c, some);
            made += some;
        }
        rows = made - first < SOME ? made - first : SOME;
        multiply_rows(&of_a, 0, rows);
        int extreme = 0;
        for (int64_t i = 0; i < rows; ++i) {
            norms[i] = sqrt(norms[i]);
            extreme |= !((norms[i] > sqrt(LEAST_SQUARE)) & (norms[i] < sqrt(MOST_SQUARE)));
        }
        for (int64_t i = 0; extreme && i < rows; ++i) {
            if (!(norms[i] > sqrt(LEAST_SQUARE) && norms[i] < sqrt(MOST_SQUARE)))
                norms[i] = careful_norm(&a, i, i + 1, 0, a.columns, NULL);
        }
        of_c.first_row = first;
        of_c.look = look_in(in_a).integral ? &check->in_c : NULL;
        compare_rows(&of_c, 0, rows);
        a.elements += rows * a.row_bytes;
        c.elements += rows * c.row_bytes;
    }
    if (!sizes) __atomic_store_n(&check->no_memory, 1, __ATOMIC_RELAXED);
    if (sizes != few) free(sizes);
}

// Compares rows of C with rows of A times y, after `sums_of_b`. Returns 0, or 1 without memory.
int check(Check* check, int threads, int64_t first, int64_t end)
{
    int64_t bytes = check->a.columns * check->a.item_size + check->c.columns * check->c.item_size, most = at_once(bytes);
    int64_t groups = (check->c.columns + check->group - 1) / check->group, unit = groups < TILED ? WIDTH : ROWS_AT_ONCE;
    int64_t rows = end - first, of_b = check->rows_of_b * check->c.columns;
    threads = enough_threads(threads, rows * (check->multiply ? bytes + of_b / TERMS_A_BYTE : bytes));
    check->block = rows;
    if (check->multiply && of_b <= SMALL_B) {
        check->block = CACHED / bytes / WIDTH * WIDTH;
        if (check->block < WIDTH) check->block = WIDTH;
        most = MOST_BLOCKS * check->block;
    } else if (check->multiply) {
        int64_t parts = rows / (threads * MULTIPLIED) * threads;
        unit = most = (rows / (parts ? parts : threads) + WIDTH) / WIDTH * WIDTH;
    }
    run_loop(check->pool, threads, first, end, unit, most > unit ? most : unit, check_rows, check);
    return (int)check->no_memory;
}

// ---- the whole check of a stack of products

typedef struct {
    Totals totals;
    double largest_a, largest_b;  // magnitudes; NOT_INTEGRAL unless all are integers
    int64_t has_fractions;  // in C, but not in A and B
} OfProduct;

typedef struct {
    Check first;  // the first product's, without its work memory
    int64_t rows, apart_a, apart_b, apart_c;  // strides in bytes between the products' matrices; 0: one matrix for all
    const double* x;  // to be weighted for each B
    OfProduct* of_products;
    int64_t threads;  // for each product
    int64_t raised, no_memory;  // as in `Check`
} Stack;

static double largest_of(const Look* look) { return look->integral ? look->largest : NOT_INTEGRAL; }

static void check_products(const void* of_stack, int64_t from, int64_t to)
{
    Stack* stack = (Stack*)of_stack;
    Check one = stack->first;
    int64_t columns = one.c.columns, groups = (columns + one.group - 1) / one.group, failed = 0;
    one.x = malloc((size_t)(columns + 3 * groups + one.rows_of_b * packed_columns(groups)) * sizeof *one.x);
    one.tolerances.norms_b = one.x + columns;
    one.tolerances.flushed = one.tolerances.norms_b + groups;
    one.tolerances.overflow = one.tolerances.norms_b + 2 * groups;
    one.y = one.tolerances.norms_b + 3 * groups;
    for (int64_t i = from; one.x && !failed && i < to; ++i) {
        OfProduct* product = &stack->of_products[i];
        one.a.elements = stack->first.a.elements + i * stack->apart_a;
        one.b.elements = stack->first.b.elements + i * stack->apart_b;
        one.c.elements = stack->first.c.elements + i * stack->apart_c;
        one.in_a = one.in_c = (Look){0, 1};
        one.found = (Found){.rows = MOST_WORST, .sizes[MOST_WORST - 1] = INFINITY};  // a full list: no row is added
        if (i == from || stack->apart_b) {
            one.in_b = (Look){0, 1};
            memcpy(one.x, stack->x, (size_t)columns * sizeof *one.x);
            failed = sums_of_b(&one, (int)stack->threads);
        }
        failed = failed || check(&one, (int)stack->threads, 0, stack->rows);
        int has_fractions = one.in_a.integral && one.in_b.integral && !one.in_c.integral;
        *product = (OfProduct){one.found.totals, largest_of(&one.in_a), largest_of(&one.in_b), has_fractions};
    }
    if (one.raised) __atomic_fetch_or(&stack->raised, one.raised, __ATOMIC_RELAXED);
    if (!one.x || failed) __atomic_store_n(&stack->no_memory, 1, __ATOMIC_RELAXED);
    free(one.x);
}

// Checks products first..end-1, and computes them first if there is a `multiply`. Each thread takes whole products, or all
// threads divide each. Returns 0, or 1 without memory.
int check_stack(Stack* stack, int threads, int64_t first, int64_t end)
{
    const Check* check = &stack->first;
    int64_t bytes = stack->rows * (check->a.columns * check->a.item_size + check->c.columns * check->c.item_size);
    int among = stack->threads > 1 ? 1 : enough_threads(threads, (end - first) * bytes);
    run_loop(check->pool, among, first, end, 1, 1 + BYTES_AT_ONCE / (bytes + 1), check_products, stack);
    return (int)stack->no_memory;
}
