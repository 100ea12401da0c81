# SPDX-License-Identifier: MIT
"""A device, matrices of random elements on it, and cuBLAS beside our kernels."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from experiments.common.product_check import IntegerCheck, ProductCheck
from experiments.common.timed_products import Sizes
from experiments.remainder_speed.halves import CAPABILITY
from experiments.remainder_speed.results import YARDSTICK
from experiments.remainder_speed.timing import Way, enqueued
from hybrid.devices.base import KernelDevice
from hybrid.devices.cpu import EmulatedDevice
from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.devices.cuda_kernels import cublas
from hybrid.kernels.catalogue import named

LARGEST = 99  # of integers: sums of products fit 31 bits

Matrices = tuple[Any, Any, Any]


class Bench:
    """A device, and matrices of random elements on it."""

    def __init__(self, name: str) -> None:
        self.on_gpu = name == "cuda"
        kernel = named("tiled")
        assert kernel is not None
        self.device: KernelDevice = CudaDevice(usable_gpus()[0]) if self.on_gpu else EmulatedDevice(kernel, "float64")
        self._xp = import_module("cupy") if self.on_gpu else np
        self._random = self._xp.random.default_rng()

    @property
    def multiplies_halves(self) -> bool:
        return self.on_gpu and self.device.capability == CAPABILITY

    def on_host(self, matrix: Any) -> np.ndarray:
        return self._xp.asnumpy(matrix) if self.on_gpu else matrix

    def matrix(self, rows: int, columns: int, dtype: str) -> Any:
        return self.device.matrix(self.device.reserve(8 * rows * (columns + 16), shared=False), 0, rows, columns, dtype)

    def matrices(self, sizes: Sizes, dtype: str, kind: str) -> Matrices:
        n, l, m = sizes
        a, b, c = (self.matrix(*shape, dtype) for shape in ((n, l), (l, m), (n, m)))
        for matrix in (a, b):
            if kind == "normal":
                matrix[...] = self._random.standard_normal(matrix.shape, np.dtype(dtype))
            else:
                matrix[...] = self._random.integers(-LARGEST, LARGEST + 1, matrix.shape)
        self.settle()  # the device's own streams do not wait for CuPy's
        return a, b, c

    def yardstick(self, matrices: Matrices) -> Way:
        """cuBLAS; on the emulated GPU a kernel of ours."""
        kernel = named(YARDSTICK.lower() if self.on_gpu else "tiled")
        assert kernel is not None
        self.device.use_kernel(kernel, matrices[0].dtype.name)
        return lambda after: self.device.multiply(*matrices, after)

    def cublas_of_bytes(self, a: Any, b: Any, c: Any) -> Way:
        def call(stream: Any) -> None:
            with stream:
                cublas(a, b, c)

        return enqueued(self.device, call)

    def as_bytes(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The second one column-major."""
        return self._xp.ascontiguousarray(a.astype(np.int8)), self._xp.asfortranarray(b.astype(np.int8))

    def integers32(self, rows: int, columns: int) -> Any:
        return self._xp.empty((rows, columns), np.int32)

    def refuse_wrong(self, way: Way, c: Any, what: str, check: ProductCheck | IntegerCheck) -> None:
        c[...] = 0
        self.settle()
        way([])
        list(self.device.finish())
        check.refuse_wrong(what, c)
        self.settle()

    def settle(self) -> None:
        if self.on_gpu:
            self._xp.cuda.Device().synchronize()
