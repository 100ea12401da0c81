# SPDX-License-Identifier: MIT
"""The GPU that a CPU emulates, and products of stacks on CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid.core.problem import WIDEST_COPY, copy_width, is_aligned, padded
from hybrid.core.spans import Span, even_pieces
from hybrid.devices.base import Device, Event, KernelCall, place_of
from hybrid.host.blas import blas_all
from hybrid.host.threads import limited_threads, on_threads
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, KERNELS, OPERAND_SIZES, Kernel, Launch, launch_of

if TYPE_CHECKING:
    from hybrid.emulation.kernel import EmulatedKernel

_PARTS_A_THREAD = 4  # so that a thread which is late takes fewer


class EmulatedDevice(Device):
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
