# SPDX-License-Identifier: MIT
"""Is the runner as fast on CPUs as NumPy alone? python scripts/bench.py cpu [n] [--pairs 5] [--dtype float32] [--calls SECONDS]

In turn: a process that multiplies n×n matrices with NumPy and as many BLAS threads as there are ranks, and
`mpirun -n 2 python -m hybrid.matmul n n n`. Prints the medians, what the check takes, what the job spends around the
multiplication, and last `ratio R`: NumPy's time over ours.

With --calls a table of small and thin products, and of programs that call `multiply` again and again: each row for so many
seconds beside the same by hand, in turns.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import hybrid
from experiments.common import frame
from hybrid.core.problem import ITEM_SIZES
from hybrid.errors import HybridError
from hybrid.host.threads import usable_cores
from hybrid.ranks.launcher import mpirun

NUMPY = """\
import sys, time, numpy
n = int(sys.argv[1])
rng = numpy.random.default_rng(0)
a, b = rng.random((n, n), sys.argv[2]), rng.random((n, n), sys.argv[2])
a[:256, :256] @ b[:256, :256]
began = time.perf_counter()
a @ b
print(time.perf_counter() - began)
"""


def matmul(ranks: int, n: int, *options: str, environment: Mapping[str, str] | None = None) -> frame.Line:
    """What `mpirun -n RANKS python -m hybrid.matmul n n n` records."""
    words = [*mpirun(ranks), sys.executable, "-m", "hybrid.matmul", *[str(n)] * 3, *options]
    lines, failure = frame.ran(words, environment=environment)
    if failure:
        raise HybridError(f"{ranks} ranks failed: {failure}")
    return lines[0]


# --- small and thin products: both sides of a row take turns, with new results each time; a line for each row

THIN = ((1000, 64, 1500), (300, 200, 100), (64, 64, 64))
ROOT_SIZE, OF_ROWS = 3000, 4000
REST = 0.2  # seconds, and of a side's turn


def alone(seconds: float) -> None:
    """In one process, beside NumPy with as many threads of BLAS as ours; they look for work for a tenth of a second after each
    product, so sides change after a rest."""
    random = np.random.default_rng(0)
    for n, l, m in THIN:
        a, b = random.random((n, l)), random.random((l, m))
        with threadpool_limits(len(usable_cores())):
            row(f"{n}×{l}×{m}", partial(np.matmul, a, b), partial(hybrid.multiply, a, b), seconds)


def by_ranks(seconds: float) -> None:
    """By all ranks, beside collectives of mpi4py and NumPy; one thread of BLAS in each rank."""
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

    by_root = partial(hybrid.multiply, a, b, comm=comm, out=out)
    with threadpool_limits(1):
        row(f"rank 0's arrays, N = {n} with out", scatter_and_gather, by_root, seconds, comm)
        row(f"power method, {OF_ROWS}, RowBlocks", step_by_hand, step, seconds, comm)


def row(name: str, by_hand: Callable[[], object], ours: Callable[[], object], seconds: float, comm: Any = None) -> None:
    """Measure one row for `seconds`, and print it at rank 0."""
    times: list[list[float]] = [[], []]

    def all_go_on(goes_on: bool = True) -> bool:
        """What rank 0 says, when all ranks are here."""
        return bool(goes_on if comm is None else comm.bcast(goes_on))

    for call in (by_hand, ours) * 3:
        call()
    began = time.perf_counter()
    while all_go_on(time.perf_counter() - began < seconds):
        for side, call in zip(times, (by_hand, ours), strict=True):
            all_go_on()
            if comm is None:
                time.sleep(REST)
            turn = time.perf_counter()
            side.append(frame.seconds_of(call))
            while comm is None and time.perf_counter() - turn < REST:
                side.append(frame.seconds_of(call))
    if comm is None or comm.rank == 0:
        hand, our = (1e3 * statistics.median(side) for side in times)
        print(f"| {name} | {hand:.2f} | {our:.2f} | {our / hand:.2f} |", flush=True)


def work(options: argparse.Namespace) -> int:
    n, ranks, dtype = options.n, options.ranks, options.dtype
    if options.calls:
        print("| | by hand, ms | ours, ms | ratio |\n| --- | ---: | ---: | ---: |", flush=True)
        rows = [([], "alone"), (mpirun(ranks), "by_ranks")]
        program = "from experiments.bench.cpu import {0}; {0}({1})"
        words = [[*before, sys.executable, "-c", program.format(name, options.calls)] for before, name in rows]
        return max(subprocess.run(each, check=False).returncode for each in words)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(ranks), "MKL_NUM_THREADS": str(ranks)}
    by_numpy = [sys.executable, "-c", NUMPY, str(n), dtype]
    alone, ours, checks, around = [], [], [], []
    for _ in frame.shown(range(options.pairs), "pairs"):
        alone.append(float(subprocess.run(by_numpy, capture_output=True, text=True, check=True, env=environment).stdout))
        began = time.perf_counter()
        phases = matmul(ranks, n, "--fill", "uniform", "--device", "cpu", "--dtype", dtype)["seconds"]
        ours.append(phases["multiply"]["median"])
        checks.append(phases["check"]["median"])
        around.append(time.perf_counter() - began - ours[-1])
    told = {f"numpy alone, {ranks} threads": alone, f"multiply by {ranks} ranks": ours, "check": checks}
    for what, times in {**told, "around the multiplication": around}.items():
        print(f"{what:27} {statistics.median(times):8.3f} s  ({min(times):.3f} to {max(times):.3f})")
    print(f"with its check              {1 + statistics.median(checks) / statistics.median(ours):8.3f} × the multiplication")
    print(f"ratio {statistics.median(alone) / statistics.median(ours):.3f}")
    return 0


def main() -> int:
    parser = frame.parser_of(
        __doc__,
        frame.option("n", nargs="?", type=frame.positive, default=8000),
        frame.option("--pairs", type=frame.positive, default=5),
        frame.option("--ranks", type=frame.positive, default=2, help="ranks of ours and threads of NumPy's (2)"),
        frame.option("--calls", type=float, metavar="SECONDS", help="of each row of a table of small and thin products"),
        frame.option("--dtype", choices=tuple(ITEM_SIZES), default="float64"),
    )
    return frame.command(parser, work)
