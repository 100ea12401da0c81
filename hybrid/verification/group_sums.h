// SPDX-License-Identifier: MIT
// The functions of group_sums.c for one type of elements: ELEMENT, with its ABSOLUTE and ROUND, and NAMED(what) for names.

typedef ELEMENT NAMED(Elements) __attribute__((vector_size(WIDTH * sizeof(ELEMENT))));

static Vector NAMED(load)(const ELEMENT* row)
{
    NAMED(Elements) elements;
    memcpy(&elements, row, sizeof elements);
    return __builtin_convertvector(elements, Vector);
}

// The sum of x[j]·row[j], or without x of nothing, and of row[j]², which is 0 only if all elements are.
static inline void NAMED(sum_group)(const ELEMENT* row, const double* x, int64_t columns, double* sum, double* square)
{
    Vector sums[2] = {0}, squares[2] = {0};
    int64_t j = 0;
    for (; j + 2 * WIDTH <= columns; j += 2 * WIDTH) {
        for (int k = 0; k < 2; ++k) {
            Vector values = NAMED(load)(row + j + k * WIDTH);
            if (x) sums[k] += *(const InMemory*)&x[j + k * WIDTH] * values;
            squares[k] += values * values;
        }
    }
    *sum = x ? total(sums[0] + sums[1]) : 0;
    *square = total(squares[0] + squares[1]);
    for (; j < columns; ++j) {
        double value = row[j];
        if (x) *sum += x[j] * value;
        *square += value * value;
    }
    for (j = 0; *square == 0 && j < columns; ++j) {
        if (row[j] != 0) *square = UNDERFLOWN;
    }
}

static void NAMED(look_at)(const ELEMENT* row, int64_t columns, Look* look)
{
    ELEMENT largest[LANES] = {0}, fractions[LANES] = {0};
    int64_t whole = columns - columns % LANES;
    for (int64_t j = 0; j < columns; j += LANES) {
        int64_t lanes = j < whole ? LANES : columns - whole;
        for (int k = 0; k < lanes; ++k) {
            ELEMENT value = row[j + k], size = ABSOLUTE(value);
            largest[k] = size > largest[k] ? size : largest[k];
            fractions[k] = ROUND(value) == value ? fractions[k] : 1;  // NaN is no integer
        }
    }
    for (int k = 0; k < LANES; ++k) {
        if (largest[k] > look->largest) look->largest = largest[k];
        if (fractions[k] != 0) look->integral = 0;
    }
}

// The sums as of sum_group of the groups of a row from number `first` on. At the end of the row the next one is asked for.
static void NAMED(sum_groups)(const Call* call, int64_t i, int64_t first, int64_t groups, double* sums, double* squares)
{
    const Rows* matrix = call->matrix;
    const ELEMENT *row = (const ELEMENT*)matrix->elements + i * matrix->row_length, *next_row = row + matrix->row_length;
    const int64_t line = CACHE_LINE / sizeof *row, ahead = AHEAD / sizeof *row, columns = matrix->columns;
    for (int64_t g = 0; g < groups; ++g) {
        int64_t begin = (first + g) * call->group, end = begin + call->group < columns ? begin + call->group : columns;
        for (int64_t j = begin; j < end; j += line) {
            __builtin_prefetch(j + ahead < columns ? row + j + ahead : next_row + (j + ahead - columns));
        }
        NAMED(sum_group)(row + begin, call->x + begin, end - begin, &sums[g], &squares[g]);
    }
}

static void NAMED(sum_rows)(const void* of_call, int64_t first, int64_t end)
{
    const Call* call = of_call;
    const Rows* matrix = call->matrix;
    int64_t groups = (matrix->columns + call->group - 1) / call->group;
    double squares[CHUNK];
    Look look = {0, 1};
    int looks_at = looks(call->look);
    for (int64_t i = first; i < end; ++i) {
        double* totals = call->squares + i / call->together * groups;
        for (int64_t g = 0; g < groups; g += CHUNK) {
            int64_t some = groups - g < CHUNK ? groups - g : CHUNK;
            NAMED(sum_groups)(call, i, g, some, call->sums + i * groups + g, squares);
            for (int64_t k = 0; k < some; ++k) totals[g + k] += squares[k];
        }
        const ELEMENT* row = (const ELEMENT*)matrix->elements + i * matrix->row_length;
        if (looks_at && look.integral) NAMED(look_at)(row, matrix->columns, &look);
    }
    if (looks_at) merge(call->pool, call->look, &look);
}

// For each row from `first` to `end` - 1 and each group of columns the sum of x[j]·row[j]; for each `together` rows and each group
// the sum of squares, added to what is there; `first` is a multiple of `together`. `look`: NULL, or what the rows are like, to be
// continued.
void NAMED(group_sums)(LoopPool* pool, int threads, const Rows* matrix, const double* x, int64_t group, int64_t together,
                       double* sums, double* squares, Look* look, int64_t first, int64_t end)
{
    Call call = {.pool = pool, .matrix = matrix, .x = x, .group = group, .together = together, .look = look};
    call.sums = sums;
    call.squares = squares;
    int64_t most = BYTES_AT_ONCE / (matrix->columns * (int64_t)sizeof(ELEMENT) + 1);
    run_loop(pool, threads, first, end, together, most, NAMED(sum_rows), &call);
}

