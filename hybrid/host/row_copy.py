# SPDX-License-Identifier: MIT
"""Copies of matrices by several threads; of transposed ones in tiles that stay in a core's cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hybrid.core.spans import Span, even_pieces, pieces
from hybrid.host.thread_map import on_threads

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
