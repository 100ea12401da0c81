# SPDX-License-Identifier: MIT
"""cuBLASXt, which comes with cuBLAS: one call multiplies matrices in host memory, its blocks spread over the GPUs of a process.

page-locked  operands in memory that CUDA allocated, before the clock
registered   ordinary arrays, which the call page-locks and releases again (CUBLASXT_PINNING_ENABLED)
pageable     ordinary arrays

Each with several block sizes, and every product is checked.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from experiments.common.product_check import ProductCheck
from experiments.common.records import seconds_of
from experiments.hosts.programs.common import DTYPE, parse, record, uniform

BLOCKS = (2048, 4096, 8192)
_NOT_TRANSPOSED = 0  # CUBLAS_OP_N
_SIGNATURES = {  # of cublasXt.h
    "cublasXtCreate": (ctypes.c_void_p,),
    "cublasXtDestroy": (ctypes.c_void_p,),
    "cublasXtDeviceSelect": (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int)),
    "cublasXtSetBlockDim": (ctypes.c_void_p, ctypes.c_int),
    "cublasXtSetPinningMemMode": (ctypes.c_void_p, ctypes.c_int),
    "cublasXtDgemm": (
        *(ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t),
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t),
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    ),
}


class CublasXt:
    """cuBLASXt on the first so many GPUs. RuntimeError, with the status, for each function that does not succeed."""

    def __init__(self, library: ctypes.CDLL, gpus: int) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        self._call("cublasXtCreate", ctypes.byref(self._handle))
        self._call("cublasXtDeviceSelect", self._handle, gpus, (ctypes.c_int * gpus)(*range(gpus)))

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name)
        function.argtypes, function.restype = _SIGNATURES[name], ctypes.c_int
        if status := function(*arguments):
            raise RuntimeError(f"{name} ended with cuBLAS status {status}")

    def set_up(self, block: int, registers: bool) -> None:
        """For the following products: the rows and columns of a block, and whether a call page-locks what is not."""
        self._call("cublasXtSetBlockDim", self._handle, block)
        self._call("cublasXtSetPinningMemMode", self._handle, int(registers))

    def multiply(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        """c = a · b, contiguous float64 matrices on the host. It has been done when this returns."""
        assert all(matrix.dtype == DTYPE and matrix.flags.c_contiguous for matrix in (a, b, c))
        (rows, inner), columns = a.shape, b.shape[1]
        one, zero = (ctypes.byref(ctypes.c_double(value)) for value in (1.0, 0.0))
        # cuBLAS is column-major: our row-major C = A·B is its Cᵀ = Bᵀ·Aᵀ, with the operands exchanged and none transposed.
        sizes = (_NOT_TRANSPOSED, _NOT_TRANSPOSED, columns, rows, inner)
        operands = (one, b.ctypes.data, columns, a.ctypes.data, inner, zero, c.ctypes.data, columns)
        self._call("cublasXtDgemm", self._handle, *sizes, *operands)

    def close(self) -> None:
        self._call("cublasXtDestroy", self._handle)


def loaded() -> tuple[ctypes.CDLL, str]:
    """The cuBLAS that CuPy uses, and its name with its version."""
    import cupy
    from cupy_backends.cuda.libs import cublas

    version = cublas.getVersion(cupy.cuda.device.get_cublas_handle())
    major, minor, patch = version // 10000, version // 100 % 100, version % 100
    # What CuPy has loaded is found by this name, wherever its file lies.
    return ctypes.CDLL(f"libcublas.so.{major}"), f"cuBLASXt {major}.{minor}.{patch}"


def measured(
    xt: CublasXt, n: int, repeat: int, page_locked: Callable[[tuple[int, int], str], np.ndarray]
) -> Iterator[tuple[str, list[float], dict[str, Any]]]:
    """For each kind of operands and each block size: the part, the products' seconds, and what else its line has."""
    ordinary = uniform(n), uniform(n), np.full((n, n), np.nan)
    check = ProductCheck(*ordinary[:2])
    locked = tuple(page_locked((n, n), DTYPE) for _ in ordinary)
    for into, matrix in zip(locked, ordinary, strict=True):
        np.copyto(into, matrix)
    kinds = {"page-locked": (locked, False), "registered": (ordinary, True), "pageable": (ordinary, False)}
    for (kind, (matrices, registers)), block in product(kinds.items(), BLOCKS):
        xt.set_up(block, registers)
        multiply, c = partial(xt.multiply, *matrices), matrices[2]
        setup = seconds_of(multiply)
        c.fill(np.nan)  # so that elements nobody writes are found
        times = [seconds_of(multiply) for _ in range(repeat)]
        error = check.refuse_wrong(f"the product of {kind} operands in blocks of {block}", c)
        yield f"cublasxt, {kind}", times, {"setup": setup, "error": error, "block": block}


def main() -> None:
    options = parse(__doc__)
    library, version = loaded()
    import cupyx

    for gpus in options.gpus:
        with closing(CublasXt(library, gpus)) as xt:
            for n in options.sizes:
                for part, times, more in measured(xt, n, options.repeat, cupyx.empty_pinned):
                    record(options.json, part, gpus, n, times, library=version, **more)


if __name__ == "__main__":
    main()
