# SPDX-License-Identifier: MIT
"""Runs a student's kernel once for each of its tasks: `python -m hybrid.classroom.trial` is a child process, which may crash or
hang. It reads the tasks from standard input and prints a line of JSON for each."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.classroom.wrapper import ENTRY
from hybrid.emulation.branches import Branch
from hybrid.emulation.errors import EmulationError
from hybrid.emulation.guarded import Guarded
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.emulation.requests import Site
from hybrid.emulation.trace import Access
from hybrid.errors import one_line

UNTOUCHED = -7.0  # around C: no sum of products of positive numbers
_EXACT = {"float32": 2**24, "float64": 2**53}  # up to here every integer is a number of the type
_LARGEST = {"float32": 99, "float64": 1 << 20}  # in float64 sums are beyond float32
_FRACTION = 8  # elements are multiples of 1/8: a sum in an int is wrong


@dataclass(frozen=True)
class Task:
    """One launch."""

    shared_object: str  # the compiled file
    checks: str
    dtype: str
    sizes: tuple[int, int, int]  # n, l, m
    grid: tuple[int, int]
    block: tuple[int, int]
    shared: int
    order: str
    seed: int
    seconds: float  # that it may take
    names: tuple[str, str, str]  # of A, B and C in the kernel
    file_name: str
    scales: tuple[float, float] = (1, 0)  # alpha and beta in C = alpha·A·B + beta·C


@dataclass(frozen=True)
class Outcome:
    """What came of it. Elements of C are numbered row by row."""

    stopped: str = ""  # the kind of what the runtime refused, and
    why: str = ""  # its words
    wrong: tuple[int, ...] = ()
    first_wrong: tuple[float, float] | None = None  # what it is, and what is right
    first_writer: tuple[int, ...] = ()  # the block's x and y and the thread's x and y that wrote it last
    nan: int = 0
    never: tuple[int, ...] = ()  # elements that no thread has written
    several: tuple[int, ...] = ()  # that more than one has
    outside: tuple[
        tuple[str, int], ...
    ] = ()  # memory beside a matrix that was written: the matrix, and the element's number from its first
    loads: tuple[float, float] = (0.0, 0.0)  # of elements of A and of B
    stores: float = 0.0
    digest: str = ""  # of C
    sites: tuple[Site, ...] = ()  # how lines of the file use memory
    branches: tuple[Branch, ...] = ()  # and where lanes of its warps part
    accesses: tuple[Access, ...] = ()  # in their order

    @property
    def is_clean(self) -> bool:
        """Nothing was found, so that the process is as it was before."""
        return not (self.stopped or self.wrong or self.outside)


def operands(task: Task) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A, B, C before the launch, and C after it, in float64. C begins as NaN, unless it is added to. All sums are exact."""
    n, l, m = task.sizes
    random = np.random.default_rng([task.seed, n, l, m])
    (alpha, beta), terms = task.scales, l + (task.scales != (1, 0))
    most = min(_LARGEST[task.dtype], math.isqrt(_EXACT[task.dtype] // max(1, terms)))
    a, b = ((random.integers(1, most, shape, endpoint=True) / _FRACTION).astype(task.dtype) for shape in ((n, l), (l, m)))
    c = np.full((n, m), np.nan, task.dtype)
    right = alpha * (a.astype(np.float64) @ b.astype(np.float64))
    if beta:
        c[:] = random.integers(1, _FRACTION, c.shape, endpoint=True)
        right += beta * c
    return a, b, c, right


def carried_out(task: Task, tell: Callable[[Mapping[str, Any]], None]) -> Outcome:
    """`tell` is told where the matrices are, before the kernel runs."""
    n, l, m = task.sizes
    *values, right = operands(task)
    a, b = (Guarded(rows, columns, task.dtype, np.nan, aligned=True, between=False) for rows, columns in ((n, l), (l, m)))
    c = Guarded(n, m, task.dtype, UNTOUCHED, aligned=True, between=False)
    for matrix, value in zip((a, b, c), values, strict=True):
        matrix.inner[:] = value
    kernel = EmulatedKernel.built(Path(task.shared_object), [ENTRY], task.checks)[ENTRY]
    matrices = dict(zip(task.names, (a, b, c), strict=True))
    places = {key: (each.inner.ctypes.data, each.inner.shape, each.inner.itemsize) for key, each in matrices.items()}
    tell(places)
    if task.checks == "address":
        for each in matrices.values():
            each.guard()
    try:
        kernel(task.grid, task.block, task.shared, (a.inner, b.inner, c.inner), order=task.order, seed=task.seed)
    except EmulationError as error:
        return Outcome(error.kind, one_line(error).removeprefix(f"{ENTRY}: "))
    finally:
        if task.checks == "address":
            for each in matrices.values():
                each.guard(off=True)
    if task.checks == "requests":
        return Outcome(sites=kernel.sites(task.file_name), branches=kernel.branches(task.file_name))
    if task.checks == "trace":
        return Outcome(accesses=tuple(kernel.accesses(task.file_name)))
    outside = [(key, number) for key, each in matrices.items() for number in each.touched()[:1]]
    outside += [
        (key, int(np.argmax(each.inner != was)))
        for (key, each), was in zip(matrices.items(), values[:2], strict=False)
        if (each.inner != was).any()
    ]
    return _judged(task, kernel, c.inner, right, outside)


def _judged(task: Task, kernel: EmulatedKernel, c: np.ndarray, right: np.ndarray, outside: list[tuple[str, int]]) -> Outcome:
    wrong = np.flatnonzero(c != right).tolist()
    first = (float(c.flat[wrong[0]]), float(right.flat[wrong[0]])) if wrong else None
    counts: dict[str, Any] = {}
    if kernel.loads is not None:
        writes = kernel.loads.c_writes
        counts = {
            "never": tuple(np.flatnonzero(writes == 0).tolist()),
            "several": tuple(np.flatnonzero(kernel.loads.c_writers > 1).tolist()),
            "loads": (float(kernel.loads.a.sum()), float(kernel.loads.b.sum())),
            "stores": float(writes.sum()),
        }
        if wrong and (writer := int(kernel.loads.c_last_writer.flat[wrong[0]])):
            block, thread = divmod(writer - 1, task.block[0] * task.block[1])
            counts["first_writer"] = (*divmod(block, task.grid[0])[::-1], *divmod(thread, task.block[0])[::-1])
    digest = hashlib.sha256(c.tobytes()).hexdigest()
    nan = int(np.isnan(c).sum())
    return Outcome(wrong=tuple(wrong), first_wrong=first, nan=nan, outside=tuple(outside), digest=digest, **counts)


def main() -> None:
    """After a launch with faults none on another shape follows: stray accesses may have changed what that would need."""
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the kernel prints is no result
    faulty: tuple[int, ...] = ()
    for task in json.load(sys.stdin):
        given = Task(**{**task, **{key: tuple(task[key]) for key in ("sizes", "grid", "block", "names", "scales")}})
        if faulty and faulty != given.sizes:
            return
        signal.setitimer(signal.ITIMER_REAL, given.seconds)  # its signal ends this process
        outcome = carried_out(given, lambda places: print(json.dumps({"places": places}), file=results, flush=True))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps({"outcome": asdict(outcome)}), file=results, flush=True)
        if not outcome.is_clean:
            faulty = given.sizes


if __name__ == "__main__":
    main()
