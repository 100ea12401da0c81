# SPDX-License-Identifier: MIT
"""Runs a student's kernel on a real GPU: checks C and times launches.

A faulty kernel may break its CUDA context, so a child process, `python -m hybrid.classroom.cuda_run`, launches it. It reads the
task from standard input and prints a line of JSON. The student's code runs on the GPU only, so the child compares C.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from math import isnan
from typing import Any

import numpy as np

from hybrid.classroom import cuda_text
from hybrid.classroom.examination import Trials
from hybrid.classroom.mistakes import Finding
from hybrid.classroom.report import about, heading
from hybrid.classroom.trial import Case, Sizes, Task, fields_of, operands, wrong_in
from hybrid.core.problem import Problem, record
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.devices.cuda_kernels import PreparedLaunch, allow_shared_memory, trust_own_cache_only
from hybrid.emulation.child import run_child
from hybrid.errors import DeviceUnavailable, HybridError, UsageError, one_line, with_code
from hybrid.kernels.catalogue import dotted

LAUNCHES = 20  # timed, after the first
COMPILES = 60  # seconds for NVRTC, after which the child ends
# ("matrix", its number), (a NumPy type, a value) or ("struct", a list of such pairs)
Argument = tuple[str, Any]
_OPTIONS = ("-std=c++17",)
_SHARED_SIZE_BYTES, _LOCAL_SIZE_BYTES, _NUM_REGS = 1, 3, 4  # of CUfunction_attribute
_START = 60  # seconds for CuPy and NVRTC, besides the launches
_SIZE, _RAGGED = 1024, (1029, 1027, 1033)
_C_TYPES = {  # NumPy's names of C types
    **dict.fromkeys(("int", "int32_t"), "i4"),
    **dict.fromkeys(("unsigned", "unsigned int", "uint", "uint32_t"), "u4"),
    **dict.fromkeys(("long", "long long", "int64_t"), "i8"),
    **dict.fromkeys(("size_t", "unsigned long", "unsigned long long", "ulong", "uint64_t"), "u8"),
    "short": "i2",
    "float": "f4",
    "double": "f8",
}


def usual_gpu_shapes(trials: Trials) -> list[Sizes]:
    """Shapes large enough for timing; a small one for a kernel of a single block."""
    if "blockIdx" not in trials.kernel.indices:
        return [trials.meaning.on((8, 8, 8))]
    return [trials.meaning.on((_SIZE,) * 3), trials.meaning.on(_RAGGED)]


def ran(trials: Trials, shapes: Sequence[Sizes]) -> tuple[Trials, CudaRun]:
    """Run the kernel on each shape, in a child process: with the launch of `trials`, or another plausible one if that is a guess
    with which the kernel is wrong. DeviceUnavailable if there is no GPU or the kernel does not compile."""
    run = _launched(trials, shapes)
    for launch in trials.launch.others if trials.launch.is_guess and not is_right(run) else ():
        other = replace(trials, launch=launch.instead_of(trials.launch))
        with suppress(UsageError):  # impossible for these sizes
            if is_right(_launched(other, shapes[-1:])) and is_right(found := _launched(other, shapes)):
                return other, found
    return trials, run


def is_right(run: CudaRun) -> bool:
    return all(outcome.code == "ok" for _, outcome in run)


def _launched(trials: Trials, shapes: Sequence[Sizes]) -> CudaRun:
    return [(task, _outcome(trials, task)) for task in map(trials.task, shapes)]


def _outcome(trials: Trials, task: Task) -> GpuOutcome:
    given: dict[str, Any] = {"text": trials.file.for_gpu, "instance": trials.instance, "arguments": [*_arguments(trials, task)]}
    seconds = _START + (LAUNCHES + 1) * trials.seconds
    ended = run_child("hybrid.classroom.cuda_run", {"task": asdict(task), **given}, seconds)
    if ended.status is None:
        return GpuOutcome(failure=f"it had not ended after {LAUNCHES + 1} times {trials.seconds:g} s, which --stall sets")
    if ended.status == -signal.SIGALRM:  # sent by the child's own clock
        late = f"NVRTC had not compiled {trials.kernel.name} after {COMPILES} s: do its macros or templates end?"
        raise DeviceUnavailable(late, code="compile-failed")
    if not ended.out:
        last = (ended.err.strip().splitlines() or [str(ended.status)])[-1]
        raise HybridError(f"the process that launches {trials.kernel.name} ended: {last}", code="kernel-crashed")
    found: dict[str, Any] = json.loads(ended.out)
    if "unavailable" in found:
        raise DeviceUnavailable(found["unavailable"], code=found["code"])
    return GpuOutcome(**found)


def _arguments(trials: Trials, task: Task) -> Iterator[Argument]:
    sizes = dict(zip("nlm", task.sizes, strict=True))
    scales = dict(zip(("alpha", "beta"), task.scales, strict=True))
    for parameter, of in zip(trials.kernel.parameters, trials.meaning.of, strict=True):
        if parameter.is_number or parameter.is_scale:
            yield _C_TYPES[parameter.type], scales[of] if parameter.is_scale else cuda_text.value_of(of, sizes)
        elif parameter.is_pointer:
            yield "matrix", "ABC".index(of)
        else:
            fields = [(kind.removeprefix("const ").strip(), what) for _, kind, what in fields_of(trials.file, parameter, of)]
            matrix = ("matrix", "ABC".index(of))
            yield "struct", [matrix if what == of else (_C_TYPES[kind], sizes[what]) for kind, what in fields]


def told(trials: Trials, run: CudaRun) -> Iterator[str]:
    """The report's lines."""
    kernel = trials.kernel
    yield f"{trials.file.path.name}, line {kernel.line}: " + "\n  ".join(about(kernel, trials.meaning, trials.launch))
    yield from [f"on {each.gpu}, compute capability {dotted(each.capability)}" for _, each in run if each.gpu][:1]
    for task, outcome in run:
        faults = () if outcome.code == "ok" else (Finding("", outcome.code),)
        yield heading(Case(task.sizes, task.grid, task.block, faults=faults), task.names)
        yield from (f"  {line}" for line in _of(task, outcome, task.names[2]))
    yield "a GPU shows wrong elements alone: without --device cuda races and accesses out of bounds are looked for, too"
    yield "right" if is_right(run) else "wrong"


