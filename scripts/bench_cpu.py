"""Is the runner as fast on CPUs as NumPy alone? python scripts/bench_cpu.py [n] [--pairs 5]

In turn: a process that multiplies n×n float64 matrices with NumPy and as many BLAS threads as there are ranks, and
`mpirun -n 2 python -m hybrid.matmul n n n`. Prints the medians, what the job spends around the multiplication, its peak
memory (all processes, shared pages counted once) beside the three matrices, and last `ratio R`: NumPy's time over ours.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

NUMPY = """\
import sys, time, numpy
n = int(sys.argv[1])
rng = numpy.random.default_rng(0)
a, b = rng.random((n, n)), rng.random((n, n))
a[:256, :256] @ b[:256, :256]
began = time.perf_counter()
a @ b
print(time.perf_counter() - began)
"""
SAMPLE_EVERY = 0.05  # seconds between two looks at the memory


def numpy_alone(n: int, threads: int) -> float:
    """Seconds of a @ b in a process of its own."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, "-c", NUMPY, str(n)], capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


def runner(n: int, ranks: int, folder: Path, *, watch_memory: bool = False) -> tuple[float, float, int]:
    """Seconds of the multiply phase, seconds of everything else, and peak bytes of all processes of the job.

    Only one or the other: each look at the memory walks the page tables of all ranks, and takes time from them.
    """
    line = folder / "run.jsonl"
    line.unlink(missing_ok=True)
    command = [*mpirun(ranks), sys.executable, "-m", "hybrid.matmul", *[str(n)] * 3]
    began = time.perf_counter()
    job = subprocess.Popen([*command, "--fill", "uniform", "--device", "cpu", "--json", str(line)], stdout=subprocess.DEVNULL)
    memory = PeakMemory(job.pid) if watch_memory else None
    if job.wait() != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    wall = time.perf_counter() - began
    (run,) = jsonl.read(str(line))
    multiply = run["seconds"]["multiply"]["median"]
    return multiply, wall - multiply, memory.peak() if memory else 0


class PeakMemory:
    """The largest proportional set size of a process and all its descendants, until it ends (Linux)."""

    def __init__(self, root: int) -> None:
        self._root, self._most = root, 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def peak(self) -> int:
        self._thread.join()
        return self._most

    def _watch(self) -> None:
        while Path(f"/proc/{self._root}/stat").exists():
            found = sum(map(_proportional_bytes, _with_descendants(self._root)))
            if not found:
                return
            self._most = max(self._most, found)
            time.sleep(SAMPLE_EVERY)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", nargs="?", type=int, default=8000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of ours and threads of NumPy's (2)")
    options = parser.parse_args()
    alone, ours, around = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in tqdm(range(options.pairs), desc="pairs", disable=not sys.stderr.isatty()):
            alone.append(numpy_alone(options.n, options.ranks))
            multiply, rest, _ = runner(options.n, options.ranks, Path(folder))
            ours.append(multiply)
            around.append(rest)
        _, _, peak = runner(options.n, options.ranks, Path(folder), watch_memory=True)
    matrices = 3 * 8 * options.n**2
    print(f"numpy alone, {options.ranks} threads     {statistics.median(alone):8.3f} s  ({min(alone):.3f} to {max(alone):.3f})")
    print(f"multiply by {options.ranks} ranks         {statistics.median(ours):8.3f} s  ({min(ours):.3f} to {max(ours):.3f})")
    print(f"around the multiplication   {statistics.median(around):8.3f} s  ({min(around):.3f} to {max(around):.3f})")
    print(f"peak memory of the job      {peak / 2**20:8.0f} MiB  {peak / matrices:.3f} × the three matrices")
    print(f"ratio {statistics.median(alone) / statistics.median(ours):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
