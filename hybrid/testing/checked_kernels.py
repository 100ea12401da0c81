# SPDX-License-Identifier: MIT
"""Matrices for testing kernels: of any type of the catalogue, with guards around them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybrid.kernels.catalogue import storage

_ALIGNMENT = 256  # bytes, as cudaMalloc's
_FENCE = 256  # unused rows before and after a matrix, a tile's height: a faulty kernel must not hit Python's own memory
_NOT_A_NUMBER = 0x7FFF  # of bfloat16
_LARGEST_BYTE, _SPREAD_OF_BYTES = 127, 32.0


def not_a_number(dtype: str) -> Any:
    """This type's NaN as stored in an array; for integers a number that `stored` never returns."""
    if storage(dtype).kind == "i":
        return np.iinfo(dtype).min
    return _NOT_A_NUMBER if dtype == "bfloat16" else np.nan


def spread_of(dtype: str) -> float:
    """The factor for numbers around 1 before `stored`, so that bytes have many different values."""
    return _SPREAD_OF_BYTES if dtype == "int8" else 1.0


def stored(numbers: Any, dtype: str) -> Any:
    """Finite numbers rounded to this type, to nearest even; bytes are clipped to ±127."""
    if dtype == "int8":
        return numbers.round().clip(-_LARGEST_BYTE, _LARGEST_BYTE).astype(dtype)
    if dtype != "bfloat16":
        return numbers.astype(dtype)
    bits = numbers.astype("float32").view("uint32")
    return ((bits + (bits >> 16 & 1) + 0x7FFF) >> 16).astype(np.uint16)


class Guarded:
    """A matrix, `inner`, in a larger buffer filled with `filler` around its rows, to find stray writes."""

    def __init__(self, rows: int, columns: int, dtype: str, filler: float, *, aligned: bool) -> None:
        """`aligned`: rows begin at multiples of 16 bytes; else most do not."""
        item = np.dtype(dtype).itemsize
        vector = 16 // item  # elements of the widest copy
        stride = -(-columns // vector) * vector + vector if aligned else (columns + 3) // 2 * 2 + 1
        fence = _FENCE * (stride + 1)
        self._whole = np.full(2 * fence + _ALIGNMENT // item + 1 + rows * stride, filler, dtype)
        self._filler = filler
        start = fence + -(self._whole.ctypes.data + fence * item) % _ALIGNMENT // item + (not aligned)
        indices = np.arange(rows * stride).reshape(rows, stride)[:, :columns] + start
        self._outside = np.ones(len(self._whole), bool)
        self._outside[indices] = False
        self.inner = self._whole[start : start + rows * stride].reshape(rows, stride)[:, :columns]

    def untouched(self) -> bool:
        same = (self._whole == self._filler) | (np.isnan(self._whole) & np.isnan(self._filler))
        return not (self._outside & ~same).any()