def _of(task: Task, outcome: GpuOutcome, c: str) -> Iterator[str]:
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
    cases = []
    for task, outcome in run:
        launched = {**dict(zip("nlm", task.sizes, strict=True)), "grid": task.grid, "block": task.block}
        cases.append({**launched, **asdict(outcome), "code": outcome.code})
    about = {"file": trials.file.path.name, "kernel": trials.kernel.name, "dtype": trials.meaning.dtype}
    return {**about, "launch": str(trials.launch), "device": "cuda", "right": is_right(run), "cases": cases}


# --- in the child process


def _compiled(text: str, instance: str) -> Any:
    """The compiled kernel; `instance`: its name with template arguments. DeviceUnavailable if it does not compile."""
    import cupy

    trust_own_cache_only()
    module = cupy.RawModule(code=text, options=_OPTIONS, name_expressions=(instance,))
    try:
        return module.get_function(instance).kernel
    except cupy.cuda.compiler.CompileException as error:
        log = str(error)
        lines = [line.strip() for line in log.splitlines() if re.search(r"\berror\b", line)]
        first = lines[0] if lines else " ".join(log.split())[:200]
        raise DeviceUnavailable(f"NVRTC does not compile it: {first}", code="compile-failed") from None


def resources(function: Any) -> tuple[int, int, int]:
    """Registers a thread, bytes of static shared memory a block, and bytes of local memory a thread, for spilled registers."""
    from cupy_backends.cuda.api import driver

    registers, shared, local = (
        driver.funcGetAttribute(attribute, function.ptr) for attribute in (_NUM_REGS, _SHARED_SIZE_BYTES, _LOCAL_SIZE_BYTES)
    )
    return registers, shared, local


