# SPDX-License-Identifier: MIT
"""Sums and checksums over the rows of matrices in host memory, as kernels/check.cu computes them on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from hybrid.core.spans import Span, even_pieces, pieces
from hybrid.host.threads import on_threads
from hybrid.kernels.catalogue import numbers_of

# -------- row copy
# Copies of matrices by several threads; of transposed ones in tiles that stay in a core's cache.

# Rows and columns. Written row by row, a matrix whose columns are contiguous is read one element of each cache line at a time. In
# a tile of this size the lines are still in the cache when their next element is read.
_TILE = 256


def copy_rows(into: np.ndarray, source: np.ndarray | float, threads: int) -> None:
    """Do `into[...] = source`, with conversion, by several threads.

    One thread does not use all of the memory's bandwidth, least of all where fresh memory is written for the first time.
    """

    def copy(part: Span) -> None:
        if not isinstance(source, np.ndarray):
            into[part.slice] = source
            return
        for rows, columns in tiles_of(source, part):
            into[rows, columns] = source[rows, columns]

    rows = Span(0, len(into))
    for _ in on_threads(threads, copy, even_pieces(rows, -(-len(rows) // max(1, threads)))):
        pass


def tiles_of(source: Any, rows: Span) -> Iterable[tuple[slice, slice]]:
    """The parts in which these rows of a matrix are best read, one after the other: all of them at once, unless the matrix is
    the transpose of one in row-major order."""
    width = source.shape[1]
    if abs(source.strides[0]) >= abs(source.strides[1]):
        return [(rows.slice, slice(0, width))]
    return [(down.slice, across.slice) for down in pieces(rows, _TILE) for across in pieces(Span(0, width), _TILE)]


_AT_ONCE = 1 << 18  # bytes of rows: they and their temporaries stay in a core's cache
NOT_INTEGRAL = 1e300  # stands for the largest magnitude of a row that holds other numbers than integers
WEIGHTED_ROWS = 32  # of so many rows the checksum of the first is weighted
_WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


@lru_cache(maxsize=8)
def checksum_weights(columns: int, item_size: int) -> np.ndarray:
    """For each column an odd pseudo-random number modulo 2^64, the same everywhere.

    Two neighbouring elements of 32 bits have one in common, shifted by 32 bits for the second, and four of 16 bits likewise: so
    elements can be read as words of 64 bits, as fast as float64.
    """
    per_word = 8 // item_size
    words = mixed(np.arange(-(-columns // per_word), dtype=np.uint64) + np.uint64(1)) | np.uint64(1)
    shifts = (8 * item_size * (np.arange(columns) % per_word)).astype(np.uint64)
    weights = np.repeat(words, per_word)[:columns] << shifts
    weights.flags.writeable = False
    return weights


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Words of 64 bits, each replaced by a pseudo-random one: the finalizer of SplitMix64, which is invertible."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


def numbered(of_rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The checksums of rows, each mixed with the row's number, so that their sum reveals exchanged rows, too.

    To multiply a checksum by a weight would not do: those of small integers have zeros in their lower 50 bits, so exchanged rows
    would often have the same sum.
    """
    return mixed(of_rows + numbers * np.uint64(0x9E3779B97F4A7C15))


def mixed_total(of_rows: np.ndarray, number: int) -> np.uint64:
    """One checksum for neighbouring rows, modulo 2^64, from theirs. `number`: of the first row."""
    return np.add.reduce(numbered(of_rows, np.arange(number, number + len(of_rows), dtype=np.uint64)), dtype=np.uint64)


_EVERY = slice(None, None, WEIGHTED_ROWS)


def row_checksums(matrix: np.ndarray, weights: np.ndarray, into: np.ndarray, weighted: slice = _EVERY) -> None:
    """For each row the sum of its elements' bits modulo 2^64, shifted as the weights of their columns are.

    In the `weighted` rows each element is multiplied by the weight of its column. In the others it is not, because NumPy adds
    faster than it does that.
    """
    rows, columns = matrix.shape
    words, per_word = matrix.view(_WORDS[matrix.itemsize]), 8 // matrix.itemsize
    starts_a_word = columns and int(weights[0]) & 1
    in_rows = matrix.strides[1] == matrix.itemsize  # else it is the transpose of such a matrix
    if per_word > 1 and in_rows and starts_a_word and not (columns % per_word or matrix.strides[0] % 8 or matrix.ctypes.data % 8):
        words, weights = words.view(np.uint64), weights[::per_word]
    if words.dtype == np.uint64:
        np.add.reduce(words, axis=1, out=into)
        np.einsum("ij,j->i", words[weighted], weights, out=into[weighted])
        return
    unweighted = weights & (~weights + np.uint64(1))  # the lowest bit that is set: a weight is odd but for the shift
    for part in pieces(Span(0, rows), max(1, _AT_ONCE // max(1, 8 * columns))):
        np.einsum("ij,j->i", words[part.slice].astype(np.uint64), unweighted, out=into[part.slice])
    np.einsum("ij,j->i", words[weighted].astype(np.uint64), weights, out=into[weighted])


def row_sums(matrix: np.ndarray, x: np.ndarray, group: int, sums: np.ndarray, squares: np.ndarray, largest: np.ndarray) -> None:
    """For each row and each group of `group` columns the sums of x[j]·m[i,j] and of their squares; for each row its largest
    magnitude, or NOT_INTEGRAL."""
    columns = Span(0, matrix.shape[1])
    for rows, values in _in_cache(matrix):
        largest[rows] = _largest(values)
        terms = values * x
        for number, of_group in enumerate(pieces(columns, group)):
            part = terms[:, of_group.slice]
            sums[rows, number] = part.sum(axis=1)
            squares[rows, number] = np.einsum("ij,ij->i", part, part)


def add_squares(matrix: np.ndarray, squares: np.ndarray, largest: np.ndarray) -> None:
    """For each row add its sum of squares to `squares`; its largest magnitude as in `row_sums`."""
    for rows, values in _in_cache(matrix):
        largest[rows] = _largest(values)
        squares[rows] += np.einsum("ij,ij->i", values, values)


def _in_cache(matrix: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """A few rows at a time, as float64."""
    rows, columns = matrix.shape
    for part in pieces(Span(0, rows), max(1, _AT_ONCE // max(1, columns * 8))):
        yield part.slice, numbers_of(matrix[part.slice]).astype(np.float64, copy=False)


def _largest(values: np.ndarray) -> np.ndarray:
    """The largest magnitude of each row, or NOT_INTEGRAL."""
    if not values.size:
        return np.zeros(len(values))
    integral = (np.rint(values) == values).all(axis=1)
    return np.where(integral, np.abs(values).max(axis=1), NOT_INTEGRAL)
