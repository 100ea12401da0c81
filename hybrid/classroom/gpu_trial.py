# SPDX-License-Identifier: MIT
"""Launches a student's kernel on a GPU. `python -m hybrid.classroom.gpu_trial` is a child process, since a fault of the kernel
may break its CUDA context. It reads tasks from standard input and prints a line for each: the task's mark, and JSON.

The student's code runs on the GPU alone, so C can be compared here.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from hybrid.classroom.elements import operands, wrong_in
from hybrid.classroom.own_kernel import OwnKernel, failure_of, milliseconds, on_device
from hybrid.classroom.trial import Task, own_output, tell
from hybrid.core.problem import record
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import DeviceUnavailable, one_line

LAUNCHES = 20  # that are timed, after the first
COMPILES = 60  # seconds that NVRTC may take, after which this process ends
# "matrix" and its number, or a NumPy type and a value, or "struct" and a list of fields, each of which is such a pair.
Argument = tuple[str, Any]


@record
class GpuTask:
    """A launch of a kernel on the GPU."""

    text: str  # of the file, for NVRTC
    instance: str
    arguments: tuple[Argument, ...]
    task: Task  # the elements, and how it is launched


@record
class GpuOutcome:
    """What came of a launch."""

    gpu: str = ""  # its name
    capability: int = 0
    failure: str = ""  # CUDA's message
    wrong: int = 0  # how many elements of C are wrong
    first_wrong: tuple[int, float, float] | None = None  # its number, what it is, and what is right
    milliseconds: tuple[float, ...] = ()  # of each launch that was timed
    registers: int = 0  # of a thread
    static_shared: int = 0  # bytes of a block
    local: int = 0  # bytes of a thread's local memory

    @property
    def code(self) -> str:
        """What is wrong, of `hybrid.errors.CODES`; "ok" if nothing is."""
        return "gpu-failed" if self.failure else "wrong-elements" if self.wrong else "ok"


def carried_out(given: GpuTask) -> GpuOutcome:
    """Launch the kernel on the first GPU. DeviceUnavailable where there is none, or the kernel does not compile."""
    gpu, task = usable_gpus()[0], given.task
    signal.setitimer(signal.ITIMER_REAL, COMPILES)
    kernel = OwnKernel(given.text, given.instance)
    signal.setitimer(signal.ITIMER_REAL, 0)
    a, b, c, right = operands(task.sizes, task.dtype, task.seed, task.scales)
    matrices = [on_device(each) for each in (a, b, c)]
    arguments = [value_of(each, [matrix.data.ptr for matrix in matrices]) for each in given.arguments]
    launch = kernel.prepared(task.grid, task.block, task.shared, arguments)
    about = (gpu.name, gpu.capability)
    if failure := failure_of(launch):
        return GpuOutcome(*about, failure)
    result = matrices[2].get()
    wrong, first = wrong_in(result, right)
    times = () if first else tuple(milliseconds(launch, LAUNCHES))
    return GpuOutcome(*about, "", len(wrong), (int(wrong[0]), *first) if first else None, times, *kernel.resources)


def value_of(argument: Argument, addresses: Sequence[int]) -> np.ndarray:
    """An argument as it is passed to a kernel by value. `addresses`: of the matrices. Fields of a struct are aligned as in C."""
    kind, value = argument
    if kind == "matrix":
        return np.array(addresses[value], "u8")
    if kind == "struct":
        fields = [value_of(each, addresses) for each in value]
        layout = np.dtype([(f"f{number}", field.dtype) for number, field in enumerate(fields)], align=True)
        return np.array(tuple(field[()] for field in fields), layout)
    return np.array(value, kind)


def main() -> None:
    results = own_output()
    for each in json.load(sys.stdin):
        of_task: dict[str, Any] = each.pop("task")
        of_task.update({key: tuple(value) for key, value in of_task.items() if isinstance(value, list)})
        task = Task(**of_task)
        try:
            tell(results, task.mark, "outcome", asdict(carried_out(GpuTask(**each, task=task))))
        except DeviceUnavailable as error:
            tell(results, task.mark, "unavailable", {"why": one_line(error), "code": error.code})


if __name__ == "__main__":
    main()
