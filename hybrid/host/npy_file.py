# SPDX-License-Identifier: MIT
"""Matrices in .npy files: the header is checked against the file's size before any memory is taken, and pickle is never read.

Elements are read, not mapped: a file that is cut short meanwhile is then an error, and not a SIGBUS that ends the process.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hybrid.core.spans import Span
from hybrid.errors import HybridError, UsageError
from hybrid.host.files import code_of_reading, refuse_unwritable
from hybrid.host.matrix_output import BYTES_AT_ONCE, RawRows
from hybrid.host.matrix_values import refuse_no_matrix, refusing_overflow
from hybrid.host.thread_map import rows_of_about

_WITHOUT_A_NAME = np.dtype("V2")
_MAGIC = b"\x93NUMPY"


class NpyFile:
    """A matrix of numbers in a file; or of two-byte elements without a named type, as which `numpy.save` writes bfloat16."""

    at_once = False

    def __init__(self, path: str) -> None:
        """UsageError for anything else, without the file's name."""
        if os.path.exists(path) and not os.path.isfile(path):
            raise UsageError("is not a regular file", code="file-unreadable")
        array = _mapped(path)
        refuse_no_matrix(array.shape, np.dtype(np.int16) if array.dtype == _WITHOUT_A_NAME else array.dtype)
        self.path = os.path.abspath(path)
        self.shape: tuple[int, int] = array.shape
        self.dtype = array.dtype
        self._offset, self._by_columns = array.offset, not array.flags.c_contiguous
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (open as long as this object lives)

    def load(self) -> None:
        """Do nothing: rows are read when they are needed."""

    def read(self, rows: Span, into: np.ndarray, progress: Callable[[int], None] = lambda done: None) -> None:
        """Write these rows to `into`, converted to its type; `progress` gets the number of rows done so far.

        HybridError where the file has become shorter, UsageError for values that the type cannot hold.
        """
        with refusing_overflow(self.path, into.dtype):
            (self._read_columns if self._by_columns else self._read_rows)(rows, into, progress)

    def _read_rows(self, rows: Span, into: np.ndarray, progress: Callable[[int], None]) -> None:
        for group in rows_of_about(BYTES_AT_ONCE, rows, self.shape[1] * self.dtype.itemsize):
            target = into[group.within(rows).slice]
            as_it_is = into.dtype == self.dtype and target.flags.c_contiguous
            part = target if as_it_is else np.empty(target.shape, self.dtype)
            self._fill(part, group.lo * self.shape[1])
            if not as_it_is:
                target[...] = part
            progress(group.hi - rows.lo)

    def _read_columns(self, rows: Span, into: np.ndarray, progress: Callable[[int], None]) -> None:
        width = self.shape[1]
        for group in rows_of_about(BYTES_AT_ONCE, Span(0, width), len(rows) * self.dtype.itemsize):
            part = np.empty((len(group), len(rows)), self.dtype)
            for column, values in zip(range(group.lo, group.hi), part, strict=True):
                self._fill(values, column * self.shape[0] + rows.lo)
            into[:, group.slice] = part.T
            progress(len(rows) * group.hi // width)

    def _fill(self, array: np.ndarray, first: int) -> None:
        """Fill a contiguous array with the file's elements from number `first` on."""
        at, left = self._offset + first * self.dtype.itemsize, array.reshape(-1).view(np.uint8).data.cast("B")
        while left:
            self._file.seek(at)
            count = self._file.readinto(left)
            if not count:
                raise HybridError(
                    f"{self.path} has become shorter while it was read: it ends before byte {at + len(left)}", code="file-changed"
                )
            at, left = at + count, left[count:]


def _mapped(path: str) -> np.memmap:
    """The file as an array of NumPy. UsageError, without the file's name, where it is none."""
    try:
        with open(path, "rb") as file:
            begins = file.read(len(_MAGIC))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", code=code_of_reading(error)) from None
    if begins != _MAGIC:
        raise UsageError("is no .npy file: it does not begin like one", code="file-format")
    try:
        with np.errstate(over="ignore"):  # refuses a header that promises more than there is
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # it raises many kinds for a malformed header
        text = str(error)
        if "Python objects" in text:
            raise UsageError(
                "holds Python objects: matrices of numbers are read, and pickles are not", code="no-numbers"
            ) from None
        if isinstance(error, OverflowError) or "greater than file size" in text:
            raise UsageError(
                "is cut short, or malformed: its header promises more elements than the file holds", code="file-format"
            ) from None
        if text.startswith("EOF"):
            raise UsageError("is cut short: it ends within its header", code="file-format") from None
        if "format version" in text:
            raise UsageError(
                "has a malformed header: NumPy reads no version of the format that it names", code="file-format"
            ) from None
        raise UsageError("has a malformed header: type and shape cannot be read from it", code="file-format") from None
    more = os.path.getsize(path) - array.offset - array.nbytes
    if more > 0:
        raise UsageError(
            f"is malformed, or holds several arrays: {more} bytes follow the one that its header promises", code="file-format"
        )
    return array


class NpyOutput(RawRows):
    """A new .npy file."""

    def __init__(self, path: str, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.path = path
        named = dtype if dtype.kind != "V" else _WITHOUT_A_NAME
        described = {"descr": np.lib.format.dtype_to_descr(named), "fortran_order": False, "shape": shape}
        header = io.BytesIO()
        np.lib.format.write_array_header_2_0(header, described)
        self._header = header.getvalue()
        self.size = len(self._header) + shape[0] * shape[1] * dtype.itemsize

    def refuse(self, size: int) -> None:
        refuse_unwritable(self.path, size)

    def begin(self, beside: Path) -> int:
        with open(beside, "xb") as file:
            return file.write(self._header)
