# SPDX-License-Identifier: MIT
"""The calls of a CUDA program, made on a GPU, or on the CPU's CUDA runtime where they do the same to the host's memory."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.common.frame import Line, seconds_of
from experiments.common.product_check import ProductCheck, refuse_wrong
from hybrid.core.problem import Span
from hybrid.devices.base import EmulatedDevice, compiled_loops
from hybrid.devices.cuda_gpus import free_bytes, usable_gpus
from hybrid.devices.cuda_kernels import Multiply, multiplication
from hybrid.emulation.build import compiler
from hybrid.errors import DeviceUnavailable, HybridError, one_line
from hybrid.host.memory import available_host_bytes
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, Form, Kernel, named
from hybrid.planning.decision import Gpu
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
        on_a, on_b, on_c = (runtime.allocate(matrix.shape, a.dtype.name) for matrix in (a, b, c))
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
            on_a, on_b, on_c = (runtime.allocate(matrix.shape, a.dtype.name) for matrix in (a, b, c))
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


def copy_seconds(runtime: GpuRuntime, shape: tuple[int, int], dtype: str, repeat: int) -> list[float]:
    """Of copies of such a matrix within the GPU's memory."""
    try:
        into, source = (runtime.allocate(shape, dtype) for _ in range(2))
        runtime.poison(source)
        times = []
        for _ in range(repeat + 1):
            begin = runtime.event()
            runtime.copy_within(into, source)
            times.append(runtime.seconds(begin, runtime.event()))
        return times[1:]
    finally:
        runtime.release()


OUT_OF_MEMORY = "out of memory"  # as CUDA says it


class CallFailed(HybridError):
    """A call of CUDA's, or what stands for it, did not succeed; the text is CUDA's own."""


class _Capped:
    """Counts the bytes allocated, at most `cap` (0: of what there is)."""

    device: str
    name = ""

    def __init__(self, cap: int) -> None:
        self._cap, self._taken = cap, 0

    def _take(self, size: int) -> None:
        if self._cap and self._taken + size > self._cap:
            raise CallFailed(OUT_OF_MEMORY)
        self._taken += size

    def release(self) -> None:
        """Give back everything allocated here."""
        self._taken = 0

    @property
    def about(self) -> Line:
        """What each line of a measurement here says."""
        return {"device": self.device, "gpu": self.name if self.device == "cuda" else None}


