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
from functools import cached_property
from typing import Generic, TypeVar

from hybrid.core.problem import record
from hybrid.core.spans import Span, block, pieces
from hybrid.plan.layout import KERNEL_TILE, Layout, Tiling


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


# -------- residency
# Which panels and slabs lie in a device's buffers as a rank's panels arrive, and what each overwrites.

Known = TypeVar("Known")


@record
class _Location:
    """The place of a panel or slab in the buffer of its operand."""

    lines: Span  # rows of A's buffer, columns of B's
    rows_of_b: Span | None = None  # None: all, as always of A

    def meets(self, other: _Location) -> bool:
        if not self.lines.meets(other.lines):
            return False
        return self.rows_of_b is None or other.rows_of_b is None or self.rows_of_b.meets(other.rows_of_b)


class Residency(Generic[Known]):
    """What the caller knows of each panel or slab in a device's buffers, found by where that lies.

    A look-up takes the longer the more panels are in the buffer. They are few, except where all panels are resident.
    """

    def __init__(self) -> None:
        self._by_buffer: dict[tuple[str, int], list[tuple[_Location, Known]]] = {}

    def under(self, arrival: Arrival) -> list[Known]:
        """What is known of the panels or slabs that lie where this one goes; or of this one, when it has been put there."""
        return [known for location in _locations(arrival) for known in self._at(arrival.operand, arrival.slot, location)]

    def read_by(self, tile: Tile) -> list[Known]:
        """What is known of the panels and slabs from which the tile is computed."""
        of_a = self._at("A", 0, _Location(tile.buffer_rows))
        return of_a + self._at("B", tile.slot, _Location(tile.buffer_columns, tile.inner))

    def put(self, arrival: Arrival, known: Known) -> None:
        """Note what is known of the panel or slab, in place of what was known of those that it overwrites."""
        buffer = self._by_buffer.setdefault((arrival.operand, arrival.slot), [])
        for location in _locations(arrival):
            buffer[:] = [entry for entry in buffer if not entry[0].meets(location)]
            buffer.append((location, known))

    def _at(self, operand: str, slot: int, location: _Location) -> list[Known]:
        return [known for there, known in self._by_buffer.get((operand, slot), []) if there.meets(location)]


def last_uses(arrivals: Sequence[Arrival]) -> list[int]:
    """For each arrival the number of the last arrival before it whose tiles read what it overwrites; -1 where it overwrites
    nothing."""
    uses: list[int] = []
    readers: Residency[list[int]] = Residency()
    for index, arrival in enumerate(arrivals):
        uses.append(max((use for panel in readers.under(arrival) for use in panel), default=-1))
        readers.put(arrival, [])
        for tile in arrival.releases:
            for panel in readers.read_by(tile):
                panel[:] = [index]
    return uses


def _locations(arrival: Arrival) -> Sequence[_Location]:
    return [_Location(arrival.buffer_span, rows) for rows in arrival.slab] or [_Location(arrival.buffer_span)]


# -------- k slabs
# B in k-slabs, ranges of its rows, on a device that holds all of A and B: the order in which they arrive, and the tiles that
# each arrival releases.
#
# Whole rows cross a link faster than parts of rows, and a slab can be multiplied as soon as it is there. But it only adds to
# C: the rows of C are complete, and can be copied back, after the last slab. So the first row panels, the interleaved ones,
# arrive in turn with the slabs, and their tiles are added up slab by slab. The other row panels follow when all of B is
# there, and each releases its rows of C at once.

Slab = tuple[Span, ...]  # rows of B: for each rank of the node those that come over its link

ALIGNED = 16  # rows of B: where a slab begins at a multiple of these, the kernels can copy A's columns at full width


