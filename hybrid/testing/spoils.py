# SPDX-License-Identifier: MIT
"""Faults in the elements that an operation has written. Each function changes a matrix in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# (into, source, before): the written matrix; the matrix copied or sent, or a product's (a, b); the elements before the write.
Spoil = Callable[[np.ndarray, Any, np.ndarray], object]


def _changed(matrix: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where the values differ: NaN equals NaN, and -0.0 equals 0.0."""
    same = matrix == other
    if matrix.dtype.kind in "fc":
        same |= (matrix != matrix) & (other != other)
    return np.asarray(~same)


def _first_that_changes(into: np.ndarray, values: np.ndarray) -> None:
    """Write one of the values: in the middle row a third along the columns, or at the next place where it differs."""
    start = len(into) // 2 * into.shape[1] + into.shape[1] // 3
    places = np.flatnonzero(_changed(into, values))
    if len(places):
        at = np.unravel_index(places[np.searchsorted(places, start) % len(places)], into.shape)
        into[at] = values[at]


def element(into: np.ndarray, source: Any = None, before: Any = None) -> None:
    """Change one element by the largest magnitude, at least by 1."""
    if into.dtype.kind == "b":
        return _first_that_changes(into, ~into)
    if into.dtype.kind in "iu":
        return _first_that_changes(into, into ^ np.asarray(1, into.dtype))
    with np.errstate(all="ignore"):
        sizes = np.abs(into)
        most = max(1, sizes[np.isfinite(sizes)].max(initial=0))
        values = np.where(np.isfinite(into), into - np.copysign(most, into.real), 0)
    return _first_that_changes(into, values.astype(into.dtype))


def _lowest_bit(into: np.ndarray, source: Any, before: Any) -> None:
    at = -1, -1
    if into.dtype.kind in "iub":
        into[at] ^= into.dtype.type(1)
    else:
        part = into.real
        part[at] = np.nextafter(part[at], part.dtype.type(-np.inf if part[at] > 0 else np.inf))


def _sign(into: np.ndarray, source: Any, before: Any) -> None:
    with np.errstate(all="ignore"):
        _first_that_changes(into, np.negative(into) if into.dtype.kind != "b" else ~into)


def _nan(into: np.ndarray, source: Any, before: Any) -> None:
    if into.dtype.kind not in "fc":
        raise ValueError(f"elements of {into.dtype} cannot be NaN")
    _first_that_changes(into, np.full_like(into, np.nan))


def _lines_swapped(into: np.ndarray) -> None:
    """Swap the first row and the last that differs from it."""
    others = np.flatnonzero(_changed(into, into[:1]).any(axis=1))
    if len(others):
        into[[0, others[-1]]] = into[[others[-1], 0]]


def _lost_k(into: np.ndarray, source: Any, before: Any) -> None:
    if not isinstance(source, tuple):
        raise ValueError("'lost k' is a fault of multiplications")
    a, b = source
    for k in reversed(range(a.shape[1])):
        lost = np.outer(a[:, k].astype(np.float64), b[k].astype(np.float64))
        if (lost != 0).any():
            into[...] = (into - lost).astype(into.dtype)
            return


SPOILS: dict[str, Spoil] = {
    "element": element,
    "lowest bit": _lowest_bit,
    "sign": _sign,
    "zero": lambda into, source, before: _first_that_changes(into, np.zeros_like(into)),
    "nan": _nan,
    "stale row": lambda into, source, before: np.copyto(into[-1], before[-1]),
    "rows swapped": lambda into, source, before: _lines_swapped(into),
    "columns swapped": lambda into, source, before: _lines_swapped(into.T),
    "shifted row": lambda into, source, before: np.copyto(into, np.roll(into, 1, axis=0)),
    "shifted column": lambda into, source, before: np.copyto(into, np.roll(into, 1, axis=1)),
    "nothing": lambda into, source, before: np.copyto(into, before),
    "lost k": _lost_k,
}


def spoiled(into: np.ndarray, source: Any, before: np.ndarray, how: str | Spoil) -> bool:
    """Spoil a matrix; returns whether a value has changed. If a fault of this name changes nothing, such as swapped rows of a
    single row, try it as if the matrix had been zero before, and then change one element."""
    right = into.copy()
    if callable(how):
        how(into, source, before)
        return bool(_changed(into, right).any())
    for spoil, held in ((SPOILS[how], before), (SPOILS[how], np.zeros_like(before)), (element, before)):
        spoil(into, source, held)
        if _changed(into, right).any():
            return True
        into[...] = right
    return False
