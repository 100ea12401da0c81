# SPDX-License-Identifier: MIT
"""Rounds float32 numbers to 16 bits: in C where there is a compiler, at the memory's rate, else by NumPy."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.emulation.build import build_plain, c_compiler
from hybrid.emulation.loaded_soon import LoadedSoon

SOURCE = Path(__file__).resolve().parent / "rounding.c"
_FLAGS = ("-std=c11", "-O3")


def rounds(product: Any, into: Any) -> bool:
    """Whether these are arrays of NumPy between which `round_into` can round."""
    given = isinstance(product, np.ndarray) and isinstance(into, np.ndarray)
    return given and product.dtype == np.float32 and into.dtype.name in ("float16", "bfloat16")


def round_into(into: np.ndarray, numbers: np.ndarray) -> None:
    """Do `into[...] = numbers`, for arrays for which `rounds` is true."""
    library = _library().loaded
    if library is None or not (numbers.flags.c_contiguous and into.flags.c_contiguous and into.dtype.isnative):
        into[...] = numbers
        return
    getattr(library, f"round_to_{into.dtype.name}")(numbers.ctypes.data, into.ctypes.data, numbers.size)


@cache
def _library() -> LoadedSoon:
    return LoadedSoon(load)


def load() -> Any:
    """The compiled library. HybridError without a C compiler, or where it does not compile."""
    library = ctypes.CDLL(str(build_plain(c_compiler(), SOURCE, _FLAGS)))
    for function in (library.round_to_float16, library.round_to_bfloat16):
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    return library
