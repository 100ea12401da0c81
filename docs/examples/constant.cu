// SPDX-License-Identifier: MIT
// a vector in constant memory: out = M · v, one thread a row, as a whole program: constant WIDTH
#include <stdio.h>
#include <stdlib.h>

#define MOST 16384  // floats in constant memory, which has 64 KiB
#define BLOCK 64

__constant__ float v[MOST];  // all threads of a warp read the same element at a time: one load for the 32 of them

__global__ void multiply(const float* M, float* out, int width)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= width) return;
    float sum = 0;
    for (int k = 0; k < width; ++k) sum += M[row * width + k] * v[k];
    out[row] = sum;
}

static void check(cudaError_t error, const char* what)
{
    if (error == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

int main(int argc, char* argv[])
{
    int width = argc > 1 ? atoi(argv[1]) : 100;
    if (width < 1 || width > MOST) {
        printf("a vector of %d elements does not fit constant memory\n", width);
        return 1;
    }
    size_t bytes = (size_t)width * width * sizeof(float), column = width * sizeof(float);
    float *M = (float*)malloc(bytes), *host_v = (float*)malloc(column), *out = (float*)malloc(column), *d_M, *d_out;
    for (int i = 0; i < width * width; ++i) M[i] = rand() % 10;
    for (int k = 0; k < width; ++k) host_v[k] = rand() % 10;

    check(cudaMalloc(&d_M, bytes), "malloc M");
    check(cudaMalloc(&d_out, column), "malloc out");
    check(cudaMemcpy(d_M, M, bytes, cudaMemcpyHostToDevice), "copy M");
    check(cudaMemcpyToSymbol(v, host_v, column), "copy v to constant memory");
    multiply<<<(width + BLOCK - 1) / BLOCK, BLOCK>>>(d_M, d_out, width);
    check(cudaGetLastError(), "launch");
    check(cudaMemcpy(out, d_out, column, cudaMemcpyDeviceToHost), "copy out");

    int wrong = 0;
    for (int row = 0; row < width; ++row) {
        float sum = 0;
        for (int k = 0; k < width; ++k) sum += M[row * width + k] * host_v[k];
        wrong += out[row] != sum;
    }
    printf("%d of %d elements are wrong\n", wrong, width);
    check(cudaFree(d_M), "free M");
    check(cudaFree(d_out), "free out");
    free(M);
    free(host_v);
    free(out);
    return wrong > 0;
}