def slabs_of(rows: int, links: int, slab_rows: int) -> tuple[Slab, ...]:
    """All rows of B in slabs of about `slab_rows`. The rows that one link brings, in all slabs together, are neighbours."""
    unit = 1 if slab_rows % ALIGNED else ALIGNED
    in_units = [block(-(-rows // unit), links, link) for link in range(links)]
    of_links = [Span(min(units.lo * unit, rows), min(units.hi * unit, rows)) for units in in_units]
    step = -(-slab_rows // links // unit) * unit or unit
    count = max(-(-len(span) // step) for span in of_links)
    return tuple(
        tuple(Span(min(span.lo + number * step, span.hi), min(span.lo + (number + 1) * step, span.hi)) for span in of_links)
        for number in range(count)
    )


def slab_arrivals(
    row_panels: Sequence[Span], slabs: Sequence[Slab], columns: Span, interleaved: int, own: int
) -> Iterator[Arrival]:
    """The arrival of every row panel and every slab, each once.

    `interleaved`: the row panels that arrive in turn with the slabs, at least one. They come so that as many bytes of A as of B
    are there, with which the part that can be multiplied grows fastest. `own`: the link whose rows of a slab are multiplied
    first, since they arrive first.
    """
    if not (row_panels and len(columns)):
        return
    interleaved = min(interleaved, len(row_panels))
    all_of_b = (Span(min(part.lo for part in slabs[0]), max(part.hi for part in slabs[-1])),)
    row_panels_here = slabs_here = b_loaded = 0
    while slabs_here < len(slabs) or row_panels_here < len(row_panels):
        here = Span(row_panels[0].lo, row_panels[row_panels_here - 1].hi) if row_panels_here else Span(0, 0)
        if slabs_here == len(slabs):
            row_panel = row_panels[row_panels_here]
            yield _row_panel(row_panel, row_panels_here, _tiles(row_panel, all_of_b, columns, completed=[row_panel]))
            row_panels_here += 1
        elif row_panels_here < interleaved and len(here) * len(all_of_b[0]) <= b_loaded * len(columns):
            row_panel = row_panels[row_panels_here]
            arrived = zip(slabs[0], slabs[slabs_here - 1], strict=True) if slabs_here else ()
            parts = _own_first(own, [Span(first.lo, last.hi) for first, last in arrived])
            yield _row_panel(row_panel, row_panels_here, _tiles(row_panel, parts, columns))
            row_panels_here += 1
        else:
            slab, is_last = slabs[slabs_here], slabs_here == len(slabs) - 1
            # The last slab's tiles are row panels, so that the first rows of C can be copied back before the others are complete.
            completed = row_panels[:row_panels_here] if is_last else ()
            releases = _tiles(here, _own_first(own, slab), columns, adds=slabs_here > 0, completed=completed)
            yield Arrival("B", slabs_here, columns, columns, 0, tuple(releases), slab)
            slabs_here += 1
            b_loaded += len(slab[own])


def _row_panel(rows: Span, index: int, releases: Iterator[Tile]) -> Arrival:
    return Arrival("A", index, rows, rows, 0, tuple(releases))


def _own_first(own: int, parts: Sequence[Span]) -> list[Span]:
    """The parts that have rows, that of link `own` first."""
    return [part for part in (*parts[own:], *parts[:own]) if len(part)]


def _tiles(
    rows: Span, parts: Sequence[Span], columns: Span, *, adds: bool = False, completed: Sequence[Span] = ()
) -> Iterator[Tile]:
    """The tiles in which one part of B after the other is multiplied and added to these rows of C.

    `adds`: the first part is added, too. `completed`: the same rows, as the tiles that the last part completes.
    """
    # Tiles that add to the same elements run one after the other. So each part has two tiles, side by side: the last thread
    # blocks of the one run at the same time as those of the other.
    sides = tuple(pieces(columns, -(-len(columns) // (2 * KERNEL_TILE)) * KERNEL_TILE))
    for number, part in enumerate(parts):
        adds = adds or number > 0
        if completed and number == len(parts) - 1:
            yield from (Tile(run, columns, run, columns, 0, part, adds) for run in completed)
        else:
            yield from (Tile(rows, side, rows, side, 0, part, adds, completes=False) for side in sides)


# -------- rank share
# One rank's share of a product: its rows, the panels and slabs in which A and B come, and the order in which these arrive.


@record
class RankShare:
    """One rank's part of the product."""

    rank: int
    node: int
    rows: Span  # the rows of A and C in its row block
    b_rows: Span  # the rows of B that it provides
    row_panels: tuple[Span, ...]  # counted within its row block
    column_panels: tuple[Span, ...]
    tiling: Tiling
    layout: Layout  # of its buffers, where the device has any
    slabs: tuple[Slab, ...] = ()  # the k-slabs in which all of B comes, or each panel of a stationary B

    @property
    def holds_all(self) -> bool:
        """Whether in the end all row panels and column panels are on the device: none is overwritten, and none comes twice."""
        return len(self.row_panels) <= self.tiling.row_panels and len(self.column_panels) <= self.tiling.column_panels

    @property
    def pieces_of_b(self) -> int:
        """The number of pieces in which B comes: column panels, or k-slabs where all of B comes in these."""
        return len(self.slabs if self.in_slabs else self.column_panels)

    @property
    def in_slabs(self) -> bool:
        """Whether all of B comes in k-slabs, and none in column panels."""
        return bool(self.slabs) and self.tiling.interleaved > 0

    def arrivals(self) -> Iterator[Arrival]:
        tiling = self.tiling
        if self.in_slabs:
            return slab_arrivals(self.row_panels, self.slabs, Span(0, self.column_panels[-1].hi), tiling.interleaved, self.rank)
        return arrivals(
            self.row_panels,
            self.column_panels,
            tiling.row_panels,
            tiling.column_panels,
            stationary=tiling.stationary,
            separate_panels=tiling.separate_panels,
            slabs=[Span(slab[0].lo, slab[-1].hi) for slab in self.slabs],
            rows_first=tiling.rows_first,
        )

    def tiles(self) -> Iterator[Tile]:
        return (tile for arrival in self.arrivals() for tile in arrival.releases)

    @cached_property
    def order(self) -> tuple[Arrival, ...]:
        """All arrivals. They are kept: to work them out again would take time in every product."""
        return tuple(self.arrivals())

    @cached_property
    def last_uses(self) -> list[int]:
        """What the function `last_uses` gives for `order`; -1 for all where nothing is overwritten. Kept likewise."""
        return [-1] * len(self.order) if self.holds_all else last_uses(self.order)
