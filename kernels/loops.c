// SPDX-License-Identifier: MIT
// Three loops on one CPU core, as a baseline for GPU kernels. `loops`: in the order i, j, k, one element of C after the other.
// `loops_ikj`: with the inner loops exchanged, a row of C at a time.
//
// Loads per multiply-add: 2. In `loops` consecutive loads of B are a row apart, and the order of the sum forbids vectorization;
// in `loops_ikj` all loads are contiguous, and the compiler vectorizes the inner loop.
// Limit: memory for `loops`, which uses one element of every cache line of B that it loads; the cache for `loops_ikj`.
//
// ELEMENT, float or double, is defined on the compiler's command line.

typedef struct {
    ELEMENT* data;
    long long rows, columns, stride;
    int item_size;
} Matrix;

void loops(const Matrix* a, const Matrix* b, const Matrix* c)
{
    for (long long i = 0; i < c->rows; ++i)
        for (long long j = 0; j < c->columns; ++j) {
            const ELEMENT* row = a->data + i * a->stride;
            ELEMENT sum = 0;
            for (long long k = 0; k < a->columns; ++k) sum += row[k] * b->data[k * b->stride + j];
            c->data[i * c->stride + j] = sum;
        }
}

void loops_ikj(const Matrix* a, const Matrix* b, const Matrix* c)
{
    for (long long i = 0; i < c->rows; ++i) {
        ELEMENT* restrict sums = c->data + i * c->stride;
        for (long long j = 0; j < c->columns; ++j) sums[j] = 0;
        for (long long k = 0; k < a->columns; ++k) {
            const ELEMENT factor = a->data[i * a->stride + k];
            const ELEMENT* restrict row = b->data + k * b->stride;
            for (long long j = 0; j < c->columns; ++j) sums[j] += factor * row[j];
        }
    }
}
