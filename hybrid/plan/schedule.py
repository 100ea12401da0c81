# SPDX-License-Identifier: MIT
"""The order in which row panels of A and column panels of B reach a device, and the tiles of C that each arrival releases.

Where a device cannot hold all panels of both operands, one operand is stationary: as many of its panels as fit are loaded, and
the other operand is streamed past them. Then the next stationary panels are loaded, and the stream runs backwards, so that the
panels still on the device are multiplied with both groups and loaded only once. Each operand has a buffer in which its panels
lie side by side, used as a ring; a tile covers as many neighbouring panels as are there, or as may be overwritten together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hybrid.core.record import record
from hybrid.core.spans import Span


@record
class Tile:
    """A part of C that can be computed: one kernel launch."""

    rows: Span  # within the rank's row block
    columns: Span
    buffer_rows: Span  # the same rows within the device's buffer of A
    buffer_columns: Span  # the same columns within its buffer of B
    slot: int = 0  # the column panel's slot, with separate panels
    inner: Span | None = None  # columns of A and rows of B that are multiplied; None: all
    adds: bool = False  # the product is added to what is in C
    completes: bool = True  # nothing is added afterwards


@record
class Arrival:
    """A row panel of A, or a column panel or k-slab of B, that comes to the device, and the tiles of C it releases."""

    operand: str  # "A" or "B"
    index: int  # the number of the panel or slab
    span: Span  # rows within the rank's row block, or columns
    buffer_span: Span  # the same within the device's buffer of the operand
    slot: int  # the column panel's slot, with separate panels
    releases: tuple[Tile, ...]
    slab: tuple[Span, ...] = ()  # rows of B: for each rank of the node those that come over its link; (): all, by one link


def arrivals(
    row_panels: Sequence[Span],
    column_panels: Sequence[Span],
    row_panels_resident: int,
    column_panels_resident: int,
    *,
    stationary: str = "A",
    separate_panels: bool = False,
    slabs: Sequence[Span] = (),
    rows_first: bool = False,
) -> Iterator[Arrival]:
    """The arrival of every stationary panel once, and of every streamed one as often as it is needed; none where C is empty.

    A panel that arrives is multiplied with all panels of the other operand that are there and that it has not met. What it
    overwrites has been multiplied with everything. Panels are of one size, the last one smaller; they may be of any size where
    all are resident, as they must be with `separate_panels`. `stationary`: "A" or "B".

    `slabs`: the rows of B in which stationary column panels arrive. The streamed panels that are still there are multiplied with
    each slab while the next one is copied. The last tiles before that are computed slab by slab as well, so that one slab after
    the other can be overwritten.

    `rows_first`: where all panels are resident, all row panels come before the second column panel, so that the column panels of
    C are completed one after the other.
    """
    if row_panels and column_panels:
        a = _Operand("A", row_panels, row_panels_resident)
        b = _Operand("B", column_panels, column_panels_resident, separate_panels=separate_panels)
        yield from _Stream(a, b, stationary, slabs, rows_first).arrivals()


class _Stream:
    """The order of arrivals where one operand is streamed past the other."""

    def __init__(self, a: _Operand, b: _Operand, stationary: str, slabs: Sequence[Span], rows_first: bool) -> None:
        self._a, self._b, self._slabs, self._rows_first = a, b, slabs, rows_first
        self._stationary, self._streamed = (a, b) if stationary == "A" else (b, a)
        if self._streamed.capacity < len(self._streamed.panels):
            # No panel that a tile covers can be overwritten before the tile is computed: smaller tiles free panels one by one.
            self._streamed.panels_per_tile = self._stationary.capacity

    def arrivals(self) -> Iterator[Arrival]:
        stationary, streamed = self._stationary, self._streamed
        for first in range(0, len(stationary.panels), stationary.capacity):
            stationary.resident = range(first, first)
            stationary.to_come = range(first, min(first + stationary.capacity, len(stationary.panels)))
            streamed.reverse()
            while stationary.to_come or streamed.to_come:
                yield from self._arrivals_of(self._next())

    def _next(self) -> _Operand:
        """The operand of which the next panel is loaded."""
        if not self._stationary.to_come:
            return self._streamed
        if self._streamed.is_full or not self._streamed.to_come:
            return self._stationary
        # Whichever is behind, by the part of it that has arrived. A row panel is the last, since its tiles are small: little is
        # still to be computed and copied back then.
        a, b = self._a, self._b
        if self._rows_first and a.resident:
            return a if b.resident else b
        return a if not a.resident or a.loaded_part < b.loaded_part else b

    def _arrivals_of(self, operand: _Operand) -> Iterator[Arrival]:
        run = operand.load_next()
        if operand is self._a:
            inner = self._slabs if self._slabs and self._is_last_of_stationary_b() else (None,)
            columns = self._b.runs(self._b.panels_per_tile)
            releases = tuple(tile for each in columns for tile in _tiles_by_inner(run, each, inner))
            yield Arrival("A", run.first, run.span, run.buffer_span, 0, releases)
        elif operand is self._stationary and self._slabs:
            yield from self._in_slabs(run)
        else:
            releases = tuple(_tile(rows, run) for rows in self._a.runs(self._a.panels_per_tile))
            yield Arrival("B", run.first, run.span, run.buffer_span, run.slot, releases)

    def _is_last_of_stationary_b(self) -> bool:
        """Whether the panels of a stationary B are overwritten next."""
        b = self._b
        return b is self._stationary and not (self._a.to_come or b.to_come) and b.resident[0] + b.capacity < len(b.panels)

    def _in_slabs(self, run: _Run) -> Iterator[Arrival]:
        for number, slab in enumerate(self._slabs):
            is_last = number == len(self._slabs) - 1
            rows_of_tiles = self._a.runs(self._a.panels_per_tile if is_last else self._a.capacity)
            tiles = (_tile(rows, run) for rows in rows_of_tiles)
            releases = tuple(replace(tile, inner=slab, adds=number > 0, completes=is_last) for tile in tiles)
            yield Arrival("B", run.first, run.span, run.buffer_span, run.slot, releases, (slab,))


@record
class _Run:
    """Panels that lie side by side, in the operand and in its buffer."""

    first: int  # panel
    span: Span
    buffer_span: Span
    slot: int


def _tiles_by_inner(rows: _Run, columns: _Run, inner: Sequence[Span | None]) -> Iterator[Tile]:
    """The same tile once for each part of A's columns and B's rows; each adds to those before."""
    for number, part in enumerate(inner):
        yield replace(_tile(rows, columns), inner=part, adds=number > 0, completes=number == len(inner) - 1)


def _tile(rows: _Run, columns: _Run) -> Tile:
    return Tile(rows.span, columns.span, rows.buffer_span, columns.buffer_span, columns.slot)


class _Operand:
    """The panels of one operand, and which of them are on the device."""

    def __init__(self, name: str, panels: Sequence[Span], capacity: int, *, separate_panels: bool = False) -> None:
        self.name, self.panels, self.capacity = name, panels, capacity
        self.resident = range(0)  # the panels on the device in the order of their arrival: the first is overwritten first
        self.to_come = range(len(panels))
        self.panels_per_tile = 1 if separate_panels else capacity  # the most that a tile covers
        self._separate_panels = separate_panels
        self._lines_that_fit = sum(map(len, panels[:capacity]))

    @property
    def is_full(self) -> bool:
        """Whether the buffer has no room for a further panel."""
        return len(self.resident) == min(self.capacity, len(self.panels))

    @property
    def loaded_part(self) -> float:
        """The lines of the panels on the device, as a part of those that fit."""
        return len(self._run(self.resident).span) / self._lines_that_fit if self.resident else 0.0

    def reverse(self) -> None:
        """Turn the stream around: the last panel that was multiplied with the stationary ones is the first for the next ones."""
        if self.resident:
            step = -self.resident.step
            self.resident = self.resident[::-1]
            self.to_come = range(self.resident[-1] + step, len(self.panels) if step > 0 else -1, step)

    def load_next(self) -> _Run:
        """Put the next panel in the buffer, in place of the oldest one where that is full."""
        panel, step = self.to_come[0], self.to_come.step
        self.to_come = self.to_come[1:]
        first = self.resident[0] if self.resident else panel
        self.resident = range(first, panel + step, step)[-self.capacity :]
        return self._run(range(panel, panel + 1))

    def runs(self, most: int) -> Iterator[_Run]:
        """All resident panels, in runs of at most so many: a run ends where the ring buffer does."""
        rest = self.resident
        while rest:
            cycle = rest[0] // self.capacity
            count = next((i for i, panel in enumerate(rest[:most]) if panel // self.capacity != cycle), most)
            yield self._run(rest[:count])
            rest = rest[count:]

    def _run(self, panels: range) -> _Run:
        first, last = sorted((panels[0], panels[-1]))
        span = Span(self.panels[first].lo, self.panels[last].hi)
        if self._separate_panels:
            return _Run(first, span, span.within(span), first)
        if len(self.panels) <= self.capacity:
            return _Run(first, span, span, 0)
        begin = first % self.capacity * len(self.panels[0])
        return _Run(first, span, Span(begin, begin + len(span)), 0)
