"""The order in which chunks of A and panels of B reach a device, and the strips of C that each arrival releases.

A device holds some chunks and some panels. Where it cannot hold all of both, one operand stays, as many pieces at a time
as it has room for, while the other passes by: there, and back for the next stay, so that what is held at a turn is loaded
once for both. Pieces lie side by side in a buffer of their operand, each in a place of its own, and strips reach over all
that lie so, or over as many as make room together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hybrid.core.spans import Span


@dataclass(frozen=True)
class Tile:
    """A part of C that can be computed."""

    rows: Span  # within the rank's block
    columns: Span
    buffer_rows: Span  # the same rows within the device's buffer of chunks
    buffer_columns: Span  # the same columns within its buffer of panels
    slot: int = 0  # of the panel, where each is a matrix of its own
    inner: Span | None = None  # of A's columns and B's rows, where these are not all
    adds: bool = False  # to what is in C
    completes: bool = True  # nothing is added afterwards


@dataclass(frozen=True)
class Arrival:
    """A chunk of A, or a panel or a slab of B that comes to the device, and the strips of C it releases."""

    operand: str  # "A" or "B"
    index: int  # of the chunk, panel or slab
    span: Span  # rows within the rank's block, or columns
    held: Span  # the same within the device's buffer
    slot: int  # of a panel, where each is a matrix of its own
    releases: tuple[Tile, ...]
    slab: tuple[Span, ...] = ()  # rows of B: for each rank of the node those that come over its link; of a panel all come


def arrivals(
    row_panels: Sequence[Span],
    column_panels: Sequence[Span],
    row_panels_held: int,
    column_panels_held: int,
    *,
    stationary: str = "A",
    apart: bool = False,
    slabs: Sequence[Span] = (),
) -> Iterator[Arrival]:
    """Every piece of the operand that stays once, and of the other as often as it is needed; nothing where C is empty.

    A piece that arrives meets all of the other operand that it can meet for the first time. What it overwrites has met all it
    shall meet. `staying`: "A" or "B", where not all fits. `apart`: every panel is a matrix of its own; then all are held.
    Pieces are of one size, but the last, which is smaller; or of any, where all are held. `slabs`: some of B's rows each, in
    which panels come that stay. So what is held at a turn is multiplied while they come; and the last strip before a turn makes
    room for one slab after the other.
    """
    a, b = _Operand("A", row_panels, row_panels_held), _Operand("B", column_panels, column_panels_held, apart=apart)
    stays, passes = (a, b) if stationary == "A" else (b, a)
    if not (row_panels and column_panels):
        return
    if passes.most < len(passes.pieces):
        passes.together = stays.most  # it makes room one strip after the other
    for first in range(0, len(stays.pieces), stays.most):
        stays.here, stays.coming = range(first, first), range(first, min(first + stays.most, len(stays.pieces)))
        passes.turn()
        while stays.coming or passes.coming:
            if not stays.coming:
                comes = passes
            elif passes.full or not passes.coming:
                comes = stays
            else:
                # Whichever is behind, by the share of it that has arrived. A chunk is the last, since its strips are small:
                # few of them are still to be computed and brought home then.
                comes = a if not a.here or a.share < b.share else b
            run = comes.take_next()
            if comes is a:
                last_before_turn = stays is b and not (a.coming or b.coming) and first + b.most < len(b.pieces)
                inner = slabs if last_before_turn and slabs else (None,)
                releases = tuple(tile for columns in b.runs(b.together) for tile in _tiles_of(run, columns, inner))
                yield Arrival("A", run.first, run.span, run.held, 0, releases)
            elif stays is b and slabs:
                for number, slab in enumerate(slabs):
                    last = number == len(slabs) - 1
                    releases = tuple(
                        replace(_tile_of(rows, run), inner=slab, adds=number > 0, completes=last)
                        for rows in a.runs(a.together if last else a.most)
                    )
                    yield Arrival("B", run.first, run.span, run.held, run.slot, releases, (slab,))
            else:
                releases = tuple(_tile_of(rows, run) for rows in a.runs(a.together))
                yield Arrival("B", run.first, run.span, run.held, run.slot, releases)


@dataclass(frozen=True)
class _Run:
    """Pieces that lie side by side."""

    first: int  # piece
    span: Span
    held: Span  # the same within the buffer
    slot: int


def _tiles_of(rows: _Run, columns: _Run, inner: Sequence[Span | None]) -> Iterator[Tile]:
    """The same strip as one for each part of A's columns and B's rows, which add to each other."""
    for number, part in enumerate(inner):
        yield replace(_tile_of(rows, columns), inner=part, adds=number > 0, completes=number == len(inner) - 1)


def _tile_of(rows: _Run, columns: _Run) -> Tile:
    return Tile(rows.span, columns.span, rows.held, columns.held, columns.slot)


class _Operand:
    """The pieces of one operand, and which of them are on the device."""

    def __init__(self, name: str, pieces: Sequence[Span], most: int, *, apart: bool = False) -> None:
        self.name, self.pieces, self.most = name, pieces, most
        self.here = range(0)  # as they came: the first makes room for the next
        self.coming = range(len(pieces))
        self.together = 1 if apart else most  # may belong to one strip
        self._apart = apart
        self._room = sum(map(len, pieces[:most]))

    @property
    def full(self) -> bool:
        return len(self.here) == min(self.most, len(self.pieces))

    @property
    def share(self) -> float:
        return len(self._run(self.here).span) / self._room if self.here else 0.0

    def turn(self) -> None:
        """Go back: the last that met the stay before is the first to meet the next one, and to make room."""
        if self.here:
            step = -self.here.step
            self.here = self.here[::-1]
            self.coming = range(self.here[-1] + step, len(self.pieces) if step > 0 else -1, step)

    def take_next(self) -> _Run:
        piece, step = self.coming[0], self.coming.step
        self.coming = self.coming[1:]
        self.here = range(self.here[0] if self.here else piece, piece + step, step)[-self.most :]
        return self._run(range(piece, piece + 1))

    def runs(self, together: int) -> Iterator[_Run]:
        """What is here, as far as it lies side by side, at most so many pieces of it."""
        rest = self.here
        while rest:
            lap = rest[0] // self.most
            count = next((i for i, piece in enumerate(rest[:together]) if piece // self.most != lap), together)
            yield self._run(rest[:count])
            rest = rest[count:]

    def _run(self, pieces: range) -> _Run:
        first, last = sorted((pieces[0], pieces[-1]))
        span = Span(self.pieces[first].lo, self.pieces[last].hi)
        if self._apart:
            return _Run(first, span, span.within(span), first)
        if len(self.pieces) <= self.most:
            return _Run(first, span, span, 0)
        place = first % self.most * len(self.pieces[0])
        return _Run(first, span, Span(place, place + len(span)), 0)
