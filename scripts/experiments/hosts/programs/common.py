# SPDX-License-Identifier: MIT
"""What the programs that scripts/bench_hosts.py starts have in common: options, matrices, timing, check and lines."""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from experiments.common import cli, records
from hybrid.reporting import jsonl

DTYPE = "float64"
_THREADS = 16  # that make random numbers


def parse(description: str | None, parts: Sequence[str] = ()) -> argparse.Namespace:
    """What every program is told; one of several parts first."""
    parser = cli.plain_parser(description)
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
    jsonl.write({"part": part, "gpus": gpus, "n": n, "seconds": records.spread(times), "repeat": len(times), **more}, path)
