# SPDX-License-Identifier: MIT
"""Freivalds' check of a rank's product on its device, while its panels are there, and checksums of all that was copied.

For each group of columns, C·x is compared with A·(B·x), where x is random. B·x is summed when rows of B arrive, C·x when a tile
is computed, and A·(B·x) when all of B is there; or, where memory is short, when rows of A have met all of B, or are about to be
overwritten. That finds what the kernel did wrong with the operands that it had. Whether these were the right ones, and whether C
was copied back as it was computed, the checksums tell: each piece that is copied gets one on the device, to be compared with that
of the memory it was copied from or to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, merged
from hybrid.devices.base import CheckOperations, Event, Operation
from hybrid.devices.buffers import MOST_PLACES, Buffers, Place
from hybrid.plan.check_layout import CheckLayout, Piece
from hybrid.plan.schedule import Arrival, Tile
from hybrid.verification.batches import Batches
from hybrid.verification.device_sums import DeviceSums

_ROWS_AT_ONCE = 4096  # of A·(B·x) that are subtracted together: fewer do not fill a large GPU


@dataclass
class _Pending:
    """Rows of C that have sums C·x in some groups of columns, from which A·(B·x) has not been subtracted."""

    buffer_rows: Span  # where the rows of A lie in their buffer
    groups: list[Span] = field(default_factory=list)


_OnPiece = tuple[Operation, int]  # with the bytes that it reads


@dataclass
class _OfBuffers:
    """The operations on A, B and C where they lie."""

    # For each arrival, those on its own pieces, and those on the pieces of each tile that it releases, with the pieces' bytes.
    by_arrival: list[tuple[list[_OnPiece], list[list[_OnPiece]]]]
    batches: Batches
    measured_late: Piece | None  # of A, which is measured when it is multiplied by B·x
    # By rows of C, rows of the buffer of A, and groups.
    subtractions: dict[tuple[Span, Span, Span], Operation] = field(default_factory=dict)


class DeviceCheck:
    """The check of a rank's products. It is made once for a plan and used for any number of products.

    `use` is called first, and again when the operands lie elsewhere. Then each product goes from `begin` to `finish`.
    """

    def __init__(self, operations: CheckOperations, layout: CheckLayout, problem: Problem) -> None:
        self.layout, self._operations, self._problem = layout, operations, problem
        operations.compile_ahead(problem.dtype, problem.operand_dtype, layout.group)
        self.sums = sums = DeviceSums(operations, layout, problem)
        self._m = m = sums.matrices
        # A weak reference: the buffers may be arrays that their owner wants to free.
        self._buffers: Callable[[], Buffers | None] = lambda: None
        # By where the matrices lie, and which of them are no buffers: views of device memory take longer to make than launches.
        self._prepared: dict[tuple[tuple[Place, ...], frozenset[str]], _OfBuffers] = {}
        self._now = _OfBuffers([], Batches(operations, 0), None)
        self._clear = operations.clear(m["to clear"])
        self._total = operations.column_totals(m["squares of B"], sums.column_squares)
        self._compare = operations.compare(
            m["differences"], sums.subtracted, m["squares of C"], sums.row_squares, sums.column_squares, m["numbers"], m["found"],
            sums.summary,
        )  # fmt: skip
        self._total_pieces = operations.total_pieces(sums.of_rows, sums.largest, m["checksum table"], sums.totals)
        self._pending: dict[Span, _Pending] = {}
        order = layout.share.order
        self._last, self._all_of_b = len(order) - 1, max(number for number, each in enumerate(order) if each.operand == "B")
        self._arrived_of_a: list[Arrival] = []  # for whose rows A·(B·x) has not been subtracted
        self._beside: list[Event] = []  # of subtractions that run beside the other operations
        self._subtracted: list[tuple[Span, Event]] = []  # rows of the buffer of A, in order, and until when they are read

    def use(self, buffers: Buffers) -> None:
        """The operands of the next products, and C, are in these buffers."""
        self._buffers = weakref.ref(buffers)
        key = buffers.places, buffers.in_place
        if key not in self._prepared:
            if len(self._prepared) >= MOST_PLACES:
                self._prepared.clear()
            size = sum(map(self._bytes_of, self.layout.pieces))
            late, batches = self._measured_late(buffers), Batches(self._operations, size)
            self._prepared[key] = _OfBuffers(self._by_arrival(buffers, late), batches, late)
        self._now = self._prepared[key]

    def _measured_late(self, buffers: Buffers) -> Piece | None:
        """A's only piece, where that is not copied: then it needs no checksum, and is read once less."""
        of_a = [piece for piece in self.layout.pieces if piece.operand == "A"]
        return of_a[0] if len(of_a) == 1 and "A" in buffers.in_place else None

    def _by_arrival(self, buffers: Buffers, late: Piece | None) -> list[tuple[list[_OnPiece], list[list[_OnPiece]]]]:
        """The operations of `_OfBuffers.by_arrival`."""

        def size(piece: Piece) -> int:
            """What is there already waits for A·(B·x), which follows at once."""
            return 0 if piece.operand in buffers.in_place else self._bytes_of(piece)

        return [
            (
                [(self._of_operand(buffers, arrival, piece), size(piece)) for piece in own if piece is not late],
                [
                    [(self._of_c(buffers, tile, piece), self._bytes_of(piece)) for piece in of_tile]
                    for tile, of_tile in zip(arrival.releases, tiles, strict=True)
                ],
            )
            for arrival, (own, tiles) in zip(self.layout.share.order, self.layout.by_arrival, strict=True)
        ]

    def begin(self) -> None:
        """A product begins."""
        self._pending.clear()
        self._subtracted.clear()
        self._arrived_of_a.clear()
        self._beside.clear()
        self._now.batches.begin()
        self._enqueue(self._clear)

    def before_overwriting(self, arrival: Arrival) -> list[Event]:
        """Subtract A·(B·x) wherever it still needs the rows of A that this arrival overwrites. Returns what must be complete
        before they are overwritten."""
        if arrival.operand == "B":
            return []
        self._subtract([rows for rows, pending in self._pending.items() if pending.buffer_rows.meets(arrival.buffer_span)])
        # Rows of several panels are subtracted together, and some of these may have been subtracted long ago.
        return [event for rows, event in self._subtracted if rows.meets(arrival.buffer_span)][-1:]

    def arrived(self, number: int, after: Sequence[Event]) -> list[Event]:
        """Check arrival `number` of the rank's order, which is on the device after these events. Returns what must be complete
        before it is overwritten."""
        events = [event for each in self._now.by_arrival[number][0] for event in self._enqueue(*each, after)]
        if self.layout.share.holds_all:
            if number == self._all_of_b:
                self._enqueue(self._total)
            self._subtract_early(number)
        return events[-1:]

    def _subtract_early(self, number: int) -> None:
        """Where nothing is overwritten: subtract A·(B·x) when all of B is there, for all rows of A that have arrived, and later
        for those that arrive then."""
        arrival = self.layout.share.order[number]
        if arrival.operand == "A":
            self._arrived_of_a.append(arrival)
        if number >= self._all_of_b and (
            sum(len(each.span) for each in self._arrived_of_a) >= _ROWS_AT_ONCE or number == self._last
        ):
            for each in self._arrived_of_a:
                self._pending[each.span] = _Pending(each.buffer_span, [Span(0, self.layout.groups)])
            self._now.batches.flush()
            self._subtract(list(self._pending))
            self._beside += self._now.batches.flush_beside()  # it takes longer than the others
            self._arrived_of_a.clear()

    def computed(self, number: int, index: int, tile: Tile, after: Sequence[Event]) -> list[Event]:
        """Check the tile `index` of those that arrival `number` releases, which is complete after these events. Returns what must
        be complete before it is overwritten."""
        events = [event for each in self._now.by_arrival[number][1][index] for event in self._enqueue(*each, after)]
        if self.layout.share.holds_all:
            return []
        pending = self._pending.setdefault(tile.rows, _Pending(tile.buffer_rows))
        pending.groups += [piece.groups for piece in self.layout.by_arrival[number][1][index]]
        whole = [rows for rows, each in self._pending.items() if sum(map(len, each.groups)) == self.layout.groups]
        if sum(map(len, whole)) >= _ROWS_AT_ONCE:
            events += self._subtract(whole)
        return events[-1:]

    def finish(self) -> None:
        """Compare the sums, when `arrived` and `computed` have been called for all arrivals and tiles."""
        self._subtract(list(self._pending))
        if not self.layout.share.holds_all:
            self._enqueue(self._total)
        self._now.batches.flush()
        self._enqueue(self._compare, after=self._beside)
        self._enqueue(self._total_pieces)
        self._enqueue(self.sums.tell)
        self._now.batches.flush()

    def _enqueue(self, operation: Operation, size: int = 0, after: Sequence[Event] = ()) -> list[Event]:
        """Enqueue an operation that reads so many bytes. Returns what must be complete before these are overwritten: where
        nothing is, operations are enqueued in batches, whose events nobody needs."""
        if not self.layout.share.holds_all:
            return [operation(after)]
        self._now.batches.add(operation, after, size)
        return []

    def _subtract(self, rows_of_c: Sequence[Span]) -> list[Event]:
        """Subtract A·(B·x) from the sums of these rows of C, for neighbouring rows and groups together. Returns the last
        event."""
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
        self._subtracted += [(key[1], event) for key in keys for event in self._enqueue(self._subtraction(*key))]
        return [event for _, event in self._subtracted[-1:]]

    def _subtraction(self, rows: Span, buffer_rows: Span, groups: Span) -> Operation:
        key = (rows, buffer_rows, groups)
        prepared, buffers = self._now.subtractions, self._buffers()
        if key not in prepared:
            assert buffers is not None, "their product is under way"
            sums, late = self.sums, self._now.measured_late
            products, into = self._m["B·x"][:, groups.slice], sums.subtracted[rows.slice, groups.slice]
            measured = slice(0) if late is None else slice(late.offset, late.offset + len(late.rows))
            squares = sums.row_squares[slice(0) if late is None else rows.slice]
            a = buffers.rows_of_a(buffer_rows)
            prepared[key] = self._operations.subtract_product(a, products, into, squares, sums.largest[measured])
        return prepared[key]

    def _bytes_of(self, piece: Piece) -> int:
        item = self._problem.item_size if piece.operand == "C" else self._problem.operand_item_size
        return len(piece.rows) * len(piece.columns) * item

    def _of_operand(self, buffers: Buffers, arrival: Arrival, piece: Piece) -> Operation:
        matrix, m, rows = buffers.destination(arrival), self._m, piece.rows.slice
        if piece.operand == "A":
            # Rows that arrive again are added to the squares again. All come as often, so this only allows for larger errors.
            return self._row_sums(piece, matrix, "weights of A", 0, m["unused"][rows], self.sums.row_squares[rows])
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
            matrix, x, m[weights][:, columns], group, sums, squares, self.sums.largest[rows], self.sums.of_rows[rows]
        )
