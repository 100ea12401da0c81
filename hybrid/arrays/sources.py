# SPDX-License-Identifier: MIT
"""The sources of matrices: generated, read from a file, shared by the ranks of a node, or arrays of the root."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

import numpy as np

from hybrid.arrays.fill import fill_rows
from hybrid.arrays.interop import on_gpu
from hybrid.core.spans import Span
from hybrid.errors import DoesNotFit, UsageError
from hybrid.host.matrix_file import open_matrix
from hybrid.host.row_copy import copy_rows
from hybrid.kernels.elements import elements_of, numbers_of, storage
from hybrid.ranks.heartbeat import busy


class MatrixSource(Protocol):
    """Where A or B comes from. Every rank has the same kind of source."""

    shape: tuple[int, int]
    at_root: bool  # the root has all rows; otherwise any rank can write any row

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Callable[[int], None]) -> None:
        """Write these rows into `into`, converted to its type; `progress` gets the number of rows done so far."""

    def in_place(self, dtype: str) -> np.ndarray | None:
        """The array itself, for bfloat16 as its bits, if it can be multiplied without being converted or copied first; else
        None."""


class AnyRanksMatrix:
    """What the sources have in common of which any rank can write any row: there is no array before."""

    at_root = False

    def in_place(self, dtype: str) -> np.ndarray | None:
        return None


class GeneratedMatrix(AnyRanksMatrix):
    """A matrix generated from a seed, by whichever rank needs the rows."""

    def __init__(self, shape: tuple[int, int], fill: str, seed: int, matrix: str) -> None:
        self.shape = shape
        self._fill, self._seed, self._matrix = fill, seed, matrix

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Callable[[int], None]) -> None:
        fill_rows(into, rows, fill=self._fill, seed=self._seed, matrix=self._matrix, threads=threads, progress=progress)


class RotatedRows(GeneratedMatrix):
    """A generated matrix with its rows rotated: row 0 is row `first` of the one that the seed stands for."""

    def __init__(self, shape: tuple[int, int], seed: int, first: int) -> None:
        super().__init__(shape, "normal", seed, "A")
        self._first = first

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Callable[[int], None]) -> None:
        height, done = self.shape[0], 0
        while done < len(rows):
            lo = (rows.lo + done + self._first) % height
            part = Span(lo, min(height, lo + len(rows) - done))

            def filled(more: int, before: int = done) -> None:
                progress(before + more)

            super().rows(part, into[done : done + len(part)], threads, filled)
            done += len(part)


class FileMatrix(AnyRanksMatrix):
    """A matrix in a file. Every rank opens it and reads the rows it needs.

    The file is not mapped, to be multiplied in place: it may change meanwhile, and each row is needed several times.
    """

    def __init__(self, name: str, readers: int = 1) -> None:
        """`readers`: ranks of this node."""
        self._name = name
        with _naming(name):
            self._file = open_matrix(name, readers)
        self.path, self.shape, self.dtype = self._file.path, self._file.shape, self._file.dtype.newbyteorder("=")
        self.at_once = self._file.at_once  # reading takes as long as the whole file takes, whatever the rows

    def load(self) -> None:
        """Read now what can only be read as a whole, so that what is malformed in it is found before anything is computed."""
        with busy(), _naming(self._name):
            self._file.load()

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Callable[[int], None]) -> None:
        with busy() if self.at_once else nullcontext():
            self._file.read(rows, into, progress)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """A context in which errors are about this file, and get its name."""
    try:
        yield
    except (UsageError, DoesNotFit) as error:
        raise type(error)(f"{file} {error}", code=error.code) from None


class SharedMatrix:
    """A matrix in memory that all ranks share, on their only node."""

    def __init__(self, array: np.ndarray, dtype: str, *, as_it_lies: bool) -> None:
        """`dtype`: the type in which it is multiplied. `as_it_lies`: it can be multiplied also where it is transposed."""
        self.array = array
        self.shape: tuple[int, int] = array.shape
        # Where it can be multiplied as it lies, no rank writes rows of it, and none are sent. Else each rank converts some.
        self.at_root = array.dtype == storage(dtype) and (as_it_lies or array.flags.c_contiguous)

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Callable[[int], None]) -> None:
        copy_rows(into, numbers_of(self.array[rows.slice]), threads)
        progress(len(rows))

    def in_place(self, dtype: str) -> np.ndarray | None:
        return self.array if self.at_root else None


class RootMatrix:
    """An array at the root, in host memory or on a GPU that multiplies it there. The other ranks know its shape only."""

    at_root = True

    def __init__(self, shape: tuple[int, int], array: np.ndarray | None) -> None:
        self.shape = shape
        self._array = array

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Callable[[int], None]) -> None:
        part = self.array[rows.slice]
        copy_rows(into, elements_of(part) if into.dtype == storage("bfloat16") else part, threads)
        progress(len(rows))

    def contiguous(self, rows: Span, dtype: str) -> np.ndarray:
        """These rows in type `dtype`. They are copied only if they are not contiguous or have another type."""
        return np.ascontiguousarray(self.array[rows.slice], dtype)

    def in_place(self, dtype: str) -> np.ndarray | None:
        array = self._array
        if array is None or array.dtype.name != dtype or not array.dtype.isnative or not array.flags.c_contiguous:
            return None
        return elements_of(array) if on_gpu(array) or array.flags.aligned else None

    def as_it_lies(self, dtype: str) -> np.ndarray | None:
        """What `in_place` gives; in host memory also a matrix that is the transpose of one in row-major order."""
        array = self.in_place(dtype)
        if array is not None or self._array is None or on_gpu(self._array):
            return array
        turned = RootMatrix(self.shape[::-1], self._array.T).in_place(dtype)
        return None if turned is None else turned.T

    @property
    def array(self) -> np.ndarray:
        assert self._array is not None, "only the root has this array"
        return self._array


class DerivedMatrix(RootMatrix):
    """A matrix that is computed from an array of the root whenever its rows are needed, straight into the memory where they are
    needed.

    No copy of it is kept, except by a root that sends its rows to other nodes.
    """

    def __init__(
        self, shape: tuple[int, int], dtype: str, write: Callable[[Span, np.ndarray, int], None], threads: int = 1
    ) -> None:
        """`write(rows, into, threads)`: writes these rows, of type `dtype`, into `into`, which is in row-major order.

        `threads`: those that make the copy that is kept.
        """
        super().__init__(shape, None)
        self._dtype, self._write, self._threads = dtype, write, threads

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Callable[[int], None]) -> None:
        self._write(rows, into, threads)
        progress(len(rows))

    def contiguous(self, rows: Span, dtype: str) -> np.ndarray:
        return self.array[rows.slice]

    def in_place(self, dtype: str) -> np.ndarray | None:
        return None

    @property
    def array(self) -> np.ndarray:
        if self._array is None:
            self._array = np.empty(self.shape, self._dtype)
            self._write(Span(0, self.shape[0]), self._array, self._threads)
        return self._array
