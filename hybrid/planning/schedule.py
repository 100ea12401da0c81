# SPDX-License-Identifier: MIT
"""One rank's schedule: the layout of its panels in device memory, the order of their H2D copies ("arrivals"), the tiles of C that
each arrival releases, and the pieces that the device sums for the check.

Row panels of A and column panels of B arrive alternately; each is multiplied by all resident panels of the other operand. If a
device cannot hold both operands, one is stationary: as many of its panels as fit are loaded, and the other operand is streamed
past. For the next stationary panels the stream runs backwards, so that panels still on the device are reused. An operand's panels
are adjacent in a buffer that serves as a ring; a tile covers as many adjacent panels as are resident, or as may be overwritten
together.

A device that holds all of A and B may receive B in k-slabs, ranges of its rows. Whole rows cross a link faster than parts of
rows, and a slab can be multiplied at once. But slabs accumulate into C, so its rows return only after the last slab. Therefore
only the first row panels ("interleaved") alternate with the slabs, and their tiles accumulate. The other row panels follow when
all of B is loaded, and each completes its rows of C at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, product

from hybrid.core.problem import Problem, Span, block, consecutive, padded, pieces, record
from hybrid.planning.arithmetic import RemainderLayout, aligned, remainder_layout

KERNEL_TILE = 128  # rows and columns of a thread-block tile: a GPU's panels are multiples of it if possible
ALIGNED = 16  # rows of B: slabs begin at multiples, so that kernels load A's columns at full width


@record
class Tiling:
    """The sizes of panels (an operand's last one may be smaller), and the number that a device holds: the same on all ranks,
    though ranks may have fewer or more panels."""

    panel_rows: int
    panel_columns: int
    row_panels: int
    column_panels: int
    separate_panels: bool = False  # each column panel has its own buffer, with contiguous rows; all are resident
    stationary: str = "A"  # or "B": the stationary operand, if not all fits on the device
    slab_rows: int = 0  # rows of a k-slab of B; 0: B comes in column panels
    interleaved: int = 0  # number of row panels that alternate with the k-slabs
    rows_first: bool = False  # all row panels come before the second column panel, so that panels of C complete one by one
    moduli: int = 0  # planes of remainders beside the buffers; 0: products are native

    def column_panels_in(self, columns: int) -> int:
        return -(-columns // self.panel_columns)

    def loads(self, rows: int, columns: int) -> int:
        """The number of H2D copies of panels."""
        a, b = (-(-rows // self.panel_rows), self.row_panels), (self.column_panels_in(columns), self.column_panels)
        (stationary, stationary_resident), (streamed, streamed_resident) = (a, b) if self.stationary == "A" else (b, a)
        reversals = max(0, -(-stationary // stationary_resident) - 1)
        return stationary + streamed + reversals * max(0, streamed - streamed_resident)


@record
class Region:
    """Consecutive slots of equal size in a block of memory, each for one matrix."""

    offset: int  # in bytes
    slot_bytes: int

    def offset_of(self, slot: int) -> int:
        return self.offset + slot * self.slot_bytes


@record
class Layout:
    """The layout of a rank's buffers in one block of memory: A (rows × l), then B (l × width), then C (rows × width).

    With separate panels each column panel has a slot in B, and a slot in C for its product.
    """

    rows: int
    slots: int
    width: int
    b: Region
    c: Region
    bytes: int
    remainders: RemainderLayout | None = None  # behind the buffers


def layout_of(problem: Problem, rows: int, tiling: Tiling, device: str) -> Layout:
    """The layout for a row block of `rows` rows; empty for 0 rows."""
    if not rows:
        return Layout(0, 0, 0, Region(0, 0), Region(0, 0), 0)
    height = min(rows, tiling.panel_rows * tiling.row_panels)
    slots, side_by_side = (tiling.column_panels_in(problem.m), 1) if tiling.separate_panels else (1, tiling.column_panels)
    width = min(problem.m, tiling.panel_columns * side_by_side)

    def size(height: int, columns: int, item: int) -> int:
        return aligned(height * item * (columns if device == "cpu" else padded(columns, item)))

    of_operand = problem.operand_item_size
    b = Region(size(height, problem.l, of_operand), size(problem.l, width, of_operand))
    c = Region(b.offset_of(slots), size(height, width, problem.item_size))
    end, remainders = c.offset_of(slots), None
    if tiling.moduli:
        remainders = remainder_layout(end, problem, height, width, slots, tiling.moduli)
        end = remainders.end
    return Layout(height, slots, width, b, c, end, remainders)


@record
class Tile:
    """A part of C that one kernel launch computes."""

    rows: Span  # within the rank's row block
    columns: Span
    buffer_rows: Span  # the same rows within the device's buffer of A
    buffer_columns: Span  # the same columns within its buffer of B
    slot: int = 0  # the column panel's slot, with separate panels
    inner: Span | None = None  # the columns of A and rows of B to multiply; None: all
    adds: bool = False  # accumulate into C
    completes: bool = True  # no later tile accumulates here
    mirrors: bool = False  # of a symmetric C: not multiplied, but the transpose of other tiles

    @property
    def transposed(self) -> Tile:
        """The mirrored part of C, if one rank has all rows of C."""
        return Tile(self.columns, self.rows, self.buffer_columns, self.buffer_rows)


@record
class Arrival:
    """A row panel of A, or a column panel or k-slab of B, copied to the device, and the tiles of C it releases."""

    operand: str  # "A" or "B"
    index: int  # the number of the panel or slab
    span: Span  # rows within the rank's row block, or columns
    buffer_span: Span  # the same within the device's buffer of the operand
    slot: int  # the column panel's slot, with separate panels
    releases: tuple[Tile, ...]
    slab: tuple[Span, ...] = ()  # rows of B that each rank of the node copies over its link; (): all rows, over one link


def arrivals(row_panels: Sequence[Span], column_panels: Sequence[Span], tiling: Tiling) -> Iterator[Arrival]:
    """The arrivals: every stationary panel once, every streamed one as often as needed; none if C is empty.

    An arriving panel is multiplied by all resident panels of the other operand that it has not met. A panel is overwritten after
    it has met all. Panels have equal size, the last may be smaller; any sizes if all are resident.
    """
    if not (row_panels and column_panels):
        return
    a = _Ring(row_panels, tiling.row_panels)
    b = _Ring(column_panels, tiling.column_panels, separate=tiling.separate_panels)
    stationary, streamed = (a, b) if tiling.stationary == "A" else (b, a)
    if streamed.capacity < len(streamed.panels):
        # A tile keeps all panels that it covers from being overwritten: smaller tiles release panels one by one.
        streamed.panels_per_tile = stationary.capacity
    for first in range(0, len(stationary.panels), stationary.capacity):
        stationary.resident = range(first, first)
        stationary.to_come = range(first, min(first + stationary.capacity, len(stationary.panels)))
        streamed.reverse()
        while stationary.to_come or streamed.to_come:
            if not stationary.to_come:
                operand = streamed
            elif len(streamed.resident) == min(streamed.capacity, len(streamed.panels)) or not streamed.to_come:
                operand = stationary
            elif tiling.rows_first and a.resident:
                operand = a if b.resident else b
            else:
                # Load the operand that is less complete. The last arrival is a row panel: its tiles are small, so little is
                # left to compute and copy back.
                operand = a if not a.resident or a.loaded_part < b.loaded_part else b
            number, span, place, slot = operand.load_next()
            if operand is a:
                tiles = tuple(Tile(span, columns, place, there, slot) for columns, there, slot in b.runs())
                yield Arrival("A", number, span, place, 0, tiles)
            else:
                tiles = tuple(Tile(rows, span, there, place, slot) for rows, there, _ in a.runs())
                yield Arrival("B", number, span, place, slot, tiles)


class _Ring:
    """The panels of one operand, and the resident ones in its buffer, a ring for `capacity` panels."""

    def __init__(self, panels: Sequence[Span], capacity: int, *, separate: bool = False) -> None:
        self.panels, self.capacity, self._separate = panels, capacity, separate
        self.resident = range(0)  # panels on the device in order of arrival: the first is overwritten first
        self.to_come = range(len(panels))
        self.panels_per_tile = 1 if separate else capacity  # the most panels that a tile covers
        self._lines_that_fit = sum(map(len, panels[:capacity]))

    @property
    def loaded_part(self) -> float:
        """The lines of the resident panels, as a fraction of those that fit."""
        if not self.resident:
            return 0.0
        first, last = sorted((self.resident[0], self.resident[-1]))
        return (self.panels[last].hi - self.panels[first].lo) / self._lines_that_fit

    def reverse(self) -> None:
        """Reverse the stream: the last panel for the previous stationary ones is the first for the next ones."""
        if self.resident:
            step = -self.resident.step
            self.resident = self.resident[::-1]
            self.to_come = range(self.resident[-1] + step, len(self.panels) if step > 0 else -1, step)

    def load_next(self) -> tuple[int, Span, Span, int]:
        """Place the next panel in the buffer, over the oldest if full. Returns its number, its lines, their place in the buffer,
        and its slot."""
        panel, step = self.to_come[0], self.to_come.step
        self.to_come = self.to_come[1:]
        first = self.resident[0] if self.resident else panel
        self.resident = range(first, panel + step, step)[-self.capacity :]
        return panel, *self._run(panel, panel)

    def runs(self) -> Iterator[tuple[Span, Span, int]]:
        """The resident panels in runs of up to `panels_per_tile` adjacent panels, split at the ring's end: each run's lines,
        their place in the buffer, and the slot."""
        rest = self.resident
        while rest:
            place = rest[0] % self.capacity
            count = min(self.panels_per_tile, self.capacity - place if rest.step > 0 else place + 1)
            run, rest = rest[:count], rest[count:]
            yield self._run(*sorted((run[0], run[-1])))

    def _run(self, first: int, last: int) -> tuple[Span, Span, int]:
        span = Span(self.panels[first].lo, self.panels[last].hi)
        if self._separate:
            return span, span.within(span), first
        times_around = first // self.capacity  # the ring's first panels have equal size and define its length
        begin = span.lo - times_around * self.capacity * len(self.panels[0])
        return span, Span(begin, begin + len(span)), 0


Slab = tuple[Span, ...]  # rows of B that each rank of the node copies over its link


def slabs_of(rows: int, links: int, slab_rows: int) -> tuple[Slab, ...]:
    """All rows of B in slabs of about `slab_rows`. The rows of one link, over all slabs, are contiguous."""
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
    """The arrivals of all row panels and slabs, each once.

    `interleaved`: the number of row panels, at least one, that alternate with the slabs. A and B arrive at equal rates in bytes,
    so that the work released grows fastest. `own`: the link whose rows of a slab arrive, and are multiplied, first.
    """
    if not (row_panels and len(columns)):
        return
    all_of_b = Span(slabs[0][0].lo, slabs[-1][-1].hi)
    # Tiles that accumulate in the same elements run one after the other. So each part has two tiles side by side, whose last
    # thread blocks overlap.
    sides = tuple(pieces(columns, -(-len(columns) // (2 * KERNEL_TILE)) * KERNEL_TILE))

    def tiles(rows: Span, parts: Sequence[Span], *, adds: bool = False, completed: Sequence[Span] = ()) -> Iterator[Tile]:
        """The tiles of these rows of A with each part of B, link `own` first. `adds`: the first part accumulates too.
        `completed`: the same rows, divided into the tiles that the last part completes."""
        in_order = [part for part in (*parts[own:], *parts[:own]) if len(part)]
        for number, part in enumerate(in_order, 1):
            if completed and number == len(in_order):
                yield from (Tile(run, columns, run, columns, 0, part, adds or number > 1) for run in completed)
            else:
                yield from (Tile(rows, side, rows, side, 0, part, adds or number > 1, completes=False) for side in sides)

    there, slabs_there, lines_there = 0, 0, 0  # row panels, slabs, and rows of B by link `own`
    while slabs_there < len(slabs) or there < len(row_panels):
        above = Span(row_panels[0].lo, row_panels[there - 1].hi) if there else Span(0, 0)
        in_turn = there < min(interleaved, len(row_panels)) and len(above) * len(all_of_b) <= lines_there * len(columns)
        if slabs_there == len(slabs) or in_turn:
            rows = row_panels[there]
            if slabs_there == len(slabs):
                released = iter([Tile(rows, columns, rows, columns, 0, all_of_b)])
            else:
                arrived = zip(slabs[0], slabs[slabs_there - 1], strict=True) if slabs_there else ()
                released = tiles(rows, [Span(first.lo, last.hi) for first, last in arrived])
            yield Arrival("A", there, rows, rows, 0, tuple(released))
            there += 1
        else:
            slab, is_last = slabs[slabs_there], slabs_there == len(slabs) - 1
            # The last slab's tiles are row panels, so that D2H copies of the first overlap the multiplication of the others.
            completed = row_panels[:there] if is_last else ()
            released = tiles(above, slab, adds=slabs_there > 0, completed=completed)
            yield Arrival("B", slabs_there, columns, columns, 0, tuple(released), slab)
            slabs_there += 1
            lines_there += len(slab[own])


_MIRRORED_COLUMNS = 2048  # smallest width of a mirrored tile; estimated: with rows of 16 KiB copies lose a third of their rate


def computed_beside_diagonal(blocks: Sequence[Span], rank: int) -> list[tuple[Span, Span]]:
    """The rows and columns of a symmetric C that a rank computes beside its diagonal block: its rows with half of the other
    ranks' columns. For an even number of ranks, opposite ranks compute half of their common block each."""
    size, own = len(blocks), blocks[rank]
    found = [(own, blocks[(rank + step) % size]) for step in range(1, (size + 1) // 2)]
    if size % 2 == 0:
        other = blocks[(rank + size // 2) % size]
        found.append((own, other.part(2, 0)) if rank < size // 2 else (own.part(2, 1), other))
    return [(rows, columns) for rows, columns in found if len(rows) and len(columns)]


def triangle_arrivals(row_panels: Sequence[Span], blocks: Sequence[Span], rank: int, copied: str) -> Iterator[Arrival]:
    """The arrivals of a symmetric C: each row panel of A with its transpose, a column panel of B; or if B is `copied`, first all
    of B in whole rows, then the panels of A.

    `blocks`: all ranks' rows of C. Tiles of this rank's rows that other ranks compute are not included (`tiles_of_others`).
    """
    first, done = blocks[rank].lo, 0  # rows whose mirrored part is released
    waiting: list[Span] = []  # panels to mirror later together: narrow columns are copied back slowly

    def tile(rows: Span, columns: Span, *, mirrors: bool = False) -> Tile:
        return Tile(rows, columns, rows, columns, mirrors=mirrors)

    if copied == "B" and row_panels:
        all_of_b = Span(0, blocks[-1].hi)
        yield Arrival("B", 0, all_of_b, all_of_b, 0, ())
    for number, panel in enumerate(row_panels):
        columns = Span(first + panel.lo, first + panel.hi)
        tiles = [tile(panel, Span(first, columns.lo)), tile(panel, columns)]
        tiles += [
            tile(rows.common(columns).within(blocks[rank]), beside) for rows, beside in computed_beside_diagonal(blocks, rank)
        ]
        waiting.append(panel)
        if panel.hi - done >= _MIRRORED_COLUMNS or number == len(row_panels) - 1:
            above = ((Span(0, done), done), *((each, each.hi) for each in waiting))
            tiles += [tile(rows, Span(first + lo, columns.hi), mirrors=True) for rows, lo in above]
            done, waiting = panel.hi, []
        released = tuple(each for each in tiles if len(each.rows) and len(each.columns))
        yield Arrival("A", number, panel, panel, 0, released if copied == "B" else ())
        if copied != "B":
            yield Arrival("B", number, columns, columns, 0, released)


def tiles_of_others(blocks: Sequence[Span], rank: int) -> Iterator[Tile]:
    """The tiles of a rank's rows of a symmetric C that mirror other ranks' tiles."""
    for other in range(len(blocks)):
        for columns, rows in computed_beside_diagonal(blocks, other) if other != rank else ():
            if rows.lies_in(blocks[rank]):
                here = rows.within(blocks[rank])
                yield Tile(here, columns, here, columns, mirrors=True)


@record
class Uses:
    """The arrivals, by number, that one arrival overwrites in the device's buffers, and that its tiles read."""

    overwrites: int  # the arrival whose place it takes; -1: none
    last_use: int  # the last arrival with tiles that read the overwritten one; -1: none
    reads: tuple[tuple[int, ...], ...]  # for each tile


def uses_of(order: Sequence[Arrival]) -> tuple[Uses, ...]:
    found = []
    there: dict[str, dict[tuple[int, int, Slab], int]] = {"A": {}, "B": {}}  # by place in the buffer, the arrival
    last_use = [-1] * len(order)
    for index, arrival in enumerate(order):
        place = arrival.slot, arrival.buffer_span.lo, arrival.slab
        before = there[arrival.operand].get(place, -1)
        there[arrival.operand][place] = index
        reads = []
        for tile in arrival.releases:
            read = [each for each in there["A"].values() if order[each].buffer_span.meets(tile.buffer_rows)]
            for each in there["B"].values():
                panel, inner = order[each], tile.inner
                meets = panel.slot == tile.slot and panel.buffer_span.meets(tile.buffer_columns)
                if meets and (inner is None or not panel.slab or any(part.meets(inner) for part in panel.slab)):
                    read.append(each)
            reads.append(tuple(read))
            for each in read:
                last_use[each] = index
        found.append(Uses(before, last_use[before] if before >= 0 else -1, tuple(reads)))
    return tuple(found)


@record
class RankShare:
    """One rank's part of the product: its rows, the panels and slabs of A and B, and their order."""

    rank: int
    rows: Span  # the rows of A and C in its row block
    b_rows: Span  # the rows of B that it provides
    row_panels: tuple[Span, ...]  # counted within its row block
    column_panels: tuple[Span, ...]
    tiling: Tiling
    layout: Layout  # of its buffers, if any
    slabs: tuple[Slab, ...] = ()  # k-slabs of B, instead of column panels
    blocks: tuple[Span, ...] = ()  # of a symmetric C: all ranks' rows
    copied: str = ""  # of a symmetric C: `Problem.symmetric`

    @property
    def holds_all(self) -> bool:
        """Whether the device holds all panels at once: none is overwritten or copied twice."""
        return len(self.row_panels) <= self.tiling.row_panels and len(self.column_panels) <= self.tiling.column_panels

    @property
    def pieces_of_b(self) -> int:
        """The number of k-slabs or column panels of B."""
        return len(self.slabs or self.column_panels)

    def arrivals(self) -> Iterator[Arrival]:
        if self.blocks:
            return triangle_arrivals(self.row_panels, self.blocks, self.rank, self.copied)
        if self.slabs:
            columns = Span(0, self.column_panels[-1].hi)
            return slab_arrivals(self.row_panels, self.slabs, columns, self.tiling.interleaved, self.rank)
        return arrivals(self.row_panels, self.column_panels, self.tiling)

    def tiles(self) -> Iterator[Tile]:
        return (tile for arrival in self.arrivals() for tile in arrival.releases)

    @cached_property
    def order(self) -> tuple[Arrival, ...]:
        """All arrivals, cached."""
        return tuple(self.arrivals())

    @cached_property
    def uses(self) -> tuple[Uses, ...]:
        return uses_of(self.order)


# --- Freivalds' check and the copies' checksums on a rank's device: pieces to sum and compare, and their memory

# Columns of C per compared sum: smaller groups detect smaller errors, larger ones take less time and memory.
GROUP_COLUMNS, GROUP_COLUMNS_OUT_OF_CORE = 64, 512
NUMBERS_A_ROW = 5  # results of the kernel `compare_sums` (kernels/check.cu) for each row of C
# The kernel also makes NUMBERS_TOGETHER sums of each ROWS_TOGETHER rows, at least a thread-block tile's.
ROWS_TOGETHER, NUMBERS_TOGETHER = 128, 4
NUMBERS_A_PIECE = 5  # for each piece, the kernel `total_pieces` reads three numbers and writes two
_LINKS = 64  # most links that divide B
_MATRICES, _ALLOCATION = 14, 512  # the check's allocations, and the granularity of their bytes
_MOST_OF_MEMORY = 8  # the check takes at most this fraction (1/8) of a device's memory; else the host checks


Place = tuple[str, Span, Span]  # operand, rows and columns in the whole matrix


@record
class Piece:
    """Rows and columns of A, B or C moved by one H2D or D2H copy. Each row has a checksum; the piece's begin at `offset`."""

    operand: str  # "A", "B" or "C"
    rows: Span  # of A and C within the rank's row block, of B in the whole matrix
    columns: Span
    groups: Span  # its groups of columns; one for A
    number: int
    offset: int
    first: int  # the number of its first row in the whole matrix

    @property
    def place(self) -> Place:
        """Its place in the whole matrix."""
        return self.operand, Span(self.first, self.first + len(self.rows)), self.columns


@record
class CheckLayout:
    """The pieces of one rank, known to all ranks. The rank's checksums form a vector: one for each row of each piece, in the
    order of pieces. `parts_of_b`: the rows of a column panel that each link copies."""

    share: RankShare
    inner: int  # the columns of A
    columns: int  # the columns of B and C
    parts_of_b: tuple[Span, ...]
    group: int = GROUP_COLUMNS

    @cached_property
    def panel_groups(self) -> tuple[Span, ...]:
        """The groups of columns of each column panel; no group crosses panels."""
        return tuple(consecutive(-(-len(panel) // self.group) for panel in self.share.column_panels))

    def columns_of(self, group: int) -> Span:
        panels = zip(self.share.column_panels, self.panel_groups, strict=True)
        panel, groups = next(each for each in panels if each[1].lo <= group < each[1].hi)
        first = panel.lo + (group - groups.lo) * self.group
        return Span(first, min(first + self.group, panel.hi))

    @property
    def groups(self) -> int:
        return self.panel_groups[-1].hi if self.panel_groups else 0

    @cached_property
    def by_arrival(self) -> tuple[tuple[tuple[Piece, ...], tuple[tuple[Piece, ...], ...]], ...]:
        """For each arrival its pieces of A or B, and for each of its tiles the pieces of C that the tile completes."""
        number = offset = 0

        def pieces(operand: str, parts: Iterable[Span], places: Iterable[tuple[Span, Span]]) -> Iterator[Piece]:
            nonlocal number, offset
            for rows, (columns, groups) in product(filter(len, parts), places):
                first = rows.lo + (0 if operand == "B" else self.share.rows.lo)
                yield Piece(operand, rows, columns, groups, number, offset, first)
                number, offset = number + 1, offset + len(rows)

        table = []
        for arrival in self.share.order:
            if arrival.operand == "A":
                own = tuple(pieces("A", [arrival.span], [(Span(0, self.inner), Span(0, 1))]))
            else:
                own = tuple(pieces("B", arrival.slab or self.parts_of_b, self._in_groups(arrival.span)))
            of_tiles = (
                tuple(pieces("C", [tile.rows], self._in_groups(tile.columns))) if tile.completes else ()
                for tile in arrival.releases
            )
            table.append((own, tuple(of_tiles)))
        return tuple(table)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """All pieces, ordered by offset."""
        return tuple(piece for own, tiles in self.by_arrival for piece in (*own, *chain.from_iterable(tiles)))

    def pieces_of(self, one: Arrival | Tile) -> tuple[Piece, ...]:
        """The pieces of an arrival or tile of the share's order. Later arrivals of a panel have the pieces of the first."""
        return self._by_identity[id(one)]

    @cached_property
    def _by_identity(self) -> dict[int, tuple[Piece, ...]]:
        """By the id of an arrival or tile, since hashing their many fields takes longer."""
        found: dict[int, tuple[Piece, ...]] = {}
        first: dict[tuple[str, Span, tuple[Span, ...]], tuple[Piece, ...]] = {}
        for arrival, (own, of_tiles) in zip(self.share.order, self.by_arrival, strict=True):
            found[id(arrival)] = first.setdefault((arrival.operand, arrival.span, arrival.slab), own)
            found.update(zip(map(id, arrival.releases), of_tiles, strict=True))
        return found

    @property
    def checksums(self) -> int:
        """The number of checksums: one for each row of each piece."""
        return self.pieces[-1].offset + len(self.pieces[-1].rows) if self.pieces else 0

    def _in_groups(self, columns: Span) -> list[tuple[Span, Span]]:
        """The column panels in `columns` with their groups; adjacent panels are joined if the first ends with a full group."""
        runs: list[tuple[Span, Span]] = []
        for panel, groups in zip(self.share.column_panels, self.panel_groups, strict=True):
            if not panel.lies_in(columns):
                continue
            if runs and len(runs[-1][0]) % self.group == 0:
                run = runs.pop()
                panel, groups = Span(run[0].lo, panel.hi), Span(run[1].lo, groups.hi)
            runs.append((panel, groups))
        return runs


def group_columns(device_memory: int) -> int:
    """The columns in a group. `device_memory`: the plan's limit in bytes; 0: none."""
    return GROUP_COLUMNS_OUT_OF_CORE if device_memory else GROUP_COLUMNS


def most_bytes_of_check(problem: Problem, rows: int, tiling: Tiling, device_memory: int) -> int:
    """An upper bound for the check's bytes on a device that multiplies `rows` rows."""
    group, panels = group_columns(device_memory), tiling.column_panels_in(problem.m)
    groups = -(-problem.m // group) + panels
    sums = groups * (2 * problem.l + 3 * rows + 1)
    # A stationary operand is copied once, a streamed one once for each part of the stationary one.
    parts = -(-rows // (tiling.panel_rows * tiling.row_panels))
    checksums = problem.l * panels * parts + rows * (1 + panels) * max(1, -(-panels // tiling.column_panels))
    times_a, row_panels = max(1, -(-panels // tiling.column_panels)), -(-rows // tiling.panel_rows)
    of_b = min(problem.l, _LINKS * (-(-problem.l // tiling.slab_rows) if tiling.slab_rows else 1))
    pieces = row_panels * (times_a + panels) + panels * parts * of_b
    of_rows = rows * (NUMBERS_A_ROW + 2) + NUMBERS_TOGETHER * (rows // ROWS_TOGETHER + 1)
    in_all = sums + 2 * checksums + NUMBERS_A_PIECE * pieces + of_rows + 4 * problem.m + problem.l
    return 8 * in_all + _MATRICES * _ALLOCATION


def memory_for_check(problem: Problem, rows: int, device_memory: int) -> int:
    """Bytes of a device reserved for the check; 0 if the host checks instead."""
    groups = -(-problem.m // GROUP_COLUMNS_OUT_OF_CORE) + 1
    least = 8 * 2 * groups * (2 * problem.l + 3 * rows)
    return min(2 * least, device_memory // _MOST_OF_MEMORY) if least <= device_memory // _MOST_OF_MEMORY else 0
