"""What the programs that scripts/bench_hosts.py starts have in common: options, matrices, timing, check and lines."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from experiments.common import product_check
from experiments.common.cli import plain_parser
from experiments.common.records import seconds_of, spread
from hybrid.reporting import jsonl

DTYPE = "float64"
_THREADS = 16  # that make random numbers


def parse(description: str | None, parts: Sequence[str] = ()) -> argparse.Namespace:
    """What every program is told; one of several parts first."""
    parser = plain_parser(description)
    if parts:
        parser.add_argument("part", choices=parts)
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


def refuse_wrong(a: np.ndarray, b: np.ndarray, c: Any) -> float:
    """How far C is from A·B. CheckFailed if that is more than rounding."""
    return product_check.refuse_wrong("the product", a, b, c)


def cuda_device(rank: int) -> Any:
    """The rank's GPU by CuPy, made the current one."""
    import cupy

    gpu = cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount())
    gpu.use()
    return gpu


def seconds_of_all(comm: Any, work: Callable[[], Any], finish: Callable[[], Any] = lambda: None) -> float:
    """From the moment when all ranks have come to the work until all have done it; `finish` waits for a rank's device."""
    finish()
    comm.Barrier()
    began = time.perf_counter()
    work()
    finish()
    comm.Barrier()
    return time.perf_counter() - began


def record(path: str, part: str, gpus: int, n: int, times: Sequence[float], **more: Any) -> None:
    """Append a result; `more`: at least `setup`, the seconds it took once, before the clock."""
    jsonl.write({"part": part, "gpus": gpus, "n": n, "seconds": spread(times), "repeat": len(times), **more}, path)


class Sharded(Protocol):
    """Products of host arrays on several GPUs by one process."""

    c: np.ndarray

    def multiply(self, a: np.ndarray, b: np.ndarray) -> None:
        """Host array to host array `c`."""

    def forget(self) -> None:
        """C's elements, so that those that nobody writes again are found."""


def measure_sharded(part: str, options: argparse.Namespace, library: str, made: Callable[[int, int], Sharded]) -> None:
    """For every size and number of GPUs; `made`: of that number, for that size."""
    for n in options.sizes:
        a, b = uniform(n), uniform(n)
        for gpus in options.gpus:
            sharded = made(gpus, n)
            setup = seconds_of(sharded.multiply, a, b)
            sharded.forget()
            times = [seconds_of(sharded.multiply, a, b) for _ in range(options.repeat)]
            error = refuse_wrong(a, b, sharded.c)
            record(options.json, part, gpus, n, times, setup=setup, error=error, library=library)
