# SPDX-License-Identifier: MIT
"""Checksums of what copies read from memory and write to it, made while GPUs copy and multiply: threads sum what is in host
memory, and a GPU sums the arrays that it holds."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.devices.base import Device, Event
from hybrid.host.row_sums import checksum_weights, row_checksums
from hybrid.host.row_view import RowView
from hybrid.plan.check_layout import Piece
from hybrid.plan.schedule import Arrival, Tile
from hybrid.verification.copied import CopiedPieces, Place
from hybrid.verification.summing import ByDevice, ByThreads, Summing


class CopyChecksums:
    """The checksums of what this rank copies. One is made for a plan and used for one product after the other, each from `begin`
    to `results` or `abandon`."""

    def __init__(
        self,
        problem: Problem,
        pieces: Mapping[int, CopiedPieces],
        device: Device,
        own: Mapping[int, Container[int]],
        matrices: tuple[Any, RowView, Any],
        origin: int,
        threads: int,
    ) -> None:
        """`pieces`: by rank, the pieces of those for which this rank copies: itself, or all ranks where the root copies its own
        arrays to their devices. `own`: by rank, the numbers of the pieces of A and B to sum here; pieces of B, which several
        ranks copy, are divided among these. `matrices`: A, B and C as `RankMatrices` has them. `origin`: the number of the first
        row of A and C there. `threads`: how many this rank has."""
        self._pieces, self._own, self._matrices, self._origin = pieces, own, matrices, origin
        of_operands, of_c = problem.operand_item_size, problem.item_size
        widths = {"A": (problem.l, of_operands), "B": (problem.m, of_operands), "C": (problem.m, of_c)}
        self._weights = weights = {matrix: checksum_weights(width, item) for matrix, (width, item) in widths.items()}
        a, b, c = matrices
        on_host = {isinstance(matrix, np.ndarray) for matrix in (a, b.array, c)}  # of row blocks on GPUs, B may be gathered there
        self._summing: dict[bool, Summing] = {}
        if True in on_host:
            self._summing[True] = ByThreads(device, weights, pieces, threads)
        if False in on_host:
            self._summing[False] = ByDevice(device, weights, pieces)
        self._summed: dict[int, dict[int, Piece]] = {rank: {} for rank in pieces}  # by rank and number, the pieces summed here
        self._begun = self._complete = False  # this product's sums; the last product's checksums were all made
        self._of_rows: dict[int, np.ndarray] = {}  # by rank, the checksums of all rows of its pieces

    def begin(self) -> None:
        """A product begins. The operands are the same as before. What that takes is done when first copies were submitted."""
        self._begun = False

    def _begin_once(self) -> None:
        if self._begun:
            return
        self._begun = True
        keeps = self._complete and all(each.keeps for each in self._summing.values())
        for rank, summed in self._summed.items():
            self._summed[rank] = {number: piece for number, piece in summed.items() if keeps and piece.operand != "C"}
        self._complete = False
        for each in self._summing.values():
            each.begin({rank: list(summed) for rank, summed in self._summed.items()})

    def abandon(self) -> None:
        """The product has failed. When this returns, no matrix is read any more."""
        self._complete = False
        for each in self._summing.values():
            each.abandon()

    def loaded(self, rank: int, arrival: Arrival, event: Event) -> None:
        """Sum what arrives on a rank's device, which is in memory already, when the copy is complete (after the event): while it
        runs, summing would make it take longer, since it would read what a core has in its cache."""
        self._begin_once()
        summed, own = self._summed[rank], self._own[rank]
        for piece in self._pieces[rank].layout.pieces_of_arrival(arrival):
            if piece.number in own and piece.number not in summed:
                self._sum(rank, piece, Span(0, len(piece.rows)), event)

    def stored(self, rank: int, tile: Tile, part: Span, event: Event) -> None:
        """Sum these rows of a rank's tile, which are in memory after the event. The first is a multiple of WEIGHTED_ROWS."""
        self._begin_once()
        for piece in self._pieces[rank].layout.pieces_of_tile(tile):
            self._sum(rank, piece, part, event)

    def complete(self) -> None:
        """To be called when `loaded` and `stored` have been called for all copies, and these are complete."""
        self._begin_once()
        for each in self._summing.values():
            each.complete()

    def results(self) -> dict[int, tuple[list[int], np.ndarray]]:
        """After `complete`: by rank, the numbers of its pieces that were summed here, and the checksums of all its pieces, in
        which the others' are 0."""
        found = [each.wait() for each in self._summing.values()]
        self._complete = True
        results = {}
        for rank in self._pieces:
            of_rows, of_pieces = found[0][rank]
            for more_rows, more_pieces in (other[rank] for other in found[1:]):  # each has zeros where the other has summed
                of_rows, of_pieces = of_rows + more_rows, of_pieces + more_pieces
            self._of_rows[rank] = of_rows
            results[rank] = (list(self._summed[rank]), of_pieces)
        return results

    def rows_of(self, place: Place) -> np.ndarray | None:
        """After `results`, the checksums of the rows of a place; None where it was not summed here."""
        rank, piece = self._piece_at(place)
        return self._of_rows[rank][piece.offset : piece.offset + len(piece.rows)] if piece is not None else None

    def was_written(self, place: Place) -> bool:
        """Whether a place in host memory that was summed here holds other values now than it did then."""
        rank, piece = self._piece_at(place)
        rows = self._rows_of(rank, piece) if piece is not None else None
        if piece is None or not isinstance(rows, np.ndarray):
            return False
        now = np.empty(len(rows), np.uint64)
        row_checksums(rows, self._weights[piece.operand][piece.columns.slice], now)
        return bool((now != self._of_rows[rank][piece.offset : piece.offset + len(rows)]).any())

    def _piece_at(self, place: Place) -> tuple[int, Piece | None]:
        for rank, summed in self._summed.items():
            for number, piece in summed.items():
                if self._pieces[rank].places[number] == place:
                    return rank, piece
        return 0, None

    def _sum(self, rank: int, piece: Piece, part: Span, event: Event) -> None:
        self._summed[rank][piece.number] = piece
        matrix, first = self._matrix_of(rank, piece)
        self._summing[isinstance(matrix, np.ndarray)].sum(rank, piece, part, matrix, first, event)

    def _rows_of(self, rank: int, piece: Piece) -> Any:
        matrix, first = self._matrix_of(rank, piece)
        return matrix[first : first + len(piece.rows), piece.columns.slice]

    def _matrix_of(self, rank: int, piece: Piece) -> tuple[Any, int]:
        """The array in which a piece lies, and which of the array's rows is the piece's first."""
        a, b, c = self._matrices
        if piece.operand == "B":
            return b.array, piece.rows.lo - b.rows.lo
        return (a if piece.operand == "A" else c), self._pieces[rank].layout.first_row(piece) - self._origin
