# SPDX-License-Identifier: MIT
"""Products by the BLAS library that NumPy was built with, divided among threads of our own, each of which calls it with one.

BLAS's threads are as fast, but look for work for a tenth of a second after each product (OpenBLAS: 2²⁸ cycles), on the cores that
whatever follows it needs: on two cores the check of a product took twice as long beside them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybrid.core.spans import Span, even_pieces, pieces
from hybrid.host.thread_map import on_threads
from hybrid.host.threads import product_threads

_TILES_A_THREAD = 2  # so that a thread which is late takes fewer
_TILE_TERMS = 10**7  # products of two elements that make a tile worth a thread's while
_ROWS_ADDED = 256  # at a time: NumPy has no beta = 1, so a · b needs a temporary matrix before it is added


def blas(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """c = a · b by as many threads as `limited_threads` allows. Transposed views are multiplied as they lie."""
    _in_tiles(
        c, a.shape[1], lambda rows, columns: np.matmul(a[rows.slice], b[:, columns.slice], out=c[rows.slice, columns.slice])
    )


def add_by_blas(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """c += a · b likewise."""

    def add(rows: Span, columns: Span) -> None:
        for some in pieces(rows, _ROWS_ADDED):
            c[some.slice, columns.slice] += a[some.slice] @ b[:, columns.slice]

    _in_tiles(c, a.shape[1], add)


def _in_tiles(c: np.ndarray, terms: int, work: Callable[[Span, Span], object]) -> None:
    """`work(rows, columns)` for tiles that make up C."""
    threads, handling = product_threads(), np.geterr()  # which each thread has for itself

    def quietly(tile: tuple[Span, Span]) -> None:
        with np.errstate(**handling):
            work(*tile)

    for _ in on_threads(threads, quietly, _tiles(len(c), c.shape[1], terms, threads)):
        pass


def _tiles(rows: int, columns: int, terms: int, threads: int) -> list[tuple[Span, Span]]:
    """Of C, about the same size, and cut where less is read: each thread reads what it needs of A and B for its tile."""
    count = max(1, min(_TILES_A_THREAD * threads, rows * columns * terms // _TILE_TERMS)) if threads > 1 else 1
    cuts = [(across, -(-count // across)) for across in range(1, count + 1)]
    across, along = min(cuts, key=lambda cut: cut[0] * columns + cut[1] * rows)
    return [
        (some_rows, some_columns)
        for some_rows in even_pieces(Span(0, rows), max(1, -(-rows // across)))
        for some_columns in even_pieces(Span(0, columns), max(1, -(-columns // along)))
    ]
