# SPDX-License-Identifier: MIT
"""Matrices with fences around them, which show when a kernel writes beside them."""

from __future__ import annotations

import ctypes

import numpy as np

_ALIGNMENT = 256  # bytes, as cudaMalloc's
_FENCE = 256  # unused rows before and after a matrix, as many as a tile has: a faulty kernel must not hit Python's own memory


class Guarded:
    """A matrix, `inner`, within a larger buffer that holds `filler` between and around its rows, so that stray writes are found.

    Under ASan `guard` forbids reads there, too, until `guard(off=True)`.
    """

    def __init__(self, rows: int, columns: int, dtype: str, filler: float, *, aligned: bool, between: bool = True) -> None:
        """`aligned`: rows begin at multiples of 16 bytes; else rather not. `between`: there is filler between rows, too; else
        they lie one after the other."""
        item = np.dtype(dtype).itemsize
        vector = 16 // item  # elements of the widest copy
        stride = -(-columns // vector) * vector + vector if aligned else (columns + 3) // 2 * 2 + 1
        stride = stride if between else columns
        fence = _FENCE * (stride + 1)
        self._whole = np.full(2 * fence + _ALIGNMENT // item + 1 + rows * stride, filler, dtype)
        self._filler = filler
        start = fence + -(self._whole.ctypes.data + fence * item) % _ALIGNMENT // item + (not aligned)
        self._first = start
        indices = np.arange(rows * stride).reshape(rows, stride)[:, :columns] + start
        self._outside = np.ones(len(self._whole), bool)
        self._outside[indices] = False
        self.inner = self._whole[start : start + rows * stride].reshape(rows, stride)[:, :columns]

    def untouched(self) -> bool:
        return not self.touched()

    def touched(self) -> list[int]:
        """The numbers of the elements outside of the matrix that were written to, counted from its first element."""
        same = (self._whole == self._filler) | (np.isnan(self._whole) & np.isnan(self._filler))
        return (np.flatnonzero(self._outside & ~same) - self._first).tolist()

    def guard(self, off: bool = False) -> None:
        function = getattr(ctypes.CDLL(None), f"__asan_{'un' if off else ''}poison_memory_region")
        steps = np.diff(self._outside.astype(np.int8), prepend=0, append=0)
        for begin, end in zip(np.flatnonzero(steps == 1), np.flatnonzero(steps == -1), strict=True):
            outside = self._whole[begin:end]
            function(ctypes.c_void_p(outside.ctypes.data), ctypes.c_size_t(outside.nbytes))
