// SPDX-License-Identifier: MIT
// What group_sums.py computes of rows in host memory. NumPy needs a dozen calls for it, each of which writes temporary arrays and
// waits for Python's GIL in the end, so that many threads would wait for each other; this is one call at the memory's rate.
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 8 };  // sums that are added to in turn, for vector instructions

static const double UNDERFLOWN = DBL_MIN;  // a sum of squares that were too small to count

// What rows of elements are like.
typedef struct {
    double largest;  // magnitude
    int64_t integral;  // whether all elements are integers; infinity counts as one
} Look;

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
