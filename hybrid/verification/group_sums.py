# SPDX-License-Identifier: MIT
"""Sums and norms over groups of columns of matrices in host memory, computed for some rows at a time, which stay in a core's
cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from hybrid.core.spans import Span, even_pieces, pieces
from hybrid.host.row_sums import NOT_INTEGRAL
from hybrid.host.thread_map import CALL_BYTES, on_threads, rows_of_about
from hybrid.verification.group_loops import ROWS_AT_ONCE, Look, can_sum, padded, products_and_squares, sums_and_squares

Result = TypeVar("Result")

_PIECE_BYTES = 1 << 20  # of rows as float64: few enough to stay in the cache, enough to make NumPy's calls worth their while
_MOST_BYTES = 16 << 20  # of rows that a thread takes at once
_SQUARES = 1e-280, 1e280  # sums of squares between these have neither overflowed nor lost what counts to underflow
# For elements of 4 and 8 bytes: the rows and columns of A that BLAS multiplies at a time. Sums of few terms are more accurate, as
# the check's must be where the product is itself in float64.
_BLOCKS = {4: (128, 4096), 8: (512, 128)}


class Integers:
    """Finds whether all numbers are integers, and their largest magnitude. Several threads may show it numbers."""

    def __init__(self) -> None:
        self._integral, self._peaks = True, [0.0]

    @property
    def largest(self) -> float:
        """The largest magnitude so far, or NOT_INTEGRAL if there was a number that is no integer."""
        return max(self._peaks) if self._integral else NOT_INTEGRAL

    @property
    def integral(self) -> bool:
        return self._integral

    @staticmethod
    def all(largest: Iterable[float]) -> bool:
        """Whether these, the `largest` of several Integers, are all of integers."""
        return NOT_INTEGRAL not in largest

    def look(self, values: np.ndarray) -> None:
        """Take these numbers into account. After the first that is no integer, this costs nothing."""
        if not values.size or not self._integral:
            return
        if not (are_integers(values[:1]) and are_integers(values)):
            self._integral = False
        else:
            self._peaks.append(float(max(values.max(), -values.min())))

    def take(self, look: Look) -> None:
        """Take into account what numbers are like."""
        if look.integral:
            self._peaks.append(look.largest)
        else:
            self._integral = False


def are_integers(values: np.ndarray) -> bool:
    """Whether all values are integers; infinity counts as one."""
    return bool((np.rint(values) == values).all())


def over_rows(matrix: np.ndarray, threads: int, work: Callable[[slice, np.ndarray], Result]) -> Iterator[Result]:
    """The results of `work(where, rows)` for some rows at a time, by several threads. `where`: which rows of the matrix."""

    def quietly(rows: Span) -> Result:
        with np.errstate(all="ignore"):  # whoever looks at the sums deals with overflow and NaN
            return work(rows.slice, matrix[rows.slice])

    row_bytes = matrix.shape[1] * matrix.itemsize
    at_once = max(CALL_BYTES, min(_MOST_BYTES, len(matrix) * row_bytes // (2 * threads)))
    return on_threads(threads, quietly, rows_of_about(at_once, Span(0, len(matrix)), row_bytes))


def in_cache(matrix: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Some rows at a time, and which they are, as float64. The next rows may overwrite them."""
    buffer = np.empty(0)
    for rows in rows_of_about(_PIECE_BYTES, Span(0, len(matrix)), 8 * matrix.shape[1]):
        buffer, values = _as_float64(matrix[rows.slice], buffer)
        yield rows.slice, values


