# SPDX-License-Identifier: MIT
"""Copies of transposed matrices to a GPU: as they lie in memory, and turned there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybrid.core.spans import Span, pieces
from hybrid.errors import DoesNotFit

_BYTES_AT_ONCE = 32 << 20  # of what is turned: in a GPU's second-level cache, and long enough for the link
_LEAST_BYTES = 1 << 20


def is_transposed(matrix: Any) -> bool:
    """Whether neighbours in memory are neighbours in a column, and not in a row."""
    rows, columns = matrix.shape
    return columns > 1 and matrix.strides[1] != matrix.itemsize and (rows == 1 or matrix.strides[0] == matrix.itemsize)


class TransposedCopies:
    """`reserve(size)`: memory on the GPU; DoesNotFit without. `copy(into, source, stream)`: of rows that lie in memory so."""

    def __init__(self, cupy: Any, reserve: Callable[[int], Any], copy: Callable[[Any, Any, Any], None]) -> None:
        self._cupy, self._reserve, self._copy = cupy, reserve, copy
        self._memory: Any = None
        self._size = 0

    def copy(self, into: Any, source: Any, stream: Any) -> None:
        """Enqueue it. One stream for all copies: the memory in between is used again by the next."""
        stored = source.T
        rows, columns = stored.shape
        if not stored.size:
            return
        row_bytes = columns * stored.itemsize
        for part in pieces(Span(0, rows), max(1, self._room(row_bytes, rows * row_bytes, stream) // row_bytes)):
            arrived = self._cupy.ndarray((len(part), columns), stored.dtype, self._memory)
            self._copy(arrived, stored[part.slice], stream)
            with stream:
                self._cupy.copyto(into[:, part.slice], arrived.T)

    def _room(self, least: int, wanted: int, stream: Any) -> int:
        """Bytes that there are: as many as are wanted at once, or fewer where the GPU has no more, but a row."""
        size = max(least, min(_BYTES_AT_ONCE, wanted))
        if 0 < self._size < size:
            stream.synchronize()  # what is given back may be used by others at once
        while self._size < size:
            try:
                self._memory, self._size = self._reserve(size), size
            except DoesNotFit:
                if self._size >= least:
                    break
                if size <= max(least, _LEAST_BYTES):
                    raise
                size = max(least, size // 4)
        return self._size
