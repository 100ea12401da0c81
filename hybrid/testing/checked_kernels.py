# SPDX-License-Identifier: MIT
"""Runs the catalogue's kernels under checks (of each access, orders of threads, guarded matrices) in child processes, since they
may crash or hang.

`python -m hybrid.testing.checked_kernels` is the child: it reads jobs from standard input and prints a verdict on each as JSON.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.core.problem import record
from hybrid.emulation.build import build
from hybrid.emulation.child import run_child
from hybrid.emulation.errors import EmulationError
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.errors import one_line
from hybrid.kernels.catalogue import (
    Launch,
    launch_of,
    named,
    numbers_of,
    storage,
    sums_type,
)

_PLAIN = {  # mode without a sanitizer: the order of threads, when asynchronous copies complete
    "forward": ("forward", "late"),
    "reverse": ("reverse", "early"),
    "shuffled": ("shuffled", "mixed"),
}
_CHECKED = ("undefined", "accesses")
MODES = (*_PLAIN, *_CHECKED)
_CANARY = -7.0
_ALIGNMENT = 256  # bytes, as cudaMalloc's
_FENCE = 256  # unused rows before and after a matrix, as many as a tile has: a faulty kernel must not hit Python's own memory
_NOT_A_NUMBER = 0x7FFF  # of bfloat16
_LARGEST_BYTE, _SPREAD_OF_BYTES = 127, 32.0


def not_a_number(dtype: str) -> Any:
    """A NaN of this type, as an array holds it; for integers, which have none, a number that `stored` never gives."""
    if storage(dtype).kind == "i":
        return np.iinfo(dtype).min
    return _NOT_A_NUMBER if dtype == "bfloat16" else np.nan


def spread_of(dtype: str) -> float:
    """The factor by which numbers around 1 are multiplied before `stored`, so that bytes have many different values."""
    return _SPREAD_OF_BYTES if dtype == "int8" else 1.0


def stored(numbers: Any, dtype: str) -> Any:
    """Finite numbers, rounded to the nearest of this type, ties to even; bytes are clipped to ±127."""
    if dtype == "int8":
        return numbers.round().clip(-_LARGEST_BYTE, _LARGEST_BYTE).astype(dtype)
    if dtype != "bfloat16":
        return numbers.astype(dtype)
    bits = numbers.astype("float32").view("uint32")
    return ((bits + (bits >> 16 & 1) + 0x7FFF) >> 16).astype(np.uint16)


class Guarded:
    """A matrix, `inner`, within a larger buffer that holds `filler` around its rows, so that stray writes are found."""

    def __init__(self, rows: int, columns: int, dtype: str, filler: float, *, aligned: bool) -> None:
        """`aligned`: rows begin at multiples of 16 bytes; else rather not."""
        item = np.dtype(dtype).itemsize
        vector = 16 // item  # elements of the widest copy
        stride = -(-columns // vector) * vector + vector if aligned else (columns + 3) // 2 * 2 + 1
        fence = _FENCE * (stride + 1)
        self._whole = np.full(2 * fence + _ALIGNMENT // item + 1 + rows * stride, filler, dtype)
        self._filler = filler
        start = fence + -(self._whole.ctypes.data + fence * item) % _ALIGNMENT // item + (not aligned)
        indices = np.arange(rows * stride).reshape(rows, stride)[:, :columns] + start
        self._outside = np.ones(len(self._whole), bool)
        self._outside[indices] = False
        self.inner = self._whole[start : start + rows * stride].reshape(rows, stride)[:, :columns]

    def untouched(self) -> bool:
        same = (self._whole == self._filler) | (np.isnan(self._whole) & np.isnan(self._filler))
        return not (self._outside & ~same).any()


@record
class Job:
    """A kernel of the catalogue on one shape."""

    source: str  # its file, or a changed copy with changed headers beside it
    kernel: str
    dtype: str
    shape: tuple[int, int, int]  # n, l, m
    capability: int = 90
    mode: str = "forward"  # one of MODES
    adds: bool = False  # c += a · b


@record
class Verdict:
    """`kind`: ok, wrong, canary (memory outside C's rows was written), memory (a race, too), undefined, barrier, warp, copy,
    launch, build, crash or hang."""

    kind: str
    detail: str = ""


def verdict(
    source: Path, kernel_name: str, dtype: str, shape: tuple[int, int, int], capability: int = 90, mode: str = "forward"
) -> str:
    """The kind of verdict on one job."""
    return run_checked([Job(str(source), kernel_name, dtype, shape, capability, mode)])[0].kind


def run_checked(jobs: Sequence[Job], seconds: float = 120.0) -> list[Verdict]:
    """A verdict on each job, in their order. Jobs share a process; after a crash the rest gets a new one.

    `seconds`: the time limit of one process.
    """
    verdicts: dict[int, Verdict] = {}
    pending: list[tuple[int, dict[str, Any]]] = []
    for i, job in enumerate(jobs):
        try:
            expressions = [launch.expression for launch in _launches(job).values()]
            library = build(Path(job.source), expressions, capability=job.capability, checks=_checks_of(job))
            pending.append((i, {**asdict(job), "library": str(library)}))
        except EmulationError as error:
            verdicts[i] = Verdict(error.kind, one_line(error))
    while pending:
        judged = _child([task for _, task in pending], seconds)
        verdicts.update((i, verdict) for (i, _), verdict in zip(pending, judged, strict=False))
        pending = pending[len(judged) :]
    return [verdicts[i] for i in range(len(jobs))]


def _checks_of(job: Job) -> str:
    return "" if job.mode in _PLAIN else job.mode


def _launches(job: Job) -> dict[int, Launch]:
    """The job's launches by copy width: the widest, for aligned matrices, and one element."""
    kernel = named(job.kernel)
    assert kernel is not None, job.kernel
    n, _, m = job.shape
    widths = (16 // storage(job.dtype).itemsize, 1)
    return {width: launch_of(kernel, job.dtype, n, m, job.capability, width, adds=job.adds) for width in widths}


def _child(tasks: Sequence[dict[str, Any]], seconds: float) -> list[Verdict]:
    """Verdicts of one child process on these tasks: on all, or on those up to the one that ended the process."""
    ended = run_child("hybrid.testing.checked_kernels", tasks, seconds)
    verdicts = [Verdict(**json.loads(line)) for line in ended.out.splitlines() if line.startswith("{")]
    if len(verdicts) < len(tasks):
        undefined = re.search(r"([\w.]+:\d+):\d+: runtime error: (.*)", ended.err)  # so says UBSan
        if ended.status is None:
            verdicts.append(Verdict("hang", f"not done within {seconds:g} s"))
        elif undefined:
            verdicts.append(Verdict("undefined", f"{undefined[2]} in {undefined[1]}"))
        else:
            verdicts.append(Verdict("crash", "; ".join([f"exit status {ended.status}", *ended.err.strip().splitlines()[-1:]])))
    return verdicts


def _judge(task: dict[str, Any]) -> Verdict:
    """In the child: the verdict on a job, whose library has been built."""
    library = Path(task.pop("library"))
    job = Job(**task)
    launches = _launches(job)
    expressions = [launch.expression for launch in launches.values()]
    kernels = EmulatedKernel.several(Path(job.source), expressions, checks=_checks_of(job), built=library)
    for width, launch in launches.items():
        try:
            outcome = _try(job, kernels[launch.expression], launch, aligned=width > 1)
        except EmulationError as error:
            return Verdict(error.kind, one_line(error))
        if outcome.kind != "ok":
            return outcome
    return Verdict("ok")


def _try(job: Job, kernel: EmulatedKernel, launch: Launch, aligned: bool) -> Verdict:
    """Launch the kernel on random matrices, compare C, and see whether anything beside C was written to."""
    n, l, m = job.shape
    stored_in, of_c = storage(job.dtype).name, np.dtype(sums_type(job.dtype))
    a, b = (Guarded(rows, columns, stored_in, not_a_number(job.dtype), aligned=aligned) for rows, columns in ((n, l), (l, m)))
    c = Guarded(n, m, of_c.name, _CANARY, aligned=aligned)
    random = np.random.default_rng((n, l, m))
    spread = spread_of(job.dtype)
    a.inner[:], b.inner[:] = (stored(spread * random.standard_normal(shape), job.dtype) for shape in ((n, l), (l, m)))
    before = random.standard_normal((n, m)).astype(of_c) if job.adds else np.zeros((n, m), of_c)
    c.inner[:] = before if job.adds else not_a_number(of_c.name)
    operands = a.inner.copy(), b.inner.copy()
    order, copies = _PLAIN.get(job.mode, ("shuffled", "mixed"))
    kernel(launch.grid, launch.block, launch.shared_bytes, (a.inner, b.inner, c.inner), order=order, copies=copies)
    if not (a.untouched() and b.untouched() and c.untouched()):
        return Verdict("canary", "something beside a matrix was written to")
    if not (np.array_equal(operands[0], a.inner) and np.array_equal(operands[1], b.inner)):
        return Verdict("canary", "A or B was written to")
    wide = np.longdouble if job.dtype == "float64" else np.float64
    of_a, of_b = (numbers_of(operand) for operand in operands)
    exact = before + of_a.astype(wide) @ of_b.astype(wide)
    size = np.abs(before) + np.abs(of_a).astype("f8") @ np.abs(of_b).astype("f8")
    rounding = 0.0 if of_c.kind == "i" else float(np.finfo(of_c).eps)  # the largest of a sum, relative to it
    bound = 2 * (l + 2) * rounding * size + 1e-300
    wrong = ~(np.abs(c.inner - exact) <= bound)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        return Verdict("wrong", f"{wrong.sum()} of {wrong.size} elements, the first one C[{row}, {column}]")
    return Verdict("ok")


def main() -> None:
    for task in json.load(sys.stdin):
        print(json.dumps(asdict(_judge(task))), flush=True)


if __name__ == "__main__":
    main()
