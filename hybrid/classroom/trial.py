# SPDX-License-Identifier: MIT
"""Runs a student's kernel once for each of its tasks: `python -m hybrid.classroom.trial` is a child process, which may crash or
hang. It reads the tasks from standard input and prints a line for each: the task's mark, and JSON.

Whether C is right is not said here, where the student's code could say so itself, but by the process that reads these lines.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hybrid.classroom.elements import compared, encoded, operands
from hybrid.classroom.wrapper import ENTRY
from hybrid.emulation.branches import Branch
from hybrid.emulation.errors import EmulationError
from hybrid.emulation.guarded import Guarded
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.emulation.requests import Site
from hybrid.emulation.trace import Access
from hybrid.errors import one_line

UNTOUCHED = -7.0  # around C: no sum of products of positive numbers


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
    mark: str = ""  # with which its lines begin: what the kernel writes does not have it


@dataclass(frozen=True)
class Outcome:
    """What came of it. Elements of C are numbered row by row."""

    stopped: str = ""  # the kind of what the runtime refused, and
    why: str = ""  # its words
    c: str = ""  # all elements, encoded; the four that follow are known only to the process that compares them
    wrong: tuple[int, ...] = ()
    first_wrong: tuple[float, float] | None = None  # what it is, and what is right
    nan: int = 0
    never: tuple[int, ...] = ()  # elements that no thread has written
    several: tuple[int, ...] = ()  # that more than one has
    outside: tuple[
        tuple[str, int], ...
    ] = ()  # memory beside a matrix that was written: the matrix, and the element's number from its first
    loads: tuple[float, float] = (0.0, 0.0)  # of elements of A and of B
    stores: float = 0.0
    digest: str = ""
    sites: tuple[Site, ...] = ()  # how lines of the file use memory
    branches: tuple[Branch, ...] = ()  # and where lanes of its warps part
    accesses: tuple[Access, ...] = ()  # in their order


def carried_out(task: Task, tell: Callable[[str, Mapping[str, Any]], None]) -> tuple[Outcome, bool]:
    """The outcome, and whether nothing was found, so that the process is as it was before.

    `tell` is told where the matrices are, before the kernel runs.
    """
    n, l, m = task.sizes
    before = operands(task.sizes, task.dtype, task.seed)
    a, b = (Guarded(rows, columns, task.dtype, np.nan, aligned=True, between=False) for rows, columns in ((n, l), (l, m)))
    c = Guarded(n, m, task.dtype, UNTOUCHED, aligned=True, between=False)
    a.inner[:], b.inner[:], c.inner[:] = *before, np.nan
    kernel = EmulatedKernel.built(Path(task.shared_object), [ENTRY], task.checks)[ENTRY]
    matrices = dict(zip(task.names, (a, b, c), strict=True))
    places = {key: (each.inner.ctypes.data, each.inner.shape, each.inner.itemsize) for key, each in matrices.items()}
    tell("places", places)
    if task.checks == "address":
        for each in matrices.values():
            each.guard()
    try:
        kernel(task.grid, task.block, task.shared, (a.inner, b.inner, c.inner), order=task.order, seed=task.seed)
    except EmulationError as error:
        return Outcome(error.kind, one_line(error).removeprefix(f"{ENTRY}: ")), False
    finally:
        if task.checks == "address":
            for each in matrices.values():
                each.guard(off=True)
    if task.checks == "trace":
        return Outcome(accesses=tuple(kernel.accesses(task.file_name))), True
    outside = [(key, number) for key, each in matrices.items() for number in each.touched()[:1]]
    outside += [
        (key, int(np.argmax(each.inner != was)))
        for (key, each), was in zip(matrices.items(), before, strict=False)
        if (each.inner != was).any()
    ]
    outcome = Outcome(c=encoded(c.inner), outside=tuple(outside), **_counted(kernel, task))
    return outcome, not (outside or compared(c.inner, *before).wrong)


def _counted(kernel: EmulatedKernel, task: Task) -> dict[str, Any]:
    if task.checks == "requests":
        return {"sites": kernel.sites(task.file_name), "branches": kernel.branches(task.file_name)}
    if kernel.loads is None:
        return {}
    writes = kernel.loads.c_writes
    return {
        "never": tuple(np.flatnonzero(writes == 0).tolist()),
        "several": tuple(np.flatnonzero(kernel.loads.c_writers > 1).tolist()),
        "loads": (float(kernel.loads.a.sum()), float(kernel.loads.b.sum())),
        "stores": float(writes.sum()),
    }


def _tell(results: TextIO, mark: str, what: str, content: Mapping[str, Any]) -> None:
    print(mark, json.dumps({what: content}), file=results, flush=True)


def main() -> None:
    """After a launch with faults none on another shape follows: stray accesses may have changed what that would need."""
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the kernel prints is no result
    faulty: tuple[int, ...] = ()
    for task in json.load(sys.stdin):
        given = Task(**{**task, **{key: tuple(task[key]) for key in ("sizes", "grid", "block", "names")}})
        if faulty and faulty != given.sizes:
            return
        signal.setitimer(signal.ITIMER_REAL, given.seconds)  # its signal ends this process
        tell = partial(_tell, results, given.mark)
        outcome, is_clean = carried_out(given, tell)
        signal.setitimer(signal.ITIMER_REAL, 0)
        tell("outcome", asdict(outcome))
        if not is_clean:
            faulty = given.sizes


if __name__ == "__main__":
    main()
