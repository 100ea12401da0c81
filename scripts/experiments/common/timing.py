# SPDX-License-Identifier: MIT
"""Times of the lectures' kernels; every product that is timed is checked against float64."""

import math
from dataclasses import replace

import numpy as np

from experiments.common.cuda import CudaRuntime, GpuRuntime
from experiments.common.product_check import ProductCheck, refuse_wrong
from experiments.common.records import seconds_of
from hybrid.core.spans import Span
from hybrid.devices.cpu import compiled_loops
from hybrid.kernels.catalogue import Form, Kernel, named
from hybrid.runs.operands import fill_rows

TIMED = 0.03  # seconds of launches between two events: the clock of a GPU at rest is slow
MOST_LAUNCHES = 2000
_FILL_THREADS = 4


def kernel_of(name: str) -> Kernel:
    kernel = named(name)
    assert kernel is not None, name
    return kernel


def with_block(name: str, side: int) -> Kernel:
    """The kernel in blocks of side×side threads, each an element of C."""
    kernel = kernel_of(name)
    forms: dict[str, tuple[Form, ...]] = {dtype: (Form((side, side), (side, side)),) for dtype in kernel.forms}
    return replace(kernel, name=f"{name} {side}×{side}", function=name, forms=forms)


def matrices(fill: str, dtype: str, n: int, l: int, m: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A and B as the runner's --fill makes them."""
    made = []
    for matrix, rows, columns in (("A", n, l), ("B", l, m)):
        array = np.empty((rows, columns), dtype)
        fill_rows(array, Span(0, rows), fill=fill, seed=seed, matrix=matrix, threads=_FILL_THREADS)
        made.append(array)
    return made[0], made[1]


def kernel_seconds(runtime: CudaRuntime, kernel: Kernel, a: np.ndarray, b: np.ndarray, repeat: int) -> list[float]:
    """Of one launch, by events around several on a GPU; the first one's on the CPU, where it only is to be right."""
    c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
    try:
        on_a, on_b, on_c = (runtime.allocate(*matrix.shape, a.dtype.name) for matrix in (a, b, c))
        runtime.copy(on_a, a)
        runtime.copy(on_b, b)
        runtime.poison(on_c)
        begin = runtime.event()
        runtime.launch(kernel, on_a, on_b, on_c)
        first = runtime.seconds(begin, runtime.event())
        runtime.copy(c, on_c)
        refuse_wrong(f"kernel {kernel.name}", a, b, c)
        if not isinstance(runtime, GpuRuntime):
            return [first]
        (once,) = runtime.seconds_each(kernel, on_a, on_b, on_c, 1, 1)
        return runtime.seconds_each(kernel, on_a, on_b, on_c, min(MOST_LAUNCHES, math.ceil(TIMED / once)), repeat)
    finally:
        runtime.release()


def whole_seconds(runtime: CudaRuntime, kernel: Kernel, a: np.ndarray, b: np.ndarray, repeat: int) -> list[float]:
    """Allocation, copies in, kernel and copy out, by events around them all. A GPU does it once more before."""
    times, check = [], ProductCheck(a, b)
    for index in range(-int(runtime.device == "cuda"), repeat):
        c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
        try:
            begin = runtime.event()
            on_a, on_b, on_c = (runtime.allocate(*matrix.shape, a.dtype.name) for matrix in (a, b, c))
            runtime.copy(on_a, a)
            runtime.copy(on_b, b)
            if index < 0:
                runtime.poison(on_c)
            runtime.launch(kernel, on_a, on_b, on_c)
            runtime.copy(c, on_c)
            seconds = runtime.seconds(begin, runtime.event())
        finally:
            runtime.release()
        check.refuse_wrong(f"kernel {kernel.name}", c)
        if index >= 0:
            times.append(seconds)
    return times


def loops_seconds(name: str, a: np.ndarray, b: np.ndarray, repeat: int) -> list[float]:
    """Of the sequential loops on one core. DeviceUnavailable without a C compiler."""
    multiply = compiled_loops(name, a.dtype.name)
    times, check = [], ProductCheck(a, b)
    for _ in range(repeat):
        c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
        times.append(seconds_of(multiply, a, b, c))
        check.refuse_wrong(name, c)
    return times
