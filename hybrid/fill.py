"""Matrices made from a seed. Each row comes from a counter-based generator keyed by (seed, matrix, row): the same
matrix for any number of ranks and threads, and any rank can make any row."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from hybrid.partition import Span, pieces

if TYPE_CHECKING:
    import numpy as np

FILLS = ("lecture", "uniform", "normal", "index")
MATRICES = ("A", "B")
_ROWS_AT_ONCE = 64


def fill_rows(
    into: np.ndarray,
    rows: Span,
    *,
    fill: str,
    seed: int,
    matrix: str,
    threads: int = 1,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write rows `rows` of the matrix into `into` (their values only), with `threads` threads.

    lecture: A from {0,1,2}, B from {0,1} · uniform: [0,1) · normal: standard normal · index: [y][x] = x + y·width.
    `progress(rows done so far)` is called from this thread.
    """
    groups = list(pieces(rows, _ROWS_AT_ONCE))

    def make(group: Span) -> int:
        _FILLERS[fill](into[group.within(rows).slice], group, seed, matrix)
        return len(group)

    done = 0
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for count in pool.map(make, groups):
            done += count
            progress(done)


def _generator(seed: int, matrix: str, row: int) -> np.random.Generator:
    from numpy.random import Generator, Philox

    # The row stands in the counter's third word: two rows are 2^128 draws apart.
    return Generator(Philox(key=[seed % 2**64, MATRICES.index(matrix)], counter=[0, 0, row, 0]))


def _lecture(into: np.ndarray, rows: Span, seed: int, matrix: str) -> None:
    values = 3 if matrix == "A" else 2
    for target, row in zip(into, range(rows.lo, rows.hi), strict=True):
        target[:] = _generator(seed, matrix, row).integers(values, size=target.size, dtype="uint8")


def _uniform(into: np.ndarray, rows: Span, seed: int, matrix: str) -> None:
    for target, row in zip(into, range(rows.lo, rows.hi), strict=True):
        _generator(seed, matrix, row).random(out=target, dtype=into.dtype.type)


def _normal(into: np.ndarray, rows: Span, seed: int, matrix: str) -> None:
    for target, row in zip(into, range(rows.lo, rows.hi), strict=True):
        _generator(seed, matrix, row).standard_normal(out=target, dtype=into.dtype.type)


def _index(into: np.ndarray, rows: Span, seed: int, matrix: str) -> None:
    import numpy as np

    width = into.shape[1]
    for target, row in zip(into, range(rows.lo, rows.hi), strict=True):
        target[:] = np.arange(row * width, (row + 1) * width)


_FILLERS = {"lecture": _lecture, "uniform": _uniform, "normal": _normal, "index": _index}
