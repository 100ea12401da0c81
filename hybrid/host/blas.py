# SPDX-License-Identifier: MIT
"""Products by NumPy's BLAS library, with its own threads, or tiled over few of ours, each of which calls single-threaded BLAS.

Many BLAS threads are faster, but spin after each product (OpenBLAS: for 2²⁶ cycles or more) on cores that the next step needs.
Beside them, the check of a product took twice as long on 2 cores, and so did copies to a GPU on 16.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterable
from functools import cache, partial, reduce
from itertools import product
from operator import or_
from typing import Any, ClassVar

import numpy as np

from hybrid.core.problem import Span, even_pieces, pieces
from hybrid.host.memory import is_transpose
from hybrid.host.threads import can_limit_blas, limited_blas, limited_threads, on_threads, product_threads, threads_allowed

_MOST_TILES_A_THREAD = 4  # or parts of a stack, for load balancing
# Least elements of C in each of a thread's several tiles. BLAS packs a tile's rows of A and columns of B, which takes 1 % of the
# time for 1000×500 elements, 3 % for 500×500 and 9 % for 250×250 (OpenBLAS, one core of an AMD EPYC).
_TILE_ELEMENTS = 500_000
_TILE_TERMS = 10**7  # multiply-adds of a tile, at least
OF_ONE_THREAD = 1 << 18  # multiply-adds up to which OpenBLAS itself uses one thread
UNDIVIDED = _TILE_TERMS  # multiply-adds up to which a product is not divided among our threads
_ROWS_ADDED = 256  # at a time: NumPy has no beta = 1, so a · b needs a temporary matrix

Product = tuple[np.ndarray, np.ndarray, np.ndarray]  # a, b, c


def blas(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """c = a · b by as many threads as `limited_threads` allows. Transposed views are not copied."""
    if threads_allowed() == 1 or len(a) * b.size <= OF_ONE_THREAD:
        np.matmul(a, b, out=c)
    else:
        blas_all([(a, b, c)])


def blas_all(products: Iterable[Product]) -> None:
    """`blas` for all of these products."""
    tiles: list[Callable[[], object]] = []
    for a, b, c in products:
        if is_transpose(a, b):
            # Not tiled: for a whole a · aᵀ, NumPy calls syrk and mirrors the result, which is exactly symmetric.
            with limited_blas(threads_allowed()):
                np.matmul(a, b, out=c)
        else:
            for rows, columns in _tiles(c, a.shape[1]):
                tiles.append(partial(np.matmul, a[rows], b[:, columns], out=c[rows, columns]))
    _do_all(tiles, product_threads())


def blas_stack(a: np.ndarray, b: np.ndarray, c: np.ndarray, threads: int) -> None:
    """c[i] = a[i] · b[i] for all i; `a` or `b` may hold one matrix for all. Transposed views are not copied.

    Each thread takes whole products; if there are fewer products than threads, the threads divide each product.
    """
    count = len(c)
    if count < threads:
        with limited_threads(threads):
            blas_all((a[index % len(a)], b[index % len(b)], c[index]) for index in range(count))
        return

    parts = even_pieces(Span(0, count), -(-count // (_MOST_TILES_A_THREAD * threads)))
    work = (partial(np.matmul, some_matrices(a, part), some_matrices(b, part), out=c[part.slice]) for part in parts)
    with limited_threads(1):
        _do_all(work, threads)


def some_matrices(stack: np.ndarray, part: Span) -> np.ndarray:
    """An operand's matrices for the products `part`; if it has one for all, that one."""
    return stack[: len(part)] if len(stack) == 1 else stack[part.slice]


def add_by_blas(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """c += a · b by as many threads as `limited_threads` allows."""

    def add(rows: slice, columns: slice) -> None:
        for some in pieces(Span(rows.start, rows.stop), _ROWS_ADDED):
            c[some.slice, columns] += a[some.slice] @ b[:, columns]

    _do_all([partial(add, *tile) for tile in _tiles(c, a.shape[1])], product_threads())


def _do_all(tiles: Iterable[Callable[[], object]], threads: int) -> None:
    """Compute the tiles by threads. What they raise is handled once, as this thread's np.errstate demands."""
    raised = {0}

    def note(kind: str, flags: int) -> None:  # of NumPy: 2 overflow, 4 underflow, 8 invalid
        raised.add(flags & 6 | flags >> 3)

    def do(tile: Callable[[], object]) -> None:
        with np.errstate(all="call", call=note):
            tile()

    on_threads(threads, do, tiles)
    warn_as_numpy(reduce(or_, raised))


def _tiles(c: np.ndarray, terms: int) -> list[tuple[slice, slice]]:
    """The rows and columns of tiles of C: about the same number for each thread, cut so that least of A and B is read."""
    (rows, columns), threads = c.shape, product_threads()
    worthwhile = max(1, rows * columns * terms // _TILE_TERMS)
    a_thread = max(1, min(_MOST_TILES_A_THREAD, worthwhile // threads, rows * columns // (threads * _TILE_ELEMENTS)))
    count = min(worthwhile, a_thread * threads) if threads > 1 else 1
    cuts = [(across, count // across) for across in range(1, count + 1) if count % across == 0]
    across, along = min(cuts, key=lambda cut: cut[0] * columns + cut[1] * rows)
    return list(product(_cut(rows, across), _cut(columns, along)))


def _cut(size: int, parts: int) -> list[slice]:
    return [part.slice for part in even_pieces(Span(0, size), max(1, -(-size // parts)))]


# C threads multiply by NumPy's inner loop of matmul, which calls BLAS and needs no GIL.

_RAISED = (np.inf, 0.0), (1e300, 1e300), (1e-300, 1e-300)  # factors whose product is invalid, overflows, underflows


class _Ufunc(ctypes.Structure):
    """The beginning of NumPy's PyUFuncObject."""

    _fields_: ClassVar[Any] = [
        ("head", ctypes.c_char * object.__basicsize__),
        *((name, ctypes.c_int) for name in ("inputs", "outputs", "operands", "identity")),
        *((name, ctypes.POINTER(ctypes.c_void_p)) for name in ("loops", "data")),
        ("types", ctypes.c_int),
    ]


@cache
def matmul_loop(char: str) -> int:
    """The address of np.matmul's inner loop for this type ("f" or "d"); 0 if it is not found, or if BLAS's own threads cannot be
    limited."""
    if platform.python_implementation() != "CPython" or not can_limit_blas():
        return 0
    ufunc, types = _Ufunc.from_address(id(np.matmul)), np.matmul.types
    known = (ufunc.inputs, ufunc.outputs, ufunc.operands, ufunc.types) == (2, 1, 3, len(types))
    return ufunc.loops[types.index(f"{char}{char}->{char}")] or 0 if known else 0


def warn_as_numpy(raised: int) -> None:
    """Handle floating-point exceptions of the loop as `np.errstate` demands. `raised`: a bit for each of _RAISED."""
    for number, (one, other) in enumerate(_RAISED):
        if raised >> number & 1:
            np.matmul([[one]], [[other]])
