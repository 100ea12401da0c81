# SPDX-License-Identifier: MIT
"""Runs a student's kernel once for each task. `python -m hybrid.classroom.trial` is a child process, since the kernel may crash
or hang. It reads the tasks from standard input and prints a line for each: the task's mark, and JSON.

Whether C is right is not decided here, where the student's code runs, too, but by the process that reads these lines.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hybrid.classroom.elements import compared, encoded, operands
from hybrid.classroom.wrapper import ENTRY
from hybrid.core.problem import record
from hybrid.emulation.branches import Branch
from hybrid.emulation.errors import EmulationError
from hybrid.emulation.guarded import Guarded
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.emulation.requests import Site
from hybrid.emulation.trace import Access
from hybrid.errors import one_line

UNTOUCHED = -7.0  # the filler around C, which is no sum of products of positive numbers


@record
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
    mark: str = ""  # with which the task's lines begin; what the kernel writes does not have it


@record
class Outcome:
    """What came of a launch. Elements of C are numbered row by row. `wrong`, `first_wrong`, `nan`, `mistake` and `digest`
    are set by the process that compares C."""

    stopped: str = ""  # the kind of error for which the runtime stopped the kernel
    why: str = ""  # the runtime's message
    c: str = ""  # all elements, encoded
    wrong: tuple[int, ...] = ()
    first_wrong: tuple[float, float] | None = None  # what it is, and what is right
    first_writer: tuple[tuple[int, ...], ...] = ()  # the block and the thread that wrote it last, as extents of the launch
    nan: int = 0  # how many elements are NaN
    mistake: tuple[str, str] | None = None  # that explains a wrong C, as `mistake_in` says
    never: tuple[int, ...] = ()  # elements that no thread has written
    several: tuple[int, ...] = ()  # elements that more than one thread has written
    writers: int = 0  # threads that have written to C, each the last to write some element
    outside: tuple[tuple[str, int], ...] = ()  # writes beside a matrix: its name, and the number counted from its first element
    loads: tuple[float, float] = (0.0, 0.0)  # of elements of A and of B
    stores: float = 0.0
    digest: str = ""  # a hash of C
    sites: tuple[Site, ...] = ()  # how lines of the file use memory
    branches: tuple[Branch, ...] = ()  # where the lanes of warps diverge
    accesses: tuple[Access, ...] = ()  # in their order


def carried_out(task: Task) -> tuple[Outcome, bool]:
    """The outcome of a launch, and whether nothing was wrong, so that the process is as it was before."""
    n, l, m = task.sizes
    *values, right = operands(task.sizes, task.dtype, task.seed, task.scales)
    beside = UNTOUCHED if task.dtype == "int32" else np.nan
    a, b = (Guarded(rows, columns, task.dtype, beside, aligned=True, between=False) for rows, columns in ((n, l), (l, m)))
    c = Guarded(n, m, task.dtype, UNTOUCHED, aligned=True, between=False)
    for matrix, value in zip((a, b, c), values, strict=True):
        matrix.inner[:] = value
    kernel = EmulatedKernel.built(Path(task.shared_object), [ENTRY], task.checks)[ENTRY]
    matrices = dict(zip(task.names, (a, b, c), strict=True))
    try:
        kernel(task.grid, task.block, task.shared, (a.inner, b.inner, c.inner), order=task.order, seed=task.seed)
    except EmulationError as error:
        return Outcome(error.kind, one_line(error).removeprefix(f"{ENTRY}: ")), False
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
    """The fields of the outcome that the checks count. `wrong`: the first wrong element, whose writer is looked for, or none."""
    if task.checks == "requests":
        return {"sites": kernel.sites(task.file_name), "branches": kernel.branches(task.file_name)}
    if kernel.loads is None:
        return {}
    writes = kernel.loads.c_writes
    writers = [int(kernel.loads.c_last_writer.flat[each]) for each in wrong]
    return {
        "first_writer": next((_block_and_thread(writer - 1, task) for writer in writers if writer), ()),
        "never": tuple(np.flatnonzero(writes == 0).tolist()),
        "writers": int(np.count_nonzero(np.unique(kernel.loads.c_last_writer))),
        "several": tuple(np.flatnonzero(kernel.loads.c_writers > 1).tolist()),
        "loads": (float(kernel.loads.a.sum()), float(kernel.loads.b.sum())),
        "stores": float(writes.sum()),
    }


def _block_and_thread(number: int, task: Task) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The place of the block and of the thread with this number, which counts threads block by block."""
    block, thread = divmod(number, math.prod(task.block))
    return _place(block, task.grid), _place(thread, task.block)


def _place(number: int, extents: Sequence[int]) -> tuple[int, ...]:
    """x, y and, where the launch has one, z of this number, of which x counts first."""
    place = []
    for extent in extents:
        number, at = divmod(number, extent)
        place.append(at)
    return tuple(place)


def own_output() -> TextIO:
    """Standard output for results. What the kernel prints from now on goes nowhere."""
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return results


def tell(results: TextIO, mark: str, what: str, content: Mapping[str, Any]) -> None:
    """Write a line of results."""
    print(mark, json.dumps({what: content}), file=results, flush=True)


def main() -> None:
    """Carry out the tasks. After a launch with faults no launch on another shape follows, since stray accesses may have changed
    what it needs."""
    results = own_output()
    faulty: tuple[int, ...] = ()
    for task in json.load(sys.stdin):
        given = Task(**{**task, **{key: tuple(task[key]) for key in ("sizes", "grid", "block", "names", "scales")}})
        if faulty and faulty != given.sizes:
            return
        signal.setitimer(signal.ITIMER_REAL, given.seconds)  # its signal ends this process
        outcome, is_clean = carried_out(given)
        signal.setitimer(signal.ITIMER_REAL, 0)
        tell(results, given.mark, "outcome", asdict(outcome))
        if not is_clean:
            faulty = given.sizes


if __name__ == "__main__":
    main()
