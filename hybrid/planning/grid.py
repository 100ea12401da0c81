# SPDX-License-Identifier: MIT
"""A grid of nodes: the part of a product that each node computes, and the messages between ranks.

With P×1 nodes (row blocks) every node needs all of B, whose broadcast dominates for many nodes. In a grid of r×c nodes each needs
only its grid row's rows of A and its grid column's columns of B (SUMMA). With d layers of grids (2.5D) each layer multiplies a
part of A's columns by the matching rows of B, and the layers' results are summed: this pays off if l is much larger than n and m,
or if memory has room for the partial results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import accumulate

from hybrid.core.problem import Problem, Span, Topology, block, record
from hybrid.errors import UsageError


@record
class Rectangle:
    """Contiguous rows and columns of a matrix; possibly empty."""

    rows: Span
    columns: Span

    @property
    def elements(self) -> int:
        return len(self.rows) * len(self.columns)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)


@record
class Part:
    """Rows and columns of a matrix, not necessarily contiguous, packed one after the other in an array."""

    rows: tuple[Span, ...]
    columns: tuple[Span, ...]

    @classmethod
    def of(cls, rectangle: Rectangle) -> Part:
        return cls((rectangle.rows,), (rectangle.columns,))

    @property
    def T(self) -> Part:
        return Part(self.columns, self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        return sum(map(len, self.rows)), sum(map(len, self.columns))

    @property
    def elements(self) -> int:
        rows, columns = self.shape
        return rows * columns

    def elements_in(self, rectangle: Rectangle) -> int:
        """The number of this part's elements within `rectangle`."""
        down, across = (
            sum(len(span.common(whole)) for span in spans)
            for spans, whole in ((self.rows, rectangle.rows), (self.columns, rectangle.columns))
        )
        return down * across


Place = tuple[slice, slice]  # rows and columns of an array


def moves(have: Part, want: Part, window: Rectangle | None = None) -> list[tuple[Place, Place]]:
    """The rectangles that two parts have in common: each one's place in the array of `have` and in that of `want`. `window`: only
    within this rectangle."""
    down = [*_common(have.rows, want.rows, window.rows if window else None)]
    across = [*_common(have.columns, want.columns, window.columns if window else None)]
    return [((rows, columns), (to_rows, to_columns)) for rows, to_rows in down for columns, to_columns in across]


def _common(have: tuple[Span, ...], want: tuple[Span, ...], window: Span | None) -> Iterator[tuple[slice, slice]]:
    """`moves` in one dimension."""
    for span, before in zip(have, accumulate(map(len, have), initial=0), strict=False):
        for other, before_other in zip(want, accumulate(map(len, want), initial=0), strict=False):
            both = span.common(other) if window is None else span.common(other).common(window)
            if len(both):
                here, there = both.lo - span.lo + before, both.lo - other.lo + before_other
                yield slice(here, here + len(both)), slice(there, there + len(both))


AUTO, ROWS = "auto", "rows"
_LOOKED_AT = 64  # nodes whose costs are computed: all nodes of a grid cost nearly the same
_WORTH_IT = 0.9  # a grid must receive less than this fraction of what row blocks receive, which neither move A nor sum layers


@record
class Grid:
    """`rows`×`columns` nodes in each of `layers` layers, numbered layer by layer and row by row."""

    rows: int
    columns: int
    layers: int = 1

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}" + (f"x{self.layers}" if self.layers > 1 else "")

    @property
    def is_rows(self) -> bool:
        """Whether the grid is row blocks: every node computes whole rows of C, of any number."""
        return self.columns == self.layers == 1

    @property
    def size(self) -> int:
        return self.rows * self.columns * self.layers

    def place(self, node: int) -> tuple[int, int, int]:
        """The row, the column and the layer of a node."""
        layer, of_layer = divmod(node, self.rows * self.columns)
        return *divmod(of_layer, self.columns), layer

    def of_a(self, node: int, problem: Problem) -> Rectangle:
        """The part of A that a node needs."""
        row, _, layer = self.place(node)
        return Rectangle(block(problem.n, self.rows, row), block(problem.l, self.layers, layer))

    def of_b(self, node: int, problem: Problem) -> Rectangle:
        """The part of B that a node needs."""
        _, column, layer = self.place(node)
        return Rectangle(block(problem.l, self.layers, layer), block(problem.m, self.columns, column))

    def of_c(self, node: int, problem: Problem) -> Rectangle:
        """The part of C that a node computes; with several layers, its layer's terms of the sums."""
        return Rectangle(self.of_a(node, problem).rows, self.of_b(node, problem).columns)


