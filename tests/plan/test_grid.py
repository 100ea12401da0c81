# SPDX-License-Identifier: MIT
"""Grids of nodes: every element is sent where it is needed, once, and the bytes are those that the choice rests on."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.errors import UsageError
from hybrid.plan.grid import Grid, Placement, candidates, choose, costs, parse, received
from hybrid.plan.grid_layout import GridLayout

PLENTY = 1 << 60


def spans(cuts: list[int], total: int) -> tuple[Span, ...]:
    return tuple(Span(*bounds) for bounds in pairwise([0, *sorted(min(cut, total) for cut in cuts), total]))


@st.composite
def layouts(draw):
    nodes, ranks_per_node = draw(st.sampled_from([1, 2, 3, 4, 6, 8])), draw(st.integers(1, 2))
    ranks, size = nodes * ranks_per_node, st.integers(0, 40)
    problem = Problem(draw(size), draw(size), draw(size))
    cuts = st.lists(st.integers(0, 40), min_size=ranks - 1, max_size=ranks - 1)
    of_a, of_b = spans(draw(cuts), problem.n), spans(draw(cuts), problem.l)
    of_c = draw(st.sampled_from([of_a, tuple(Span(0, problem.n if rank == 0 else 0) for rank in range(ranks))]))
    topology = Topology.of_equal_nodes(ranks, ranks_per_node)
    grid = draw(st.sampled_from([*candidates(nodes)]))
    return GridLayout(problem, topology, grid, Placement(of_a, of_b, of_c), draw(st.sampled_from([64, 1000, 1 << 28])))


def count(into: np.ndarray, part) -> None:
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
        kept = layout.kept("C", to).rows.slice
        np.testing.assert_array_equal(terms[:, kept], 1)
        assert terms.sum() == terms[:, kept].size


@examples(150)
@given(layouts())
def test_nodes_receive_just_as_much_as_the_choice_assumes(layout):
    topology = layout.topology
    for node, members in enumerate(topology.nodes):
        from_others = sum(
            layout.sends(operand, number, source, rank).elements
            for rank in members
            for source in range(topology.size)
            if topology.node_of(source) != node
            for operand, pieces in layout.pieces.items()
            for number in range(pieces)
        )
        assert from_others == received(layout.grid, node, layout.problem, topology, layout.placement)


def even(problem: Problem, nodes: int) -> tuple[Problem, Topology, Placement]:
    """One rank a node, with equal blocks of rows."""
    topology = Topology.of_equal_nodes(nodes, 1)
    of_a, of_b = (tuple(topology.rows_of_rank(rank, rows) for rank in range(nodes)) for rows in (problem.n, problem.l))
    return problem, topology, Placement(of_a, of_b, of_a)


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


def test_spans_are_divided_into_parts_without_gaps():
    parts = [Span(3, 20).part(5, number) for number in range(5)]
    assert [part.hi for part in parts] == [*accumulate(map(len, parts), initial=3)][1:]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
