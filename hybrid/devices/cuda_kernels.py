# SPDX-License-Identifier: MIT
"""Kernels on a GPU, and products by cuBLAS. Machine code comes with the package, or is compiled by NVRTC at first use and cached
where only this user may write. Arguments are packed once for many launches."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.core.installation import (
    NotPrivate,
    Remark,
    cache_folder,
    home_folder,
    is_own,
    named_cache,
    reason,
    refuse_unless_private,
)
from hybrid.core.problem import copy_width
from hybrid.core.text import warn
from hybrid.devices.base import KernelCall, place_of
from hybrid.errors import DeviceUnavailable, HybridError
from hybrid.host.files import atomic_write
from hybrid.kernels.catalogue import KERNELS, OPERAND_SIZES, Kernel, Launch, dotted, launch_of

_ROOM = 1 << 20  # bytes; a compiled kernel takes less
_DEFAULT_DYNAMIC_SHARED = 48 * 1024  # bytes
_MAX_DYNAMIC_SHARED_SIZE_BYTES, _PREFERRED_SHARED_MEMORY_CARVEOUT = 8, 9  # of CUfunction_attribute
_MOST_CACHED_LAUNCHES = 10_000
# Arguments of cublasGemmEx, by NumPy's type code of the operands (bfloat16 is stored as uint16): the cudaDataType of A and B,
# that of C, and the cublasComputeType_t.
_OF_FLOATS, _OF_INTEGERS = (0, 68), (10, 72)  # CUDA_R_32F, CUBLAS_COMPUTE_32F; CUDA_R_32I, CUBLAS_COMPUTE_32I
_BY_GEMM_EX = {"e": (2, *_OF_FLOATS), "H": (14, *_OF_FLOATS), "b": (3, *_OF_INTEGERS)}  # CUDA_R_16F, CUDA_R_16BF, CUDA_R_8I
_MATRIX = np.dtype([("data", "u8"), ("rows", "i8"), ("columns", "i8"), ("stride", "i8")])  # Matrix of matrix.cuh


@cache
def trust_own_cache_only() -> None:
    """Make CuPy load compiled kernels only from a folder that nobody else can write to. Call it before CuPy is imported.

    That is the folder that the user named, or CuPy's default, if it is private, else one of ours. CuPy reads the setting when it
    is imported. If the user's program has imported it already, and its folder is not private, kernels are cached in memory only.
    """
    if os.environ.get("CUPY_CACHE_IN_MEMORY") == "1":
        if not os.path.isdir(os.environ.get("CUPY_CACHE_DIR", "")):
            os.environ["CUPY_CACHE_DIR"] = os.sep  # exists: CuPy would create the folder, though it does not use it
        return
    try:
        os.environ["CUPY_CACHE_DIR"] = str(_usual_folder())
    except OSError as error:
        try:
            if "cupy" in sys.modules:
                raise
            folder = _usable(cache_folder("cupy"))
        except OSError:
            os.environ.update(CUPY_CACHE_IN_MEMORY="1", CUPY_CACHE_DIR=os.sep)
            where = "compiled anew"
        else:
            os.environ["CUPY_CACHE_DIR"] = str(folder)
            where = f"kept in {folder}"
        warnings.warn(f"GPU kernels are {where}: {reason(error)}; CUPY_CACHE_DIR names a better place", Remark, stacklevel=2)


def _usual_folder() -> Path:
    """The folder that CuPy would use, created if missing. OSError if it must not be used."""
    if not os.environ.get("CUPY_CACHE_DIR") and named_cache():
        return _usable(cache_folder("cupy"))
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or home_folder() / ".cupy/kernel_cache")
    if not folder.is_absolute():
        raise NotPrivate(0, f"{folder} depends on the current folder")
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # another rank may have made it meanwhile
    return _usable(folder.resolve())


def _usable(folder: Path) -> Path:
    """Returns the folder. OSError if others could have put a kernel there, or nothing can be written."""
    refuse_unless_private(folder)
    for path in folder.iterdir():
        if path.suffix in (".cubin", ".ltoir") and not is_own(path):
            raise NotPrivate(0, f"{path} is not your file alone")
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(bytes(_ROOM))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None
    return folder


class PreparedLaunch:
    """A launch whose arguments are packed once; call it with a stream any number of times.

    CuPy would convert the arguments at each launch, which takes ten microseconds per matrix, longer than the launch itself, and
    holds the GIL, which the check's threads need, too.
    """

    def __init__(
        self, function: Any, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        """`function`: CuPy's, loaded on the current GPU. `arguments`: NumPy arrays or scalars, passed by value."""
        from cupy_backends.cuda.api import driver

        self._launch = driver.launchKernel
        self._function = function  # keeps its module loaded
        whole = [*grid, 1, 1][:3] + [*block, 1, 1][:3]
        self._arguments = [np.array(each) for each in arguments]
        self._addresses = np.array([each.ctypes.data for each in self._arguments], np.uintp)
        self._before, self._after = (function.ptr, *whole, shared_bytes), (self._addresses.ctypes.data, 0)

    def __call__(self, stream: Any) -> None:
        self._launch(*self._before, stream.ptr, *self._after)


