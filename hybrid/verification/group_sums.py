# SPDX-License-Identifier: MIT
"""Sums and norms over groups of columns of matrices in host memory, some rows at a time, which stay in a core's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from hybrid.core.spans import Span, even_pieces, pieces
from hybrid.host.row_sums import NOT_INTEGRAL
from hybrid.host.thread_map import CALL_BYTES, on_threads, rows_of_about

Result = TypeVar("Result")

_PIECE_BYTES = 1 << 20  # of rows as float64: few enough to stay in the cache, enough to make NumPy's calls worth their while
_SQUARES = 1e-280, 1e280  # sums of squares between these have neither overflowed nor lost what counts to underflow
# Rows and columns of A at a time, to be multiplied by BLAS with a column for each group. Sums of few terms are more accurate, as
# they must be where the product is in float64, too.
_BLOCKS = {4: (128, 4096), 8: (256, 128)}


class Integers:
    """Whether all that several threads look at are integers, and their largest magnitude."""

    def __init__(self) -> None:
        self._integral, self._peaks = True, [0.0]

    @property
    def largest(self) -> float:
        """NOT_INTEGRAL where there is another number."""
        return max(self._peaks) if self._integral else NOT_INTEGRAL

    @staticmethod
    def all(largest: Iterable[float]) -> bool:
        return NOT_INTEGRAL not in largest

    def look(self, values: np.ndarray) -> None:
        """After the first number that is no integer this costs nothing."""
        if not values.size or not self._integral:
            return
        if not (are_integers(values[:1]) and are_integers(values)):
            self._integral = False
        else:
            self._peaks.append(float(max(values.max(), -values.min())))


def are_integers(values: np.ndarray) -> bool:
    """True for infinity."""
    return bool((np.rint(values) == values).all())


def over_rows(matrix: np.ndarray, threads: int, work: Callable[[slice, np.ndarray], Result]) -> Iterator[Result]:
    """`work(where, rows)` for some rows at a time, `where` in the matrix, by several threads."""

    def quietly(rows: Span) -> Result:
        with np.errstate(all="ignore"):  # whoever looks at the sums deals with overflow and NaN
            return work(rows.slice, matrix[rows.slice])

    return on_threads(threads, quietly, rows_of_about(CALL_BYTES, Span(0, len(matrix)), matrix.shape[1] * matrix.itemsize))


def in_cache(matrix: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Some rows at a time, as float64."""
    buffer = np.empty(0)
    for rows in rows_of_about(_PIECE_BYTES, Span(0, len(matrix)), 8 * matrix.shape[1]):
        buffer, values = _as_float64(matrix[rows.slice], buffer)
        yield rows.slice, values


def _as_float64(matrix: np.ndarray, buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A buffer, made where the one that is given is too small, and the matrix, in it unless it is of that type."""
    if matrix.dtype == np.float64:
        return buffer, matrix
    if len(buffer) < matrix.size:
        buffer = np.empty(matrix.size)
    values = buffer[: matrix.size].reshape(matrix.shape)
    np.copyto(values, matrix)
    return buffer, values


def sums_and_norms(values: np.ndarray, x: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """For each row and each group of columns the sum of x[j]·v[i,j], and the 2-norm of v."""
    rows, columns = values.shape
    groups, whole = -(-columns // group), columns // group
    sums, norms = np.empty((rows, groups)), np.empty((rows, groups))
    for first, last, width in ((0, whole * group, group), (whole * group, columns, columns - whole * group)):
        if first < last:
            part, of = (
                values[:, first:last].reshape(rows, (last - first) // width, width),
                slice(first // group, -(-last // group)),
            )
            np.einsum("rgj,gj->rg", part, x[first:last].reshape(-1, width), out=sums[:, of])
            norms[:, of] = norms_of(part)
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
                    product[some.slice] += np.dot(values, y[inner.slice])  # np.dot releases the GIL, which @ does not

    parts = even_pieces(Span(0, len(a)), max(block_rows, -(-len(a) // (4 * threads))))
    for _ in on_threads(threads, multiply, parts):
        pass
    return product, norms
