// SPDX-License-Identifier: MIT
// ScaLAPACK's pdgemm on a block-cyclic distribution, which its operands have already and its result keeps.
//
// pdgemm N L M ROWS COLUMNS BLOCK: processes in a grid of ROWS×COLUMNS, square blocks. The first prints the seconds of a product;
// all end with 1 if C·x is not A·(B·x).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

void Cblacs_pinfo(int* rank, int* size);
void Cblacs_get(int context, int what, int* value);
void Cblacs_gridinit(int* context, const char* order, int rows, int columns);
void Cblacs_gridinfo(int context, int* rows, int* columns, int* row, int* column);
void Cblacs_barrier(int context, const char* scope);
void Cblacs_gridexit(int context);
void Cblacs_exit(int go_on);
void Cdgamx2d(int context, const char* scope, const char* topology, int m, int n, double* a, int lda, int* ra, int* ca, int lra, int rdest,
              int cdest);
int numroc_(const int* n, const int* block, const int* process, const int* first, const int* processes);
void descinit_(int* descriptor, const int* rows, const int* columns, const int* row_block, const int* column_block, const int* first_row,
               const int* first_column, const int* context, const int* leading, int* info);
void pdgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k, const double* alpha, const double* a,
             const int* ia, const int* ja, const int* desc_a, const double* b, const int* ib, const int* jb, const int* desc_b,
             const double* beta, double* c, const int* ic, const int* jc, const int* desc_c);

static const int zero = 0, one = 1;

typedef struct {
    int rows, columns, local_rows, local_columns, descriptor[9];
    double* data;
} Matrix;

static Matrix made(int rows, int columns, int block, int context, int filled)
{
    Matrix matrix = {rows, columns};
    int grid_rows, grid_columns, row, column, info;
    Cblacs_gridinfo(context, &grid_rows, &grid_columns, &row, &column);
    matrix.local_rows = numroc_(&rows, &block, &row, &zero, &grid_rows);
    matrix.local_columns = numroc_(&columns, &block, &column, &zero, &grid_columns);
    int leading = matrix.local_rows > 1 ? matrix.local_rows : 1;
    descinit_(matrix.descriptor, &rows, &columns, &block, &block, &zero, &zero, &context, &leading, &info);
    size_t size = (size_t)leading * (matrix.local_columns > 1 ? matrix.local_columns : 1);
    matrix.data = malloc(size * sizeof(double));
    if (info || !matrix.data) exit(2);
    for (size_t i = 0; i < size; ++i) matrix.data[i] = filled ? drand48() : NAN;
    return matrix;
}

static void multiply(Matrix a, Matrix b, Matrix c)
{
    const double alpha = 1, beta = 0;
    pdgemm_("N", "N", &c.rows, &c.columns, &a.columns, &alpha, a.data, &one, &one, a.descriptor, b.data, &one, &one, b.descriptor, &beta,
            c.data, &one, &one, c.descriptor);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

int main(int count, char** words)
{
    int number[6], rank, size, context;
    if (count != 7) return 2;
    for (int i = 0; i < 6; ++i) number[i] = atoi(words[i + 1]);
    int n = number[0], l = number[1], m = number[2], block = number[5];
    Cblacs_pinfo(&rank, &size);
    Cblacs_get(-1, 0, &context);
    Cblacs_gridinit(&context, "Row", number[3], number[4]);
    srand48(rank + 1);
    Matrix a = made(n, l, block, context, 1), b = made(l, m, block, context, 1), c = made(n, m, block, context, 0);
    Matrix x = made(m, 1, block, context, 1), y = made(l, 1, block, context, 0);
    Matrix first = made(n, 1, block, context, 0), second = made(n, 1, block, context, 0);
    multiply(b, x, y);  // also connects the processes
    Cblacs_barrier(context, "All");
    double began = seconds();
    multiply(a, b, c);
    Cblacs_barrier(context, "All");
    double took = seconds() - began;
    multiply(c, x, first);
    multiply(a, y, second);
    double most = 0;
    int of_rows, of_columns;
    for (int i = 0; i < first.local_rows * first.local_columns; ++i) {
        double difference = fabs(first.data[i] / second.data[i] - 1);
        if (!(difference <= most)) most = isnan(difference) ? HUGE_VAL : difference;
    }
    Cdgamx2d(context, "All", " ", 1, 1, &most, 1, &of_rows, &of_columns, 1, -1, -1);
    if (rank == 0) printf("%.6f\n", took);
    fflush(stdout);
    Cblacs_barrier(context, "All");
    _exit(!(most < 1e-9));
}
