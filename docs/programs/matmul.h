// SPDX-License-Identifier: MIT
// The host's part of matmul1 and matmul2, which differ in their kernels only.
#pragma once
#include "lecture.h"

#define BLOCK_SIZE 16

typedef void Kernel(int n, int l, int m, const double* a, const double* b, double* c);

// Milliseconds of the kernel alone, by CUDA's events.
static float milliseconds_of(Kernel* kernel, int n, int l, int m, const double* a, const double* b, double* c)
{
    cudaEvent_t start, stop;
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    dim3 block(BLOCK_SIZE, BLOCK_SIZE);
    dim3 grid(blocks_for(m, BLOCK_SIZE), blocks_for(n, BLOCK_SIZE));
    CUDA(cudaEventRecord(start));
    kernel<<<grid, block>>>(n, l, m, a, b, c);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(stop));
    CUDA(cudaEventSynchronize(stop));
    float milliseconds = 0;
    CUDA(cudaEventElapsedTime(&milliseconds, start, stop));
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(stop));
    return milliseconds;
}

// The lecture's sizes are n = l = m = 8000.
static int time_product(int argc, char* argv[], Kernel* kernel)
{
    if (argc != 1 && argc != 4) {
        fprintf(stderr, "usage: %s [N L M]\n", argv[0]);
        return EXIT_FAILURE;
    }
    int n = size_of_argument(argc, argv, 1, 8000), l = size_of_argument(argc, argv, 2, 8000),
        m = size_of_argument(argc, argv, 3, 8000);
    size_t a_bytes = sizeof(double) * n * l, b_bytes = sizeof(double) * l * m, c_bytes = sizeof(double) * n * m;
    double *a = host_matrix<double>(n, l), *b = host_matrix<double>(l, m), *c = host_matrix<double>(n, m);
    fill_with_whole_numbers(a, n, l, 10);
    fill_with_whole_numbers(b, l, m, 10);

    double *d_a, *d_b, *d_c;
    CUDA(cudaMalloc(&d_a, a_bytes));
    CUDA(cudaMalloc(&d_b, b_bytes));
    CUDA(cudaMalloc(&d_c, c_bytes));
    CUDA(cudaMemcpy(d_a, a, a_bytes, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(d_b, b, b_bytes, cudaMemcpyHostToDevice));
    float milliseconds = milliseconds_of(kernel, n, l, m, d_a, d_b, d_c);
    CUDA(cudaMemcpy(c, d_c, c_bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(d_a));
    CUDA(cudaFree(d_b));
    CUDA(cudaFree(d_c));

    bool right = is_product(n, l, m, a, b, c);
    printf("c (%d×%d) = a (%d×%d) · b (%d×%d): %.1f ms, %s\n", n, m, n, l, l, m, milliseconds, right ? "right" : "WRONG");
    free(a);
    free(b);
    free(c);
    return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
