# SPDX-License-Identifier: MIT
"""The emulated GPU as a device: CUDA kernels compiled for the CPU, with a GPU's schedule. It is slow: for tests and teaching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybrid.core.problem import WIDEST_COPY, copy_width, is_aligned, padded
from hybrid.devices.base import Event, KernelCall, place_of
from hybrid.devices.cpu import CpuDevice
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, KERNELS, OPERAND_SIZES, Kernel, Launch, launch_of


class EmulatedDevice(CpuDevice):
    """Multiplies by a kernel of the catalogue, in the form for compute capability `capability` / 10 of its constructor.
    Operations are synchronous, as the CPU's."""

    name = "emulate"
    capability = 89  # of the other kernels: bytes are multiplied by mma.sync, as on most GPUs; with 90 it would be wgmma
    multiprocessors = 4  # few, so that persistent blocks go through several tiles

    def __init__(self, kernel: Kernel, dtype: str, capability: int = EMULATED_CAPABILITY) -> None:
        super().__init__(staged=True)
        self._of_catalogue = capability
        self._kernels: dict[tuple[str, int], EmulatedKernel] = {}  # by expression and compute capability
        self.use_kernel(kernel, dtype)

    def use_kernel(self, kernel: Kernel, dtype: str, *, adding: bool = False) -> None:
        self._entry, self._dtype = kernel, dtype
        width = WIDEST_COPY // OPERAND_SIZES[dtype]
        for adds in (False, True)[: 1 + adding]:  # compiled here and not at the first launch, which is timed
            self._instance(launch_of(kernel, dtype, 1, 1, self._of_catalogue, width, adds=adds), self._of_catalogue)

    def holds(self, array: Any) -> bool:
        return isinstance(array, np.ndarray) and is_aligned(*place_of(array))

    def multiply(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, after: list[Event], *, adding: bool = False) -> Event:
        def work() -> None:
            if c.size:
                rows, columns = c.shape
                width = copy_width(a.itemsize, [number for matrix in (a, b, c) for number in place_of(matrix)])
                launch = launch_of(self._entry, self._dtype, rows, columns, self._of_catalogue, width, adds=adding)
                self._instance(launch, self._of_catalogue)(launch.grid, launch.block, launch.shared_bytes, (a, b, c))

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

    def clearing(self, matrix: np.ndarray, byte: int) -> KernelCall:
        return lambda stream: matrix.view(np.uint8).fill(byte)

    def together(self, calls: Sequence[KernelCall]) -> KernelCall:
        def call(stream: None) -> None:
            for each in calls:
                each(stream)

        return call

    def host_memory(self, shape: tuple[int, int], dtype: str) -> np.ndarray:
        return np.empty(shape, dtype)

    def launch(self, calls: Sequence[KernelCall], after: list[Event], queue: str) -> Event:
        return self._do("multiply", lambda: self.together(calls)(None))

    def _width(self, columns: int, dtype: str) -> int:
        return padded(columns, np.dtype(dtype).itemsize)

    def _instance(self, launch: Launch, capability: int) -> EmulatedKernel:
        key = launch.expression, capability
        if key not in self._kernels:
            self._kernels[key] = EmulatedKernel(KERNELS / launch.source, launch.expression, capability)
        return self._kernels[key]