def allow_shared_memory(function: Any, dynamic_bytes: int) -> None:
    """Allow launches with this much dynamic shared memory, which CUDA requires above 48 KB."""
    from cupy_backends.cuda.api import driver

    if dynamic_bytes > _DEFAULT_DYNAMIC_SHARED:
        driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_bytes)


def prefer_shared_memory(function: Any) -> None:
    """Set the SM's split between L1 cache and shared memory to as much of the latter as possible."""
    from cupy_backends.cuda.api import driver

    driver.funcSetAttribute(function.ptr, _PREFERRED_SHARED_MEMORY_CARVEOUT, 100)


class CompiledKernels:
    """Kernels loaded on one GPU, whose context must be current in all calls."""

    def __init__(self, capability: int) -> None:
        self._architecture = architecture_of(capability)
        self._functions: dict[tuple[str, str], Any] = {}  # by source and expression
        self._ready: set[tuple[str, str]] = set()  # with their shared memory configured

    def compile_ahead(self, launches: Sequence[Launch]) -> None:
        """Load these kernels. If one of a source is missing, all its kernels are compiled together, also those loaded already, so
        that a file of the disk cache always has the same ones."""
        of_source: dict[str, dict[str, Launch]] = {}
        for launch in launches:
            of_source.setdefault(launch.source, {})[launch.expression] = launch
        for source, wanted in of_source.items():
            if not all((source, expression) in self._functions for expression in wanted):
                architecture = next(iter(wanted.values())).architecture or self._architecture
                for expression, function in load_kernels(source, [*wanted], architecture).items():
                    self._functions.setdefault((source, expression), function)
            for expression, launch in wanted.items():
                if (source, expression) not in self._ready:
                    self._ready.add((source, expression))
                    if launch.prefers_shared:
                        prefer_shared_memory(self._functions[source, expression])
                    allow_shared_memory(self._functions[source, expression], launch.shared_bytes)

    def function(self, launch: Launch) -> Any:
        """The kernel as a CuPy function, compiled at the first call."""
        self.compile_ahead([launch])
        return self._functions[launch.source, launch.expression]

    def prepared(self, launch: Launch, arguments: Sequence[Any]) -> PreparedLaunch:
        packed = [each if isinstance(each, np.generic) else matrix_argument(each) for each in arguments]
        return PreparedLaunch(self.function(launch), launch.grid, launch.block, packed, launch.shared_bytes)


class CompiledKernel:
    """Multiplies by one of our kernels. Rows of A, B and C are contiguous, with any row stride."""

    def __init__(self, kernel: Kernel, dtype: str, capability: int) -> None:
        self._kernel, self._dtype, self._capability = kernel, dtype, capability
        self._compiled = CompiledKernels(capability)
        self._launches: dict[tuple[Any, ...], PreparedLaunch] = {}  # by addresses, shapes and row strides
        self.compile_ahead()

    def compile_ahead(self, *, adds: bool = False) -> None:
        """Compile the instance for fully aligned matrices, such as the device's buffers, before a launch needs it."""
        width = copy_width(OPERAND_SIZES[self._dtype], ())
        self.compiled(launch_of(self._kernel, self._dtype, 1, 1, self._capability, width, adds=adds))

    def prepared(self, a: Any, b: Any, c: Any, adding: bool = False) -> KernelCall:
        """The launch for these matrices, cached: preparing takes longer than launching, and the same buffers come again."""
        if not c.size:
            return lambda stream: None
        key = (adding, *((matrix.data.ptr, matrix.shape, matrix.strides[0]) for matrix in (a, b, c)))
        if key not in self._launches:
            if len(self._launches) >= _MOST_CACHED_LAUNCHES:
                self._launches.clear()
            width = copy_width(a.itemsize, [number for matrix in (a, b, c) for number in place_of(matrix)])
            rows, columns = c.shape
            launch = launch_of(self._kernel, self._dtype, rows, columns, self._capability, width, adds=adding)
            self._launches[key] = self._compiled.prepared(launch, (a, b, c))
        return self._launches[key]

    def compiled(self, launch: Launch) -> Any:
        return self._compiled.function(launch)


