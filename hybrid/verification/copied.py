# SPDX-License-Identifier: MIT
"""Checksums of what is copied, for one rank: a vector of those of all rows of all pieces, as its `CheckLayout` orders them."""

from __future__ import annotations

import numpy as np

from hybrid.core.spans import Span
from hybrid.host.row_sums import mixed
from hybrid.plan.check_layout import CheckLayout, Piece

_STEP = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64: what the rows' numbers are told apart by

Place = tuple[str, Span, Span]  # operand, rows and columns in the whole matrix


class CopiedPieces:
    """What all ranks know of a rank's pieces."""

    def __init__(self, layout: CheckLayout) -> None:
        self.layout = layout
        first = layout.share.rows.lo
        self.places: list[Place] = [_place(piece, first) for piece in layout.pieces]
        self._starts = np.array([piece.offset for piece in layout.pieces], np.intp)
        rows = [np.arange(rows.lo, rows.hi, dtype=np.uint64) for _, rows, _ in self.places]
        self._of_numbers = np.concatenate([*rows, np.empty(0, np.uint64)]) * _STEP

    def of_pieces(self, of_rows: np.ndarray) -> np.ndarray:
        """One checksum for each piece: those of its rows, each mixed with the row's number, added modulo 2^64.

        A row's checksum times a weight would not do: those of small integers have zeros in their lower 50 bits, so exchanged
        rows would often have the same sum.
        """
        return np.add.reduceat(mixed(of_rows + self._of_numbers), self._starts) if len(self._starts) else np.empty(0, np.uint64)


def _place(piece: Piece, first_row: int) -> Place:
    first = 0 if piece.operand == "B" else first_row
    return piece.operand, Span(first + piece.rows.lo, first + piece.rows.hi), piece.columns


def named(place: Place) -> str:
    operand, rows, columns = place
    return f"rows {rows}, columns {columns} of {operand}"
