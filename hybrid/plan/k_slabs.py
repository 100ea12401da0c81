# SPDX-License-Identifier: MIT
"""B in k-slabs, ranges of its rows, on a device that holds all of A and B: the order in which they arrive, and the tiles that
each arrival releases.

Whole rows cross a link faster than parts of rows, and a slab can be multiplied as soon as it is there. But it only adds to C:
the rows of C are complete, and can be copied back, after the last slab. So the first row panels, the interleaved ones, arrive in
turn with the slabs, and their tiles are added up slab by slab. The other row panels follow when all of B is there, and each
releases its rows of C at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybrid.core.spans import Span, block, pieces
from hybrid.plan.buffer_layout import KERNEL_TILE
from hybrid.plan.schedule import Arrival, Tile

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