@record
class Placement:
    """Each rank's parts of A and B before the product, and of C after it."""

    a: tuple[Part, ...]
    b: tuple[Part, ...]
    c: tuple[Part, ...]

    @classmethod
    @lru_cache(maxsize=16)
    def of_rows(cls, problem: Problem, a: tuple[Span, ...], b: tuple[Span, ...], c: tuple[Span, ...]) -> Placement:
        """The placement with these whole rows of each rank."""
        l, m = Span(0, problem.l), Span(0, problem.m)
        return cls(*(tuple(Part((rows,), (width,)) for rows in of) for of, width in ((a, l), (b, m), (c, m))))

    def has_rows(self, problem: Problem) -> bool:
        """Whether every rank has whole, contiguous rows of A."""
        return all(len(part.rows) == 1 and part.columns == (Span(0, problem.l),) for part in self.a)


def parse(text: str, nodes: int) -> Grid | None:
    """The grid for `rows`, `2x3` or `2x3x2` with this number of nodes; None for `auto`. UsageError for any other text."""
    if text == AUTO:
        return None
    if text == ROWS:
        return Grid(nodes, 1)
    found = re.fullmatch(r"(\d{1,6})x(\d{1,6})(?:x(\d{1,6}))?", text, re.ASCII)
    if found is None or not all(int(number) for number in found.groups("1")):
        raise UsageError(
            f"grid must be {AUTO}, {ROWS}, RxC or RxCxL (rows, columns and layers of nodes), not {text!r}", code="grid"
        )
    rows, columns, layers = map(int, found.groups("1"))
    grid = Grid(rows, columns, layers)
    if grid.size != nodes:
        raise UsageError(f"a grid {grid} has {grid.size} nodes, and this job {nodes}", code="grid")
    return grid


def received(grid: Grid, node: int, problem: Problem, topology: Topology, placement: Placement) -> tuple[int, int, int]:
    """The number of elements of A, B and C that a node receives from others."""
    ranks = topology.nodes[node]
    of_a, of_b, of_c = ([of[rank] for rank in ranks] for of in (placement.a, placement.b, placement.c))
    if grid.is_rows and placement.has_rows(problem):
        own, height = (sum(part.shape[0] for part in of) for of in (of_a, of_c))
        return 0, problem.l * problem.m - sum(part.elements for part in of_b), problem.m * max(0, height - own)
    needed_of_a, needed_of_b, computed = grid.of_a(node, problem), grid.of_b(node, problem), grid.of_c(node, problem)
    return (
        needed_of_a.elements - sum(part.elements_in(needed_of_a) for part in of_a),
        needed_of_b.elements - sum(part.elements_in(needed_of_b) for part in of_b),
        sum(grid.layers * part.elements - part.elements_in(computed) for part in of_c),
    )


