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

THIN = ((1000, 64, 1500), (2000, 64, 64), (100000, 8, 8), (5000, 5000, 1), (300, 200, 100))
ROOT_SIZES = (1000, 2000, 3000)
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

    def measured(name: str, by_hand: Call, ours: Call) -> None:
        row(name, by_hand, ours, seconds, comm)

    def whole(rows: np.ndarray) -> np.ndarray:
        gathered = np.empty((comm.size * len(rows), rows.shape[1]))
        comm.Allgather(np.ascontiguousarray(rows), gathered)
        return gathered

    def total(of_rank: np.ndarray) -> np.ndarray:
        of_all = np.empty_like(of_rank)
        comm.Allreduce(of_rank, of_all)
        return of_all

    def scatter_and_gather(a: np.ndarray | None, b: np.ndarray | None, out: np.ndarray | None, n: int) -> None:
        rows, right = np.empty((n // comm.size, n)), np.empty((n, n)) if b is None else b
        comm.Scatter(a, rows)
        comm.Bcast(right)
        c = np.empty((n, n)) if out is None and comm.rank == 0 else out
        comm.Gather(rows @ right, c)

    def rows_of(height: int, width: int) -> hybrid.RowBlock:
        return hybrid.RowBlock(random.random((height // comm.size, width)), comm=comm)

    def normalized(y: hybrid.RowBlock) -> hybrid.RowBlock:
        return y / float(total(np.square(y.array).sum(keepdims=True))[0, 0]) ** 0.5

    def flow_by_hand(a: np.ndarray) -> np.ndarray:
        inflated = (a @ whole(a)) ** 2
        return inflated / total(inflated.sum(axis=0))

    def flow(a: hybrid.RowBlock) -> np.ndarray:
        inflated = (a @ a) ** 2
        return inflated.array / total(inflated.array.sum(axis=0))

    with threadpool_limits(1):
        for n in ROOT_SIZES:
            n -= n % comm.size
            a, b, out = (random.random((n, n)) if comm.rank == 0 else None for _ in range(3))
            for name, into in (("", None), (" with out", out)):
                measured(
                    f"rank 0's arrays, N = {n}{name}",
                    lambda a=a, b=b, into=into, n=n: scatter_and_gather(a, b, into, n),
                    lambda a=a, b=b, into=into: hybrid.multiply(a, b, comm=comm, out=into),
                )
        a, x, omega, graph = rows_of(4000, 4000), rows_of(4000, 1), rows_of(4000, 32), rows_of(600, 600)

        def step_by_hand() -> np.ndarray:
            y = a.array @ whole(x.array)
            return y / float(total(np.square(y).sum(keepdims=True))[0, 0]) ** 0.5

        measured("power method, 4000", step_by_hand, lambda: normalized(a @ x))
        measured("Markov clustering, 600", lambda: flow_by_hand(graph.array), lambda: flow(graph))
        measured("A·Ω, 4000×4000×32", lambda: a.array @ whole(omega.array), lambda: a @ omega)


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
