# SPDX-License-Identifier: MIT
"""Grids of nodes: every element is sent where it is needed, once, and the bytes are those that the choice rests on."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import planned
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.errors import UsageError
from hybrid.plan.grid import Grid, Placement, candidates, choose, costs, parse, received
from hybrid.plan.grid_layout import GridLayout
from hybrid.plan.rectangles import Part, Rectangle

PLENTY = 1 << 60


def spans(cuts: list[int], total: int) -> tuple[Span, ...]:
    return tuple(Span(*bounds) for bounds in pairwise([0, *sorted(min(cut, total) for cut in cuts), total]))


@st.composite
def layouts(draw):
    nodes, ranks_per_node = draw(st.sampled_from([1, 2, 3, 4, 6, 8])), draw(st.integers(1, 2))
    ranks, size = nodes * ranks_per_node, st.integers(0, 40)
    problem = Problem(draw(size), draw(size), draw(size))
    cuts = st.lists(st.integers(0, 40), min_size=ranks - 1, max_size=ranks - 1)
    topology = Topology.of_equal_nodes(ranks, ranks_per_node)
    grid = draw(st.sampled_from([*candidates(nodes)]))
    if draw(st.booleans()):
        of_a, of_b = spans(draw(cuts), problem.n), spans(draw(cuts), problem.l)
        of_c = draw(st.sampled_from([of_a, tuple(Span(0, problem.n if rank == 0 else 0) for rank in range(ranks))]))
        placement = Placement.of_rows(problem, of_a, of_b, of_c)
    else:
        down = draw(st.sampled_from([rows for rows in range(1, ranks + 1) if ranks % rows == 0]))
        deals = [dealt(draw(st.integers(1, 9)), down, ranks // down) for _ in range(3)]
        shapes = (problem.n, problem.l), (problem.l, problem.m), (problem.n, problem.m)
        of = [tuple(deal(shape, rank) for rank in range(ranks)) for deal, shape in zip(deals, shapes, strict=True)]
        placement = Placement(*of)
    return GridLayout(problem, topology, grid, placement, draw(st.sampled_from([64, 1000, 1 << 28])))


def dealt(block: int, down: int, across: int):
    """Parts of a matrix whose blocks are dealt to a grid of ranks, as ScaLAPACK deals them."""

    def of_one(length: int, ranks: int, rank: int) -> tuple[Span, ...]:
        return tuple(Span(lo, min(lo + block, length)) for lo in range(rank * block, length, ranks * block))

    def part(shape: tuple[int, int], rank: int) -> Part:
        return Part(of_one(shape[0], down, rank // across), of_one(shape[1], across, rank % across))

    return part


def count(into: np.ndarray, parts) -> None:
    for part, _ in parts:
        into[part.rows.slice, part.columns.slice] += 1


@examples(150)
@given(layouts())
def test_every_rank_gets_what_it_multiplies_once(layout):
    p, ranks = layout.problem, range(layout.topology.size)
    for node, members in enumerate(layout.topology.nodes):
        of_b = np.zeros((p.l, p.m), int)
        for rank in members:
            of_a = np.zeros((p.n, p.l), int)
            for source in ranks:
                for number in range(layout.pieces["A"]):
                    count(of_a, layout.sends("A", number, source, rank))
                for number in range(layout.pieces["B"]):
                    count(of_b, layout.sends("B", number, source, rank))
            if layout.pieces["A"]:
                np.testing.assert_array_equal(of_a[layout.rows_of_a(rank).rows.slice, layout.rows_of_a(rank).columns.slice], 1)
                assert of_a.sum() == layout.rows_of_a(rank).elements
        needed = layout.grid.of_b(node, p)
        np.testing.assert_array_equal(of_b[needed.rows.slice, needed.columns.slice], 1)
        assert of_b.sum() == needed.elements


@examples(150)
@given(layouts())
def test_every_element_of_c_gets_each_layers_term_once(layout):
    p, ranks = layout.problem, range(layout.topology.size)
    panels = [layout.panel(0, number) for number in range(layout.pieces["B"])]
    assert sum(map(len, panels)) == len(layout.part_of_c(0).columns)
    if layout.computes_in_place:
        assert layout.pieces["C"] == 0
        return
    for to in ranks:
        terms = np.zeros((layout.grid.layers, p.n, p.m), int)
        for source in ranks:
            for number in range(layout.pieces["C"]):
                count(terms[layout.layer_of(source)], layout.sends("C", number, source, to))
        kept = np.zeros((p.n, p.m), bool)
        for rows in layout.placement.c[to].rows:
            for columns in layout.placement.c[to].columns:
                kept[rows.slice, columns.slice] = True
        np.testing.assert_array_equal(terms, np.broadcast_to(kept, terms.shape))


@examples(150)
@given(layouts())
def test_nodes_receive_just_as_much_as_the_choice_assumes(layout):
    topology = layout.topology
    for node, members in enumerate(topology.nodes):
        from_others = sum(
            part.elements
            for rank in members
            for source in range(topology.size)
            if topology.node_of(source) != node
            for operand, pieces in layout.pieces.items()
            for number in range(pieces)
            for part, _ in layout.sends(operand, number, source, rank)
        )
        assert from_others == received(layout.grid, node, layout.problem, topology, layout.placement)


def even(problem: Problem, nodes: int) -> tuple[Problem, Topology, Placement]:
    """One rank a node, with equal blocks of rows."""
    topology = Topology.of_equal_nodes(nodes, 1)
    of_a, of_b = (tuple(topology.rows_of_rank(rank, rows) for rank in range(nodes)) for rows in (problem.n, problem.l))
    return problem, topology, Placement.of_rows(problem, of_a, of_b, of_a)


@pytest.mark.parametrize(
    ("sizes", "nodes", "grid"),
    [
        ((4000, 4000, 4000), 16, "4x2x2"),
        ((4000, 4000, 4000), 9, "3x3"),
        ((500, 20000, 500), 4, "1x1x4"),
        ((500, 500, 20000), 4, "1x4"),
        ((20000, 500, 500), 4, "4x1"),
        ((20000, 500, 500), 16, "16x1"),
    ],
)
def test_the_busiest_node_receives_least(sizes, nodes, grid):
    asked = even(Problem(*sizes), nodes)
    assert str(choose(*asked, PLENTY)) == grid
    by_rows, *others = costs(*asked)
    assert by_rows.grid.is_rows
    assert by_rows.received == Problem(*sizes).m * (sizes[1] - sizes[1] // nodes)
    assert [cost.received for cost in others] == sorted(cost.received for cost in others)


def test_a_grid_that_does_not_fit_is_not_chosen():
    asked = even(Problem(4000, 4000, 4000), 16)
    least = min(cost.kept for cost in costs(*asked))
    chosen = choose(*asked, 8 * least)
    assert max(chosen.elements_on(node, asked[0]) for node in range(16)) == least
    assert choose(*asked, 1).is_rows, "that it does not fit either is said by whoever forecasts the memory"


def test_nodes_are_numbered_so_that_each_has_one_place():
    for grid in candidates(12):
        assert len({grid.place(node) for node in range(12)}) == 12


def test_grids_are_read_and_wrong_ones_refused():
    assert parse("auto", 4) is None
    assert parse("rows", 4) == Grid(4, 1)
    assert parse("2x3x2", 12) == Grid(2, 3, 2)
    with pytest.raises(UsageError, match="a grid 2x3 has 6 nodes, and this job 4"):
        parse("2x3", 4)
    for text in ("", "2", "2x", "0x4", "2x2x2x2", "2×2", "-1x4", "x", "2x2 ", "9999999x1"):
        with pytest.raises(UsageError, match="grid must be auto, rows, RxC or RxCxL"):
            parse(text, 4)


def test_parts_of_a_part_lie_where_they_are_said_to():
    part = Part((Span(2, 5), Span(10, 14)), (Span(0, 2), Span(6, 7)))
    whole = np.arange(20 * 9).reshape(20, 9)
    rows, columns = (np.concatenate([np.arange(span.lo, span.hi) for span in spans]) for spans in (part.rows, part.columns))
    own = whole[np.ix_(rows, columns)]
    assert own.shape == part.shape
    asked = Rectangle(Span(4, 12), Span(1, 9))
    found = [*part.common(asked)]
    assert len(found) == 4
    assert part.elements_in(asked) == sum(rectangle.elements for rectangle, _ in found) == 6
    for rectangle, place in found:
        np.testing.assert_array_equal(own[place], whole[rectangle.rows.slice, rectangle.columns.slice])


def test_spans_are_divided_into_parts_without_gaps():
    parts = [Span(3, 20).part(5, number) for number in range(5)]
    assert [part.hi for part in parts] == [*accumulate(map(len, parts), initial=3)][1:]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("grid", "row", "columns", "ranks"),
    [
        ("2x2", 0, Span(0, 1), (0,)),
        ("2x2", 9, Span(4, 6), (2, 3)),
        ("1x2x2", 3, Span(9, 10), (1, 3)),
        ("rows", 9, Span(0, 10), (3,)),
    ],
)
def test_who_computes_some_elements_is_told(grid, row, columns, ranks):
    problem = Problem(10, 10, 10)
    assert planned(problem, Topology.of_equal_nodes(4, 1), grid=parse(grid, 4)).multiplied_by(row, columns) == ranks