// Whether each of these groups of a row has elements with a fraction: the sums of those that have become infinite.
static void NAMED(mark_fractions)(const Call* call, int64_t i, int64_t first, int64_t groups, double* sums)
{
    const Rows* matrix = call->matrix;
    const ELEMENT* row = (const ELEMENT*)matrix->elements + i * matrix->row_length;
    for (int64_t g = 0; g < groups; ++g) {
        int64_t begin = (first + g) * call->group, left = matrix->columns - begin;
        Look look = {0, 1};
        NAMED(look_at)(row + begin, left < call->group ? left : call->group, &look);
        if (!look.integral) sums[g] = INFINITY;
    }
}

static void NAMED(compare_rows)(const void* of_call, int64_t first, int64_t end)
{
    const Call* call = of_call;
    const Comparison* with = call->comparison;
    int64_t groups = (call->matrix->columns + call->group - 1) / call->group;
    for (int64_t i = first; i < end; ++i) {
        double* found = with->found[i];
        memset(found, 0, sizeof with->found[i]);
        for (int64_t g = 0; g < groups; g += CHUNK) {
            double sums[CHUNK], squares[CHUNK];
            int64_t some = groups - g < CHUNK ? groups - g : CHUNK;
            NAMED(sum_groups)(call, i, g, some, sums, squares);
            if (with->integral) NAMED(mark_fractions)(call, i, g, some, sums);
            if (!are_sure(squares, some)) {
                found[0] = NOT_COMPARED;
                break;
            }
            add_sizes(with, i, groups, g, some, squares, sums, found);
        }
    }
}

// Compares the sums of the rows' groups of columns.
void NAMED(compare)(LoopPool* pool, int threads, const Rows* matrix, const double* x, int64_t group, const Comparison* comparison,
                    int64_t first, int64_t end)
{
    Call call = {.pool = pool, .matrix = matrix, .x = x, .group = group, .comparison = comparison};
    int64_t most = BYTES_AT_ONCE / (matrix->columns * (int64_t)sizeof(ELEMENT) + 1);
    run_loop(pool, threads, first, end, 1, most, NAMED(compare_rows), &call);
}

static void NAMED(multiply_rows)(const void* of_call, int64_t from, int64_t to)
{
    const Call* call = of_call;
    const Rows* matrix = call->matrix;
    int64_t columns = matrix->columns, width = call->width;
    double values[ROWS][BLOCK] = {0}, unused, *product = call->sums, *squares = call->squares;
    Look look = {0, 1};
    int looks_at = looks(call->look);
    memset(product + from * width, 0, (size_t)((to - from) * width) * sizeof *product);
    for (int64_t here = from; here < to; here += ROWS_AT_ONCE) {
        int64_t end = to - here < ROWS_AT_ONCE ? to : here + ROWS_AT_ONCE;
        for (int64_t first = 0; first < columns; first += BLOCK) {
            int64_t terms = columns - first < BLOCK ? columns - first : BLOCK;
            for (int64_t i = here; i < end; i += ROWS) {
                int64_t rows = end - i < ROWS ? end - i : ROWS;
                for (int64_t r = 0; r < rows; ++r) {
                    const ELEMENT* row = (const ELEMENT*)matrix->elements + (i + r) * matrix->row_length + first;
                    double square;
                    // Processors fetch ahead while a row is read on, which this one is only after BLOCK elements of each other row.
                    for (int64_t j = BLOCK; j < 2 * BLOCK && first + j < columns; j += CACHE_LINE / (int64_t)sizeof *row) {
                        __builtin_prefetch(&row[j]);
                    }
                    for (int64_t j = 0; j < terms; ++j) values[r][j] = row[j];
                    NAMED(sum_group)(row, NULL, terms, &unused, &square);
                    squares[i + r] = first ? squares[i + r] + square : square;
                    if (looks_at && look.integral) NAMED(look_at)(row, terms, &look);
                }
                add_product(values, rows, terms, call->y + first * COLUMNS, columns * COLUMNS, width, product + i * width);
            }
        }
    }
    if (looks_at) merge(call->pool, call->look, &look);
}

// product = the rows times y, with `width` columns; of each row the sum of squares, and `look`, as above. `y`: as `pack` makes it.
void NAMED(products)(LoopPool* pool, int threads, const Rows* matrix, const double* y, int64_t width, double* product,
                     double* squares, Look* look, int64_t first, int64_t end)
{
    Call call = {.pool = pool, .matrix = matrix, .look = look, .y = y, .width = width};
    call.sums = product;
    call.squares = squares;
    run_loop(pool, threads, first, end, ROWS, ROWS_AT_ONCE, NAMED(multiply_rows), &call);
}
