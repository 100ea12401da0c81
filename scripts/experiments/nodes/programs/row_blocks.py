"""The runner on row blocks that lie on the ranks already, and stay there: nothing is gathered.

python row_blocks.py N L M: rank 0 prints the seconds of the product, which is checked.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

import hybrid

n, l, m = map(int, sys.argv[1:])
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
random = np.random.default_rng(rank)
a, b = (
    hybrid.RowBlock(random.random((rows * (rank + 1) // size - rows * rank // size, columns)))
    for rows, columns in ((n, l), (l, m))
)
few = hybrid.RowBlock(np.ones((1, size)))
hybrid.multiply(few, few, comm=comm, device="cpu")  # what is made once, such as communicators
comm.Barrier()
began = time.perf_counter()
hybrid.multiply(a, b, comm=comm, device="cpu")
comm.Barrier()
if rank == 0:
    print(time.perf_counter() - began)
