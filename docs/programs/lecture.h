// SPDX-License-Identifier: MIT
// What the lectures' programs have in common: every CUDA call is looked at, and every product is checked.
#pragma once
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// The first call that fails ends the program: what came after it would be computed from memory without a value.
#define CUDA(call) end_on_error(call, #call, __FILE__, __LINE__)

static inline void end_on_error(cudaError_t error, const char* call, const char* file, int line)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, cudaGetErrorString(error));
    exit(EXIT_FAILURE);
}

// A number of the command line, or what it is without one.
static inline int size_of_argument(int argc, char* argv[], int number, int otherwise)
{
    if (number >= argc) return otherwise;
    int size = atoi(argv[number]);
    if (size < 1) {
        fprintf(stderr, "%s: %s is no size: a whole number from 1 on\n", argv[0], argv[number]);
        exit(EXIT_FAILURE);
    }
    return size;
}

// As many blocks as cover `size`, the last of which may be larger than what is left: a kernel tests for that.
static inline unsigned blocks_for(int size, int block) { return (size + block - 1) / block; }

template <typename Number>
Number* host_matrix(int rows, int columns)
{
    Number* elements = (Number*)malloc((size_t)rows * columns * sizeof(Number));
    if (elements) return elements;
    fprintf(stderr, "no memory for %d×%d elements\n", rows, columns);
    exit(EXIT_FAILURE);
}

template <typename Number>
void fill_with_whole_numbers(Number* elements, int rows, int columns, int values)
{
    for (size_t i = 0; i < (size_t)rows * columns; ++i) elements[i] = (Number)(rand() % values);
}

// C·x against A·(B·x), which takes 2·(n·l + l·m + n·m) operations instead of the product's 2·n·l·m. With signs of x drawn at
// random no wrong row stays unseen but by chance. A sum of l terms has at most l rounding errors, relative to the terms' sizes.
template <typename Number>
bool is_product(int n, int l, int m, const Number* a, const Number* b, const Number* c)
{
    const double unit = sizeof(Number) == sizeof(float) ? FLT_EPSILON : DBL_EPSILON;
    double *x = host_matrix<double>(m, 1), *bx = host_matrix<double>(l, 1), *sizes = host_matrix<double>(l, 1);
    for (int j = 0; j < m; ++j) x[j] = rand() & 1 << 10 ? 1 : -1;
    for (int k = 0; k < l; ++k) {
        bx[k] = sizes[k] = 0;
        for (int j = 0; j < m; ++j) bx[k] += b[(size_t)k * m + j] * x[j], sizes[k] += fabs((double)b[(size_t)k * m + j]);
    }
    bool right = true;
    for (int i = 0; i < n; ++i) {
        double difference = 0, most = 0;
        for (int j = 0; j < m; ++j) difference += c[(size_t)i * m + j] * x[j];
        for (int k = 0; k < l; ++k) {
            difference -= a[(size_t)i * l + k] * bx[k];
            most += fabs((double)a[(size_t)i * l + k]) * sizes[k];
        }
        if (!(fabs(difference) <= 2 * l * unit * most)) right = false;  // also where it is NaN
    }
    free(x);
    free(bx);
    free(sizes);
    return right;
}
