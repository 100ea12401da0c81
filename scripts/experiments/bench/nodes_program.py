# SPDX-License-Identifier: MIT
"""A product between nodes, of operands that lie on the ranks: the program that `scripts/bench.py nodes` starts on each of them.

python nodes_program.py WAY N L M: rank 0 prints the seconds of the product.
allgather   the simplest program that is right: rows of A and B, all of B gathered, C gathered at rank 0; "stays": C is not
rows        hybrid.multiply on row blocks, whose product stays on the ranks; it is checked, as is that of blocks
blocks      the same on the blocks of a grid of ranks
"""

import math
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import hybrid

comm = MPI.COMM_WORLD
random = np.random.default_rng(comm.rank)


def share(length: int, parts: int, part: int) -> tuple[int, int]:
    return length * part // parts, length * (part + 1) // parts


def rows_of(height: int, width: int, rank: int) -> np.ndarray:
    first, end = share(height, comm.size, rank)
    return random.random((end - first, width))


def allgather(n: int, l: int, m: int, *, stays: bool = False) -> Callable[[], object]:
    a, part = rows_of(n, l, comm.rank), rows_of(l, m, comm.rank)
    b, c = np.empty((l, m)), np.empty((n if comm.rank == 0 else 0, m))
    of_ranks = [[share(length, comm.size, rank) for rank in range(comm.size)] for length in (l, n)]
    counts = [[m * (end - first) for first, end in shares] for shares in of_ranks]

    def product() -> None:
        comm.Allgatherv(part, [b, counts[0]])
        part_of_c = a @ b
        if not stays:
            comm.Gatherv(part_of_c, [c, counts[1]])

    return product


def rows(n: int, l: int, m: int) -> Callable[[], object]:
    a, b = (hybrid.RowBlock(rows_of(height, width, comm.rank)) for height, width in ((n, l), (l, m)))
    few = hybrid.RowBlock(np.ones((1, comm.size)))
    hybrid.multiply(few, few, comm=comm, device="cpu")  # what is made once, such as communicators
    return lambda: hybrid.multiply(a, b, comm=comm, device="cpu")


def blocks(n: int, l: int, m: int) -> Callable[[], object]:
    down = max(divisor for divisor in range(1, math.isqrt(comm.size) + 1) if comm.size % divisor == 0)
    row, column = divmod(comm.rank, comm.size // down)

    def block(height: int, width: int) -> hybrid.Block2D:
        of_rows, of_columns = share(height, down, row), share(width, comm.size // down, column)
        array = random.random((of_rows[1] - of_rows[0], of_columns[1] - of_columns[0]))
        return hybrid.Block2D(array, (height, width), [of_rows], [of_columns])

    a, b, few = block(n, l), block(l, m), block(comm.size, comm.size)
    hybrid.multiply(few, few, comm=comm)
    return lambda: hybrid.multiply(a, b, comm=comm)


def main() -> None:
    ways = {"allgather": allgather, "stays": lambda *sizes: allgather(*sizes, stays=True), "rows": rows, "blocks": blocks}
    product = ways[sys.argv[1]](*map(int, sys.argv[2:5]))
    comm.Barrier()
    began = time.perf_counter()
    product()
    comm.Barrier()
    if comm.rank == 0:
        print(time.perf_counter() - began)


main()
