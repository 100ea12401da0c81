# SPDX-License-Identifier: MIT
"""Matrices generated from a seed: the same for any number of ranks and threads, and any rank can generate any row.

Random numbers come from Philox, a counter-based generator: its key is (seed, matrix), and its counter starts at a number
that depends on the row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hybrid.core.spans import Span
from hybrid.host.thread_map import CALL_BYTES, on_threads, rows_of_about

if TYPE_CHECKING:
    import numpy as np

FILLS = ("lecture", "uniform", "normal", "index")
MATRICES = ("A", "B")


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
    """Write rows `rows` of the matrix into `into`, whose row 0 is the first of them, with `threads` threads.

    `fill`: lecture (A from {0, 1, 2}, B from {0, 1}), uniform in [0, 1), normal (standard), or index (number in row-major order).
    `progress` gets the number of rows done so far, in this thread.
    """

    def make(group: Span) -> int:
        _FILLERS[fill](into[group.within(rows).slice], group, seed, matrix)
        return len(group)

    done = 0
    for count in on_threads(threads, make, rows_of_about(CALL_BYTES, rows, into.shape[1] * 8)):
        done += count
        progress(done)


def _generator(seed: int, matrix: str, low: int, high: int = 0) -> np.random.Generator:
    """Philox with its counter at high·2^64 + low."""
    from numpy import array, uint64
    from numpy.random import Generator, Philox

    key, counter = array([seed % 2**64, MATRICES.index(matrix)], uint64), array([low, high, 0, 0], uint64)
    return Generator(Philox(key=key, counter=counter))


def _words(rows: Span, width: int, seed: int, matrix: str) -> np.ndarray:
    """64 random bits for each element of the rows."""
    steps = -(-width // 4)  # of the counter for one row; each step gives four words
    generator = _generator(seed, matrix, rows.lo * steps)
    return generator.integers(2**64, size=(len(rows), 4 * steps), dtype="uint64")[:, :width]


def _lecture(into: np.ndarray, rows: Span, seed: int, matrix: str) -> None:
    values = 3 if matrix == "A" else 2
    words = _words(rows, into.shape[1], seed, matrix)
    words >>= 32
    words *= values
    words >>= 32  # rounds words · values / 2^32 down: all values have the same probability, to 2^-32
    into[...] = words


def _uniform(into: np.ndarray, rows: Span, seed: int, matrix: str) -> None:
    bits = 24 if into.dtype == "float32" else 53  # that the type holds exactly
    words = _words(rows, into.shape[1], seed, matrix)
    words >>= 64 - bits
    into[...] = words
    into *= 2.0**-bits


def _normal(into: np.ndarray, rows: Span, seed: int, matrix: str) -> None:
    for target, row in zip(into, range(rows.lo, rows.hi), strict=True):
        # How many steps a row takes depends on the numbers drawn, so each row has its own upper half of the counter.
        _generator(seed, matrix, 0, 1 + row).standard_normal(out=target, dtype=into.dtype.type)


def _index(into: np.ndarray, rows: Span, seed: int, matrix: str) -> None:
    import numpy as np

    width = into.shape[1]
    into[...] = np.arange(rows.lo * width, rows.hi * width).reshape(into.shape)


_FILLERS = {"lecture": _lecture, "uniform": _uniform, "normal": _normal, "index": _index}
