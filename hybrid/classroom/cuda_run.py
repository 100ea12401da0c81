# SPDX-License-Identifier: MIT
"""A student's kernel on a real GPU: is C right, and how long does a launch take?"""

from __future__ import annotations

import json
import secrets
import signal
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from math import isnan
from typing import Any

from hybrid.classroom.case import Sizes
from hybrid.classroom.examination import Trials
from hybrid.classroom.gpu_trial import COMPILES, LAUNCHES, Argument, GpuOutcome, GpuTask
from hybrid.classroom.launched import with_mark
from hybrid.classroom.meaning import Meaning
from hybrid.classroom.student_file import StudentFile
from hybrid.classroom.student_kernel import Parameter
from hybrid.classroom.trial import Task
from hybrid.classroom.wrapper import field_of
from hybrid.core.problem import Problem, record
from hybrid.emulation.child import run_child
from hybrid.errors import DeviceUnavailable, HybridError, with_code
from hybrid.kernels.catalogue import dotted

_CHILD, _START = "hybrid.classroom.gpu_trial", 60  # seconds that CuPy and NVRTC may take besides the launches
_SIZE, _RAGGED = 1024, (1029, 1027, 1033)
_C_TYPES = {  # of numbers, as NumPy has them
    **dict.fromkeys(("int", "int32_t"), "i4"),
    **dict.fromkeys(("unsigned", "unsigned int", "uint", "uint32_t"), "u4"),
    **dict.fromkeys(("long", "long long", "int64_t"), "i8"),
    **dict.fromkeys(("size_t", "unsigned long", "unsigned long long", "ulong", "uint64_t"), "u8"),
    "short": "i2",
    "float": "f4",
    "double": "f8",
}


@record
class CudaRun:
    """For each shape its launch and what came of it."""

    cases: tuple[tuple[Task, GpuOutcome], ...]

    @property
    def is_right(self) -> bool:
        return not any(outcome.failure or outcome.wrong for _, outcome in self.cases)


def usual_gpu_shapes(trials: Trials) -> list[Sizes]:
    """Shapes that are large enough to be timed; a small one for a kernel of one block."""
    if "blockIdx" not in trials.kernel.body:
        return [trials.meaning.on((8, 8, 8))]
    return [trials.meaning.on((_SIZE,) * 3), trials.meaning.on(_RAGGED)]


def ran(trials: Trials, shapes: Sequence[Sizes]) -> CudaRun:
    """Run the kernel on each shape, in a process of its own. DeviceUnavailable where there is no GPU, or the kernel does not
    compile."""
    return CudaRun(tuple((task, _outcome(trials, task)) for task in map(trials.task, shapes)))


def _outcome(trials: Trials, task: Task) -> GpuOutcome:
    mark = secrets.token_hex(16)  # lines without it are the kernel's
    given = GpuTask(trials.file.for_gpu, trials.instance, tuple(_arguments(trials, task)), replace(task, mark=mark))
    ended = run_child(_CHILD, [asdict(given)], "", _START + (LAUNCHES + 1) * trials.seconds)
    if ended.status is None:
        return GpuOutcome(failure=f"it had not ended after {LAUNCHES + 1} times {trials.seconds:g} s, which --stall sets")
    lines = with_mark(ended.out, mark)
    if ended.status == -signal.SIGALRM:  # sent by the child's own clock
        raise DeviceUnavailable(
            f"NVRTC had not compiled {trials.kernel.name} after {COMPILES} s: do its macros or templates end?",
            code="compile-failed",
        )
    if not lines:
        raise HybridError(
            f"the process that launches {trials.kernel.name} ended: {_last(ended.err) or ended.status}", code="kernel-crashed"
        )
    found: dict[str, Any] = json.loads(lines[-1])
    if "unavailable" in found:
        raise DeviceUnavailable(found["unavailable"]["why"], code=found["unavailable"]["code"])
    outcome: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in found["outcome"].items()}
    return GpuOutcome(**outcome)


