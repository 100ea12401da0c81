# SPDX-License-Identifier: MIT
"""One rank's share of a product: its rows, the panels and slabs in which A and B come, and the order in which these arrive."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.plan.buffer_layout import Layout, Tiling
from hybrid.plan.k_slabs import Slab, slab_arrivals
from hybrid.plan.residency import last_uses
from hybrid.plan.schedule import Arrival, Tile, arrivals


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
