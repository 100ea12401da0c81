"""The runner on blocks of a grid of ranks, which lie on the ranks already: those of C stay there.

python blocks_2d.py N L M ROWS COLUMNS: rank 0 prints the seconds of the product, which is checked.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

import hybrid

n, l, m, down, across = map(int, sys.argv[1:])
comm = MPI.COMM_WORLD
row, column = divmod(comm.rank, across)
random = np.random.default_rng(comm.rank)


def block(height: int, width: int) -> hybrid.Block2D:
    rows = (height * row // down, height * (row + 1) // down)
    columns = (width * column // across, width * (column + 1) // across)
    array = random.random((rows[1] - rows[0], columns[1] - columns[0]))
    return hybrid.Block2D(array, (height, width), [rows], [columns])


a, b = block(n, l), block(l, m)
few = block(comm.size, comm.size)
hybrid.multiply(few, few, comm=comm)  # what is made once, such as communicators
comm.Barrier()
began = time.perf_counter()
hybrid.multiply(a, b, comm=comm)
comm.Barrier()
if comm.rank == 0:
    print(time.perf_counter() - began)
