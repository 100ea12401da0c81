// SPDX-License-Identifier: MIT
// A message that nobody sends.
// expect: the host code had not ended after 1 s, which --stall sets; it was in line 1[0-3]: a message or a rank that never came
#include <mpi.h>
__global__ void k() {}

int main(int argc, char** argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) MPI_Recv(&rank, 1, MPI_INT, 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Finalize();
    k<<<1, 1>>>();
}
