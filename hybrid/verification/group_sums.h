// SPDX-License-Identifier: MIT
// The functions of group_sums.c for one type of elements: ELEMENT, with its ABSOLUTE and ROUND, and NAMED(what) for names.

// The sum of x[j]·row[j], or without x of nothing, and of row[j]², which is 0 only if all elements are.
static void NAMED(sum_group)(const ELEMENT* row, const double* x, int64_t columns, double* sum, double* square)
{
    double sums[LANES] = {0}, squares[LANES] = {0};
    int64_t whole = columns - columns % LANES;
    for (int64_t j = 0; j < whole; j += LANES) {
        for (int k = 0; k < LANES; ++k) {
            double value = row[j + k];
            if (x) sums[k] += x[j + k] * value;
            squares[k] += value * value;
        }
    }
    for (int64_t j = whole; j < columns; ++j) {
        double value = row[j];
        if (x) sums[j - whole] += x[j] * value;
        squares[j - whole] += value * value;
    }
    for (int width = LANES / 2; width; width /= 2) {
        for (int k = 0; k < width; ++k) {
            sums[k] += sums[k + width];
            squares[k] += squares[k + width];
        }
    }
    *sum = sums[0];
    *square = squares[0];
    for (int64_t j = 0; *square == 0 && j < columns; ++j) {
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

// For each row and each group of columns the sums as of sum_group. `row_length`: elements from one row to the next. `look`: NULL, or
// what the rows are like; it may stop looking at the first element that is no integer.
void NAMED(group_sums)(const ELEMENT* matrix, int64_t rows, int64_t columns, int64_t row_length, const double* x, int64_t group,
                       double* sums, double* squares, Look* look)
{
    int64_t groups = (columns + group - 1) / group;
    double unused;
    if (look) *look = (Look){0, 1};
    for (int64_t i = 0; i < rows; ++i) {
        const ELEMENT* row = matrix + i * row_length;
        for (int64_t g = 0; g < groups; ++g) {
            int64_t first = g * group, width = columns - first < group ? columns - first : group;
            double* sum = sums ? &sums[i * groups + g] : &unused;
            NAMED(sum_group)(row + first, x ? x + first : NULL, width, sum, &squares[i * groups + g]);
        }
        if (look && look->integral) NAMED(look_at)(row, columns, look);
    }
}

// product = the rows times y, with `width` columns, a multiple of COLUMNS; of each row the sum of squares, and `look`, as above.
void NAMED(products)(const ELEMENT* matrix, int64_t rows, int64_t columns, int64_t row_length, const double* y, int64_t width,
                     double* product, double* squares, Look* look)
{
    double values[ROWS][BLOCK] = {0}, unused;
    memset(product, 0, (size_t)(rows * width) * sizeof *product);
    if (look) *look = (Look){0, 1};
    for (int64_t here = 0; here < rows; here += ROWS_AT_ONCE) {
        int64_t end = rows - here < ROWS_AT_ONCE ? rows : here + ROWS_AT_ONCE;
        for (int64_t first = 0; first < columns; first += BLOCK) {
            int64_t terms = columns - first < BLOCK ? columns - first : BLOCK;
            for (int64_t i = here; i < end; i += ROWS) {
                int64_t together = end - i < ROWS ? end - i : ROWS;
                for (int64_t r = 0; r < together; ++r) {
                    const ELEMENT* row = matrix + (i + r) * row_length + first;
                    double square;
                    // Processors fetch ahead while a row is read on, which this one is only after BLOCK elements of each other row.
                    for (int64_t j = BLOCK; j < 2 * BLOCK && first + j < columns; j += CACHE_LINE / (int64_t)sizeof *row) {
                        __builtin_prefetch(&row[j]);
                    }
                    for (int64_t j = 0; j < terms; ++j) values[r][j] = row[j];
                    NAMED(sum_group)(row, NULL, terms, &unused, &square);
                    squares[i + r] = first ? squares[i + r] + square : square;
                    if (look && look->integral) NAMED(look_at)(row, terms, look);
                }
                add_product(values, together, terms, y + first * width, width, product + i * width);
            }
        }
    }
}
