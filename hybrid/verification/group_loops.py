# SPDX-License-Identifier: MIT
"""The loops of group_sums.c, where there is a C compiler; group_sums.py does the same with NumPy."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hybrid.emulation.build import build_plain, c_compiler
from hybrid.emulation.loaded_soon import LoadedSoon

SOURCE = Path(__file__).resolve().parent / "group_sums.c"
_FLAGS = ("-std=c11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
_TYPES = ("float32", "float64")
_COLUMNS, ROWS_AT_ONCE = 8, 72  # as in group_sums.c


class Look(ctypes.Structure):
    """What rows of elements are like, as group_sums.c has it. Of those that are not integral `largest` tells nothing."""

    _fields_: ClassVar[Any] = [("largest", ctypes.c_double), ("integral", ctypes.c_int64)]


def can_sum(rows: np.ndarray) -> bool:
    """Whether there is the library, compiled in the background, and it can read these rows where they lie."""
    in_rows = rows.strides[1] == rows.itemsize and not rows.strides[0] % rows.itemsize
    readable = rows.dtype.name in _TYPES and rows.dtype.isnative and rows.flags.aligned and in_rows
    return readable and _library().loaded is not None


def sums_and_squares(
    rows: np.ndarray, x: np.ndarray | None, group: int, *, looks: bool
) -> tuple[np.ndarray, np.ndarray, Look | None]:
    """For each row and each group of columns the sum of x[j]·rows[i,j], which is left out without x, and that of the squares.
    Only for rows of which `can_sum` is true. `looks`: tell what they are like."""
    groups = -(-rows.shape[1] // group)
    squares, look = np.empty((len(rows), groups)), Look() if looks else None
    sums = np.empty((len(rows), groups)) if x is not None else squares
    function = getattr(_library().loaded, f"group_sums_{rows.dtype.name}")
    operands = rows.ctypes.data, *rows.shape, rows.strides[0] // rows.itemsize, x.ctypes.data if x is not None else None, group
    function(*operands, sums.ctypes.data if x is not None else None, squares.ctypes.data, ctypes.byref(look) if look else None)
    return sums, squares, look


def products_and_squares(rows: np.ndarray, y: np.ndarray, *, looks: bool) -> tuple[np.ndarray, np.ndarray, Look | None]:
    """The rows times y, which `padded` has made, and the sums of squares of each row. Only for rows of which `can_sum` is true.
    `looks`: tell what they are like."""
    product, squares, look = np.empty((len(rows), y.shape[1])), np.zeros(len(rows)), Look() if looks else None
    function = getattr(_library().loaded, f"products_{rows.dtype.name}")
    operands = rows.ctypes.data, *rows.shape, rows.strides[0] // rows.itemsize, y.ctypes.data, y.shape[1]
    function(*operands, product.ctypes.data, squares.ctypes.data, ctypes.byref(look) if look else None)
    return product, squares, look


def padded(y: np.ndarray) -> np.ndarray:
    """A right operand for `products_and_squares`: as many columns as the loops take together, those behind y's of zeros."""
    wide = np.zeros((len(y), -(-y.shape[1] // _COLUMNS) * _COLUMNS))
    wide[:, : y.shape[1]] = y
    return wide


@cache
def _library() -> LoadedSoon:
    return LoadedSoon(load)


def load() -> Any:
    """The compiled library. HybridError without a C compiler, or where it does not compile."""
    library = ctypes.CDLL(str(build_plain(c_compiler(), SOURCE, _FLAGS)))
    address, number = ctypes.c_void_p, ctypes.c_int64
    for name in (f"{what}_{of}" for what in ("group_sums", "products") for of in _TYPES):
        function = getattr(library, name)
        function.argtypes = [address, number, number, number, address, number, address, address, address]
        function.restype = None
    return library
