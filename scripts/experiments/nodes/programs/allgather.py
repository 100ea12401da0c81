# SPDX-License-Identifier: MIT
"""The simplest program that is right: every rank has rows of A and B, gathers all of B, multiplies, and C is gathered.

python allgather.py N L M [stays]: rank 0 prints the seconds of the product. `stays`: C is not gathered.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

n, l, m = map(int, sys.argv[1:4])
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size


def rows_of_ranks(rows: int) -> list[int]:
    return [rows * (each + 1) // size - rows * each // size for each in range(size)]


random = np.random.default_rng(rank)
a, part = (random.random((rows_of_ranks(rows)[rank], columns)) for rows, columns in ((n, l), (l, m)))
b, c = np.empty((l, m)), np.empty((n if rank == 0 else 0, m))
comm.Barrier()
began = time.perf_counter()
comm.Allgatherv(part, [b, [m * rows for rows in rows_of_ranks(l)]])
part_of_c = a @ b
if sys.argv[4:] != ["stays"]:
    comm.Gatherv(part_of_c, [c, [m * rows for rows in rows_of_ranks(n)]])
comm.Barrier()
if rank == 0:
    print(time.perf_counter() - began)
