# SPDX-License-Identifier: MIT
"""A grid of nodes: which part of a product each node computes.

Of P nodes with a block of rows each, a grid of P×1, every one needs all of B: the more nodes, the more of the network's time that
takes. In a grid of r×c nodes, each needs only the rows of A of its row of the grid, and the columns of B of its column. With d
layers of such grids each layer multiplies a part of the columns of A by the same rows of B, and the layers' results are added up:
that pays where l is much larger than n and m, or where memory has room for so many partial results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hybrid.core.problem import Problem
from hybrid.core.record import record
from hybrid.core.spans import Span, Topology, block
from hybrid.errors import UsageError
from hybrid.plan.rectangles import Part, Rectangle

AUTO, ROWS = "auto", "rows"
_LOOKED_AT = 64  # nodes of which the costs are computed, where there are more: those of a grid need nearly the same
_WORTH_IT = 0.9  # a grid must receive less than this part of what row blocks do, which neither move A nor add anything up


@record
class Grid:
    """`rows`×`columns` nodes in each of `layers` layers, numbered row by row.

    `layers_inside`: the nodes with the same place in all layers have neighbouring numbers; else the layers follow each other.
    `rows_at`, `columns_at`: the rows of A of each row of the grid, and the columns of B of each of its columns; empty where
    these are equal blocks.
    """

    rows: int
    columns: int
    layers: int = 1
    layers_inside: bool = False
    rows_at: tuple[Span, ...] = ()
    columns_at: tuple[Span, ...] = ()

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}" + (f"x{self.layers}" if self.layers > 1 else "")

    @property
    def is_rows(self) -> bool:
        """Whether every node computes whole rows of C: those of which it has A's rows, however many these are."""
        return self.columns == self.layers == 1

    @property
    def size(self) -> int:
        return self.rows * self.columns * self.layers

    def place(self, node: int) -> tuple[int, int, int]:
        """The row, the column and the layer of a node."""
        if self.layers_inside:
            of_layers, layer = divmod(node, self.layers)
        else:
            layer, of_layers = divmod(node, self.rows * self.columns)
        return *divmod(of_layers, self.columns), layer

    def of_a(self, node: int, problem: Problem) -> Rectangle:
        """The part of A that a node needs."""
        row, _, layer = self.place(node)
        rows = self.rows_at[row] if self.rows_at else block(problem.n, self.rows, row)
        return Rectangle(rows, block(problem.l, self.layers, layer))

    def of_b(self, node: int, problem: Problem) -> Rectangle:
        """The part of B that a node needs."""
        _, column, layer = self.place(node)
        columns = self.columns_at[column] if self.columns_at else block(problem.m, self.columns, column)
        return Rectangle(block(problem.l, self.layers, layer), columns)

    def of_c(self, node: int, problem: Problem) -> Rectangle:
        """The part of C that a node computes; with several layers, the terms of its sums that the node's layer has."""
        return Rectangle(self.of_a(node, problem).rows, self.of_b(node, problem).columns)

    def elements_on(self, node: int, problem: Problem) -> int:
        """The elements of A, B and C that a node keeps for the grid, beside those that it has by their distribution."""
        return sum(each.elements for each in (self.of_a(node, problem), self.of_b(node, problem), self.of_c(node, problem)))


@record
class Placement:
    """The parts of A and B that each rank has before the product, and the part of C that it keeps after it."""

    a: tuple[Part, ...]
    b: tuple[Part, ...]
    c: tuple[Part, ...]

    @classmethod
    def of_rows(cls, problem: Problem, a: Sequence[Span], b: Sequence[Span], c: Sequence[Span]) -> Placement:
        """The placement in which all ranks have whole rows, these."""
        l, m = Span(0, problem.l), Span(0, problem.m)
        return cls(*(tuple(Part((rows,), (width,)) for rows in of) for of, width in ((a, l), (b, m), (c, m))))

    @classmethod
    def of_blocks(cls, problem: Problem, rows: int, columns: int) -> Placement:
        """The placement in the blocks of a grid of rows×columns ranks, numbered row by row."""

        def parts(height: int, width: int) -> tuple[Part, ...]:
            down = [Span(0, height).part(rows, number) for number in range(rows)]
            across = [Span(0, width).part(columns, number) for number in range(columns)]
            return tuple(Part((some_rows,), (some_columns,)) for some_rows in down for some_columns in across)

        p = problem
        return cls(parts(p.n, p.l), parts(p.l, p.m), parts(p.n, p.m))

    def of_node(self, ranks: tuple[int, ...], operand: str) -> tuple[Part, ...]:
        """The parts of `operand` ("a", "b" or "c") that these ranks have."""
        return tuple(getattr(self, operand)[rank] for rank in ranks)

    def has_rows(self, problem: Problem) -> bool:
        """Whether every rank has whole rows of A, which are neighbours."""
        return all(len(part.rows) == 1 and part.columns == (Span(0, problem.l),) for part in self.a)


