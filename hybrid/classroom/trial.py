# SPDX-License-Identifier: MIT
"""Runs a student's kernel once for each of its tasks: `python -m hybrid.classroom.trial` is a child process, which may crash or
hang. It reads the tasks from standard input and prints a line for each: the task's mark, and JSON.

Whether C is right is not said here, where the student's code could say so itself, but by the process that reads these lines.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
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
    grid: tuple[int, ...]  # x and y, or x, y and z
    block: tuple[int, ...]
    shared: int
    order: str
    seed: int
    seconds: float  # that it may take
    names: tuple[str, str, str]  # of A, B and C in the kernel
    file_name: str
    scales: tuple[float, float] = (1, 0)  # alpha and beta in C = alpha·A·B + beta·C
    mark: str = ""  # with which its lines begin: what the kernel writes does not have it


@dataclass(frozen=True)
class Outcome:
    """What came of it. Elements of C are numbered row by row."""

    stopped: str = ""  # the kind of what the runtime refused, and
    why: str = ""  # its words
    c: str = (
        ""  # all elements, encoded; the process that compares them knows `wrong`, `first_wrong`, `nan`, `mistaken_for`, `digest`
    )
    wrong: tuple[int, ...] = ()
    first_wrong: tuple[float, float] | None = None  # what it is, and what is right
    first_writer: tuple[tuple[int, ...], ...] = ()  # the block and the thread that wrote it last, as extents of the launch
    nan: int = 0
    mistaken_for: str = ""  # what a wrong C is instead, as `elements.mistaken_for` tells it
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


def carried_out(task: Task, told: Callable[[str, Mapping[str, Any]], None]) -> tuple[Outcome, bool]:
    """The outcome, and whether nothing was found, so that the process is as it was before.

    `told` is given where the matrices are, before the kernel runs.
    """
    n, l, m = task.sizes
    *values, right = operands(task.sizes, task.dtype, task.seed, task.scales)
    a, b = (Guarded(rows, columns, task.dtype, np.nan, aligned=True, between=False) for rows, columns in ((n, l), (l, m)))
    c = Guarded(n, m, task.dtype, UNTOUCHED, aligned=True, between=False)
    for matrix, value in zip((a, b, c), values, strict=True):
        matrix.inner[:] = value
    kernel = EmulatedKernel.built(Path(task.shared_object), [ENTRY], task.checks)[ENTRY]
    matrices = dict(zip(task.names, (a, b, c), strict=True))
    places = {key: (each.inner.ctypes.data, each.inner.shape, each.inner.itemsize) for key, each in matrices.items()}
    told("places", places)
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
        for (key, each), was in zip(matrices.items(), values[:2], strict=False)
        if (each.inner != was).any()
    ]
    wrong = compared(c.inner, right).wrong
    outcome = Outcome(c=encoded(c.inner), outside=tuple(outside), **_counted(kernel, task, wrong[:1]))
    return outcome, not (outside or wrong)


def _counted(kernel: EmulatedKernel, task: Task, wrong: Sequence[int]) -> dict[str, Any]:
    """`wrong`: the first wrong element, whose writer is told, or none."""
    if task.checks == "requests":
        return {"sites": kernel.sites(task.file_name), "branches": kernel.branches(task.file_name)}
    if kernel.loads is None:
        return {}
    writes = kernel.loads.c_writes
    writers = [int(kernel.loads.c_last_writer.flat[each]) for each in wrong]
    return {
        "first_writer": next((_block_and_thread(writer - 1, task) for writer in writers if writer), ()),
        "never": tuple(np.flatnonzero(writes == 0).tolist()),
        "several": tuple(np.flatnonzero(kernel.loads.c_writers > 1).tolist()),
        "loads": (float(kernel.loads.a.sum()), float(kernel.loads.b.sum())),
        "stores": float(writes.sum()),
    }


def _block_and_thread(number: int, task: Task) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of a thread that is counted block by block."""
    block, thread = divmod(number, math.prod(task.block))
    return _place(block, task.grid), _place(thread, task.block)


def _place(number: int, extents: Sequence[int]) -> tuple[int, ...]:
    """x, y and so on, of which x counts first."""
    place = []
    for extent in extents:
        number, at = divmod(number, extent)
        place.append(at)
    return tuple(place)


def own_output() -> TextIO:
    """Standard output, which is no longer the kernel's: what it prints is no result."""
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return results


def tell(results: TextIO, mark: str, what: str, content: Mapping[str, Any]) -> None:
    print(mark, json.dumps({what: content}), file=results, flush=True)


def main() -> None:
    """After a launch with faults none on another shape follows: stray accesses may have changed what that would need."""
    results = own_output()
    faulty: tuple[int, ...] = ()
    for task in json.load(sys.stdin):
        given = Task(**{**task, **{key: tuple(task[key]) for key in ("sizes", "grid", "block", "names", "scales")}})
        if faulty and faulty != given.sizes:
            return
        signal.setitimer(signal.ITIMER_REAL, given.seconds)  # its signal ends this process
        outcome, is_clean = carried_out(given, partial(tell, results, given.mark))
        signal.setitimer(signal.ITIMER_REAL, 0)
        tell(results, given.mark, "outcome", asdict(outcome))
        if not is_clean:
            faulty = given.sizes


if __name__ == "__main__":
    main()
