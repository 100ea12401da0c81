// SPDX-License-Identifier: MIT
// Hochberg's first program: one thread computes one element of C from global memory: multNoShare A_ROWS A_COLUMNS B_COLUMNS
#include "multiply.h"

__global__ void MatMulKernel(Matrix A, Matrix B, Matrix C)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= C.height || column >= C.width) return;

    float sum = 0;
    for (int k = 0; k < A.width; ++k) sum += *element(A, row, k) * *element(B, k, column);
    *element(C, row, column) = sum;
}

int main(int argc, char* argv[]) { return multiply_random_matrices(argc, argv, MatMulKernel); }