def parse(text: str, nodes: int) -> Grid | None:
    """The grid that `rows`, `2x3` or `2x3x2` means for so many nodes; None for `auto`. UsageError for any other text."""
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


def received(grid: Grid, node: int, problem: Problem, topology: Topology, placement: Placement) -> int:
    """The elements of A, B and C together that a node receives from others."""
    return sum(received_of_each(grid, node, problem, topology, placement))


def received_of_each(grid: Grid, node: int, problem: Problem, topology: Topology, placement: Placement) -> tuple[int, int, int]:
    """The elements of A, of B and of C that a node receives from others."""
    ranks = topology.nodes[node]
    of_a, of_b, of_c = (placement.of_node(ranks, operand) for operand in "abc")
    if grid.is_rows and placement.has_rows(problem):
        own, height = (sum(part.shape[0] for part in of) for of in (of_a, of_c))
        return 0, problem.l * problem.m - sum(part.elements for part in of_b), problem.m * max(0, height - own)
    needed_of_a, needed_of_b, computed = grid.of_a(node, problem), grid.of_b(node, problem), grid.of_c(node, problem)
    return (
        needed_of_a.elements - sum(part.elements_in(needed_of_a) for part in of_a),
        needed_of_b.elements - sum(part.elements_in(needed_of_b) for part in of_b),
        sum(grid.layers * part.elements - part.elements_in(computed) for part in of_c),
    )


def received_where_it_suits(grid: Grid, problem: Problem) -> float:
    """The elements that a node receives if A, B and C are distributed as suits the grid best: each element on one of the nodes
    that need it."""
    of_a, of_b, of_c = (of(0, problem).elements for of in (grid.of_a, grid.of_b, grid.of_c))
    shared = ((of_a, grid.columns), (of_b, grid.rows), (of_c, grid.layers))
    return sum(elements * (nodes - 1) / nodes for elements, nodes in shared)


def candidates(nodes: int) -> Iterator[Grid]:
    """All grids of so many nodes; those with several layers in both ways of numbering."""
    for layers in _divisors(nodes):
        for rows in _divisors(nodes // layers):
            columns = nodes // layers // rows
            yield Grid(rows, columns, layers)
            if layers > 1 and rows * columns > 1:
                yield Grid(rows, columns, layers, layers_inside=True)


def as_it_lies(topology: Topology, placement: Placement) -> Iterator[Grid]:
    """The grid over which A and B are distributed already, if there is one with neighbouring rows and columns and a rank on each
    node: with it no element of C has to move."""
    ranks = range(topology.size)
    of_a, of_b = placement.a, placement.b
    if (
        len(topology.nodes) < topology.size
        or not all(len(part.rows) == 1 for part in of_a)
        or not all(len(part.columns) == 1 for part in of_b)
    ):
        return
    rows = tuple(sorted({part.rows[0] for part in of_a}))
    columns = tuple(sorted({part.columns[0] for part in of_b}))
    grid = Grid(len(rows), len(columns), rows_at=rows, columns_at=columns)
    if (
        not grid.is_rows
        and grid.size == topology.size
        and all(
            (of_a[rank].rows[0], of_b[rank].columns[0]) == (rows[grid.place(rank)[0]], columns[grid.place(rank)[1]])
            for rank in ranks
        )
    ):
        yield grid


@record
class Cost:
    """What a grid costs, in elements."""

    grid: Grid
    received: int  # elements that the node receives that receives most
    kept: int  # elements that the node keeps that needs most memory for the grid


def costs(problem: Problem, topology: Topology, placement: Placement) -> list[Cost]:
    """The costs of row blocks, and then those of all other grids; those that receive least first."""
    count = len(topology.nodes)
    nodes = sorted({count * number // _LOOKED_AT for number in range(_LOOKED_AT)} | {count - 1})
    found = [
        Cost(
            grid,
            max(received(grid, node, problem, topology, placement) for node in nodes),
            max(grid.elements_on(node, problem) for node in nodes),
        )
        for grid in (*candidates(count), *as_it_lies(topology, placement))
    ]
    return sorted(found, key=lambda cost: (not cost.grid.is_rows, cost.received, cost.kept))


def choose(problem: Problem, topology: Topology, placement: Placement, memory: int) -> Grid:
    """The grid whose busiest node receives least and that fits; row blocks, unless that is clearly less than with them.

    `memory`: the bytes of the node that has the least.
    """
    by_rows, *others = costs(problem, topology, placement)
    best = next((cost for cost in others if problem.bytes(1, cost.kept) <= memory), by_rows)
    return best.grid if best.received < _WORTH_IT * by_rows.received else by_rows.grid


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
