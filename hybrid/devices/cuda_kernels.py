"""The catalogue's kernels on a GPU: compiled at first use, kept on disk by CuPy, launched on parts of buffers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.devices.copy_width import copy_width
from hybrid.kernels.catalogue import Kernel, Launch, launch_of
from hybrid.kernels.sources import KERNELS

# (a, b, c): c = a · b on the current stream; (a, b, c, True): c += a · b, by a kernel that adds.
Multiply = Callable[..., None]


_ORDINARY_SHARED_BYTES = 48 * 1024  # more than that must be asked for
_MOST_PREPARED = 10_000
_MATRIX = np.dtype([("data", "u8"), ("rows", "i8"), ("columns", "i8"), ("stride", "i8")])  # as in matrix.cuh


def multiplication(kernel: Kernel, dtype: str, capability: int) -> Multiply:
    """What multiplies by this kernel on GPUs of this compute capability (times ten), ready to run."""
    return OwnKernel(kernel, dtype, capability) if kernel.source else cublas


class OwnKernel:
    """A kernel of ours. C's rows must be contiguous, as A's and B's; they may be parts of wider buffers."""

    def __init__(self, kernel: Kernel, dtype: str, capability: int) -> None:
        self._kernel = kernel
        self._capability = capability
        self._functions: dict[str, Any] = {}
        self._prepared: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # by where the matrices lie
        self._dtype = np.dtype(dtype)
        self.make_ready()

    def make_ready(self, *, adds: bool = False) -> None:
        """Compile what matrices take that lie as they should."""
        width = copy_width(self._dtype.itemsize, ())
        self.compiled(launch_of(self._kernel, self._dtype.name, 1, 1, self._capability, width, adds=adds))

    def __call__(self, a: Any, b: Any, c: Any, adding: bool = False) -> None:
        if not c.size:
            return
        key = (adding, *((matrix.data.ptr, matrix.shape, matrix.strides[0]) for matrix in (a, b, c)))
        if key not in self._prepared:
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            self._prepared[key] = self._prepare(a, b, c, adding)
        function, grid, block, matrices, shared_bytes = self._prepared[key]
        function(grid, block, matrices, shared_mem=shared_bytes)

    def _prepare(self, a: Any, b: Any, c: Any, adding: bool) -> tuple[Any, ...]:
        """Kept, since the same buffers are multiplied again: this takes longer than to launch."""
        rows, columns = c.shape
        width = copy_width(c.itemsize, [number for matrix in (a, b, c) for number in (matrix.data.ptr, matrix.strides[0])])
        launch = launch_of(self._kernel, c.dtype.name, rows, columns, self._capability, width, adds=adding)
        return self.compiled(launch), launch.grid, launch.block, tuple(map(_described, (a, b, c))), launch.shared_bytes

    def compiled(self, launch: Launch) -> Any:
        """CuPy's function of this instance."""
        if launch.expression not in self._functions:
            import cupy

            module = cupy.RawModule(
                code=(KERNELS / launch.source).read_text(),
                options=compile_options(KERNELS),
                name_expressions=(launch.expression,),
            )
            function = module.get_function(launch.expression)
            if launch.shared_bytes > _ORDINARY_SHARED_BYTES:
                function.max_dynamic_shared_size_bytes = launch.shared_bytes
            self._functions[launch.expression] = function
        return self._functions[launch.expression]


def compile_options(folder: Path) -> tuple[str, ...]:
    """CuPy's cache does not look into included files, so what the headers in `folder` hold is a part of the options."""
    headers = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.cuh")))).hexdigest()
    return ("-std=c++17", f"-I{folder}", f"-DHEADERS=0x{headers[:16]}")


def _described(matrix: Any) -> np.ndarray:
    return np.array((matrix.data.ptr, *matrix.shape, matrix.strides[0] // matrix.itemsize), _MATRIX)


def cublas(a: Any, b: Any, c: Any, adding: bool = False) -> None:
    """c = a · b, or c += a · b, by cuBLAS, on parts of row-major buffers, on the current stream."""
    import cupy
    from cupy_backends.cuda.libs import cublas as library

    rows, inner = a.shape
    columns = b.shape[1]
    if not (rows and columns):
        return
    if not inner:
        if not adding:
            c[...] = 0
        return
    handle = cupy.cuda.device.get_cublas_handle()
    gemm = {"f": library.sgemm, "d": library.dgemm}[a.dtype.char]
    one, of_c = np.ones((), a.dtype), np.array(adding, a.dtype)
    stride = [array.strides[0] // array.itemsize if array.shape[0] > 1 else array.shape[1] for array in (a, b, c)]
    library.setStream(handle, cupy.cuda.get_current_stream().ptr)
    library.setPointerMode(handle, library.CUBLAS_POINTER_MODE_HOST)
    # cuBLAS counts by columns: what is row-major C = A·B to us is C' = B'·A' to it.
    gemm(
        handle,
        library.CUBLAS_OP_N,
        library.CUBLAS_OP_N,
        columns,
        rows,
        inner,
        one.ctypes.data,
        b.data.ptr,
        stride[1],
        a.data.ptr,
        stride[0],
        of_c.ctypes.data,
        c.data.ptr,
        stride[2],
    )
