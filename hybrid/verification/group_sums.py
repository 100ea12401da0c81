# SPDX-License-Identifier: MIT
"""Sums and norms over groups of columns of matrices in host memory, computed for some rows at a time, which stay in a core's
cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from hybrid.core.spans import Span, even_pieces, pieces
from hybrid.host.row_sums import NOT_INTEGRAL
from hybrid.host.thread_map import CALL_BYTES, on_threads, rows_of_about
from hybrid.verification.group_loops import TOGETHER, Look, can_sum, products_and_squares, sums_and_squares

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

    def take(self, look: Look | None) -> None:
        """Take into account what numbers are like, if someone looked at them."""
        if look is None:
            return
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


def sums_of_groups(
    matrix: np.ndarray, x: np.ndarray, group: int, integers: Integers, threads: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each row i and each group of columns the sum of x[j]·matrix[i,j], and for each group the 2-norm of all of its elements;
    `integers` looks at them."""
    if can_sum(matrix):
        sums, squares, look = sums_and_squares(matrix, x, group, threads, looks=integers.integral)
        integers.take(look)
        norms = _norms_of_blocks(squares, matrix, group, threads)
    else:
        sums = np.empty((len(matrix), -(-matrix.shape[1] // group)))

        def add_up(where: slice, rows: np.ndarray) -> np.ndarray:
            of_parts = []
            for part, values in in_cache(rows):
                integers.look(values)
                sums[where][part], norms = sums_and_norms(values, x, group)
                of_parts.append(norms_of_all(norms))
            return norms_of_all(of_parts)

        norms = np.array(list(over_rows(matrix, threads, add_up)))
    with np.errstate(all="ignore"):
        return sums, norms_of_all([*norms, np.zeros(sums.shape[1])])


def _norms_of_blocks(squares: np.ndarray, matrix: np.ndarray, group: int, threads: int) -> np.ndarray:
    """For each TOGETHER rows the 2-norms of the groups of columns. `squares`: of `sums_and_squares`."""
    norms, nothing = np.sqrt(squares), np.zeros(matrix.shape[1])

    def again(block: int) -> None:
        rows = matrix[block * TOGETHER : (block + 1) * TOGETHER]
        with np.errstate(all="ignore"):
            of_rows = [sums_and_norms(values, nothing, group)[1] for _, values in in_cache(rows)]
            norms[block] = norms_of_all(np.concatenate(of_rows))

    for _ in on_threads(threads, again, np.flatnonzero(~are_sure(squares).all(axis=1)).tolist()):
        pass
    return norms


def are_sure(squares: np.ndarray) -> np.ndarray:
    """Which sums of squares have neither overflowed nor lost what counts to underflow. Those of the loops are 0 only of zeros."""
    least, most = _SQUARES
    return (squares == 0) | (squares > least) & (squares < most)


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


def norms_of_all(norms: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """The 2-norms of what has these norms, each row of them of some."""
    return norms_of(np.ascontiguousarray(np.asarray(norms).T))


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
    product, squares, look = products_and_squares(a, y, threads, looks=integers.integral)
    integers.take(look)
    norms, sure = np.sqrt(squares), are_sure(squares)

    def again(where: slice, rows: np.ndarray) -> None:
        doubtful = np.flatnonzero(~sure[where])
        for part, values in in_cache(rows[doubtful]):
            norms[where][doubtful[part]] = norms_of(values)

    for _ in over_rows(a, threads, again) if not sure.all() else ():
        pass
    return product, norms
