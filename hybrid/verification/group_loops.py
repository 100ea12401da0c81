# SPDX-License-Identifier: MIT
"""The loops of group_sums.c, where there is a C compiler; group_sums.py and comparison.py do the same with NumPy."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hybrid.core.spans import Span, pieces
from hybrid.emulation.build import build_plain, c_compiler
from hybrid.emulation.loaded_soon import LoadedSoon

SOURCE = Path(__file__).resolve().parent / "group_sums.c"
_FLAGS = ("-std=c11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-pthread")
_TYPES = ("float32", "float64")
TOGETHER = 64  # rows whose squares are added up
# Of the rows that a thread takes in one call: Python does not notice an interrupt (SIGINT) before it ends.
_BYTES_A_THREAD = 64 << 20
FOUND, NOT_COMPARED = 5, -1.0  # how much is found of each row, and what of those not compared, as in group_sums.c
_pools: dict[int, Any] = {}  # by process


class Look(ctypes.Structure):
    """What rows of elements are like, as group_sums.c has it. Of those that are not integral `largest` tells nothing."""

    _fields_: ClassVar[Any] = [("largest", ctypes.c_double), ("integral", ctypes.c_int64)]


class Comparison(ctypes.Structure):
    """What sums are compared with, as group_sums.c has it."""

    _fields_: ClassVar[Any] = [
        *((name, ctypes.c_void_p) for name in ("sums", "norms_a", "norms_b")),
        *((name, ctypes.c_double) for name in ("deviation", "per_term", "flushed", "overflow")),
        ("integral", ctypes.c_int64),
        ("kept", ctypes.c_void_p),
        ("kept_length", ctypes.c_int64),
        ("found", ctypes.c_void_p),
    ]


class _Rows(ctypes.Structure):
    """A matrix, as group_sums.c has it."""

    _fields_: ClassVar[Any] = [
        ("elements", ctypes.c_void_p),
        ("columns", ctypes.c_int64),
        ("row_length", ctypes.c_int64),  # elements from one row to the next
    ]

    @classmethod
    def of(cls, matrix: np.ndarray) -> _Rows:
        return cls(matrix.ctypes.data, matrix.shape[1], matrix.strides[0] // matrix.itemsize)


def can_sum(rows: np.ndarray) -> bool:
    """Whether there is the library, compiled in the background, and it can read these rows where they lie."""
    in_rows = rows.strides[1] == rows.itemsize and not rows.strides[0] % rows.itemsize
    readable = rows.dtype.name in _TYPES and rows.dtype.isnative and rows.flags.aligned and in_rows
    return readable and _library().loaded is not None


def sums_and_squares(
    matrix: np.ndarray, x: np.ndarray, group: int, threads: int, *, looks: bool
) -> tuple[np.ndarray, np.ndarray, Look | None]:
    """For each row and each group of columns the sum of x[j]·matrix[i,j]; for each TOGETHER rows and each group that of squares.
    Only for a matrix of which `can_sum` is true. `looks`: tell what it is like."""
    groups, look = -(-matrix.shape[1] // group), Look(0.0, 1) if looks else None
    sums, squares = np.empty((len(matrix), groups)), np.zeros((-(-len(matrix) // TOGETHER), groups))
    x = np.ascontiguousarray(x)
    results = sums.ctypes.data, squares.ctypes.data, _pointer(look)
    _call(f"group_sums_{matrix.dtype.name}", matrix, threads, x.ctypes.data, group, TOGETHER, *results)
    return sums, squares, look


def products_and_squares(
    matrix: np.ndarray, y: np.ndarray, threads: int, *, looks: bool
) -> tuple[np.ndarray, np.ndarray, Look | None]:
    """The matrix times y, and the sum of squares of each of its rows. Only for a matrix of which `can_sum` is true. `looks`: tell
    what it is like."""
    product, squares, look = np.empty((len(matrix), y.shape[1])), np.zeros(len(matrix)), Look(0.0, 1) if looks else None
    library, y = _library().loaded, np.ascontiguousarray(y)
    columns = ctypes.c_int.in_dll(library, "columns_together").value
    packed = np.empty((-(-y.shape[1] // columns), len(y), columns))
    library.pack(_pool(), threads, y.ctypes.data, *y.shape, packed.ctypes.data)
    results = product.ctypes.data, squares.ctypes.data, _pointer(look)
    _call(f"products_{matrix.dtype.name}", matrix, threads, packed.ctypes.data, y.shape[1], *results)
    return product, squares, look


def compare(matrix: np.ndarray, x: np.ndarray, group: int, threads: int, comparison: Comparison) -> np.ndarray:
    """What the comparison finds of each row, as group_sums.c tells it. Only for a matrix of which `can_sum` is true."""
    found, x = np.empty((len(matrix), FOUND)), np.ascontiguousarray(x)
    comparison.found = found.ctypes.data
    _call(f"compare_{matrix.dtype.name}", matrix, threads, x.ctypes.data, group, _pointer(comparison))
    return found


def _pointer(structure: ctypes.Structure | None) -> Any:
    return ctypes.byref(structure) if structure is not None else None


def _call(function: str, matrix: np.ndarray, threads: int, *operands: Any) -> None:
    """Call a function of the library for all rows, of which some are given to one call."""
    rows = _Rows.of(matrix)
    at_once = _BYTES_A_THREAD * max(1, threads) // max(1, matrix.shape[1] * matrix.itemsize)
    for some in pieces(Span(0, len(matrix)), max(1, at_once // TOGETHER) * TOGETHER):
        getattr(_library().loaded, function)(_pool(), threads, ctypes.byref(rows), *operands, some.lo, some.hi)


@cache
def _library() -> LoadedSoon:
    return LoadedSoon(load)


def _pool() -> Any:
    """The address of this process's pool of threads. A forked child makes its own: its parent's has no threads there, and perhaps
    a lock that is never released."""
    process = os.getpid()
    if process not in _pools:
        pool = _library().loaded.new_loop_pool()
        if not pool:
            raise MemoryError("no memory for a pool of threads")
        _pools.setdefault(process, pool)  # if another thread has made one meanwhile, this one never gets threads
    return _pools[process]


def load() -> Any:
    """The compiled library. HybridError without a C compiler, or where it does not compile."""
    library: Any = ctypes.CDLL(str(build_plain(c_compiler(), SOURCE, _FLAGS)))
    address, number, count = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.new_loop_pool.restype = address
    library.pack.argtypes, library.pack.restype = [address, count, address, number, number, address], None
    operands = {
        "group_sums": [address, number, number, address, address, address],
        "products": [address, number, address, address, address],
        "compare": [address, number, address],
    }
    for name, of in operands.items():
        for dtype in _TYPES:
            function = getattr(library, f"{name}_{dtype}")
            function.argtypes, function.restype = [address, count, address, *of, number, number], None
    return library
