# SPDX-License-Identifier: MIT
"""A product on a grid of nodes in detail: which rectangles of A, B and C the ranks send each other, and in which order.

First A travels, then B in column panels, each of which is multiplied while the next ones are on their way. Each panel of C goes
to the ranks that keep it as soon as it is computed. All nodes send and receive something of every panel, so that no link waits
for another. The ranks of a node divide its rows of A among them, and share the part of B that the node receives.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

from hybrid.core.problem import Problem
from hybrid.core.record import record
from hybrid.core.spans import Span, Topology
from hybrid.plan.grid import Grid, Placement
from hybrid.plan.rectangles import Part, Rectangle

Place = tuple[slice, slice]

_PANEL_BYTES = 8 << 20  # the least bytes of B that a node receives at a time: enough to keep a network busy
_MOST_PANELS, _LEAST_COLUMNS = 16, 64


@record
class GridLayout:
    """The layout for all ranks. Rectangles count rows and columns in the whole matrices."""

    problem: Problem
    topology: Topology
    grid: Grid
    placement: Placement
    message_bytes: int  # the most that a rank receives at a time

    @cached_property
    def pieces(self) -> dict[str, int]:
        """The number of pieces in which each of A, B and C travels: the same on all ranks."""
        p, ranks = self.problem, range(self.topology.size)
        of_a, of_b, of_c = (
            max(p.bytes(*of(rank).shape) for rank in ranks) for of in (self.rows_of_a, self._received_of_b, self.part_of_c)
        )
        width = -(-p.m // self.grid.columns)
        panels = min(of_b // _PANEL_BYTES, width // _LEAST_COLUMNS, _MOST_PANELS)
        panels = min(max(1, panels, self._messages(of_b), self._messages(of_c)), max(1, width))
        pieces_of_a = 0 if self.rows_stay else min(self._messages(of_a), max(1, p.l // self.grid.layers))
        return {"A": pieces_of_a, "B": panels, "C": 0 if self.computes_in_place else panels}

    @cached_property
    def rows_stay(self) -> bool:
        """Whether every rank multiplies the rows of A that it has."""
        return self.grid.is_rows and self.placement.has_rows(self.problem)

    def rows_of_a(self, rank: int) -> Rectangle:
        """The part of A that a rank multiplies."""
        if self.rows_stay:
            (rows,), (columns,) = self.placement.a[rank].rows, self.placement.a[rank].columns
            return Rectangle(rows, columns)
        whole, members = self.grid.of_a(self._node(rank), self.problem), self._members(rank)
        return Rectangle(whole.rows.part(len(members), members.index(rank)), whole.columns)

    def part_of_c(self, rank: int) -> Rectangle:
        """The part of C that a rank computes; where there are several layers, the terms that its layer has of the sums."""
        return Rectangle(self.rows_of_a(rank).rows, self._received_of_b(rank).columns)

    def panel(self, rank: int, number: int) -> Span:
        """The columns of B that the rank's node multiplies as panel `number`."""
        return self._received_of_b(rank).columns.part(self.pieces["B"], number)

    def sends(self, operand: str, number: int, source: int, to: int) -> list[tuple[Rectangle, Place]]:
        """The rectangles of piece `number` that rank `source` sends to another, or has for itself.

        With each comes where it lies: of A and B in the array that the source keeps, of C in the one that the receiver keeps.
        """
        if operand == "C":
            computed = Rectangle(self.part_of_c(source).rows, self.panel(source, number))
            return [*self.placement.c[to].common(computed)]
        kept = self.placement.a[source] if operand == "A" else self.placement.b[source]
        return [*kept.common(self._receives(operand, number, to))]

    def layer_of(self, rank: int) -> int:
        """The layer to which a rank's node belongs."""
        return self.grid.place(self._node(rank))[2]

    @cached_property
    def computes_in_place(self) -> bool:
        """Whether every rank computes exactly the part of C that it keeps."""
        ranks = range(self.topology.size)
        return self.grid.layers == 1 and all(Part.of(self.part_of_c(rank)) == self.placement.c[rank] for rank in ranks)

    def bytes_shared_on_node(self, node: int) -> int:
        """The bytes of the part of B that the node needs, which its ranks share."""
        return self.problem.bytes(*self.grid.of_b(node, self.problem).shape)

    def bytes_on_rank(self, rank: int) -> int:
        """The bytes of the part of A that a rank receives, of the part of C that it computes, and of the terms that it receives
        to add them up."""
        p = self.problem
        of_a = 0 if self.rows_stay else p.bytes(*self.rows_of_a(rank).shape)
        of_c = 0 if self.computes_in_place else p.bytes(*self.part_of_c(rank).shape)
        added = p.bytes(*self.placement.c[rank].shape) * self.grid.layers if self.grid.layers > 1 else 0
        return of_a + of_c + added

    def _receives(self, operand: str, number: int, rank: int) -> Rectangle:
        """The part of piece `number` of A or B that a rank receives; of B it is a part of what the rank's node needs."""
        if operand == "A":
            whole = self.rows_of_a(rank)
            return Rectangle(whole.rows, whole.columns.part(self.pieces["A"], number))
        return Rectangle(self._received_of_b(rank).rows, self.panel(rank, number))

    def _received_of_b(self, rank: int) -> Rectangle:
        """The part of B that a rank receives for its node."""
        whole, members = self.grid.of_b(self._node(rank), self.problem), self._members(rank)
        return Rectangle(whole.rows.part(len(members), members.index(rank)), whole.columns)

    def _messages(self, size: int) -> int:
        """The fewest messages in which so many bytes can travel."""
        return max(1, -(-size // max(1, self.message_bytes)))

    def _node(self, rank: int) -> int:
        return self.topology.node_of(rank)

    def _members(self, rank: int) -> tuple[int, ...]:
        return self.topology.nodes[self._node(rank)]


@lru_cache(maxsize=16)
def grid_layout(problem: Problem, topology: Topology, grid: Grid, placement: Placement, message_bytes: int) -> GridLayout:
    """The layout, cached: what it has worked out serves the next product like this one, too."""
    return GridLayout(problem, topology, grid, placement, message_bytes)
