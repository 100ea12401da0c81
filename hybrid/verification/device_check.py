# SPDX-License-Identifier: MIT
"""Freivalds' check of a rank's product on its device, while its panels are there, and checksums of all that was copied.

For one group of columns after the other, C·x is compared with A·(B·x), x random. B·x is summed when rows of B arrive, C·x when
a tile is computed, and A·(B·x) when all of B is there; or, where memory is short, when rows of A have met all of B, or are about
to be overwritten. That finds what the kernel did wrong with the operands that it had. Whether it had the right ones, and whether
C went home as it was computed, the checksums tell: each piece that is copied gets one on the device, to be compared with that of
the memory it was copied from or to.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, merged
from hybrid.devices.base import CheckOperations, Event, Operation
from hybrid.devices.buffers import Buffers, Place
from hybrid.devices.cpu_check import summary_of
from hybrid.host.row_sums import NOT_INTEGRAL, checksum_weights
from hybrid.plan.check_layout import NUMBERS_A_ROW, NUMBERS_TOGETHER, ROWS_TOGETHER, CheckLayout, Piece
from hybrid.plan.schedule import Arrival, Tile
from hybrid.verification.check import Suspect
from hybrid.verification.copied import piece_table
from hybrid.verification.rounding import Sums, is_exact, of_product, random_x
from hybrid.verification.wrong_sums import WrongSums, fractions_in

_ROWS_AT_ONCE = 4096  # from which A·(B·x) is subtracted: fewer do not fill a large GPU
_MOST_PLACES = 4  # of matrices that are used where they lie: results of one loop alternate between two


@dataclass
class _Pending:
    """Rows of C whose sums are there, in these groups, but from which A·(B·x) has not been subtracted."""

    buffer_rows: Span
    groups: list[Span] = field(default_factory=list)


@dataclass
class _OfBuffers:
    """Operations on operands and C where they lie."""

    by_arrival: list[tuple[list[Operation], list[list[Operation]]]]
    subtractions: dict[tuple[Span, Span, Span], Operation] = field(default_factory=dict)


class DeviceCheck:
    """Made once for a plan, used for any number of products, each from `begin` to `finish`, after `use`."""

    def __init__(self, operations: CheckOperations, layout: CheckLayout, problem: Problem) -> None:
        self.layout, self._operations, self._problem = layout, operations, problem
        operations.compile_ahead(problem.dtype, problem.operand_dtype, layout.group)
        self._make_matrices(problem)
        # Weakly: they may be arrays that their owner wants to free.
        self._buffers: Callable[[], Buffers | None] = lambda: None
        self._prepared: dict[tuple[Place, ...], _OfBuffers] = {}  # views of device memory take longer to make than launches
        self._now = _OfBuffers([])
        m = self._m
        of_operand = {operand: [piece.number for piece in layout.pieces if piece.operand == operand] for operand in "ABC"}
        self._numbers = {operand: np.array(numbers, np.intp) for operand, numbers in of_operand.items()}
        self._clear = operations.clear(m["to clear"])
        self._total = operations.column_totals(m["squares of B"], self._column_squares)
        self._compare = operations.compare(
            m["differences"], self._subtracted_sums, m["squares of C"], self._row_squares, self._column_squares, m["numbers"],
            m["found"], self._summary,
        )  # fmt: skip
        self._total_pieces = operations.total_pieces(self._checksums, self._largest, m["checksum table"], self._totals)
        self._told, self._tell = operations.told(self._to_tell)
        self._pending: dict[Span, _Pending] = {}
        order = layout.share.order
        self._last, self._all_of_b = len(order) - 1, max(number for number, each in enumerate(order) if each.operand == "B")
        self._met: list[Arrival] = []  # rows of A, from which nothing has been subtracted
        self._subtracted: list[tuple[Span, Event]] = []  # rows of the buffer of A, in order, and until when they are read

    def _make_matrices(self, problem: Problem) -> None:
        layout, operations = self.layout, self._operations
        rows, groups, checksums, table = len(layout.share.rows), layout.groups, layout.checksums, piece_table(layout)
        summary, totals = NUMBERS_TOGETHER * -(-rows // ROWS_TOGETHER), 2 * len(table)
        ends = np.cumsum([rows, groups, checksums, checksums, rows * groups, summary, totals]).tolist()
        self._m = m = operations.make(
            {
                "x": (1, problem.m),
                "weights of A": (1, problem.l),
                "weights of B": (1, problem.m),
                "weights of C": (1, problem.m),
                "B·x": (problem.l, groups),
                "squares of B": (problem.l, groups),
                "differences": (rows, groups),
                "squares of C": (rows, groups),
                "unused": (rows, 1),
                "numbers": (1, 4),
                "found": (rows, NUMBERS_A_ROW),
                "checksum table": table.shape,
                "to clear": (1, ends[-1]),
            }
        )
        widths = [len(panel) for panel in layout.share.column_panels]
        operations.write(m["x"], random_x(np.random.default_rng(secrets.randbits(64)), widths, layout.group)[None, :])
        of_operands, of_c = problem.operand_item_size, problem.item_size
        for name, columns, item in (("A", problem.l, of_operands), ("B", problem.m, of_operands), ("C", problem.m, of_c)):
            operations.write(m[f"weights of {name}"], checksum_weights(columns, item)[None, :])
        operations.write(m["numbers"], of_product(problem, layout.group)[None, :])
        operations.write(m["checksum table"], table)
        parts = [m["to clear"][:, lo:hi] for lo, hi in zip([0, *ends], ends, strict=False)]
        self._row_squares, self._column_squares = parts[0].reshape(-1, 1), parts[1]
        # Of all rows of pieces the largest magnitudes and checksums.
        self._largest, self._checksums = parts[2].reshape(-1, 1), parts[3].reshape(-1, 1).view("uint64")
        self._subtracted_sums = parts[4].reshape(rows, groups)  # -A·(B·x)
        self._summary, self._totals = parts[5].reshape(-1, NUMBERS_TOGETHER), parts[6].reshape(-1, 2).view("uint64")
        self._to_tell = m["to clear"][:, ends[4] :]

    def use(self, buffers: Buffers) -> None:
        """In these are the operands of the next products."""
        self._buffers = weakref.ref(buffers)
        if buffers.places not in self._prepared:
            if len(self._prepared) >= _MOST_PLACES:
                self._prepared.clear()
            self._prepared[buffers.places] = _OfBuffers(self._by_arrival(buffers))
        self._now = self._prepared[buffers.places]

    def _by_arrival(self, buffers: Buffers) -> list[tuple[list[Operation], list[list[Operation]]]]:
        """For each arrival the operations on its own pieces, and on those of the tiles that it releases."""
        return [
            (
                [self._of_operand(buffers, arrival, piece) for piece in own],
                [
                    [self._of_c(buffers, tile, piece) for piece in of_tile]
                    for tile, of_tile in zip(arrival.releases, tiles, strict=True)
                ],
            )
            for arrival, (own, tiles) in zip(self.layout.share.order, self.layout.by_arrival, strict=True)
        ]

    def begin(self) -> None:
        """A product begins."""
        self._pending.clear()
        self._subtracted.clear()
        self._met.clear()
        self._clear([])

    def before_overwriting(self, arrival: Arrival) -> list[Event]:
        """Subtract what rows of A are still needed for. Returns what must be complete before they are overwritten."""
        if arrival.operand == "B":
            return []
        self._subtract([rows for rows, pending in self._pending.items() if pending.buffer_rows.meets(arrival.buffer_span)])
        # Rows of several panels are subtracted together, and some of these may have been since long.
        return [event for rows, event in self._subtracted if rows.meets(arrival.buffer_span)][-1:]

    def arrived(self, number: int, after: Sequence[Event]) -> list[Event]:
        """Arrival `number` of the rank's order is on the device after these events. Returns what must be complete before it is
        overwritten."""
        events = [operation(after) for operation in self._now.by_arrival[number][0]]
        if self.layout.share.holds_all:
            if number == self._all_of_b:
                self._total([])
            self._subtract_early(number)
        return events[-1:]

    def _subtract_early(self, number: int) -> None:
        """Where nothing is overwritten: when all of B is there, from all rows of A that are, and then from those that arrive."""
        arrival = self.layout.share.order[number]
        if arrival.operand == "A":
            self._met.append(arrival)
        if number >= self._all_of_b and (sum(len(each.span) for each in self._met) >= _ROWS_AT_ONCE or number == self._last):
            for each in self._met:
                self._pending[each.span] = _Pending(each.buffer_span, [Span(0, self.layout.groups)])
            self._subtract(list(self._pending))
            self._met.clear()

    def computed(self, number: int, index: int, tile: Tile, after: Sequence[Event]) -> list[Event]:
        """Tile `index` that arrival `number` releases is complete after these events. Returns as `arrived` does."""
        events = [operation(after) for operation in self._now.by_arrival[number][1][index]]
        if self.layout.share.holds_all:
            return events[-1:]
        pending = self._pending.setdefault(tile.rows, _Pending(tile.buffer_rows))
        pending.groups += [piece.groups for piece in self.layout.by_arrival[number][1][index]]
        whole = [rows for rows, each in self._pending.items() if sum(map(len, each.groups)) == self.layout.groups]
        if sum(map(len, whole)) >= _ROWS_AT_ONCE:
            events += self._subtract(whole)
        return events[-1:]

    def finish(self) -> None:
        """All arrivals and tiles have been told."""
        self._subtract(list(self._pending))
        if not self.layout.share.holds_all:
            self._total([])
        self._compare([])
        self._total_pieces([])
        self._tell([])

    def checksums(self) -> np.ndarray:
        """Of all rows of all pieces, in the layout's order. When the device is idle."""
        return self._operations.read(self._checksums)[:, 0]

    def checksums_of_pieces(self) -> np.ndarray:
        """As `CopiedPieces.of_pieces` makes them. When the device is idle."""
        return np.array(self._totals_told[:, 0])

    @property
    def _totals_told(self) -> np.ndarray:
        """Of each piece its checksum and its largest magnitude."""
        return self._told[0, self._summary.size :].reshape(-1, 2).view(np.uint64)

    def sums(self, allowed: float) -> tuple[Sums, tuple[Suspect, ...], np.ndarray | None]:
        """What the comparison found; the sums that differ by more than `allowed` standard deviations, or at all where every sum
        is exact: all of them, or of more than a few rows the worst; and all squares of C with such sums. When the device is
        idle."""
        largest = self._totals_told[:, 1].view(np.float64)
        largest_a, largest_b, largest_c = (float(largest[numbers].max(initial=0.0)) for numbers in self._numbers.values())
        exact = is_exact(self._problem, self.layout.group, largest_a, largest_b)
        limit, has_fractions = 0.0 if exact else allowed, exact and largest_c >= NOT_INTEGRAL
        rows, groups = len(self.layout.share.rows), self.layout.groups
        summary = self._told[0, : self._summary.size].reshape(-1, NUMBERS_TOGETHER)
        sums = Sums.of(summary, rows, groups, largest_a, largest_b)
        if sums.error <= limit and not has_fractions:
            return sums, (), None
        found, fractions = np.array(self._operations.read(self._m["found"])), {}
        if exact:
            fractions = fractions_in(self.layout, found, self._operations.read(self._largest)[:, 0])
            sums = Sums.of(summary_of(found), rows, groups, largest_a, largest_b)
        wrong = WrongSums(self.layout, lambda rows: self._operations.read(self._m["differences"][rows]), found, limit)
        return sums, wrong.suspects(fractions), wrong.squares()

    def _subtract(self, rows_of_c: Sequence[Span]) -> list[Event]:
        """A·(B·x), for neighbouring rows and groups together."""
        blocks: list[tuple[Span, Span, list[Span]]] = []
        for rows in sorted(rows_of_c):
            pending = self._pending.pop(rows)
            groups = merged(pending.groups)
            if blocks and blocks[-1][2] == groups and blocks[-1][0].hi == rows.lo and blocks[-1][1].hi == pending.buffer_rows.lo:
                above, in_buffer, _ = blocks.pop()
                blocks.append((Span(above.lo, rows.hi), Span(in_buffer.lo, pending.buffer_rows.hi), groups))
            else:
                blocks.append((rows, pending.buffer_rows, groups))
        keys = [(rows, buffer_rows, of_group) for rows, buffer_rows, groups in blocks for of_group in groups]
        self._subtracted += [(key[1], self._subtraction(*key)([])) for key in keys]
        return [event for _, event in self._subtracted[-1:]]

    def _subtraction(self, rows: Span, buffer_rows: Span, groups: Span) -> Operation:
        key = (rows, buffer_rows, groups)
        prepared, buffers = self._now.subtractions, self._buffers()
        if key not in prepared:
            assert buffers is not None, "their product is under way"
            products, into = self._m["B·x"][:, groups.slice], self._subtracted_sums[rows.slice, groups.slice]
            prepared[key] = self._operations.subtract_product(buffers.rows_of_a(buffer_rows), products, into)
        return prepared[key]

    def _of_operand(self, buffers: Buffers, arrival: Arrival, piece: Piece) -> Operation:
        matrix, m, rows = buffers.destination(arrival), self._m, piece.rows.slice
        if piece.operand == "A":
            # Rows that arrive again are added to the squares again: they come all as often, and only allow for larger errors.
            return self._row_sums(piece, matrix, "weights of A", 0, m["unused"][rows], self._row_squares[rows])
        part = matrix[rows, piece.columns.within(arrival.span).slice]
        groups = piece.groups.slice
        return self._row_sums(
            piece, part, "weights of B", self.layout.group, m["B·x"][rows, groups], m["squares of B"][rows, groups]
        )

    def _of_c(self, buffers: Buffers, tile: Tile, piece: Piece) -> Operation:
        rows, groups, m = piece.rows.slice, piece.groups.slice, self._m
        part = buffers.operands(tile)[2][:, piece.columns.within(tile.columns).slice]
        sums, squares = m["differences"][rows, groups], m["squares of C"][rows, groups]
        return self._row_sums(piece, part, "weights of C", self.layout.group, sums, squares)

    def _row_sums(self, piece: Piece, matrix: Any, weights: str, group: int, sums: Any, squares: Any) -> Operation:
        m, columns, rows = self._m, piece.columns.slice, slice(piece.offset, piece.offset + len(piece.rows))
        x = m["x"][:, columns] if group else m["x"]
        return self._operations.row_sums(
            matrix, x, m[weights][:, columns], group, sums, squares, self._largest[rows], self._checksums[rows]
        )
