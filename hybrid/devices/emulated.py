"""The GPU's kernels and the GPU's schedule on a CPU: slow, for machines without a GPU and for tests."""

from __future__ import annotations

import numpy as np

from hybrid.core.problem import WIDEST_COPY, padded
from hybrid.devices.base import Event
from hybrid.devices.copy_width import copy_width
from hybrid.devices.cpu import CpuDevice
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, Kernel, Launch, launch_of
from hybrid.kernels.sources import KERNELS


class EmulatedDevice(CpuDevice):
    """Works at once, like the CPU; multiplies by a kernel of the catalogue, for a GPU of `capability` (times ten)."""

    name = "emulate"

    def __init__(self, kernel: Kernel, dtype: str, capability: int = EMULATED_CAPABILITY) -> None:
        super().__init__(staged=True)
        self._capability = capability
        self._kernels: dict[str, EmulatedKernel] = {}
        self.take_kernel(kernel, dtype)

    def take_kernel(self, kernel: Kernel, dtype: str, *, adding: bool = False) -> None:
        self._catalogued = kernel
        for adds in (False, True)[: 1 + adding]:  # compiled before it is timed
            self._kernel(launch_of(kernel, dtype, 1, 1, self._capability, WIDEST_COPY // np.dtype(dtype).itemsize, adds=adds))

    def multiply(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, after: list[Event], *, adding: bool = False) -> Event:
        return self._do("multiply", lambda: self._launch(a, b, c, adding))

    def _width(self, columns: int, dtype: str) -> int:
        return padded(columns, np.dtype(dtype).itemsize)

    def _launch(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, adding: bool) -> None:
        if not c.size:
            return
        rows, columns = c.shape
        width = copy_width(c.itemsize, [number for matrix in (a, b, c) for number in (matrix.ctypes.data, matrix.strides[0])])
        launch = launch_of(self._catalogued, c.dtype.name, rows, columns, self._capability, width, adds=adding)
        self._kernel(launch)(launch.grid, launch.block, launch.shared_bytes, (a, b, c))

    def _kernel(self, launch: Launch) -> EmulatedKernel:
        if launch.expression not in self._kernels:
            self._kernels[launch.expression] = EmulatedKernel(KERNELS / launch.source, launch.expression, self._capability)
        return self._kernels[launch.expression]