def milliseconds(launch: Callable[[], None], count: int) -> list[float]:
    """The times of `count` launches, by CUDA events."""
    import cupy

    times = []
    for _ in range(count):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        launch()
        end.record()
        end.synchronize()
        times.append(float(cupy.cuda.get_elapsed_time(begin, end)))
    return times


@record
class GpuOutcome:
    gpu: str = ""  # its name
    capability: int = 0
    failure: str = ""  # CUDA's message
    wrong: int = 0  # number of wrong elements of C
    first_wrong: Sequence[Any] | None = None  # its number, its value, the right value
    milliseconds: Sequence[float] = ()  # of each timed launch
    registers: int = 0  # of a thread
    static_shared: int = 0  # bytes of a block
    local: int = 0  # bytes of a thread's local memory

    @property
    def code(self) -> str:
        """A code of `hybrid.errors.CODES`, or "ok"."""
        return "gpu-failed" if self.failure else "wrong-elements" if self.wrong else "ok"


CudaRun = list[tuple[Task, GpuOutcome]]  # for each shape


def execute(task: Task, text: str, instance: str, arguments: Sequence[Argument]) -> GpuOutcome:
    """Launch the kernel on the first GPU; `text`: for NVRTC. DeviceUnavailable without a GPU, or if it does not compile."""
    gpu = usable_gpus()[0]
    import cupy
    from cupy_backends.cuda.api import driver, runtime

    signal.setitimer(signal.ITIMER_REAL, COMPILES)
    function = _compiled(text, instance)
    signal.setitimer(signal.ITIMER_REAL, 0)
    a, b, c, right = operands(task.sizes, task.dtype, task.seed, task.scales, task.batch, task.of_factors)
    matrices = [cupy.asarray(each) for each in (a, b, c)]
    values = [value_of(each, [matrix.data.ptr for matrix in matrices]) for each in arguments]
    allow_shared_memory(function, task.shared)
    prepared = PreparedLaunch(function, tuple(task.grid), tuple(task.block), values, task.shared)

    def launch() -> None:
        prepared(cupy.cuda.get_current_stream())

    about = (gpu.name, gpu.capability)
    try:
        launch()
        cupy.cuda.Device().synchronize()
    except (driver.CUDADriverError, runtime.CUDARuntimeError) as error:
        name, _, message = str(error).partition(": ")
        return GpuOutcome(*about, f"{message or name} ({name})")
    result = matrices[2].get()
    wrong, first = wrong_in(result, right)
    times = () if first else tuple(milliseconds(launch, LAUNCHES))
    return GpuOutcome(*about, "", len(wrong), (int(wrong[0]), *first) if first else None, times, *resources(function))


def value_of(argument: Argument, addresses: Sequence[int]) -> np.ndarray:
    """An argument's bytes as the kernel gets them, with C's alignment of a struct's fields. `addresses`: of the matrices."""
    kind, value = argument
    if kind == "matrix":
        return np.array(addresses[value], "u8")
    if kind == "struct":
        fields = [value_of(each, addresses) for each in value]
        layout = np.dtype([(f"f{number}", field.dtype) for number, field in enumerate(fields)], align=True)
        return np.array(tuple(field[()] for field in fields), layout)
    return np.array(value, kind)


def main() -> None:
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # drops what the kernel prints
    given: dict[str, Any] = json.load(sys.stdin)
    try:
        found = asdict(execute(Task(**given.pop("task")), **given))
    except DeviceUnavailable as error:
        found = {"unavailable": one_line(error), "code": error.code}
    print(json.dumps(found), file=results, flush=True)


if __name__ == "__main__":
    main()
