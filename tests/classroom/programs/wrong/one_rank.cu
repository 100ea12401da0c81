// SPDX-License-Identifier: MIT
// A program of MPI of which one rank launches a thread too many.
// expect: ^0: no error$
// expect: ^1: an illegal memory access was encountered$
// expect: \* rank 1: out of bounds: line 10 writes x\[4\], and it has 4 elements \(allocated in line 17\)
// expect: ^first CUDA call that failed: rank 1: cudaDeviceSynchronize in line 19
#include <mpi.h>
#include <stdio.h>

__global__ void k(int* x) { x[threadIdx.x] = 1; }

int main(int argc, char** argv)
{
    int rank, *x;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    cudaMalloc(&x, 4 * sizeof(int));
    k<<<1, 4 + rank>>>(x);
    cudaError_t error = cudaDeviceSynchronize();
    printf("%d: %s\n", rank, cudaGetErrorString(error));
    cudaFree(x);
    MPI_Finalize();
}
