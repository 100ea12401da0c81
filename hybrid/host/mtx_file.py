# SPDX-License-Identifier: MIT
"""Matrices in Matrix Market files, which are text: they are read whole, by SciPy, and written in lines of one length, by several
ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybrid.core.installation import install
from hybrid.core.spans import Span
from hybrid.core.text import readable
from hybrid.errors import DoesNotFit, UsageError, one_line
from hybrid.host.files import code_of_reading, refuse_unwritable, write_whole
from hybrid.host.matrix_values import refusing_overflow
from hybrid.host.memory import available_host_bytes

_NUMBERS = ("integer", "real", "double", "pattern", "unsigned-integer", "complex")
_BYTES_OF_AN_ENTRY = 96  # in the coordinate format, with the copies that are made to find elements that are named twice
_DIGITS_OF_AN_INTEGER = 20  # the most that one of 64 bits has, with its sign
_NUMBERS_AT_ONCE = 1 << 17


class Header(NamedTuple):
    """What a Matrix Market file says of itself."""

    shape: tuple[int, int]
    entries: int
    sparse: bool  # coordinates, and not all elements
    is_complex: bool = False


def header(path: str) -> Header:
    """The header of the file. UsageError, without the file's name, for one that holds no numbers, or promises more of them than
    the matrix has elements."""
    try:
        from scipy.io import mminfo
    except ImportError:
        raise UsageError(f"Matrix Market files are read by SciPy: {install('graphs')}", code="package-missing") from None
    try:
        with _as_scipy_takes_it(path) as source:
            rows, columns, entries, form, field, _ = mminfo(source)
    except (ValueError, OverflowError, TypeError, EOFError) as error:
        raise UsageError(_in_plain_words(error), code="file-format") from None
    if entries > rows * columns:
        raise UsageError(f"its header promises {entries} entries, of {rows}×{columns}", code="file-format")
    if field not in _NUMBERS:
        raise UsageError(f"it holds {field} numbers: only {', '.join(_NUMBERS)} are read", code="no-numbers")
    return Header((rows, columns), entries, form == "coordinate", field == "complex")


def _in_plain_words(error: Exception) -> str:
    """SciPy's reason why a file cannot be read, in other words where it is a known one."""
    text = " ".join(str(error).split()).rstrip(".")
    if "banner" in text:
        return "it is no Matrix Market file: it does not begin with %%MatrixMarket"
    if "Premature EOF" in text:
        return "it is cut short: it ends within its header"
    if missing := re.match(r"Truncated file\. Expected another (\d+) lines", text):
        return f"it is cut short: {missing[1]} more line{'s' * (missing[1] != '1')} must follow"
    return f"it is malformed: {text}"


