// SPDX-License-Identifier: MIT
// Siegel's hybrid program: greetings from every MPI process, OpenMP thread and GPU thread: mpirun -n 2 ./hybrid
#include <mpi.h>
#include <omp.h>

#include "lecture.h"

__global__ void greet(int rank)
{
    printf("Hello from block %d, thread %d of the GPU, called by process %d\n", blockIdx.x, threadIdx.x, rank);
}

// Ranks of one node take its GPUs in turn: without this all of them would use the first.
static void take_a_gpu()
{
    MPI_Comm node;
    int local_rank, gpus;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &local_rank);
    MPI_Comm_free(&node);
    CUDA(cudaGetDeviceCount(&gpus));
    CUDA(cudaSetDevice(local_rank % gpus));
}

int main(int argc, char* argv[])
{
    int rank, processes, provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    if (provided < MPI_THREAD_FUNNELED) {  // more than was asked for is fine
        fprintf(stderr, "this MPI does not allow threads beside the one that calls it\n");
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    take_a_gpu();

    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    greet<<<3, 4>>>(rank);  // 3 blocks of 4 threads
    CUDA(cudaGetLastError());
#pragma omp parallel
    printf("Greetings from CPU thread %d/%d of process %d/%d!\n", omp_get_thread_num(), omp_get_num_threads(), rank, processes);
    CUDA(cudaDeviceSynchronize());
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("Time: %f\n", MPI_Wtime() - start);
    MPI_Finalize();
    return 0;
}