def _as_float64(matrix: np.ndarray, buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The matrix as float64: itself if it is of that type, else converted into the buffer. Also the buffer for the next call: the
    given one, or a new one where that was too small."""
    if matrix.dtype == np.float64:
        return buffer, matrix
    if len(buffer) < matrix.size:
        buffer = np.empty(matrix.size)
    values = buffer[: matrix.size].reshape(matrix.shape)
    np.copyto(values, matrix)
    return buffer, values


def summed(
    rows: np.ndarray, x: np.ndarray, group: int, integers: Integers | None
) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
    """Some rows at a time: which they are, their values, and what `sums_and_norms` gives for them. `integers`: looks at them. The
    next rows may overwrite the values."""
    if can_sum(rows):
        looks = integers is not None and integers.integral
        sums, squares, look = sums_and_squares(rows, x, group, looks=looks)
        if integers is not None and look is not None:
            integers.take(look)
        yield slice(0, len(rows)), rows, sums, _roots(squares, rows, group)
        return
    for part, values in in_cache(rows):
        if integers is not None:
            integers.look(values)
        yield part, values, *sums_and_norms(values, x, group)


def _roots(squares: np.ndarray, rows: np.ndarray, group: int) -> np.ndarray:
    """The 2-norms of the rows' groups of columns. `squares`: the sums of squares, which may have overflowed or underflowed; they
    are 0 only of zeros."""
    least, most = _SQUARES
    norms = np.sqrt(squares)
    doubtful = ~((squares == 0) | (squares > least) & (squares < most)).all(axis=1)
    if doubtful.any():
        for part, values in in_cache(rows[doubtful]):
            norms[np.flatnonzero(doubtful)[part]] = sums_and_norms(values, np.zeros(rows.shape[1]), group)[1]
    return norms


def sums_and_norms(values: np.ndarray, x: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """For each row i and each group of columns j, the sum of x[j]·values[i,j], and the 2-norm of the values."""
    rows, columns = values.shape
    groups, whole = -(-columns // group), columns // group
    sums, norms = np.empty((rows, groups)), np.empty((rows, groups))
    for first, last, width in ((0, whole * group, group), (whole * group, columns, columns - whole * group)):
        if first < last:
            part = values[:, first:last].reshape(rows, (last - first) // width, width)
            of_part = slice(first // group, -(-last // group))
            np.einsum("rgj,gj->rg", part, x[first:last].reshape(-1, width), out=sums[:, of_part])
            norms[:, of_part] = norms_of(part)
    return sums, norms


def norms_of(values: np.ndarray) -> np.ndarray:
    """The 2-norms along the last axis, also where squares overflow or underflow."""
    squares = np.einsum("...j,...j->...", values, values)
    least, most = _SQUARES
    out_of_range = ~((squares > least) & (squares < most))
    norms = np.sqrt(squares)
    if out_of_range.any():
        sizes = np.abs(values[out_of_range])
        peaks = sizes.max(axis=-1, initial=0.0)
        scaled = sizes / np.where(peaks > 0, peaks, 1.0)[..., None]
        norms[out_of_range] = peaks * np.sqrt(np.einsum("...j,...j->...", scaled, scaled))
    return norms


def times(a: np.ndarray, y: np.ndarray, integers: Integers, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """A·y in float64, and the 2-norms of A's rows; `integers` looks at A."""
    if can_sum(a):
        return _times_by_loops(a, y, integers, threads)
    block_rows, block_columns = _BLOCKS[a.itemsize]
    product, norms = np.zeros((len(a), y.shape[1])), np.zeros(len(a))

    def multiply(rows: Span) -> None:
        buffer = np.empty(0)
        with np.errstate(all="ignore"):
            for inner in pieces(Span(0, a.shape[1]), block_columns):
                for some in pieces(rows, block_rows):
                    buffer, values = _as_float64(a[some.slice, inner.slice], buffer)
                    integers.look(values)
                    norms[some.slice] = np.hypot(norms[some.slice], norms_of(values))
                    product[some.slice] += np.dot(values, y[inner.slice])

    parts = even_pieces(Span(0, len(a)), max(block_rows, -(-len(a) // (4 * threads))))
    for _ in on_threads(threads, multiply, parts):
        pass
    return product, norms


def _times_by_loops(a: np.ndarray, y: np.ndarray, integers: Integers, threads: int) -> tuple[np.ndarray, np.ndarray]:
    product, norms, wide = np.empty((len(a), y.shape[1])), np.empty(len(a)), padded(y)

    def multiply(part: Span) -> None:
        rows, where = a[part.slice], part.slice
        of_rows, squares, look = products_and_squares(rows, wide, looks=integers.integral)
        if look is not None:
            integers.take(look)
        with np.errstate(all="ignore"):
            norms[where] = _roots(squares[:, None], rows, max(1, rows.shape[1]))[:, 0]
        product[where] = of_rows[:, : y.shape[1]]

    for _ in on_threads(threads, multiply, even_pieces(Span(0, len(a)), max(ROWS_AT_ONCE, -(-len(a) // (4 * threads))))):
        pass
    return product, norms
