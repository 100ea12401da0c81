# SPDX-License-Identifier: MIT
"""Matrices in files of which a library reads rectangles, and which may be stored in chunks, compressed ones, too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hybrid.core.spans import Span
from hybrid.errors import HybridError, one_line
from hybrid.host.matrix_output import BYTES_AT_ONCE
from hybrid.host.matrix_values import refuse_no_matrix, refusing_overflow


class ChunkedMatrix:
    """A dataset of HDF5 or an array of Zarr."""

    at_once = False

    def __init__(self, path: str, array: Any, chunk: tuple[int, ...] | None) -> None:
        """`chunk`: the rows and columns of a chunk; None for a matrix that is stored as a whole. UsageError for what is no
        matrix."""
        refuse_no_matrix(array.shape, array.dtype)
        name = array.name.strip("/")
        self.path = os.path.abspath(path) + (f":/{name}" if name else "")
        self.shape: tuple[int, int] = array.shape
        self.dtype = np.dtype(array.dtype)
        self._array, self._chunk = array, chunk or (1, 1)
        self._read_direct = getattr(array, "read_direct", None)  # h5py has it, and reads without a copy in between

    def load(self) -> None:
        """Do nothing: rows are read when they are needed."""

    def read(self, rows: Span, into: np.ndarray, progress: Callable[[int], None] = lambda done: None) -> None:
        """Write these rows to `into`, converted to its type; `progress` gets the number of rows done so far.

        HybridError for what cannot be read, UsageError for values that the type cannot hold.
        """
        area = max(1, len(rows) * self.shape[1])
        done = 0
        for height, width in rectangles(rows, self.shape[1], self._chunk, self.dtype.itemsize):
            self._read(height, width, into[height.within(rows).slice, width.slice])
            done += len(height) * len(width)
            progress(len(rows) * done // area)

    def _read(self, rows: Span, columns: Span, target: np.ndarray) -> None:
        at = rows.slice, columns.slice
        try:
            if self._read_direct and target.dtype == self.dtype and target.flags.c_contiguous:
                self._read_direct(target, at)
                return
            part = self._array[at]
        except Exception as error:  # codecs raise many kinds for what is damaged
            raise HybridError(f"{self.path} cannot be read, rows {rows}: {one_line(error)}", code="file-unreadable") from error
        with refusing_overflow(self.path, target.dtype):
            target[...] = part


def rectangles(rows: Span, width: int, chunk: tuple[int, ...], item: int) -> Iterator[tuple[Span, Span]]:
    """The rows of a matrix in rectangles of about BYTES_AT_ONCE, but of at least a chunk.

    No two of them need the same chunk, so each chunk is read and decompressed once.
    """
    chunk_columns = min(width, chunk[1])
    in_columns = _most(width, chunk_columns, BYTES_AT_ONCE // max(1, chunk[0] * item))
    in_rows = _most(rows.hi, chunk[0], BYTES_AT_ONCE // max(1, min(width, in_columns) * item))
    for height in _aligned(rows, in_rows):
        for columns in _aligned(Span(0, width), in_columns):
            yield height, columns


def _most(length: int, chunk: int, wanted: int) -> int:
    """The largest multiple of `chunk` that is at most `wanted`; but at least one chunk, and no more than the length needs."""
    chunk = max(1, chunk)
    return chunk * max(1, min(wanted, length) // chunk)


def _aligned(span: Span, step: int) -> Iterator[Span]:
    """The span, cut at the multiples of `step`."""
    for lo in range(span.lo // step * step, span.hi, step):
        yield Span(max(lo, span.lo), min(lo + step, span.hi))
