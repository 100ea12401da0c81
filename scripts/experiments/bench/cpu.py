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
from collections.abc import Mapping
from pathlib import Path

from experiments.common import frame
from hybrid.core.problem import ITEM_SIZES
from hybrid.errors import HybridError
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
PROGRAM = Path(__file__).with_name("cpu_calls.py")
ON_CPU = ("--fill", "uniform", "--device", "cpu")


def numpy_alone(n: int, threads: int, dtype: str) -> float:
    """Seconds of a @ b in a process of its own."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    words = [sys.executable, "-c", NUMPY, str(n), dtype]
    return float(subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout)


def matmul(ranks: int, n: int, *options: str, environment: Mapping[str, str] | None = None) -> frame.Line:
    """What `mpirun -n RANKS python -m hybrid.matmul n n n` records."""
    words = [*mpirun(ranks), sys.executable, "-m", "hybrid.matmul", *[str(n)] * 3, *options]
    lines, failure = frame.ran(words, environment=environment)
    if failure:
        raise HybridError(f"{ranks} ranks failed: {failure}")
    return lines[0]


def calls(seconds: float, ranks: int) -> int:
    print("| | by hand, ms | ours, ms | ratio |\n| --- | ---: | ---: | ---: |")
    for words in ([sys.executable, PROGRAM, "alone"], [*mpirun(ranks), sys.executable, PROGRAM, "ranks"]):
        with subprocess.Popen([*map(str, words), str(seconds)], stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            for line in program.stdout:
                name, by_hand, ours = line.rstrip().split("\t")
                print(f"| {name} | {float(by_hand):.2f} | {float(ours):.2f} | {float(ours) / float(by_hand):.2f} |", flush=True)
        if program.returncode:
            return program.returncode
    return 0


def work(options: argparse.Namespace) -> int:
    if options.calls:
        return calls(options.calls, options.ranks)
    n, ranks, dtype = options.n, options.ranks, options.dtype
    alone, ours, checks, around = [], [], [], []
    for _ in frame.shown(range(options.pairs), "pairs"):
        alone.append(numpy_alone(n, ranks, dtype))
        began = time.perf_counter()
        phases = matmul(ranks, n, *ON_CPU, "--dtype", dtype)["seconds"]
        ours.append(phases["multiply"]["median"])
        checks.append(phases["check"]["median"])
        around.append(time.perf_counter() - began - ours[-1])
    rows = {f"numpy alone, {ranks} threads": alone, f"multiply by {ranks} ranks": ours, "check": checks}
    for what, times in {**rows, "around the multiplication": around}.items():
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
