// SPDX-License-Identifier: MIT
// Siegel's second program: a block computes a block of c through blocks of a and b in shared memory: matmul2 [N L M]
#include "matmul.h"

__global__ void multiply(int n, int l, int m, const double* a, const double* b, double* c)
{
    __shared__ double a_block[BLOCK_SIZE][BLOCK_SIZE], b_block[BLOCK_SIZE][BLOCK_SIZE];
    int i_local = threadIdx.y, j_local = threadIdx.x;
    int i = blockIdx.y * BLOCK_SIZE + i_local, j = blockIdx.x * BLOCK_SIZE + j_local;

    double sum = 0;
    for (int s = 0; s < l; s += BLOCK_SIZE) {
        // What is not loaded here, beyond the edges, is not used below.
        if (i < n && s + j_local < l) a_block[i_local][j_local] = a[(size_t)i * l + s + j_local];
        if (s + i_local < l && j < m) b_block[i_local][j_local] = b[(size_t)(s + i_local) * m + j];
        __syncthreads();  // both blocks are loaded
        if (i < n && j < m)
            for (int k = 0; k < min(BLOCK_SIZE, l - s); ++k) sum += a_block[i_local][k] * b_block[k][j_local];
        __syncthreads();  // both have been used
    }
    if (i < n && j < m) c[(size_t)i * m + j] = sum;
}

int main(int argc, char* argv[]) { return time_product(argc, argv, multiply); }
