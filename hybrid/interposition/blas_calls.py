# SPDX-License-Identifier: MIT
"""Redirects the BLAS calls of NumPy's and SciPy's extension modules (blas_calls.c), to offer products to a Python function.

PyPI's NumPy and SciPy call their own OpenBLAS by names such as scipy_cblas_dgemm64_ and scipy_dgemm_; those of distributions and
conda call cblas_dgemm and dgemm_. All are supported, on Linux with x86-64 or AArch64. Modules that are loaded later are
redirected after loading.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from hybrid.emulation.build import build_plain, c_compiler
from hybrid.errors import UsageError

SOURCE = Path(__file__).with_suffix(".c")
_FLAGS = ("-std=c11", "-O2")
_CALLERS = ("numpy", "scipy")  # packages whose modules' calls are redirected
TYPES = ("float32", "float64", "complex64", "complex128")  # s, d, c, z
GEMM, SYRK, HERK = range(3)  # alpha·op(A)·op(B) + beta·C, of which syrk and herk compute one triangle


class Product(ctypes.Structure):
    """`Product` of blas_calls.c: a call of BLAS, in row-major order."""

    _fields_: ClassVar[Any] = [
        *((name, ctypes.c_int64) for name in ("kind", "type", "transposed_a", "conjugated_a", "transposed_b", "conjugated_b")),
        *((name, ctypes.c_int64) for name in ("lower", "m", "n", "k", "lda", "ldb", "ldc")),
        *((name, ctypes.c_void_p) for name in "abc"),
        *((name, ctypes.c_double * 2) for name in ("alpha", "beta")),
    ]


@cache
def _library() -> Any:
    """The compiled library. HybridError without a C compiler, or on an unsupported system."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise UsageError("use() knows how modules call BLAS on Linux with x86-64 or AArch64 only", code="usage")
    library: Any = ctypes.PyDLL(str(build_plain(c_compiler(), SOURCE, _FLAGS)))
    library.begin.argtypes = [ctypes.py_object, ctypes.POINTER(ctypes.c_double)]
    library.redirect.argtypes = [ctypes.POINTER(ctypes.c_char_p)]
    library.counts.argtypes = [ctypes.POINTER(ctypes.c_uint64)] * 2
    library.raise_soon.argtypes = [ctypes.py_object]
    for function in (library.begin, library.end, library.counts, library.raise_soon, library.restore):
        function.restype = None
    return library


class Redirection:
    """The redirected calls of this process."""

    def __init__(self) -> None:
        self.slots = 0  # the number of redirected ones
        self._load: Any = None  # Python's own ExtensionFileLoader.create_module

    def begin(self, offered: Callable[[int], bool], thresholds: Sequence[float]) -> None:
        """From now on call `offered` with the address of each large product's `Product`. If it returns False, BLAS computes the
        product. `thresholds`: multiply-adds of the smallest large product, by TYPES. UsageError if no BLAS call of NumPy is
        found."""
        _library().begin(offered, (ctypes.c_double * len(TYPES))(*thresholds))
        self._redirect()
        if self._load is None:
            self._load = load = ExtensionFileLoader.create_module

            def load_and_redirect(loader: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
                module = load(loader, spec)
                if spec.name.partition(".")[0] in _CALLERS:
                    self._redirect()
                return module

            ExtensionFileLoader.create_module = load_and_redirect  # type: ignore[method-assign, assignment]
        if "numpy" in sys.modules and not self.slots:
            self.end()
            raise UsageError(f"use() does not know how NumPy {sys.modules['numpy'].__version__} calls BLAS", code="usage")

    def end(self) -> None:
        """Undo the redirection."""
        if self._load is not None:
            ExtensionFileLoader.create_module = self._load  # type: ignore[method-assign]
            self._load = None
            _library().end()
            _library().restore()
            self.slots = 0

    def _redirect(self) -> None:
        folders = [os.path.dirname(sys.modules[name].__file__ or "") for name in _CALLERS if name in sys.modules]
        paths = (ctypes.c_char_p * (len(folders) + 1))(*(os.fsencode(each + os.sep) for each in folders), None)
        self.slots = _library().redirect(paths)


redirection = Redirection()


def raise_soon(error: BaseException) -> None:
    """Make the main thread raise this exception when it is back from C."""
    _library().raise_soon(error)


def counts() -> tuple[int, int]:
    """The number of redirected calls that BLAS has computed, outside of calls of `offered`, and their multiply-adds."""
    calls, work = ctypes.c_uint64(), ctypes.c_uint64()
    _library().counts(ctypes.byref(calls), ctypes.byref(work))
    return calls.value, work.value
