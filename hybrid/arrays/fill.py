# SPDX-License-Identifier: MIT
"""Matrices generated from a seed: the same for any number of ranks and threads, and any rank can generate any row.

The elements, in row-major order, are cut into blocks of 2^19, whatever the shape. The random numbers of each block come from
SFC64, which starts from (seed, matrix, block). Its state holds a counter, so two blocks cannot share a state within 2^64 steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hybrid.core.spans import Span, pieces
from hybrid.host.thread_map import on_threads

if TYPE_CHECKING:
    import numpy as np

FILLS = ("lecture", "uniform", "normal", "index")
MATRICES = ("A", "B")

_LECTURE = {"A": 3, "B": 2}  # the lecture's matrices are of so many whole numbers, from 0 on
# Elements that a thread makes without the GIL, for which it waits before. The lecture's matrices of 8000×8000 took 16 threads
# 0.24 s by blocks of 2^16 (float64), 0.08 by 2^18, 0.06 by these and 0.05 by 2^20 (by hand, a host of 2 H200, 2026-11-26).
_BLOCK = 1 << 19
_CALL_BLOCKS = 4  # the most that a thread makes between two reports of progress
_PARTS_PER_THREAD = 4  # the least, where there are so many blocks: threads that are held up take fewer parts
_DISCARDED = 18  # steps that SFC64's author runs after a start from three words; from 11 on, all bits depend on all words


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
    """Write rows `rows` of the matrix into `into` with so many threads. `into` is C-contiguous, and its row 0 is the first of
    the rows.

    `fill`: lecture (A from {0, 1, 2}, B from {0, 1}), uniform in [0, 1), normal (standard), or index (the number in row-major
    order). `progress` gets the number of rows done so far, in this thread.
    """
    if not into.size:
        return
    if not into.flags.c_contiguous:
        raise ValueError("the rows to be filled are not contiguous")
    width, elements = into.shape[1], into.reshape(-1)
    wanted = Span(rows.lo * width, rows.hi * width)

    def make(numbers: Span) -> int:
        maker = _Maker(fill, seed, matrix)
        return sum(maker.write(number, wanted, elements) for number in range(numbers.lo, numbers.hi))

    blocks = Span(wanted.lo // _BLOCK, -(-wanted.hi // _BLOCK))
    at_once = max(1, min(_CALL_BLOCKS, len(blocks) // (_PARTS_PER_THREAD * max(1, threads))))
    done = 0
    for count in on_threads(threads, make, pieces(blocks, at_once)):
        done += count
        progress(done // width)


def largest_number(fill: str, matrix: str, elements: int) -> int | None:
    """The largest number of a matrix of so many elements; None where they are fractions."""
    if fill == "lecture":
        return _LECTURE[matrix] - 1
    return max(0, elements - 1) if fill == "index" else None


class _Maker:
    """Makes blocks of a matrix, one after the other."""

    def __init__(self, fill: str, seed: int, matrix: str) -> None:
        from numpy import empty
        from numpy.random import SFC64, Generator

        self._fill, self._seed, self._matrix = fill, seed % 2**64, MATRICES.index(matrix)
        self._generator, self._discarded = Generator(SFC64(0)), empty(_DISCARDED)

    def write(self, number: int, wanted: Span, elements: np.ndarray) -> int:
        """Write those elements of block `number` that are wanted, and return how many these are. `elements`: room for all that
        are wanted."""
        import numpy as np

        block = Span(number * _BLOCK, min((number + 1) * _BLOCK, wanted.hi))
        if block.lo >= wanted.lo:
            self._make(elements[block.within(wanted).slice], number)
            return len(block)
        # How many random numbers an element takes depends on their values, so the elements before it must be made, too.
        made = np.empty(len(block), elements.dtype)
        self._make(made, number)
        used = made[wanted.lo - block.lo :]
        elements[: len(used)] = used
        return len(used)

    def _make(self, into: np.ndarray, number: int) -> None:
        """Write the first elements of the block."""
        import numpy as np

        if self._fill == "index":
            into[...] = np.arange(number * _BLOCK, number * _BLOCK + len(into))
            return
        generator = self._generator
        start = {"state": [self._seed, self._matrix, number, 1]}
        generator.bit_generator.state = {"bit_generator": "SFC64", "state": start, "has_uint32": 0, "uinteger": 0}
        generator.random(out=self._discarded)
        if self._fill == "lecture":
            values = _LECTURE[MATRICES[self._matrix]]
            # NumPy cuts such small numbers out of its 32 random bits without a bias: bools bit by bit, others byte by byte.
            into[...] = generator.integers(values, size=len(into), dtype=bool if values == 2 else np.uint8)
        elif self._fill == "uniform":
            generator.random(out=into, dtype=into.dtype.type)
        else:
            generator.standard_normal(out=into, dtype=into.dtype.type)
