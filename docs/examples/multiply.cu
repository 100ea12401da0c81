// SPDX-License-Identifier: MIT
// C = A · B, one thread an element, as a whole program: multiply HEIGHT_OF_A WIDTH_OF_A WIDTH_OF_B
#include <stdio.h>
#include <stdlib.h>

#define BLOCK_SIZE 8

typedef struct {
    int width, height;
    float* elements;
} Matrix;

__global__ void MatMulKernel(Matrix A, Matrix B, Matrix C)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= A.height || col >= B.width) return;
    float value = 0;
    for (int e = 0; e < A.width; ++e) value += A.elements[row * A.width + e] * B.elements[e * B.width + col];
    C.elements[row * C.width + col] = value;
}

static void check(cudaError_t error, const char* what)
{
    if (error == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(error));
}

static size_t bytes_of(Matrix M) { return (size_t)M.width * M.height * sizeof(float); }

static Matrix host_matrix(int height, int width, int values)
{
    Matrix M = {width, height, NULL};
    M.elements = (float*)malloc(bytes_of(M));
    for (int i = 0; i < width * height; ++i) M.elements[i] = rand() % values;
    return M;
}

int main(int argc, char* argv[])
{
    if (argc != 4) return printf("three sizes are needed\n");
    int n = atoi(argv[1]), l = atoi(argv[2]), m = atoi(argv[3]);
    Matrix A = host_matrix(n, l, 3), B = host_matrix(l, m, 2), C = host_matrix(n, m, 1);

    Matrix d_A = A, d_B = B, d_C = C;
    check(cudaMalloc(&d_A.elements, bytes_of(A)), "A");
    check(cudaMalloc(&d_B.elements, bytes_of(B)), "B");
    check(cudaMalloc(&d_C.elements, bytes_of(C)), "C");
    check(cudaMemcpy(d_A.elements, A.elements, bytes_of(A), cudaMemcpyHostToDevice), "copy of A");
    check(cudaMemcpy(d_B.elements, B.elements, bytes_of(B), cudaMemcpyHostToDevice), "copy of B");

    cudaEvent_t start, stop;
    check(cudaEventCreate(&start), "event");
    check(cudaEventCreate(&stop), "event");
    check(cudaEventRecord(start), "start");

    dim3 block(BLOCK_SIZE, BLOCK_SIZE);
    dim3 grid((m + BLOCK_SIZE - 1) / BLOCK_SIZE, (n + BLOCK_SIZE - 1) / BLOCK_SIZE);
    MatMulKernel<<<grid, block>>>(d_A, d_B, d_C);
    check(cudaDeviceSynchronize(), "kernel");

    check(cudaGetLastError(), "launch");
    check(cudaEventRecord(stop), "stop");
    check(cudaEventSynchronize(stop), "stop");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start, stop), "time");
    check(cudaMemcpy(C.elements, d_C.elements, bytes_of(C), cudaMemcpyDeviceToHost), "copy of C");

    for (int row = 0; row < n && row < 10; ++row) {
        for (int col = 0; col < m && col < 10; ++col) printf("%g ", C.elements[row * m + col]);
        printf("\n");
    }
    printf("%.1f ms\n", milliseconds);
    check(cudaFree(d_A.elements), "free");
    check(cudaFree(d_B.elements), "free");
    check(cudaFree(d_C.elements), "free");
    free(A.elements);
    free(B.elements);
    free(C.elements);
    return 0;
}
