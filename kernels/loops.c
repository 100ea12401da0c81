// Three loops on one core of the CPU: what a GPU's kernels are compared with. `loops`: i, j, k, an element of C after the
// other. `loops_ikj`: the two inner loops change places, and a row of C grows.
//
// Loads per multiply-add: 2. In `loops` those of B are a row apart, and the sum's order forbids to add several at once; in
// `loops_ikj` all lie side by side, and the compiler adds as many at once as the core can.
// Limit: memory for `loops`, which takes a number out of each line of B that it loads; the cache for `loops_ikj`.
//
// ELEMENT, float or double, is given by who compiles it.

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
