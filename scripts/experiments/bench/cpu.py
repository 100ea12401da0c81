# SPDX-License-Identifier: MIT
"""Is the runner as fast on CPUs as NumPy alone? python scripts/bench.py cpu [n] [--pairs 5] [--dtype float32] [--calls SECONDS]

In turn: a process that multiplies n×n matrices with NumPy and as many BLAS threads as there are ranks, and
`mpirun -n 2 python -m hybrid.matmul n n n`. Prints the medians, what the check takes, beside a plain sum of the three matrices
by as many threads, what the job spends around the multiplication, its peak memory (all processes, shared pages counted once)
beside the three matrices, and last `ratio R`: NumPy's time over ours.

With --calls a table of small and thin products, and of programs that call `multiply` again and again: each row for so many
seconds beside the same by hand, in turns.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from experiments.common.cli import at_least_1, command, plain_parser, shown
from experiments.common.results import Line, told_error
from hybrid.core.problem import ITEM_SIZES
from hybrid.errors import HybridError
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

NUMPY = """\
import sys, time, numpy
from concurrent.futures import ThreadPoolExecutor
n, threads = int(sys.argv[1]), int(sys.argv[2])
rng = numpy.random.default_rng(0)
a, b = rng.random((n, n), sys.argv[3]), rng.random((n, n), sys.argv[3])
a[:256, :256] @ b[:256, :256]
began = time.perf_counter()
c = a @ b
multiplied = time.perf_counter() - began
with ThreadPoolExecutor(threads) as pool:
    list(pool.map(numpy.sum, [a[:threads]] * threads))  # its threads have started
    began = time.perf_counter()
    list(pool.map(numpy.sum, [part for each in (a, b, c) for part in numpy.array_split(each, threads)]))
    print(multiplied, time.perf_counter() - began)
"""
PROGRAM = Path(__file__).with_name("cpu_calls.py")
ON_CPU = ("--fill", "uniform", "--device", "cpu")
SAMPLE_EVERY = 0.05  # seconds between two samples of the memory


def numpy_alone(n: int, threads: int, dtype: str) -> tuple[float, float]:
    """Seconds of a @ b in a process of its own, and of a sum of all three."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    arguments = [sys.executable, "-c", NUMPY, str(n), str(threads), dtype]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
    multiplied, summed = map(float, done.stdout.split())
    return multiplied, summed


def peak_memory(n: int, ranks: int, dtype: str) -> int:
    """The largest proportional set size of all processes of the job (Linux); in a run of its own: samples take time."""
    samples = [0]

    def watch(root: int) -> None:
        while Path(f"/proc/{root}/stat").exists() and (found := sum(map(_proportional_bytes, _with_descendants(root)))):
            samples.append(found)
            time.sleep(SAMPLE_EVERY)

    matmul(ranks, n, *ON_CPU, "--dtype", dtype, watch=lambda job: threading.Thread(target=watch, args=[job]).start())
    return max(samples)


def _with_descendants(process: int) -> Iterator[int]:
    yield process
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return  # it has ended meanwhile
    for child in children:
        yield from _with_descendants(int(child))


def _proportional_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended meanwhile
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def matmul(
    ranks: int,
    n: int,
    *options: str,
    environment: Mapping[str, str] | None = None,
    watch: Callable[[int], None] = lambda process: None,
) -> Line:
    """What `mpirun -n RANKS python -m hybrid.matmul n n n` records. `watch` is told the launcher's process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        words = [*mpirun(ranks), sys.executable, "-m", "hybrid.matmul", *[str(n)] * 3, *options, "--json", str(path)]
        pipe, more = subprocess.PIPE, {**os.environ, **(environment or {})}
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=more) as job:
            watch(job.pid)
            output, errors = job.communicate()
        if job.returncode:
            raise HybridError(f"{ranks} ranks failed: {told_error(errors, output)}")
        (line,) = jsonl.read(str(path))
        return line


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
    alone, sums, ours, checks, around = [], [], [], [], []
    for _ in shown(range(options.pairs), "pairs"):
        for times, seconds in zip((alone, sums), numpy_alone(n, ranks, dtype), strict=True):
            times.append(seconds)
        began = time.perf_counter()
        phases = matmul(ranks, n, *ON_CPU, "--dtype", dtype)["seconds"]
        ours.append(phases["multiply"]["median"])
        checks.append(phases["check"]["median"])
        around.append(time.perf_counter() - began - ours[-1])
    peak = peak_memory(n, ranks, dtype)
    threads, by_ranks = f"numpy alone, {ranks} threads", f"multiply by {ranks} ranks"
    rows = ((threads, alone), (by_ranks, ours), ("check", checks), ("a plain sum of A, B, C", sums))
    for what, times in (*rows, ("around the multiplication", around)):
        print(f"{what:27} {statistics.median(times):8.3f} s  ({min(times):.3f} to {max(times):.3f})")
    matrices = 3 * ITEM_SIZES[dtype] * n**2
    print(f"peak memory of the job      {peak / 2**20:8.0f} MiB  {peak / matrices:.3f} × the three matrices")
    print(f"with its check              {1 + statistics.median(checks) / statistics.median(ours):8.3f} × the multiplication")
    print(f"ratio {statistics.median(alone) / statistics.median(ours):.3f}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = plain_parser(__doc__)
    parser.add_argument("n", nargs="?", type=at_least_1, default=8000)
    parser.add_argument("--pairs", type=at_least_1, default=5)
    parser.add_argument("--ranks", type=at_least_1, default=2, help="ranks of ours and threads of NumPy's (2)")
    parser.add_argument("--calls", type=float, metavar="SECONDS", help="of each row of a table of small and thin products")
    parser.add_argument("--dtype", choices=tuple(ITEM_SIZES), default="float64")
    return command(parser, work, arguments)
