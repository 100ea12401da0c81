// SPDX-License-Identifier: MIT
// The host's part of multNoShare and multShare, which differ in their kernels only.
#pragma once
#include <time.h>

#include "lecture.h"

#define BLOCK_SIZE 16

typedef struct {
    int width, height;
    int stride;  // from a row to the next one, in elements
    float* elements;
} Matrix;

typedef void Kernel(Matrix A, Matrix B, Matrix C);

// Offsets have 64 bits: an int ends at 2³¹ elements, 8 GiB of float.
__host__ __device__ inline float* element(Matrix M, int row, int column) { return M.elements + (size_t)row * M.stride + column; }

static size_t bytes_of(Matrix M) { return (size_t)M.height * M.width * sizeof(float); }

static Matrix random_matrix(int height, int width, int values)
{
    Matrix M = {width, height, width, host_matrix<float>(height, width)};
    fill_with_whole_numbers(M.elements, height, width, values);
    return M;
}

// Prints how it went, and ends the program where it went wrong.
static void say(const char* what, cudaError_t error)
{
    printf("%s: %s\n", what, cudaGetErrorString(error));
    if (error != cudaSuccess) exit(EXIT_FAILURE);
}

static void multiply(Kernel* kernel, Matrix A, Matrix B, Matrix C)
{
    Matrix d_A = A, d_B = B, d_C = C;
    say("CUDA malloc A", cudaMalloc(&d_A.elements, bytes_of(A)));
    say("Copy A to device", cudaMemcpy(d_A.elements, A.elements, bytes_of(A), cudaMemcpyHostToDevice));
    say("CUDA malloc B", cudaMalloc(&d_B.elements, bytes_of(B)));
    say("Copy B to device", cudaMemcpy(d_B.elements, B.elements, bytes_of(B), cudaMemcpyHostToDevice));
    say("CUDA malloc C", cudaMalloc(&d_C.elements, bytes_of(C)));

    dim3 block(BLOCK_SIZE, BLOCK_SIZE);
    dim3 grid(blocks_for(C.width, BLOCK_SIZE), blocks_for(C.height, BLOCK_SIZE));
    kernel<<<grid, block>>>(d_A, d_B, d_C);
    CUDA(cudaGetLastError());  // was it launched?
    say("Run kernel", cudaDeviceSynchronize());
    say("Copy C off of device", cudaMemcpy(C.elements, d_C.elements, bytes_of(C), cudaMemcpyDeviceToHost));

    CUDA(cudaFree(d_A.elements));
    CUDA(cudaFree(d_B.elements));
    CUDA(cudaFree(d_C.elements));
}

// The first ten rows and columns, and an empty line.
static void print(Matrix M)
{
    for (int row = 0; row < M.height && row < 10; ++row) {
        for (int column = 0; column < M.width && column < 10; ++column) printf("%f ", *element(M, row, column));
        printf("\n");
    }
    printf("\n");
}

// A has elements of {0, 1, 2}, B of {0, 1}: the product is exact in float up to 2²⁴ / 2 = 8,388,608 terms.
static int multiply_random_matrices(int argc, char* argv[], Kernel* kernel)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s A_ROWS A_COLUMNS B_COLUMNS\n", argv[0]);
        return EXIT_FAILURE;
    }
    int n = size_of_argument(argc, argv, 1, 0), l = size_of_argument(argc, argv, 2, 0), m = size_of_argument(argc, argv, 3, 0);
    srand((unsigned)time(NULL));
    Matrix A = random_matrix(n, l, 3), B = random_matrix(l, m, 2), C = random_matrix(n, m, 1);
    multiply(kernel, A, B, C);
    print(A);
    print(B);
    print(C);
    bool right = is_product(n, l, m, A.elements, B.elements, C.elements);
    if (!right) fprintf(stderr, "C is not A·B\n");
    free(A.elements);
    free(B.elements);
    free(C.elements);
    return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