_SAME_CODE = {89: 86}  # the compiler makes the same machine code for both compute capabilities
SHIPPED = KERNELS / "cubins"  # made when the wheel is built (scripts/compile_kernels.py --ship); a checkout has none
_OPTIONS = ("-std=c++17", "-device-int128")


def architecture_of(capability: int) -> str:
    """The architecture to compile for, for GPUs of this compute capability (times ten)."""
    return f"sm_{_SAME_CODE.get(capability, capability)}"


def compile_options(architecture: str) -> tuple[str, ...]:
    """NVRTC's options for the kernels."""
    return (*_OPTIONS, f"-arch={architecture}", f"-I{KERNELS}")


def load_kernels(source: str, expressions: Sequence[str], architecture: str) -> dict[str, Any]:
    """Kernels of one source by their name expressions, as CuPy functions loaded on the current GPU: these, and perhaps others
    from the same file of machine code."""
    trust_own_cache_only()
    import cupy

    names, cubin = machine_code(source, expressions, architecture)
    module = cupy.cuda.Module()
    module.load(cubin)
    return {expression: module.get_function(name) for expression, name in names.items()}


def machine_code(source: str, expressions: Sequence[str], architecture: str) -> tuple[dict[str, str], bytes]:
    """The mangled names of these kernels and perhaps others, by name expression, and their machine code: from the package, from
    the disk cache, or compiled now."""
    shipped = shipped_file(source, architecture)
    with suppress(OSError, ImportError):  # Python may lack lzma
        import lzma

        names, cubin = _unpacked(lzma.decompress(shipped.read_bytes()))
        if names.keys() >= {*expressions}:
            return names, cubin
    from cupy_backends.cuda.libs import nvrtc

    made_of = _hash_of(source, architecture, nvrtc.getVersion(), *expressions)
    file = cache_folder("cubin") / f"{Path(source).stem}-{architecture}-{made_of}.cubin"
    with suppress(OSError, ValueError, LookupError, TypeError):
        return _unpacked(file.read_bytes())
    if not shipped.exists():
        capability = dotted(int(architecture[3:].rstrip("a")))
        warn(f"GPU kernels for compute capability {capability} are compiled: some seconds, once", Remark)
    program = nvrtc.createProgram((KERNELS / source).read_text(encoding="utf-8"), source, (), ())
    try:
        for expression in expressions:
            nvrtc.addNameExpression(program, expression)
        nvrtc.compileProgram(program, compile_options(architecture))
        names = {expression: nvrtc.getLoweredName(program, expression) for expression in expressions}
        cubin = nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        raise DeviceUnavailable(
            f"{source} does not compile: {nvrtc.getProgramLog(program) or error}", code="compile-failed"
        ) from error
    finally:
        nvrtc.destroyProgram(program)
    try:
        with atomic_write(str(file)) as temporary:
            temporary.write_bytes(packed(names, cubin))
    except HybridError as error:
        warnings.warn(f"kernels will be compiled again by the next process: {error}", Remark, stacklevel=2)
    return names, cubin


def shipped_file(source: str, architecture: str) -> Path:
    """The wheel's file with a source's machine code. Its name has a hash of all inputs, so outdated code is not found."""
    return SHIPPED / f"{Path(source).stem}-{architecture}-{_hash_of(source, architecture)}.xz"


def _hash_of(source: str, *more: object) -> str:
    made_of = (KERNELS / source).read_bytes(), _headers(), repr((_OPTIONS, more)).encode()
    return hashlib.sha256(b"\0".join(made_of)).hexdigest()[:24]


@cache
def _headers() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(KERNELS.glob("*.cuh")))


def packed(names: dict[str, str], cubin: bytes) -> bytes:
    """The content of a file of machine code."""
    return json.dumps({"sha256": hashlib.sha256(cubin).hexdigest(), "names": names}).encode() + b"\n" + cubin


