# SPDX-License-Identifier: MIT
"""Products by the BLAS library that NumPy was built with, divided among threads of our own, each of which calls it with one.

BLAS's threads are as fast, but look for work for a tenth of a second after each product (OpenBLAS: 2²⁸ cycles), on the cores that
whatever follows it needs: on two cores the check of a product took twice as long beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from hybrid.core.spans import Span, even_pieces, pieces
from hybrid.host.threads import Part, Result, limited_blas, on_threads, product_threads, threads_allowed

_MOST_TILES_A_THREAD = 4  # so that a thread which is late takes fewer
# Elements of C in a tile from which on a thread gets several. BLAS rearranges a tile's rows of A and columns of B, which takes
# 1 % of the time for 1000×500 elements, 3 % for 500×500 and 9 % for 250×250 (OpenBLAS, one core of an AMD EPYC).
_TILE_ELEMENTS = 500_000
_TILE_TERMS = 10**7  # products of two elements that make a tile worth a thread's while
_TERMS_OF_A_PART = 256  # at least, where threads divide the terms of sums
_MOST_ELEMENTS = 1 << 18  # of which each thread has sums of its own then
_ROWS_ADDED = 256  # at a time: NumPy has no beta = 1, so a · b needs a temporary matrix before it is added

Product = tuple[np.ndarray, np.ndarray, np.ndarray]  # a, b, c


def blas(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """c = a · b by as many threads as `limited_threads` allows. Transposed views are multiplied as they lie."""
    blas_all([(a, b, c)])


def blas_all(products: Iterable[Product]) -> None:
    """c = a · b for all of these, likewise."""
    tiles = []
    for a, b, c in products:
        if _is_own_transpose(a, b):
            with limited_blas(threads_allowed()):
                np.matmul(a, b, out=c)
        else:
            tiles += [partial(_multiply, a, b, c, *tile) for tile in _tiles(c, a.shape[1])]
    _do_all(tiles)


def blas_of_long_sums(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """c = a · b, likewise, for sums of many terms that make few elements: each thread adds up some of the terms, so that what it
    reads of a and b no other thread reads."""
    parts = even_pieces(Span(0, a.shape[1]), max(_TERMS_OF_A_PART, -(-a.shape[1] // product_threads())))
    if len(parts) < 2 or c.size > _MOST_ELEMENTS:
        return blas(a, b, c)
    first, *others = on_threads(product_threads(), _warning_as_here(lambda terms: a[:, terms.slice] @ b[terms.slice]), parts)
    np.add(first, others[0], out=c)
    for other in others[1:]:
        c += other
    return None


def add_by_blas(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """c += a · b, likewise."""
    _do_all(partial(_add, a, b, c, *tile) for tile in _tiles(c, a.shape[1]))


def _multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray, rows: Span, columns: Span) -> None:
    np.matmul(a[rows.slice], b[:, columns.slice], out=c[rows.slice, columns.slice])


def _add(a: np.ndarray, b: np.ndarray, c: np.ndarray, rows: Span, columns: Span) -> None:
    for some in pieces(rows, _ROWS_ADDED):
        c[some.slice, columns.slice] += a[some.slice] @ b[:, columns.slice]


def _is_own_transpose(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether b is a's transpose in the same memory. NumPy lets BLAS compute half of such a product and mirrors it, so that it is
    symmetric to the last bit, but only if it sees all of it."""
    return a.ctypes.data == b.ctypes.data and a.shape == b.shape[::-1] and a.strides == b.strides[::-1]


def _do_all(tiles: Iterable[Callable[[], None]]) -> None:
    for _ in on_threads(product_threads(), _warning_as_here(lambda tile: tile()), tiles):
        pass


def _warning_as_here(work: Callable[[Part], Result]) -> Callable[[Part], Result]:
    """`work` for other threads, with this thread's handling of NumPy's warnings, which each thread has for itself."""
    handling: dict[str, Any] = {**np.geterr(), "call": np.geterrcall()}

    def do(part: Part) -> Result:
        with np.errstate(**handling):
            return work(part)

    return do


def _tiles(c: np.ndarray, terms: int) -> list[tuple[Span, Span]]:
    """Rows and columns of tiles that make up C. Of each size there are about as many for every thread, and C is cut where less is
    read: each thread reads what it needs of A and B for its tile."""
    (rows, columns), threads = c.shape, product_threads()
    worthwhile = max(1, rows * columns * terms // _TILE_TERMS)
    a_thread = max(1, min(_MOST_TILES_A_THREAD, worthwhile // threads, rows * columns // (threads * _TILE_ELEMENTS)))
    count = min(worthwhile, a_thread * threads) if threads > 1 else 1
    cuts = [(across, count // across) for across in range(1, count + 1) if count % across == 0]
    across, along = min(cuts, key=lambda cut: cut[0] * columns + cut[1] * rows)
    return list(product(_cut(rows, across), _cut(columns, along)))


def _cut(size: int, parts: int) -> list[Span]:
    return list(even_pieces(Span(0, size), max(1, -(-size // parts))))
