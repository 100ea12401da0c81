# SPDX-License-Identifier: MIT
"""The pieces that are copied to and from the ranks' devices: what every rank knows of them, to compare their checksums.

A rank's checksums are a vector: one for each row of each of its pieces, in the order of its `CheckLayout`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hybrid.core.spans import Span
from hybrid.host.row_sums import numbered
from hybrid.plan.check_layout import CheckLayout, Piece

Place = tuple[str, Span, Span]  # operand, rows and columns in the whole matrix


class CopiedPieces:
    """One rank's pieces, as all ranks know them: where in A, B and C each lies."""

    def __init__(self, layout: CheckLayout) -> None:
        self.layout = layout
        self.places: list[Place] = [_place(layout, piece) for piece in layout.pieces]
        self._starts = np.array([piece.offset for piece in layout.pieces], np.intp)
        rows = [np.arange(rows.lo, rows.hi, dtype=np.uint64) for _, rows, _ in self.places]
        self._numbers = np.concatenate([*rows, np.empty(0, np.uint64)])

    def of_pieces(self, of_rows: np.ndarray) -> np.ndarray:
        """One checksum for each piece, as `mixed_total` makes it."""
        mixed = numbered(of_rows, self._numbers)
        return np.add.reduceat(mixed, self._starts) if len(self._starts) else np.empty(0, np.uint64)


def piece_table(layout: CheckLayout, first: int = 0) -> np.ndarray:
    """For each piece, a row of three numbers: where its rows' checksums begin, behind `first` others; how many there are; and its
    first row's number in the matrix."""
    rows = [(first + piece.offset, len(piece.rows), layout.first_row(piece)) for piece in layout.pieces]
    return np.array(rows, np.uint64).reshape(-1, 3)


class PiecesOfRanks(list[CopiedPieces]):
    """The pieces of all ranks, in the ranks' order."""

    @cached_property
    def numbers(self) -> list[np.ndarray]:
        """For each rank, the numbers of its pieces' places. Places are numbered over all ranks, so that pieces of several ranks
        with the same number are the same part of a matrix."""
        known: dict[Place, int] = {}
        return [np.array([known.setdefault(place, len(known)) for place in each.places], np.intp) for each in self]

    @cached_property
    def how_many(self) -> int:
        """How many different places there are."""
        return 1 + max((int(of_rank.max()) for of_rank in self.numbers if len(of_rank)), default=-1)


def _place(layout: CheckLayout, piece: Piece) -> Place:
    first = layout.first_row(piece)
    return piece.operand, Span(first, first + len(piece.rows)), piece.columns


def named(place: Place) -> str:
    """A place in a message."""
    operand, rows, columns = place
    return f"rows {rows}, columns {columns} of {operand}"