def _last(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _arguments(trials: Trials, task: Task) -> Iterator[Argument]:
    sizes = dict(zip("nlm", task.sizes, strict=True))
    scales = dict(zip(("alpha", "beta"), task.scales, strict=True))
    for parameter, of in zip(trials.kernel.parameters, trials.meaning.of, strict=True):
        if parameter.is_number or parameter.is_scale:
            yield _C_TYPES[parameter.type], {**sizes, **scales}[of]
        elif parameter.is_pointer:
            yield "matrix", "ABC".index(of)
        else:
            yield "struct", list(_fields(trials.file, parameter, of, trials.meaning, sizes))


def _fields(file: StudentFile, parameter: Parameter, of: str, meaning: Meaning, sizes: dict[str, int]) -> Iterator[Argument]:
    rows, columns = {"A": ("n", "l"), "B": ("l", "m"), "C": ("n", "m")}[of]
    for name, kind in file.structs[parameter.type].items():
        what = field_of(parameter, name, kind)
        if what == "elements":
            yield "matrix", "ABC".index(of)
        else:
            yield _C_TYPES[kind.removeprefix("const ").strip()], sizes[rows if what == "rows" else columns]


def told(trials: Trials, run: CudaRun) -> Iterator[str]:
    """The lines that say what came of it."""
    kernel, meaning, launch = trials.kernel, trials.meaning, trials.launch
    a, b, c = meaning.names(kernel)
    yield f"{trials.file.path.name}, line {kernel.line}: {kernel}"
    yield f"  {meaning.told(kernel)}"
    yield f"  {launch}"
    yield f"  {launch.why}"
    about = ""
    for task, outcome in run.cases:
        (n, l, m), (grid, block) = task.sizes, ("×".join(map(str, each)) for each in (task.grid, task.block))
        if outcome.gpu and not about:
            about = f"on {outcome.gpu}, compute capability {dotted(outcome.capability)}"
            yield about
        is_right = "WRONG" if outcome.failure or outcome.wrong else "right"
        yield f"{c} ({n}×{m}) = {a} ({n}×{l}) · {b} ({l}×{m}), {grid} blocks of {block} threads: {is_right}"
        yield from (f"  {line}" for line in _of(task, outcome, c))
    yield "a GPU shows wrong elements alone: without --device cuda races and accesses out of bounds are looked for, too"
    yield "right" if run.is_right else "wrong"


def _of(task: Task, outcome: GpuOutcome, c: str) -> Iterator[str]:
    """The lines about one shape."""
    n, _, m = task.sizes
    if outcome.failure:
        yield with_code(f"* the launch failed: {outcome.failure}", outcome.code)
    elif outcome.first_wrong is not None:
        number, is_now, right = outcome.first_wrong
        first = f"the first {c}[{number // m}][{number % m}]: {is_now:g} instead of {right:g}"
        begins = f", and {c} begins as NaN: was it written, or computed from what nobody has written?" if isnan(is_now) else ""
        yield with_code(f"* {outcome.wrong} of {n * m} elements are wrong, {first}{begins}", outcome.code)
    else:
        problem, median = Problem(*task.sizes, task.dtype), statistics.median(outcome.milliseconds)
        least, most = min(outcome.milliseconds), max(outcome.milliseconds)
        yield f"{median:.4g} ms a launch, the median of {LAUNCHES} ({least:.4g} to {most:.4g} ms, by CUDA events)"
        rate, bandwidth = problem.operations / median / 1e6, problem.bytes_of_matrices / median / 1e6
        yield f"{rate:,.4g} GF/s; {bandwidth:,.4g} GB/s if each element moved once"
        spilled = f", {outcome.local} bytes of local memory" if outcome.local else ""
        shared = outcome.static_shared + task.shared
        yield f"{outcome.registers} registers a thread{spilled}, {shared} bytes of shared memory a block"


def as_record(trials: Trials, run: CudaRun) -> dict[str, Any]:
    """The entries of a JSON line."""
    cases = [
        {
            **dict(zip("nlm", task.sizes, strict=True)),
            "grid": task.grid,
            "block": task.block,
            **asdict(outcome),
            "code": outcome.code,
        }
        for task, outcome in run.cases
    ]
    about = {"file": trials.file.path.name, "kernel": trials.kernel.name, "dtype": trials.meaning.dtype}
    return {**about, "launch": str(trials.launch), "device": "cuda", "right": run.is_right, "cases": cases}
