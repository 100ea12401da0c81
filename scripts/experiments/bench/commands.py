# SPDX-License-Identifier: MIT
"""A benchmark by name: python scripts/bench.py CASE [OPTION...]

Without a case, lists them.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

import hybrid
from experiments.common import frame
from experiments.start import main_of
from hybrid.errors import HybridError, UsageError
from hybrid.host.threads import usable_cores
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

CASES = {  # what starts a case, in this folder, and what it measures
    "hosts": ("hosts:Hosts.main", "from host memory to host memory, beside the program one writes by hand"),
    "check": ("products:Check.main", "what the check of a product costs"),
    "precision": ("products:Precision.main", "products from remainders beside cuBLAS"),
    "types": ("products:Types.main", "complex numbers and integers beside the library's matmul"),
    "cpu": ("commands:cpu", "on CPUs beside NumPy"),
    "nodes": ("nodes:Nodes.main", "between nodes beside MPI_Allgatherv and ScaLAPACK"),
    "scaling": ("commands:scaling", "runs on more and more nodes"),
    "accuracy": ("accuracy:Accuracy.main", "errors of products in every arithmetic"),
    "detection": ("detection:Detection.main", "which faults the check finds"),
}


def main() -> int:
    case, *words = sys.argv[1:] or [""]
    if case in CASES:
        sys.argv = [f"{sys.argv[0]} {case}", *words]
        return main_of(f"bench.{CASES[case][0]}")()

    def listed(_: argparse.Namespace) -> int:
        print(*(f"{name:<11}{about}" for name, (_, about) in CASES.items()), sep="\n")
        return 0

    named = frame.option("case", nargs="?", choices=tuple(CASES), metavar="CASE", help=", ".join(CASES))
    return frame.command(frame.parser_of(__doc__, named), listed)


_SCALING = """How does a product scale to many nodes? python scripts/bench.py scaling LINES.jsonl

Of JSON lines of hybrid.matmul, which slurm/scaling.sbatch collects: the seconds of the same product (strong scaling), and of
products with the same operations per node (weak scaling), beside the run on the fewest nodes.
"""


def scaling() -> int:
    lines = frame.option("lines", metavar="LINES", help="JSON lines of hybrid.matmul")
    return frame.command(frame.parser_of(_SCALING, lines), _scaled)


def _scaled(options: argparse.Namespace) -> int:
    if not (lines := [line for line in jsonl.read(options.lines) if line.get("command") == "matmul"]):
        raise UsageError(f"{options.lines} has no lines of hybrid.matmul")
    lines.sort(key=lambda line: line["nodes"])
    strong = [line for line in lines if line["n"] == lines[0]["n"]]
    weak = [lines[0], *(line for line in lines if line not in strong)]
    first = lines[0]["rate"] / lines[0]["nodes"]
    rows = [
        [name, str(line["nodes"]), str(line["n"]), f"{line['total']['median']:.3f}", f"{line['rate'] / 1e9:.1f}",
         f"{line['rate'] / line['nodes'] / first:.2f}"]
        for name, runs in (("strong", strong), ("weak", weak))
        for line in runs
    ]  # fmt: skip
    frame.show(frame.Table(["scaling", "nodes", "n", "seconds", "GF/s", "of the first, a node"], "lrrrrr", rows))
    return 0


_CPU = """Is the runner as fast on CPUs as NumPy alone? python scripts/bench.py cpu [n] [--pairs 5] [--calls SECONDS]

In turn: a process that multiplies n×n matrices in float64 with NumPy and two BLAS threads, and
`mpirun -n 2 python -m hybrid.matmul n n n`. Prints the medians, what the check takes, what the job spends around the
multiplication, and last `ratio R`: NumPy's time over ours.

