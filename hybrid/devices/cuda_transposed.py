# SPDX-License-Identifier: MIT
"""Copies of transposed matrices to a GPU: rows are copied as they lie in memory, and transposed on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybrid.core.spans import Span, pieces
from hybrid.errors import DoesNotFit

_BYTES_AT_ONCE = 32 << 20  # transposed: they stay in a GPU's second-level cache, and are enough for the link's full rate
_LEAST_BYTES = 1 << 20


def is_transposed(matrix: Any) -> bool:
    """Whether neighbours in memory are neighbours in a column, and not in a row (Fortran's order)."""
    rows, columns = matrix.shape
    return columns > 1 and matrix.strides[1] != matrix.itemsize and (rows == 1 or matrix.strides[0] == matrix.itemsize)


class TransposedCopies:
    """Copies transposed matrices to one GPU, through memory there that is kept from copy to copy."""

    def __init__(self, cupy: Any, reserve: Callable[[int], Any], copy: Callable[[Any, Any, Any], None]) -> None:
        """`reserve(size)`: allocates memory on the GPU, or raises DoesNotFit. `copy(into, source, stream)`: enqueues a copy of a
        matrix whose rows are contiguous."""
        self._cupy, self._reserve, self._copy = cupy, reserve, copy
        self._memory: Any = None
        self._size = 0

    def copy(self, into: Any, source: Any, stream: Any) -> None:
        """Enqueue a copy. All must be on the same stream, since each uses the memory in between again."""
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
        """How many bytes of memory in between there are: as many as are wanted, up to _BYTES_AT_ONCE, or fewer where the GPU has
        no more, but at least `least`."""
        size = max(least, min(_BYTES_AT_ONCE, wanted))
        if 0 < self._size < size:
            stream.synchronize()  # the memory is about to be freed, and may be used by others at once
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
