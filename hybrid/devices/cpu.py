# SPDX-License-Identifier: MIT
"""The CPU as a device: NumPy's BLAS or plain loops, on the host matrices in place; the GPU that it emulates; and products of
stacks on it.

With `staged` the CPU copies operands into buffers and checks as a GPU does, so that the GPU's schedule can be tested without one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid.core.problem import WIDEST_COPY, copy_width, is_aligned, padded
from hybrid.core.spans import Span, even_pieces
from hybrid.devices.base import Device, Event, KernelCall, phase_of, place_of
from hybrid.emulation.build import build_plain, c_compiler
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.host.blas import add_by_blas, blas, blas_all
from hybrid.host.memory import copy_rows
from hybrid.host.threads import limited_threads, on_threads, threads_allowed
from hybrid.kernels.catalogue import C_TYPES, EMULATED_CAPABILITY, KERNELS, OPERAND_SIZES, Kernel, Launch, launch_of
from hybrid.ranks.shared_memory import NodeFlags

if TYPE_CHECKING:
    from hybrid.emulation.kernel import EmulatedKernel

# No fused multiply-add and no reordering: every product and every sum is rounded, so the result is the same on all machines.
_FLAGS = ("-std=c99", "-O3", "-ffp-contract=off")
_PARTS_A_THREAD = 4  # so that a thread which is late takes fewer
_AT_ONCE = 100_000_000  # multiply-adds per call, about a tenth of a second: Python handles signals only between calls


@cache
def compiled_loops(name: str, dtype: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], None]:
    """The function `name` of kernels/loops.c, a sequential program's three loops, for comparison, as one that computes c = a · b.
    DeviceUnavailable without a C compiler."""
    from hybrid.emulation.kernel import as_c_array  # most products need none of its modules

    library = ctypes.CDLL(str(build_plain(c_compiler(), KERNELS / "loops.c", [*_FLAGS, f"-DELEMENT={C_TYPES[dtype]}"])))
    function = library[name]
    function.restype = None

    def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        rows = max(1, _AT_ONCE // max(1, b.size))
        for first in range(0, len(c), rows):
            block = slice(first, first + rows)
            function(*(ctypes.byref(as_c_array(matrix)) for matrix in (a[block], b, c[block])))

    return multiply


Product = Callable[[np.ndarray, np.ndarray, np.ndarray], None]  # (a, b, c): c = a · b


class CpuDevice(Device):
    """A CPU. Every operation is complete when its call returns, so its event is None."""

    name = "cpu"

    def __init__(self, staged: bool = False) -> None:
        self.staged = staged
        self._timings: list[tuple[str, float, float]] = []
        self._product: Product = blas

    def use_kernel(self, kernel: Kernel, dtype: str, *, adding: bool = False) -> None:
        self._product = blas if kernel.name == "blas" else compiled_loops(kernel.name, dtype)

    def holds(self, array: Any) -> bool:
        return False  # staged, it stands in for a GPU with memory of its own

    def reserve(self, size: int, *, shared: bool) -> _Memory:
        if not shared:
            return _Memory(size)
        if not hasattr(os, "memfd_create"):
            raise DeviceUnavailable(
                "this system has no memory that processes can open of each other (memfd_create)", code="gpu-peers"
            )
        return _Memory(size, os.memfd_create("hybrid"))

    def matrix(self, memory: _Memory, offset: int, rows: int, columns: int, dtype: str) -> np.ndarray:
        width = self._width(columns, dtype)
        size = rows * width * np.dtype(dtype).itemsize
        return memory.bytes[offset : offset + size].view(dtype).reshape(rows, width)[:, :columns]

    def poison(self, memory: _Memory) -> None:
        memory.bytes[:] = 0xFF  # a NaN as float32 and as float64

    def copy_in(self, into: np.ndarray, source: np.ndarray, after: list[Event]) -> Event:
        return self._do("copy in", lambda: np.copyto(into, source))

    def exchange(self, into: np.ndarray, source: np.ndarray, after: list[Event]) -> Event:
        return self._do("exchange", lambda: np.copyto(into, source))

    def multiply(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, after: list[Event], *, adding: bool = False) -> Event:
        assert not adding or self._product is blas, "loops do not add"
        product = add_by_blas if adding else self._product
        return self._do("multiply", lambda: product(a, b, c))

    def mirror(self, into: np.ndarray, source: np.ndarray, after: list[Event]) -> Event:
        def work() -> None:
            if into is source:
                np.copyto(into, into.T, where=~np.tri(len(into), dtype=bool))
            else:
                copy_rows(into, source.T, threads_allowed())

        return self._do("multiply", work)

    def copy_out(self, into: np.ndarray, source: np.ndarray, after: list[Event]) -> Event:
        return self._do("copy out", lambda: np.copyto(into, source))

    def empty(self, shape: tuple[int, int], dtype: str) -> np.ndarray:
        return np.empty(shape, dtype)

    def write(self, into: np.ndarray, values: np.ndarray) -> None:
        into[...] = values

    def read(self, matrix: np.ndarray) -> np.ndarray:
        return matrix

    def host_memory(self, shape: tuple[int, int], dtype: str) -> np.ndarray:
        return np.empty(shape, dtype)

    def clearing(self, matrix: np.ndarray, byte: int) -> KernelCall:
        return lambda stream: matrix.view(np.uint8).fill(byte)

    def giving(self, matrix: np.ndarray, here: np.ndarray) -> KernelCall:
        return lambda stream: np.copyto(matrix, here)

    def telling(self, matrix: np.ndarray, there: np.ndarray) -> KernelCall:
        return lambda stream: np.copyto(there, matrix)

    def together(self, calls: Sequence[KernelCall]) -> KernelCall:
        def call(stream: None) -> None:
            for each in calls:
                each(stream)

        return call

    def launch(self, calls: Sequence[KernelCall], after: list[Event], queue: str) -> Event:
        return self._do(phase_of(queue), lambda: self.together(calls)(None))

    def finish(self) -> list[tuple[str, float, float]]:
        timings, self._timings = self._timings, []
        return timings

    def handle(self, memory: _Memory) -> Any:
        return os.getpid(), memory.descriptor, len(memory.bytes)

    def open(self, handle: Any) -> _Memory:
        process, descriptor, size = handle
        try:
            # Unmapped with the last array that is a view of it.
            return _Memory(size, os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR))
        except OSError as error:
            raise DeviceUnavailable(
                f"the memory of process {process} cannot be opened ({one_line(error)})", code="gpu-peers"
            ) from None

    def make_ipc_events(self, count: int) -> Any:
        return count

    def record_ipc_event(self, number: int, event: Event, flags: NodeFlags, flag: int) -> None:
        flags.set_flag(flag)  # the operation is complete already

    def open_ipc_events(self, handle: Any) -> list[Event]:
        return [None] * handle

    def _width(self, columns: int, dtype: str) -> int:
        return columns

    def _do(self, phase: str, work: Callable[[], None]) -> Event:
        began = time.perf_counter()
        work()
        self._timings.append((phase, began, time.perf_counter()))
        return None


class _Memory:
    """A block of memory, aligned for the widest copies. With a descriptor, which it closes in the end, it is an anonymous file
    (memfd) that other processes can open."""

    def __init__(self, size: int, descriptor: int = -1) -> None:
        self.descriptor = descriptor
        if descriptor < 0:
            memory = np.empty(size + WIDEST_COPY, np.uint8)
            start = -memory.ctypes.data % WIDEST_COPY
            self.bytes = memory[start : start + size]
            return
        os.ftruncate(descriptor, max(1, size))  # another process's has this size already
        self.bytes = np.frombuffer(mmap.mmap(descriptor, max(1, size)), np.uint8)[:size]

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class EmulatedDevice(CpuDevice):
    """The emulated GPU: CUDA kernels compiled for the CPU, with a GPU's schedule. It is slow: for tests and teaching.

    Multiplies by a kernel of the catalogue, in the form for EMULATED_CAPABILITY. Operations are synchronous, as the CPU's.
    """

    name = "emulate"
    capability = 89  # of the other kernels: bytes are multiplied by mma.sync, as on most GPUs; with 90 it would be wgmma
    multiprocessors = 4  # few, so that persistent blocks go through several tiles

    def __init__(self, kernel: Kernel, dtype: str) -> None:
        super().__init__(staged=True)
        self._kernels: dict[tuple[str, int], EmulatedKernel] = {}  # by expression and compute capability
        self.use_kernel(kernel, dtype)

    def use_kernel(self, kernel: Kernel, dtype: str, *, adding: bool = False) -> None:
        self._entry, self._dtype = kernel, dtype
        width = WIDEST_COPY // OPERAND_SIZES[dtype]
        for adds in (False, True)[: 1 + adding]:  # compiled here and not at the first launch, which is timed
            self._instance(launch_of(kernel, dtype, 1, 1, EMULATED_CAPABILITY, width, adds=adds), EMULATED_CAPABILITY)

    def holds(self, array: Any) -> bool:
        return isinstance(array, np.ndarray) and is_aligned(*place_of(array))

    def multiply(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, after: list[Event], *, adding: bool = False) -> Event:
        def work() -> None:
            if c.size:
                rows, columns = c.shape
                width = copy_width(a.itemsize, [number for matrix in (a, b, c) for number in place_of(matrix)])
                launch = launch_of(self._entry, self._dtype, rows, columns, EMULATED_CAPABILITY, width, adds=adding)
                self._instance(launch, EMULATED_CAPABILITY)(launch.grid, launch.block, launch.shared_bytes, (a, b, c))

        return self._do("multiply", work)

    def progress(self) -> object:
        under_way = (kernel.progress() for kernel in list(self._kernels.values()))
        return next((returned for returned in under_way if returned is not None), None)

    def compile_ahead(self, launches: Sequence[Launch]) -> None:
        pass  # each instance takes a second, and a product needs few of them

    def kernel(self, launch: Launch, arguments: Sequence[Any]) -> KernelCall:
        instance = self._instance(launch, self.capability)
        matrices = [np.array([[each]]) if isinstance(each, np.generic) else each for each in arguments]
        return lambda stream: instance(launch.grid, launch.block, launch.shared_bytes, matrices, cluster=launch.cluster)

    def _width(self, columns: int, dtype: str) -> int:
        return padded(columns, np.dtype(dtype).itemsize)

    def _instance(self, launch: Launch, capability: int) -> EmulatedKernel:
        from hybrid.emulation.kernel import EmulatedKernel

        key = launch.expression, capability
        if key not in self._kernels:
            self._kernels[key] = EmulatedKernel(KERNELS / launch.source, launch.expression, capability)
        return self._kernels[key]


def multiply_on_cpu(a: np.ndarray, b: np.ndarray, c: np.ndarray, threads: int) -> None:
    """c[i] = a[i] · b[i] for all i; `a`, or `b`, may hold one matrix for all. Transposed views are multiplied as they lie.

    Each thread takes whole matrices. Where there are fewer of these than threads, they divide each product.
    """
    count = len(c)
    if count < threads:
        with limited_threads(threads):
            blas_all((a[index % len(a)], b[index % len(b)], c[index]) for index in range(count))
        return

    def multiply(part: Span) -> None:
        np.matmul(some_matrices(a, part), some_matrices(b, part), out=c[part.slice])

    with limited_threads(1):
        on_threads(threads, multiply, even_pieces(Span(0, count), -(-count // (_PARTS_A_THREAD * threads))))


def some_matrices(stack: np.ndarray, part: Span) -> np.ndarray:
    """An operand's matrices for the products `part`: the only one, or one for each."""
    return stack[: len(part)] if len(stack) == 1 else stack[part.slice]
