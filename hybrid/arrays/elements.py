# SPDX-License-Identifier: MIT
"""The elements of a matrix that is generated or read from a file, in any type that a product may have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from hybrid.arrays.complex_view import real_view
from hybrid.arrays.fill import fill_rows, largest_number
from hybrid.arrays.sources import FileMatrix
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.host.thread_map import on_threads, rows_of_about
from hybrid.kernels.elements import elements_of, storage

BYTES_AT_ONCE = 32 << 20  # of the rows that are converted together
_HALVES = {"float16": 65504.0, "bfloat16": 3.39e38}  # types of 16 bits, and their largest numbers


class Elements(Protocol):
    """A matrix with elements of type `dtype`, any rows of which any rank can make."""

    shape: tuple[int, int]
    dtype: np.dtype

    def write(self, rows: Span, into: np.ndarray, threads: int, progress: Callable[[int], None]) -> None:
        """Write these rows into `into`, which is in row-major order.

        Its type is the same, for bfloat16 also that of its bits, or one that holds all of its numbers. `progress` gets the
        number of rows done so far.
        """

    def most(self) -> int:
        """A bound of the magnitudes of the elements, where these are integers."""

    def largest(self, rows: Span, threads: int) -> int:
        """The largest magnitude of the integers in these rows."""


class GeneratedElements:
    """A matrix made from a seed.

    The parts of complex numbers are made as the elements of a real matrix with twice as many columns. But the numbers of the
    fill `index` have no imaginary part.
    """

    def __init__(self, shape: tuple[int, int], fill: str, seed: int, matrix: str, dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self._fill, self._seed, self._matrix = fill, seed, matrix
        largest = largest_number(fill, matrix, shape[0] * shape[1])
        holds = _most_of(dtype) if dtype.kind in "iu" else _HALVES.get(dtype.name, np.inf)
        if dtype.kind in "biu" and largest is None:
            raise UsageError(
                f"--fill {fill} makes fractions, which {dtype} does not hold: use --fill lecture or index", code="dtype"
            )
        if largest is not None and largest > holds:
            raise UsageError(
                f"--fill {fill} makes numbers up to {largest}, which {dtype} does not hold: use another --dtype", code="dtype"
            )
        self._largest = 1 if dtype.kind == "b" else largest or 0

    def write(self, rows: Span, into: np.ndarray, threads: int, progress: Callable[[int], None]) -> None:
        if self.dtype.name in _HALVES and into.itemsize == self.dtype.itemsize:
            for part in rows_of_about(BYTES_AT_ONCE, rows, 2 * into.shape[1] * into.itemsize):
                numbers = np.empty((len(part), into.shape[1]), np.float32)
                self._make(numbers, part, threads, lambda done: None)
                self._round(numbers, threads, into[part.within(rows).slice])
                progress(part.hi - rows.lo)
        elif into.dtype.kind != "c":
            self._make(into, rows, threads, progress)
            if self.dtype.kind == "b" or self.dtype.name in _HALVES:
                self._round(into, threads, into)
        elif self._fill != "index":
            self._make(real_view(into), rows, threads, progress)
        else:
            for part in rows_of_about(BYTES_AT_ONCE, rows, into.shape[1] * into.itemsize):
                numbers = np.empty((len(part), into.shape[1]), into.real.dtype)
                self._make(numbers, part, threads, lambda done: None)
                into[part.within(rows).slice] = numbers
                progress(part.hi - rows.lo)

    def _make(self, into: np.ndarray, rows: Span, threads: int, progress: Callable[[int], None]) -> None:
        fill_rows(into, rows, fill=self._fill, seed=self._seed, matrix=self._matrix, threads=threads, progress=progress)

    def _round(self, numbers: np.ndarray, threads: int, into: np.ndarray) -> None:
        """Round the numbers to those of this type; of bool, to whether they are not 0."""

        def work(part: Span) -> None:
            _store(numbers[part.slice].astype(self.dtype), into[part.slice])

        parts = rows_of_about(BYTES_AT_ONCE // 8, Span(0, len(numbers)), numbers.shape[1] * numbers.itemsize)
        for _ in on_threads(threads, work, parts):
            pass

    def most(self) -> int:
        return self._largest

    def largest(self, rows: Span, threads: int) -> int:
        return self._largest


class FileElements:
    """A matrix read from a file and converted to `dtype`. UsageError where that would lose more than rounding does."""

    def __init__(self, file: FileMatrix, dtype: np.dtype) -> None:
        self.shape, self.dtype, self._file = file.shape, dtype, file
        held = file.dtype
        self._stored = dtype if held.kind == "V" and dtype.name == "bfloat16" else held
        if self._stored is not dtype and (lost := _what_is_lost(held, dtype)):
            raise UsageError(
                f"{file.path} holds {held}, which as {dtype} would lose {lost}: use another --dtype, or none", code="dtype"
            )
        narrower = dtype.name in _HALVES or (dtype.kind in "iu" and held.kind != "b")
        self._converts = narrower and held != dtype

    def write(self, rows: Span, into: np.ndarray, threads: int, progress: Callable[[int], None]) -> None:
        if not self._converts:
            self._file.rows(rows, into, threads, progress)
            return
        for part in self._parts(rows):
            _store(self._converted(self._read(part, threads)), into[part.within(rows).slice])
            progress(part.hi - rows.lo)

    def _parts(self, rows: Span) -> list[Span]:
        """The rows in parts that are read at a time: a single one, where reading any rows reads the whole file."""
        if self._file.at_once:
            return [rows] * (len(rows) > 0)
        return list(rows_of_about(BYTES_AT_ONCE, rows, self.shape[1] * self._file.dtype.itemsize))

    def _read(self, rows: Span, threads: int) -> np.ndarray:
        own = np.empty((len(rows), self.shape[1]), self._file.dtype)
        self._file.rows(rows, own, threads, lambda done: None)
        return own.view(self._stored)

    def _converted(self, values: np.ndarray) -> np.ndarray:
        if self.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            fits = not values.size or (int(values.min()) >= limits.min and int(values.max()) <= limits.max)
            converted = values.astype(self.dtype) if fits else values
        else:
            with np.errstate(over="ignore"):
                converted = values.astype(self.dtype)
            fits = np.array_equal(np.isinf(converted.astype(np.float32)), np.isinf(values.astype(np.float64)))
        if not fits:
            raise UsageError(f"{self._file.path} holds values too large for {self.dtype}", code="file-values")
        return converted

    def most(self) -> int:
        return 1 if self.dtype.kind == "b" else _most_of(self.dtype)

    def largest(self, rows: Span, threads: int) -> int:
        from hybrid.arrays.integers import largest_of  # fractions start sooner without it

        return max((largest_of(self._read(part, threads), threads) for part in self._parts(rows)), default=0)


def rows_of(elements: Elements, rows: Span) -> np.ndarray:
    """Some rows of the elements, in a type that NumPy has and that holds all of its numbers."""
    dtype = np.dtype(np.float32) if elements.dtype.name in _HALVES else elements.dtype
    into = np.empty((len(rows), elements.shape[1]), dtype)
    elements.write(rows, into, 1, lambda done: None)
    return into


def _store(values: np.ndarray, into: np.ndarray) -> None:
    """Store the numbers; where `into` has the bits of bfloat16, a type that NumPy lacks, store their bits."""
    into[...] = elements_of(values) if into.dtype == storage(values.dtype.name) else values


def _most_of(dtype: np.dtype) -> int:
    """The largest magnitude of an integer of this type."""
    limits = np.iinfo(dtype)
    return max(-int(limits.min), int(limits.max))


def _what_is_lost(held: np.dtype, dtype: np.dtype) -> str:
    """What is lost by this conversion, in a word; empty where it only rounds, or where that can be seen from each number."""
    if held.kind == "c" and dtype.kind != "c":
        return "the imaginary parts"
    if dtype.kind in "iu" and held.kind not in "biu":
        return "fractions"
    return "numbers other than 0 and 1" if dtype.kind == "b" != held.kind else ""
