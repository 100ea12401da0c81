# SPDX-License-Identifier: MIT
"""Small and thin products on CPUs beside the same by hand: the program that `bench_cpu.py --calls SECONDS` runs,
in one process and by several ranks.

Both sides of a row take turns, with new results each time and one thread of BLAS in each rank. In one process BLAS has as many
threads as ours; they look for work for a tenth of a second after each product, so that sides change after a rest. What ours
computes is checked. A line for each row: its name, then the medians by hand and of ours in milliseconds.
"""

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

import hybrid
from hybrid.host.threads import usable_cores

THIN = ((1000, 64, 1500), (300, 200, 100), (64, 64, 64))
ROOT_SIZE, OF_ROWS = 3000, 4000
REST = 0.2  # seconds, and of a side's turn
Call = Callable[[], object]


def alone(seconds: float) -> None:
    """One process beside NumPy."""
    random, cores = np.random.default_rng(0), len(usable_cores())
    for shape in THIN:
        n, l, m = shape
        a, b = random.random((n, l)), random.random((l, m))
        with threadpool_limits(cores):
            row("×".join(map(str, shape)), lambda a=a, b=b: a @ b, lambda a=a, b=b: hybrid.multiply(a, b), seconds)


def by_ranks(seconds: float) -> None:
    """All ranks beside collectives of mpi4py and NumPy."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    random = np.random.default_rng(comm.rank)

    n = ROOT_SIZE - ROOT_SIZE % comm.size
    a, b, out = (random.random((n, n)) if comm.rank == 0 else None for _ in range(3))

    def scatter_and_gather() -> None:
        rows, right = np.empty((n // comm.size, n)), np.empty((n, n)) if b is None else b
        comm.Scatter(a, rows)
        comm.Bcast(right)
        comm.Gather(rows @ right, out)

    def by_root() -> object:
        return hybrid.multiply(a, b, comm=comm, out=out)

    height = OF_ROWS // comm.size
    rows, x = (hybrid.RowBlock(random.random((height, width)), comm=comm) for width in (OF_ROWS, 1))

    def norm(y: np.ndarray) -> float:
        square, total = np.square(y).sum(keepdims=True), np.empty((1, 1))
        comm.Allreduce(square, total)
        return float(total[0, 0]) ** 0.5

    def step_by_hand() -> np.ndarray:
        whole = np.empty((OF_ROWS, 1))
        comm.Allgather(x.array, whole)
        y = rows.array @ whole
        return y / norm(y)

    def step() -> hybrid.RowBlock:
        y = rows @ x
        return y / norm(y.array)

    with threadpool_limits(1):
        row(f"rank 0's arrays, N = {n} with out", scatter_and_gather, by_root, seconds, comm)
        row(f"power method, {OF_ROWS}, RowBlocks", step_by_hand, step, seconds, comm)


def row(name: str, by_hand: Call, ours: Call, seconds: float, comm: object = None) -> None:
    """Measure one row for so many seconds, and print it at rank 0."""
    sides = (by_hand, ours)
    for _ in range(3):
        for each in sides:
            each()
    times: list[list[float]] = [[], []]
    began = time.perf_counter()
    while _all_go_on(comm, time.perf_counter() - began < seconds):
        for side, call in zip(times, sides, strict=True):
            _all_go_on(comm, True)
            if comm is None:
                time.sleep(REST)
            turn = time.perf_counter()
            while True:
                start = time.perf_counter()
                call()
                side.append(time.perf_counter() - start)
                if comm is not None or start - turn > REST:
                    break
    if comm is None or comm.rank == 0:
        print(name, *(1e3 * statistics.median(side) for side in times), sep="\t", flush=True)


def _all_go_on(comm: object, goes_on: bool) -> bool:
    """What rank 0 says, when all ranks are here."""
    return goes_on if comm is None else comm.bcast(goes_on)


if __name__ == "__main__":
    (alone if sys.argv[1] == "alone" else by_ranks)(float(sys.argv[2]))
