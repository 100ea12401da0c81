# SPDX-License-Identifier: MIT
"""Checksums of what is copied, for one rank: a vector of those of all rows of all pieces, as its `CheckLayout` orders them."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hybrid.core.spans import Span
from hybrid.host.row_sums import numbered
from hybrid.plan.check_layout import CheckLayout, Piece

Place = tuple[str, Span, Span]  # operand, rows and columns in the whole matrix


class CopiedPieces:
    """What all ranks know of a rank's pieces."""

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
    """For each piece where its rows' checksums begin, behind `first` others; how many there are; and the first row's number."""
    rows = [(first + piece.offset, len(piece.rows), layout.first_row(piece)) for piece in layout.pieces]
    return np.array(rows, np.uint64).reshape(-1, 3)


class PiecesOfRanks(list[CopiedPieces]):
    """Of all ranks."""

    @cached_property
    def numbers(self) -> list[np.ndarray]:
        """For each rank the numbers of its pieces' places, by which those of several ranks are compared."""
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
    operand, rows, columns = place
    return f"rows {rows}, columns {columns} of {operand}"
