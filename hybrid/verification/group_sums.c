// SPDX-License-Identifier: MIT
// What group_sums.py computes of rows in host memory. NumPy needs a dozen calls for it, each of which writes temporary arrays and
// waits for Python's GIL in the end, so that many threads would wait for each other; this is one call at the memory's rate.
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8 };  // sums that are added to in turn, for vector instructions
// Of a product: the rows and columns whose sums stay in registers, the terms of a sum before it is added to the others (sums of few
// terms are more accurate), the terms for which a part of the right operand stays in a core's first cache, and the rows for which all
// of it is read once.
enum { ROWS = 6, COLUMNS = 8, TERMS = 128, BLOCK = 512, ROWS_AT_ONCE = 72 };
enum { CACHE_LINE = 64 };

typedef double Four __attribute__((vector_size(32)));

static const double UNDERFLOWN = DBL_MIN;  // a sum of squares that were too small to count

// What rows of elements are like.
typedef struct {
    double largest;  // magnitude
    int64_t integral;  // whether all elements are integers; infinity counts as one
} Look;

// product[r, w] += the sum of values[r, j]·y[j, w] for `rows` rows of BLOCK elements, of which the first `terms` count. `width`: columns
// of y and of the product, a multiple of COLUMNS.
static void add_product(double values[ROWS][BLOCK], int64_t rows, int64_t terms, const double* y, int64_t width, double* product)
{
    for (int64_t w = 0; w < width; w += COLUMNS) {
        for (int64_t first = 0; first < terms; first += TERMS) {
            int64_t last = first + TERMS < terms ? first + TERMS : terms;
            Four sums[ROWS][COLUMNS / 4] = {0};
            for (int64_t j = first; j < last; ++j) {
                Four of_y[COLUMNS / 4];
                memcpy(of_y, &y[j * width + w], sizeof of_y);
                for (int r = 0; r < ROWS; ++r) {
                    for (int k = 0; k < COLUMNS / 4; ++k) sums[r][k] += values[r][j] * of_y[k];
                }
            }
            for (int64_t r = 0; r < rows; ++r) {
                for (int k = 0; k < COLUMNS; ++k) product[r * width + w + k] += sums[r][k / 4][k % 4];
            }
        }
    }
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