def candidates(nodes: int) -> Iterator[Grid]:
    """All grids with this number of nodes."""
    for layers in filter(lambda number: nodes % number == 0, range(1, nodes + 1)):
        of_layer = nodes // layers
        for rows in filter(lambda number: of_layer % number == 0, range(1, of_layer + 1)):
            yield Grid(rows, of_layer // rows, layers)


@record
class Cost:
    """A grid's cost in elements, each the maximum over nodes."""

    grid: Grid
    received: int
    kept: int  # in memory for the grid


def costs(problem: Problem, topology: Topology, placement: Placement) -> list[Cost]:
    """The costs of row blocks, then of all other grids by elements received."""
    count = len(topology.nodes)
    nodes = sorted({count * number // _LOOKED_AT for number in range(_LOOKED_AT)} | {count - 1})
    found = [
        Cost(
            grid,
            max(sum(received(grid, node, problem, topology, placement)) for node in nodes),
            max(sum(of(node, problem).elements for of in (grid.of_a, grid.of_b, grid.of_c)) for node in nodes),
        )
        for grid in candidates(count)
    ]
    return sorted(found, key=lambda cost: (not cost.grid.is_rows, cost.received, cost.kept))


def choose(problem: Problem, topology: Topology, placement: Placement, memory: int) -> Grid:
    """The grid with the lowest communication volume that fits; row blocks if they are within about 11 %. `memory`: the smallest
    node's, in bytes."""
    by_rows, *others = costs(problem, topology, placement)
    best = next((cost for cost in others if problem.bytes(1, cost.kept) <= memory), by_rows)
    return best.grid if best.received < _WORTH_IT * by_rows.received else by_rows.grid


_PANEL_BYTES = 8 << 20  # smallest panel of B for a node: enough to keep a network busy
_MOST_PANELS, _LEAST_COLUMNS = 16, 64


@record
class GridLayout:
    """The rectangles of A, B and C that ranks on a grid of nodes exchange, and their order.

    A moves first, then B in column panels, each multiplied while the next ones are prefetched. Each panel of C goes to its final
    ranks as soon as it is computed. Every node sends and receives parts of every panel, so that all links are busy. The ranks of
    a node divide its rows of A, and share its part of B.
    """

    problem: Problem
    topology: Topology
    grid: Grid
    placement: Placement
    message_bytes: int  # largest message to a rank

    @cached_property
    def pieces(self) -> dict[str, int]:
        """The number of pieces of A, B and C: the same on all ranks."""
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
        """Whether A need not move: every rank multiplies its own rows."""
        return self.grid.is_rows and self.placement.has_rows(self.problem)

    def rows_of_a(self, rank: int) -> Rectangle:
        """The part of A that a rank multiplies."""
        if self.rows_stay:
            (rows,), (columns,) = self.placement.a[rank].rows, self.placement.a[rank].columns
            return Rectangle(rows, columns)
        return self._shared_out(self.grid.of_a(self.topology.node_of(rank), self.problem), rank)

    def part_of_c(self, rank: int) -> Rectangle:
        """The part of C that a rank computes; with several layers, its layer's terms of the sums."""
        return Rectangle(self.rows_of_a(rank).rows, self._received_of_b(rank).columns)

    def panel(self, rank: int, number: int) -> Span:
        """The columns of B that the rank's node multiplies as panel `number`."""
        return self._received_of_b(rank).columns.part(self.pieces["B"], number)

    def panels(self, rank: int) -> tuple[Span, ...]:
        """All panels, relative to the rank's part of C."""
        first = self.part_of_c(rank).columns
        return tuple(self.panel(rank, number).within(first) for number in range(self.pieces["B"]))

    def moves(self, operand: str, number: int, source: int, to: int) -> list[tuple[Place, Place]]:
        """The rectangles of piece `number` that rank `source` sends to `to`, possibly itself: each one's place in the sender's
        array and in the receiver's.

        A and B go from their initial placement to the ranks and nodes that multiply them. C goes from the computing ranks to its
        final placement; with several layers, into terms stacked vertically.
        """
        if operand == "C":
            computed, kept = self.part_of_c(source), self.placement.c[to]
            found = moves(Part.of(computed), kept, Rectangle(computed.rows, self.panel(source, number)))
            above = self.grid.place(self.topology.node_of(source))[2] * kept.shape[0]
            return [(here, (slice(above + rows.start, above + rows.stop), columns)) for here, (rows, columns) in found]
        if operand == "A":
            whole = self.rows_of_a(to)
            window = Rectangle(whole.rows, whole.columns.part(self.pieces["A"], number))
            return moves(self.placement.a[source], Part.of(whole), window)
        window = Rectangle(self._received_of_b(to).rows, self.panel(to, number))
        return moves(self.placement.b[source], Part.of(self.part_of_b(to)), window)

    def part_of_b(self, rank: int) -> Rectangle:
        """The part of B that a rank's node needs."""
        return self.grid.of_b(self.topology.node_of(rank), self.problem)

    @cached_property
    def computes_in_place(self) -> bool:
        """Whether every rank computes exactly the part of C that it keeps."""
        ranks = range(self.topology.size)
        return self.grid.layers == 1 and all(Part.of(self.part_of_c(rank)) == self.placement.c[rank] for rank in ranks)

    def bytes_on_rank(self, rank: int) -> int:
        """Bytes on a rank for A received, C computed, and the terms of the layers' sums."""
        p = self.problem
        of_a = 0 if self.rows_stay else p.bytes(*self.rows_of_a(rank).shape)
        of_c = 0 if self.computes_in_place else p.bytes(*self.part_of_c(rank).shape)
        added = p.bytes(*self.placement.c[rank].shape) * self.grid.layers if self.grid.layers > 1 else 0
        return of_a + of_c + added

    def _received_of_b(self, rank: int) -> Rectangle:
        return self._shared_out(self.part_of_b(rank), rank)

    def _shared_out(self, whole: Rectangle, rank: int) -> Rectangle:
        """A rank's share of the rows that its node needs."""
        members = self.topology.nodes[self.topology.node_of(rank)]
        return Rectangle(whole.rows.part(len(members), members.index(rank)), whole.columns)

    def _messages(self, size: int) -> int:
        """The fewest messages in which `size` bytes can travel."""
        return max(1, -(-size // max(1, self.message_bytes)))
