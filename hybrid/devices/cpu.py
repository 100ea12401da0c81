# SPDX-License-Identifier: MIT
"""The CPU as a device: NumPy's BLAS or plain loops, on the host matrices in place.

With `staged` it copies operands into buffers as a GPU does, so that the GPU's schedule can be tested without one.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hybrid.core.problem import WIDEST_COPY
from hybrid.devices.base import CheckOperations, Event, EventWait, KernelQueues
from hybrid.devices.cpu_check import CpuCheckOperations
from hybrid.errors import DeviceUnavailable, UsageError, one_line
from hybrid.host.blas_products import add_by_blas, blas
from hybrid.kernels.catalogue import Kernel

Product = Callable[[np.ndarray, np.ndarray, np.ndarray], None]  # (a, b, c): c = a · b


class CpuDevice:
    """A CPU. Every operation is complete when its call returns, so its event is None."""

    name = "cpu"
    event_wait: EventWait | None = None

    def __init__(self, staged: bool = False) -> None:
        self.staged = staged
        self._timings: list[tuple[str, float, float]] = []
        self._product: Product = blas

    def use_kernel(self, kernel: Kernel, dtype: str, *, adding: bool = False) -> None:
        if kernel.name == "blas":
            self._product = blas
            return
        from hybrid.devices.c_loops import compiled_loops  # with all that compiles, which BLAS does not need

        self._product = compiled_loops(kernel.name, dtype)

    def holds(self, array: Any) -> bool:
        return False  # staged, it stands in for a GPU with memory of its own

    def reserve(self, size: int, *, shared: bool) -> _Memory:
        return _Memory.created(size) if shared else _Memory(np.empty(size + WIDEST_COPY, np.uint8))

    def matrix(self, memory: _Memory, offset: int, rows: int, columns: int, dtype: str) -> np.ndarray:
        width = self._width(columns, dtype)
        size = rows * width * np.dtype(dtype).itemsize
        return memory.bytes[offset : offset + size].view(dtype).reshape(rows, width)[:, :columns]

    def copy_in(self, into: np.ndarray, source: np.ndarray, after: list[Event]) -> Event:
        return self._do("copy in", lambda: np.copyto(into, source))

    def exchange(self, into: np.ndarray, source: np.ndarray, after: list[Event]) -> Event:
        return self._do("exchange", lambda: np.copyto(into, source))

    def multiply(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, after: list[Event], *, adding: bool = False) -> Event:
        assert not adding or self._product is blas, "loops do not add"
        product = add_by_blas if adding else self._product
        return self._do("multiply", lambda: product(a, b, c))

    def copy_out(self, into: np.ndarray, source: np.ndarray, after: list[Event]) -> Event:
        return self._do("copy out", lambda: np.copyto(into, source))

    def finish(self) -> list[tuple[str, float, float]]:
        timings, self._timings = self._timings, []
        return timings

    def progress(self) -> object:
        return None  # BLAS does not tell

    def check_operations(self) -> CheckOperations:
        return CpuCheckOperations(self._do)

    def pin(self, array: np.ndarray) -> None:
        pass  # there is no link whose speed depends on it

    def wait(self, event: Event) -> None:
        pass  # the operation is complete already

    def kernel_queues(self) -> KernelQueues:
        raise UsageError("a CPU launches no kernels: --device emulate does", code="kernel-device")

    def poison(self, memory: _Memory) -> None:
        memory.bytes[:] = 0xFF  # a NaN as float32 and as float64

    def handle(self, memory: _Memory) -> Any:
        return os.getpid(), memory.descriptor, len(memory.bytes)

    def open(self, handle: Any) -> _Memory:
        return _Memory.opened(*handle)

    def close(self, memory: _Memory) -> None:
        pass  # unmapped with the last array that is a view of it

    def make_ipc_events(self, count: int) -> Any:
        return count

    def record_ipc_event(self, number: int, event: Event) -> None:
        pass  # the operation is complete already

    def done(self, event: Event) -> bool:
        return True

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
    """A block of memory, aligned for the widest copies. If other processes can open it, it is an anonymous file (memfd)."""

    def __init__(self, memory: np.ndarray, descriptor: int = -1) -> None:
        self.descriptor = descriptor
        start = -memory.ctypes.data % WIDEST_COPY
        self.bytes = memory[start:] if descriptor >= 0 else memory[start : start + len(memory) - WIDEST_COPY]

    @classmethod
    def created(cls, size: int) -> _Memory:
        if not hasattr(os, "memfd_create"):
            raise DeviceUnavailable(
                "this system has no memory that processes can open of each other (memfd_create)", code="gpu-peers"
            )
        return cls._of_file(os.memfd_create("hybrid"), size, new=True)

    @classmethod
    def opened(cls, process: int, descriptor: int, size: int) -> _Memory:
        try:
            own_descriptor = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
        except OSError as error:
            raise DeviceUnavailable(
                f"the memory of process {process} cannot be opened ({one_line(error)})", code="gpu-peers"
            ) from None
        return cls._of_file(own_descriptor, size)

    @classmethod
    def _of_file(cls, descriptor: int, size: int, *, new: bool = False) -> _Memory:
        try:
            if new:
                os.truncate(descriptor, max(1, size))
            return cls(_mapped(descriptor, size), descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def _mapped(descriptor: int, size: int) -> np.ndarray:
    return np.frombuffer(mmap.mmap(descriptor, max(1, size)), np.uint8)[:size]