class GpuRuntime(_Capped):
    """A GPU whose memory holds dense matrices. Calls follow each other as on CUDA's default stream.

    `cap`: bytes of its memory that may be used; 0: all.
    """

    device = "cuda"

    def __init__(self, gpu: Gpu, cap: int = 0) -> None:
        import cupy

        self.gpu, self.name, self.capability = gpu, gpu.name, gpu.capability
        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        self._device = cupy.cuda.Device(gpu.index)
        super().__init__(cap)
        self._addresses: list[int] = []
        self._products: dict[tuple[Kernel, str], Multiply] = {}

    def allocate(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Memory of its own for a matrix, its contents undefined. CallFailed where there is none."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        with self._device:
            self._take(size)
            try:
                address = self._called(self._runtime.malloc, max(1, size))
            except CallFailed:
                self._taken -= size
                raise
            self._addresses.append(address)
            memory = self._cupy.cuda.UnownedMemory(address, max(1, size), self, self.gpu.index)
            return self._cupy.ndarray(shape, dtype, self._cupy.cuda.MemoryPointer(memory, 0))

    def release(self) -> None:
        with self._device:
            while self._addresses:
                self._runtime.free(self._addresses.pop())
        super().release()

    def copy(self, into: Any, source: Any) -> None:
        """Between the host and the device, whole rows; it has been done when this returns."""
        assert (into.dtype, into.shape) == (source.dtype, source.shape), "copies do not convert"
        assert all(matrix.flags.c_contiguous for matrix in (into, source))
        to_device = isinstance(source, np.ndarray)
        kind = self._runtime.memcpyHostToDevice if to_device else self._runtime.memcpyDeviceToHost
        ends = (into.data.ptr, source.ctypes.data) if to_device else (into.ctypes.data, source.data.ptr)
        with self._device:
            self._called(self._runtime.memcpy, *ends, source.nbytes, kind)

    def copy_within(self, into: Any, source: Any) -> None:
        """Start a copy from the device's memory to its memory."""
        with self._device:
            self._runtime.memcpyAsync(into.data.ptr, source.data.ptr, source.nbytes, self._runtime.memcpyDeviceToDevice, 0)

    def poison(self, matrix: Any) -> None:
        """Fill with NaN."""
        with self._device:
            self._runtime.memset(matrix.data.ptr, 0xFF, matrix.nbytes)

    def launch(self, kernel: Kernel, a: Any, b: Any, c: Any) -> None:
        """Start c = a · b. A kernel is compiled before its first launch."""
        with self._device:
            key = (kernel, c.dtype.name)
            if key not in self._products:
                self._products[key] = multiplication(kernel, c.dtype.name, self.capability)
            self._products[key](a, b, c)

    def seconds_each(self, kernel: Kernel, a: Any, b: Any, c: Any, launches: int, repeat: int) -> list[float]:
        """Of one launch, the mean over so many in a row; `repeat` times. The kernel was launched before."""
        # As one graph: a small kernel takes less time than the host takes to launch it.
        with self._device, self._cupy.cuda.Stream() as stream:
            stream.begin_capture()
            for _ in range(launches):
                self.launch(kernel, a, b, c)
            graph = stream.end_capture()
            graph.launch(stream)  # the first time it is brought to the GPU
            times = []
            for _ in range(repeat):
                begin = self.event()
                graph.launch(stream)
                times.append(self.seconds(begin, self.event()) / launches)
            return times

    def event(self) -> Any:
        """Record one on the stream."""
        with self._device:
            event = self._cupy.cuda.Event()
            event.record()
            return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two events, once the later one has been reached."""
        with self._device:
            end.synchronize()
            return float(self._cupy.cuda.get_elapsed_time(begin, end)) / 1e3

    def _called(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._runtime.CUDARuntimeError as error:
            # What cudaGetErrorString says; CuPy puts the error's name before it.
            raise CallFailed(str(error).partition(": ")[2] or one_line(error)) from None

    def memory(self) -> int:
        """Bytes that can be allocated now."""
        free = free_bytes(self.gpu)
        return min(self._cap - self._taken, free) if self._cap else free


class EmulatedRuntime(_Capped):
    """The same calls of the CPU's CUDA runtime. `cap`: bytes of the host's memory that stand for a GPU's."""

    device = "emulate"
    capability = EMULATED_CAPABILITY

    def __init__(self, cap: int) -> None:
        super().__init__(cap)
        self._devices: dict[tuple[Kernel, str], EmulatedDevice] = {}

    def allocate(self, shape: tuple[int, ...], dtype: str) -> Any:
        self._take(math.prod(shape) * np.dtype(dtype).itemsize)
        try:
            return np.empty(shape, dtype)
        except MemoryError:
            raise CallFailed(OUT_OF_MEMORY) from None

    def copy(self, into: Any, source: Any) -> None:
        np.copyto(into, source)

    def poison(self, matrix: Any) -> None:
        matrix.fill(np.nan)

    def launch(self, kernel: Kernel, a: Any, b: Any, c: Any) -> None:
        key = (kernel, c.dtype.name)
        if key not in self._devices:
            self._devices[key] = EmulatedDevice(kernel, c.dtype.name)
        self._devices[key].multiply(a, b, c, [])
        self._devices[key].finish()

    def event(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def memory(self) -> int:
        return self._cap - self._taken


CudaRuntime = GpuRuntime | EmulatedRuntime


def runtime_for(device: str, cap: int = 0) -> CudaRuntime:
    """The first GPU, or for "emulate" the CPU's runtime; "auto" says on stderr why it takes no GPU."""
    if device != "emulate":
        try:
            return GpuRuntime(usable_gpus()[0], cap)
        except DeviceUnavailable as missing:
            if device == "cuda":
                raise
            print(f"{missing}: the kernels run on the CPU's CUDA runtime, and their times say nothing of a GPU", file=sys.stderr)
    compiler()
    return EmulatedRuntime(cap or available_host_bytes())
