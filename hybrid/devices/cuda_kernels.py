# SPDX-License-Identifier: MIT
"""The catalogue's kernels on a GPU: compiled by NVRTC at first use, cached on disk by CuPy, launched on parts of buffers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.core.problem import copy_width
from hybrid.devices.buffers import place_of
from hybrid.devices.kernel_cache import trust_own_cache_only
from hybrid.devices.prepared_launch import PreparedLaunch, allow_shared_memory
from hybrid.kernels.catalogue import OPERAND_SIZES, Kernel, Launch, launch_of
from hybrid.kernels.sources import KERNELS

# (a, b, c): c = a · b on the current stream; (a, b, c, True): c += a · b, if the kernel can add.
Multiply = Callable[..., None]

_MOST_CACHED_LAUNCHES = 10_000
# Arguments of cublasGemmEx, by NumPy's letter for the operands' arrays (bfloat16 lies in a uint16): the cudaDataType of A and B,
# that of C, and the cublasComputeType_t.
_OF_FLOATS, _OF_INTEGERS = (0, 68), (10, 72)  # CUDA_R_32F, CUBLAS_COMPUTE_32F; CUDA_R_32I, CUBLAS_COMPUTE_32I
_BY_GEMM_EX = {"e": (2, *_OF_FLOATS), "H": (14, *_OF_FLOATS), "b": (3, *_OF_INTEGERS)}  # CUDA_R_16F, CUDA_R_16BF, CUDA_R_8I
_MATRIX = np.dtype([("data", "u8"), ("rows", "i8"), ("columns", "i8"), ("stride", "i8")])  # Matrix of matrix.cuh


def multiplication(kernel: Kernel, dtype: str, capability: int) -> Multiply:
    """The compiled function that multiplies by this kernel on GPUs of this compute capability (times ten). `dtype`: of A and B;
    C has that of their sums (`sums_type`)."""
    return CompiledKernel(kernel, dtype, capability) if kernel.source else cublas


class CompiledKernel:
    """Multiplies by a kernel that is compiled from our source. Rows of A, B and C are contiguous, with any row stride."""

    def __init__(self, kernel: Kernel, dtype: str, capability: int) -> None:
        self._kernel = kernel
        self._capability = capability
        self._functions: dict[str, Any] = {}
        self._launches: dict[tuple[Any, ...], PreparedLaunch] = {}  # by addresses, shapes and row strides
        self._dtype = dtype
        self.compile_ahead()

    def compile_ahead(self, *, adds: bool = False) -> None:
        """Compile the instance for fully aligned matrices, which the device's buffers are, before a launch needs it."""
        width = copy_width(OPERAND_SIZES[self._dtype], ())
        self.compiled(launch_of(self._kernel, self._dtype, 1, 1, self._capability, width, adds=adds))

    def __call__(self, a: Any, b: Any, c: Any, adding: bool = False) -> None:
        from cupy.cuda import get_current_stream

        if not c.size:
            return
        key = (adding, *((matrix.data.ptr, matrix.shape, matrix.strides[0]) for matrix in (a, b, c)))
        if key not in self._launches:
            if len(self._launches) >= _MOST_CACHED_LAUNCHES:
                self._launches.clear()
            self._launches[key] = self._prepared(a, b, c, adding)
        self._launches[key](get_current_stream().ptr)

    def _prepared(self, a: Any, b: Any, c: Any, adding: bool) -> PreparedLaunch:
        """The launch for these matrices. Cached by the caller: preparing takes longer than launching, and the same buffers are
        multiplied again and again."""
        rows, columns = c.shape
        width = copy_width(a.itemsize, [number for matrix in (a, b, c) for number in place_of(matrix)])
        launch = launch_of(self._kernel, self._dtype, rows, columns, self._capability, width, adds=adding)
        matrices = [*map(matrix_argument, (a, b, c))]
        return PreparedLaunch(self.compiled(launch), launch.grid, launch.block, matrices, launch.shared_bytes)

    def compiled(self, launch: Launch) -> Any:
        """The instance as a CuPy function, compiled at the first call."""
        if launch.expression not in self._functions:
            (function,) = compiled_functions(launch.source, [launch.expression]).values()
            allow_shared_memory(function, launch.shared_bytes)
            self._functions[launch.expression] = function
        return self._functions[launch.expression]


def compiled_functions(source: str, expressions: Sequence[str], architecture: str = "") -> dict[str, Any]:
    """Instances of templates in one of the kernels' sources, as CuPy functions that are loaded on the current GPU, by their name
    expressions. `architecture`: the only one that they are compiled for, as in `Launch`."""
    trust_own_cache_only()
    if architecture:
        from hybrid.devices.cubins import functions_for

        return functions_for(architecture, source, expressions, compile_options(KERNELS))
    import cupy

    module = cupy.RawModule(
        code=(KERNELS / source).read_text(), options=compile_options(KERNELS), name_expressions=tuple(expressions)
    )
    return {expression: module.get_function(expression).kernel for expression in expressions}


def compile_options(folder: Path) -> tuple[str, ...]:
    """The compiler's options for the kernels in `folder`. One is a hash of the headers, since CuPy's cache, which does not look
    into included files, would else keep kernels of changed headers."""
    headers = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.cuh")))).hexdigest()
    return ("-std=c++17", "-device-int128", f"-I{folder}", f"-DHEADERS=0x{headers[:16]}")


def matrix_argument(matrix: Any) -> np.ndarray:
    """A matrix as the kernels take it: `Matrix` of matrix.cuh. A NumPy array must lie in memory that the GPU can reach."""
    address, stride = place_of(matrix)
    return np.array((address, *matrix.shape, stride // matrix.itemsize), _MATRIX)


def cublas(a: Any, b: Any, c: Any, adding: bool = False) -> None:
    """c = a · b, or c += a · b, by cuBLAS, on row-major matrices with any row stride, on the current stream.

    Products of operands of 16 bits are added up in float32, as by our kernels. Of matrices of bytes, B must be column-major,
    since cuBLAS has fast kernels for that alone, and C is int32.
    """
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
    alpha, beta = np.ones((), c.dtype), np.array(adding, c.dtype)
    by_columns = a.dtype.char == "b"
    rows_of_b = b.T if by_columns else b
    leading = [array.strides[0] // array.itemsize if array.shape[0] > 1 else array.shape[1] for array in (a, rows_of_b, c)]
    library.setStream(handle, cupy.cuda.get_current_stream().ptr)
    library.setPointerMode(handle, library.CUBLAS_POINTER_MODE_HOST)
    # cuBLAS is column-major: our row-major C = A·B is its Cᵀ = Bᵀ·Aᵀ, with the operands exchanged and none transposed.
    how_b = library.CUBLAS_OP_T if by_columns else library.CUBLAS_OP_N
    sizes = how_b, library.CUBLAS_OP_N, columns, rows, inner, alpha.ctypes.data
    if of_type := _BY_GEMM_EX.get(a.dtype.char):
        of_operands, type_of_c, computed_in = of_type
        of_b, of_a = (b.data.ptr, of_operands, leading[1]), (a.data.ptr, of_operands, leading[0])
        of_c, how = (c.data.ptr, type_of_c, leading[2]), (computed_in, library.CUBLAS_GEMM_DEFAULT)
        library.gemmEx(handle, *sizes, *of_b, *of_a, beta.ctypes.data, *of_c, *how)
        return
    gemm = {"f": library.sgemm, "d": library.dgemm}[a.dtype.char]
    gemm(handle, *sizes, b.data.ptr, leading[1], a.data.ptr, leading[0], beta.ctypes.data, c.data.ptr, leading[2])