With --calls a table of small and thin products instead, each timed for SECONDS beside NumPy's, in turns.
"""
_NUMPY = """\
import sys, time, numpy
n = int(sys.argv[1])
a, b = numpy.random.default_rng(0).random((2, n, n))
a[:256, :256] @ b[:256, :256]
began = time.perf_counter()
a @ b
print(time.perf_counter() - began)
"""
THIN = ((1000, 64, 1500), (300, 200, 100), (64, 64, 64))
REST = 0.2  # seconds of a rest, and of a side's turn


def cpu() -> int:
    n = frame.option("n", nargs="?", type=frame.positive, default=8000)
    pairs = frame.option("--pairs", type=frame.positive, default=5)
    calls = frame.option("--calls", type=float, metavar="SECONDS", help="of each row of a table of small and thin products")
    return frame.command(frame.parser_of(_CPU, n, pairs, calls), _beside_numpy)


def _beside_numpy(options: argparse.Namespace) -> int:
    if options.calls:
        return _small_products(options.calls)
    by_numpy, two_threads = [sys.executable, "-c", _NUMPY, str(options.n)], {"OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    by_ours = [*mpirun(2), sys.executable, "-m", "hybrid.matmul", *[str(options.n)] * 3, "--fill", "uniform", "--device", "cpu"]
    names = "numpy alone, 2 threads", "multiply by 2 ranks", "check", "around the multiplication"
    rounds: list[tuple[float, ...]] = []
    for _ in frame.shown(range(options.pairs), "pairs"):
        alone = subprocess.run(by_numpy, capture_output=True, text=True, check=True, env={**os.environ, **two_threads})
        began = time.perf_counter()
        lines, failure = frame.ran(by_ours)
        if failure:
            raise HybridError(f"2 ranks failed: {failure}")
        multiply, check = (lines[0]["seconds"][phase]["median"] for phase in ("multiply", "check"))
        rounds.append((float(alone.stdout), multiply, check, time.perf_counter() - began - multiply))
    for name, times in zip(names, zip(*rounds, strict=True), strict=True):
        print(f"{name:27} {statistics.median(times):8.3f} s  ({min(times):.3f} to {max(times):.3f})")
    numpy, multiply, check, _ = map(statistics.median, zip(*rounds, strict=True))
    print(f"with its check              {1 + check / multiply:8.3f} × the multiplication\nratio {numpy / multiply:.3f}")
    return 0


def _small_products(seconds: float) -> int:
    """In one process, beside NumPy with as many BLAS threads as ours."""
    random = np.random.default_rng(0)
    a, b, c = random.random((3, 64, 64))
    pairs = {f"{n}×{l}×{m}": (random.random((n, l)), random.random((l, m))) for n, l, m in THIN}
    pairs["64×64 of slices"] = a[:, 1:], b[1:]
    pairs |= {f"64×64 of {dtype}": ((9 * a).astype(dtype), (9 * b).astype(dtype)) for dtype in ("complex128", "float16", "int32")}
    works: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        name: (partial(np.matmul, *pair), partial(hybrid.multiply, *pair)) for name, pair in pairs.items()
    }
    works["64×64, 2·a·b + 3·c"] = lambda: 2 * (a @ b) + 3 * c, partial(hybrid.multiply, a, b, c, alpha=2, beta=3)
    rows = []
    with threadpool_limits(len(usable_cores())):
        for name, (numpy, ours) in works.items():
            turns = {"NumPy": partial(_turn, numpy), "ours": partial(_turn, ours)}
            times = frame.in_turns(turns, math.ceil(seconds / (4 * REST)))
            theirs, mine = (1e3 * statistics.median(each) for each in times.values())
            rows.append([name, f"{theirs:.3f}", f"{mine:.3f}", f"{mine / theirs:.2f}"])
    frame.show(frame.Table(["", "NumPy, ms", "ours, ms", "ratio"], "lrrr", rows))
    return 0


def _turn(call: Callable[[], object]) -> float:
    """The median seconds of the calls in a turn. BLAS threads spin for a tenth of a second after each product, hence the rest."""
    time.sleep(REST)
    began, times = time.perf_counter(), [frame.seconds_of(call)]
    while time.perf_counter() - began < REST:
        times.append(frame.seconds_of(call))
    return statistics.median(times)
