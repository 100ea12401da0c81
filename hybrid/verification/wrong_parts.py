# SPDX-License-Identifier: MIT
"""Which parts of C are wrong, or look so: squares of 64 rows and columns, the width of the groups that the check sums."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from hybrid.core.spans import Span
from hybrid.plan.check_layout import GROUP_COLUMNS

SIDE = GROUP_COLUMNS
LARGE = 100.0  # times the least difference that is seen: where a fault is so large, hardly a row of it has a sum that is not
_ROWS_BESIDE = 8  # of such a fault, all of which would have to have sums that are not seen by chance


class WrongParts:
    """The squares that are wrong, or look so, of a C with so many rows and columns. Squares are numbered down and across."""

    def __init__(self, rows: int, columns: int) -> None:
        self._rows, self._columns = rows, columns
        self._suspected = np.zeros((-(-rows // SIDE), -(-columns // SIDE)), bool)  # a sum there looks wrong
        self._large = np.zeros_like(self._suspected)  # or would, if a large fault reached there
        self._known = np.zeros_like(self._suspected)  # wrong by a known fault that does not reach over the square's edges

    def suspect(self, rows: np.ndarray, columns: Span, large: np.ndarray) -> None:
        """The sums of these columns look wrong in these rows, which may each have more wrong elements left and right. So may
        rows above and below; where a difference is `large`, only those near."""
        across = squares_of(columns).slice
        self._suspected[rows[~large] // SIDE, across] = True
        for beside in (-_ROWS_BESIDE, _ROWS_BESIDE):
            self._large[np.clip(rows[large] + beside, 0, self._rows - 1) // SIDE, across] = True

    def suspect_rows(self, rows: np.ndarray) -> None:
        """These rows look wrong in some of their columns, it is not known in which."""
        self._known[rows // SIDE] = True

    def add(self, rows: np.ndarray, columns: Span) -> None:
        """These rows are wrong in these columns, by a fault that touches no others."""
        self._known[rows // SIDE, squares_of(columns).slice] = True

    def in_all_columns(self) -> None:
        """Faults may reach over all columns: whole rows of squares, and their neighbours, are wrong where one square is so
        far."""
        self._known |= _with_neighbours(self._known | self._suspected | self._large).any(axis=1, keepdims=True)

    def found(self) -> tuple[np.ndarray, ...]:
        """The numbers of all squares that are marked, for `merge` on another rank."""
        return np.argwhere(self._suspected), np.argwhere(self._large), np.argwhere(self._known)

    def merge(self, suspected: np.ndarray, large: np.ndarray, known: np.ndarray) -> None:
        self._suspected[tuple(suspected.T)] = self._large[tuple(large.T)] = self._known[tuple(known.T)] = True

    def blocks(self, rows: Span) -> list[tuple[Span, Span]]:
        """What is to be computed again of these rows, as spans of rows and columns. That includes the neighbours of each square
        in which a sum looks wrong: the part of the fault that reaches over its edge may be too small to be seen. Of a large fault
        those to the left and right do, since a row may have few elements of it there, and those above and below only near it."""
        large, small = self._large & ~self._known, self._suspected & ~(self._large | self._known)
        chosen = self._known | _with_sides(large) | _with_neighbours(small)
        found = []
        for columns, together in _runs(chosen.T):
            for squares in _spans(together):
                part = rows.common(Span(squares.lo * SIDE, squares.hi * SIDE))
                if len(part):
                    found.append((part, Span(columns.lo * SIDE, min(self._columns, columns.hi * SIDE))))
        return found


def squares_of(span: Span) -> Span:
    """The numbers of the squares that these rows, or columns, meet."""
    return Span(span.lo // SIDE, -(-span.hi // SIDE))


def _with_neighbours(mask: np.ndarray) -> np.ndarray:
    """The squares of a mask and the up to eight beside each."""
    wide = mask.copy()
    wide[1:] |= mask[:-1]
    wide[:-1] |= mask[1:]
    return _with_sides(wide)


def _with_sides(mask: np.ndarray) -> np.ndarray:
    """The squares of a mask and those to their left and right."""
    wide = mask.copy()
    wide[:, 1:] |= mask[:, :-1]
    wide[:, :-1] |= mask[:, 1:]
    return wide


def _runs(masks: np.ndarray) -> Iterator[tuple[Span, np.ndarray]]:
    """Neighbouring rows of `masks` that are equal, as a span of them and their mask; without those in which nothing is set."""
    changes = np.flatnonzero((masks[1:] != masks[:-1]).any(axis=1)) + 1
    for lo, hi in pairwise([0, *changes.tolist(), len(masks)]):
        if lo < hi and masks[lo].any():
            yield Span(lo, hi), masks[lo]


def _spans(mask: np.ndarray) -> Iterator[Span]:
    """The runs of set elements."""
    ends = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    for lo, hi in ends.reshape(-1, 2).tolist():
        yield Span(lo, hi)
