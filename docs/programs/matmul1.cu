// SPDX-License-Identifier: MIT
// Siegel's first program: one thread computes one element of c, in double precision: matmul1 [N L M]
#include "matmul.h"

__global__ void multiply(int n, int l, int m, const double* a, const double* b, double* c)
{
    int i = blockIdx.y * blockDim.y + threadIdx.y;
    int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || j >= m) return;

    double sum = 0;
    for (int k = 0; k < l; ++k) sum += a[(size_t)i * l + k] * b[(size_t)k * m + j];
    c[(size_t)i * m + j] = sum;
}

int main(int argc, char* argv[]) { return time_product(argc, argv, multiply); }
