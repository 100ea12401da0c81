"""What the programs that scripts/bench_hosts.py starts share: their options, their matrices, their check and their lines."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hybrid.errors import CheckFailed
from hybrid.host.threads import limited_threads
from hybrid.reporting import jsonl

DTYPE = "float64"
WORST_ERROR = 1e-10  # of C·x beside A·(B·x), relative: rounding leaves about 1e-14
_THREADS = 16  # that make random numbers


def options_of(description: str | None) -> argparse.Namespace:
    """What every program is told."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, required=True, metavar="N", help="square matrices, one after the other")
    parser.add_argument("--gpus", nargs="+", type=int, default=[1], metavar="P", help="how many one process uses (1)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu", "emulate"))
    parser.add_argument("--repeat", type=int, default=3, help="products timed (3)")
    parser.add_argument("--json", required=True, metavar="FILE", help="append a line for each result")
    return parser.parse_args()


def uniform(n: int) -> np.ndarray:
    """An ordinary n×n array of random numbers, its memory first touched by this thread."""
    matrix = np.empty((n, n), DTYPE)
    matrix.fill(0)
    threads = min(_THREADS, os.cpu_count() or 1)
    parts = [part for part in np.array_split(matrix, threads) if part.size]
    generators = np.random.default_rng().spawn(len(parts))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda generator, part: generator.random(out=part), generators, parts))
    return matrix


def refuse_wrong(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    """How far C is from A·B, by a random vector. CheckFailed if that is more than rounding."""
    x = np.random.default_rng().random(len(b))
    with limited_threads(1):  # more would go on looking for work for a tenth of a second, on the cores of what is timed next
        product = c @ x
        error = float(np.abs(product - a @ (b @ x)).max() / np.abs(product).max())
    if not error <= WORST_ERROR:
        raise CheckFailed(f"the product of {len(a)}×{len(a)} matrices is wrong: error {error:.1e}")
    return error


def seconds_of(work: Callable[..., Any], *arguments: Any) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def spread(times: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(times), "min": min(times), "max": max(times)}


def say(path: str, part: str, gpus: int, n: int, times: Sequence[float], **more: Any) -> None:
    """Append a result; `more`: at least `setup`, the seconds it took once, before the clock."""
    line = {"part": part, "gpus": gpus, "n": n, "seconds": spread(times), "repeat": len(times), **more}
    jsonl.write(line, path)