def _as_scipy_takes_it(path: str) -> AbstractContextManager[Any]:
    """A context that gives the file's name; where that is no valid text, the open file, from which SciPy reads more slowly."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return open(path, "rb")
    return nullcontext(path)


def elements(path: str, found: Header) -> Any:
    """The matrix as one of NumPy, or where it is stored by coordinates as a sparse one of SciPy. UsageError, without the file's
    name."""
    from scipy.io import mmread

    if not all(found.shape):
        return np.zeros(found.shape)  # SciPy ends the process by a division by zero
    newer = {"spmatrix": False} if "spmatrix" in signature(mmread).parameters else {}
    try:
        with _as_scipy_takes_it(path) as source:
            matrix: Any = mmread(source, **newer)
    except (ValueError, OverflowError, TypeError, EOFError) as error:
        raise UsageError(_in_plain_words(error), code="file-format") from None
    if matrix.shape != found.shape:
        raise UsageError(
            f"it has become another matrix while it was read: {matrix.shape[0]}×{matrix.shape[1]}", code="file-changed"
        )
    if isinstance(matrix, np.ndarray):
        return matrix
    matrix = matrix.tocoo()
    numbers = matrix.row.astype(np.int64) * found.shape[1] + matrix.col
    if len(np.unique(numbers)) < matrix.nnz:
        raise UsageError("it names the same element twice; a symmetric file must hold one triangle only", code="file-format")
    return matrix


class MtxFile:
    """A matrix in a Matrix Market file.

    Who reads some rows of it reads all of it: in `load`, so that what is malformed is known before anything is computed, or else
    in `read`.
    """

    at_once = True

    def __init__(self, path: str, readers: int) -> None:
        """`readers`: processes of this machine that read it at the same time, each for itself."""
        try:
            open(path, "rb").close()  # SciPy has no word of its own for each reason why not
            self._header = header(path)
        except IsADirectoryError:
            raise UsageError("is not a regular file", code="file-unreadable") from None
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror or one_line(error)}", code=code_of_reading(error)) from None
        except UsageError as error:
            raise UsageError(f"cannot be read: {error}", code=error.code) from None
        self.path, self.shape = os.path.abspath(path), self._header.shape
        self.dtype = np.dtype(np.complex128 if self._header.is_complex else np.float64)  # a text has no type
        self._readers = readers
        self._loaded: Any = None
        self._refuse_beyond_memory()

    def _refuse_beyond_memory(self) -> None:
        each = _BYTES_OF_AN_ENTRY if self._header.sparse else self.dtype.itemsize
        need, free = each * self._header.entries * self._readers, available_host_bytes()
        if need > free:
            whole = f"each of {self._readers} ranks of a node" if self._readers > 1 else "who reads a row"
            raise DoesNotFit(
                f"takes {readable(need)} to be read, {readable(free)} are free: it is text, of which {whole} reads all; "
                "use .npy, .h5 or .zarr"
            )

    def load(self) -> None:
        """Read the file now, for the next `read`. UsageError for what is malformed, DoesNotFit for what is too large; without
        the file's name."""
        self._refuse_beyond_memory()  # again: others may have been read since
        try:
            self._loaded = elements(self.path, self._header)
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror or one_line(error)}", code=code_of_reading(error)) from None
        except UsageError as error:
            raise UsageError(f"cannot be read: {error}", code=error.code) from None

    def read(self, rows: Span, into: np.ndarray, progress: Callable[[int], None] = lambda done: None) -> None:
        """Write these rows to `into`, converted to its type. UsageError for what is malformed, or what the type cannot hold."""
        if not len(rows):
            return
        if self._loaded is None:
            try:
                self.load()
            except (UsageError, DoesNotFit) as error:
                raise type(error)(f"{self.path} {error}", code=error.code) from None
        found, self._loaded = self._loaded, None
        with refusing_overflow(self.path, into.dtype):
            if isinstance(found, np.ndarray):
                into[...] = found[rows.slice]
            else:
                mine = (rows.lo <= found.row) & (found.row < rows.hi)
                into[...] = 0
                into[found.row[mine] - rows.lo, found.col[mine]] = found.data[mine]
        progress(len(rows))


class MtxOutput:
    """A new Matrix Market file in the array format: column by column, each number on a line of its own."""

    def __init__(self, path: str, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.path = path
        field, number = _written(dtype)
        self._format, self._line = f"{number}\n", len(number % ((0,) * number.count("%"))) + 1
        self._header = f"%%MatrixMarket matrix array {field} general\n{shape[0]} {shape[1]}\n".encode()
        self.size = len(self._header) + shape[0] * shape[1] * self._line

    def refuse(self, size: int) -> None:
        refuse_unwritable(self.path, size)

    def begin(self, beside: Path) -> int:
        with open(beside, "xb") as file:
            return file.write(self._header)

    def write(self, beside: Path, begun: int, matrix: np.ndarray, rows: Span, told: Callable[[], None]) -> None:
        height, width = matrix.shape
        descriptor = os.open(beside, os.O_WRONLY)
        try:
            for column in range(width):
                for lo in range(rows.lo, rows.hi, _NUMBERS_AT_ONCE):
                    part = matrix[lo : min(lo + _NUMBERS_AT_ONCE, rows.hi), column]
                    numbers = np.stack([part.real, part.imag], 1).reshape(-1) if part.dtype.kind == "c" else part
                    text = (self._format * len(part)) % tuple(numbers.tolist())
                    write_whole(descriptor, text.encode(), begun + (column * height + lo) * self._line)
                    told()
        finally:
            os.close(descriptor)


def _written(dtype: np.dtype) -> tuple[str, str]:
    """The header's word for such numbers, and the format of one of them, which gives every number the same length."""
    if dtype.kind in "biu":
        return "unsigned-integer" if dtype == np.uint64 else "integer", f"%{_DIGITS_OF_AN_INTEGER}d"
    parts = 2 if dtype.kind == "c" else 1
    digits = 16 if dtype.itemsize == 8 * parts else 8  # behind the point: with them every number is read as it was
    return "complex" if parts == 2 else "real", " ".join([f"%{digits + 8}.{digits}e"] * parts)