def _unpacked(content: bytes) -> tuple[dict[str, str], bytes]:
    """Raises ValueError, LookupError or TypeError for a damaged file."""
    header, cubin = content.split(b"\n", 1)
    described = json.loads(header)
    if hashlib.sha256(cubin).hexdigest() != described["sha256"]:
        raise ValueError("damaged")
    return described["names"], cubin


def matrix_argument(matrix: Any) -> np.ndarray:
    """A kernel's argument: `Matrix` of matrix.cuh. A NumPy array must be in memory that the GPU can access."""
    address, stride = place_of(matrix)
    return np.array((address, *matrix.shape, stride // matrix.itemsize), _MATRIX)


class Cublas:
    """Multiplies row-major matrices with any row stride by cuBLAS.

    16-bit operands are accumulated in float32, as by our kernels. For int8, B must be column-major, the only layout with fast
    kernels in cuBLAS, and C is int32.
    """

    def prepared(self, a: Any, b: Any, c: Any, adding: bool = False) -> KernelCall:
        from cupy.cuda.device import get_cublas_handle
        from cupy_backends.cuda.libs import cublas as library

        rows, inner = a.shape
        columns = b.shape[1]
        if not (rows and columns and inner):
            return (lambda stream: None) if adding or not c.size else (lambda stream: _clear(c, stream))
        alpha, beta = np.ones((), c.dtype), np.array(adding, c.dtype)
        by_columns = a.dtype.char == "b"
        rows_of_b = b.T if by_columns else b
        leading = [array.strides[0] // array.itemsize if array.shape[0] > 1 else array.shape[1] for array in (a, rows_of_b, c)]
        # cuBLAS is column-major: our row-major C = A·B is its Cᵀ = Bᵀ·Aᵀ, with operands exchanged and not transposed.
        how_b = library.CUBLAS_OP_T if by_columns else library.CUBLAS_OP_N
        sizes = how_b, library.CUBLAS_OP_N, columns, rows, inner, alpha.ctypes.data
        gemm: Callable[..., None]
        before: tuple[int, ...]
        behind: tuple[int, ...]
        if of_type := _BY_GEMM_EX.get(a.dtype.char):
            operands, sums, computed_in = of_type
            gemm, behind = library.gemmEx, (c.data.ptr, sums, leading[2], computed_in, library.CUBLAS_GEMM_DEFAULT)
            before = *sizes, b.data.ptr, operands, leading[1], a.data.ptr, operands, leading[0]
        else:
            gemm, behind = {"f": library.sgemm, "d": library.dgemm}[a.dtype.char], (c.data.ptr, leading[2])
            before = *sizes, b.data.ptr, leading[1], a.data.ptr, leading[0]
        scalars = alpha, beta  # kept alive: cuBLAS gets their addresses

        def call(stream: Any) -> None:
            with stream:  # CuPy sets the handle's stream to the current one
                handle = get_cublas_handle()
                library.setPointerMode(handle, library.CUBLAS_POINTER_MODE_HOST)
                gemm(handle, *before, scalars[1].ctypes.data, *behind)

        return call


Multiply = CompiledKernel | Cublas


def multiplication(kernel: Kernel, dtype: str, capability: int) -> Multiply:
    """This kernel, compiled for GPUs of this compute capability (times ten). `dtype`: of A and B; C has `sums_type`'s.

    Its method `prepared` makes a call that computes c = a · b, or with `adding`, if the kernel supports it, c += a · b.
    """
    return CompiledKernel(kernel, dtype, capability) if kernel.source else Cublas()


def _clear(matrix: Any, stream: Any) -> None:
    with stream:
        matrix[...] = 0


class Together:
    """Makes several calls in order; from the second time on, as one CUDA graph.

    A launch takes the host up to 20 µs, and a tile has two dozen; building a graph takes longer than launching its kernels once.
    The graph is captured on the stream that launches it, so its kernels keep that stream's priority.
    """

    def __init__(self, calls: Sequence[KernelCall]) -> None:
        self._calls, self._was_called = calls, False
        self._graph: Any = None

    def __call__(self, stream: Any) -> None:
        if self._graph is None and self._was_called:
            self._graph = self._captured(stream)
        if self._graph is not None:
            self._graph.launch(stream)
            return
        self._was_called = True
        for call in self._calls:
            call(stream)

    def _captured(self, stream: Any) -> Any:
        stream.begin_capture()
        try:
            for call in self._calls:
                call(stream)
        finally:
            graph = stream.end_capture()
        return graph
