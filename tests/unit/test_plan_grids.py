# SPDX-License-Identifier: MIT
"""Grids of nodes: every element is sent where it is needed, once; the bytes are those on which the choice rests, and near the
proven least. And C from GPU to GPU: every element arrives once, and nobody waits in a circle."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import planned
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.errors import UsageError
from hybrid.plan.bounds import least_received, least_received_with
from hybrid.plan.gather_layout import pieces_received, receivers, rows_of_pieces, rows_written, senders_to, slots_of
from hybrid.plan.grid import Grid, Placement, candidates, choose, costs, parse, received, received_where_it_suits
from hybrid.plan.grid_layout import GridLayout
from hybrid.plan.machine_model import H200
from hybrid.plan.node_forecast import node_forecast
from hybrid.plan.rectangles import Part

PLENTY = 1 << 60


def spans(cuts, total):
    return tuple(Span(*bounds) for bounds in pairwise([0, *sorted(min(cut, total) for cut in cuts), total]))


def dealt(shape, block, down, across, rank):
    """The part of a matrix that ScaLAPACK deals to a rank of a grid."""

    def lines(length, ranks, number):
        return tuple(Span(lo, min(lo + block, length)) for lo in range(number * block, length, ranks * block))

    return Part(lines(shape[0], down, rank // across), lines(shape[1], across, rank % across))


@st.composite
def layouts(draw):
    nodes, ranks_per_node = draw(st.sampled_from([1, 2, 3, 4, 6, 8])), draw(st.integers(1, 2))
    ranks, size = nodes * ranks_per_node, st.integers(0, 40)
    p = Problem(draw(size), draw(size), draw(size))
    if draw(st.booleans()):
        cuts = st.lists(st.integers(0, 40), min_size=ranks - 1, max_size=ranks - 1)
        of_a, of_b = spans(draw(cuts), p.n), spans(draw(cuts), p.l)
        at_root = tuple(Span(0, p.n if rank == 0 else 0) for rank in range(ranks))
        placement = Placement.of_rows(p, of_a, of_b, draw(st.sampled_from([of_a, at_root])))
    else:
        down = draw(st.sampled_from([rows for rows in range(1, ranks + 1) if ranks % rows == 0]))
        shapes, blocks = ((p.n, p.l), (p.l, p.m), (p.n, p.m)), [draw(st.integers(1, 9)) for _ in range(3)]
        placement = Placement(
            *(
                tuple(dealt(shape, block, down, ranks // down, rank) for rank in range(ranks))
                for shape, block in zip(shapes, blocks, strict=True)
            )
        )
    topology, grid = Topology.of_equal_nodes(ranks, ranks_per_node), draw(st.sampled_from([*candidates(nodes)]))
    return GridLayout(p, topology, grid, placement, draw(st.sampled_from([64, 1000, 1 << 28])))


def sent(layout, operand, source, to):
    return [part for number in range(layout.pieces[operand]) for part, _ in layout.sends(operand, number, source, to)]


@examples(150)
@given(layouts())
def test_every_rank_gets_what_it_multiplies_and_every_element_of_c_each_layers_terms_once(layout):
    p, ranks = layout.problem, range(layout.topology.size)
    for node, members in enumerate(layout.topology.nodes):
        of_b = np.zeros((p.l, p.m), int)
        for rank in members:
            of_a, wanted = np.zeros((p.n, p.l), int), layout.rows_of_a(rank)
            for source in ranks:
                for operand, into in (("A", of_a), ("B", of_b)):
                    for part in sent(layout, operand, source, rank):
                        into[part.rows.slice, part.columns.slice] += 1
            if layout.pieces["A"]:
                assert of_a.sum() == of_a[wanted.rows.slice, wanted.columns.slice].sum() == wanted.elements
                assert of_a.max(initial=0) <= 1
        needed = layout.grid.of_b(node, p)
        assert of_b.sum() == of_b[needed.rows.slice, needed.columns.slice].sum() == needed.elements
        assert of_b.max(initial=0) <= 1
    for to in ranks if layout.pieces["C"] else ():
        terms, kept = np.zeros((layout.grid.layers, p.n, p.m), int), np.zeros((p.n, p.m), int)
        for source in ranks:
            for part in sent(layout, "C", source, to):
                terms[layout.layer_of(source), part.rows.slice, part.columns.slice] += 1
        for rows in layout.placement.c[to].rows:
            for columns in layout.placement.c[to].columns:
                kept[rows.slice, columns.slice] = 1
        assert (terms == kept).all()


@examples(150)
@given(layouts())
def test_nodes_receive_just_as_much_as_the_choice_assumes(layout):
    topology = layout.topology
    for node, members in enumerate(topology.nodes):
        others = [rank for rank in range(topology.size) if topology.node_of(rank) != node]
        parts = [
            part for rank in members for source in others for operand in "ABC" for part in sent(layout, operand, source, rank)
        ]
        assert sum(part.elements for part in parts) == received(layout.grid, node, layout.problem, topology, layout.placement)


def even(problem, nodes):
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
def test_the_grid_whose_busiest_node_receives_least_is_taken_where_it_fits(sizes, nodes, grid):
    asked = even(Problem(*sizes), nodes)
    assert str(choose(*asked, PLENTY)) == grid
    assert choose(*asked, 1).is_rows
    by_rows, *others = costs(*asked)
    assert by_rows.received == sizes[2] * (sizes[1] - sizes[1] // nodes)
    assert grid.endswith("x1") or str(others[0].grid) == grid


@pytest.mark.parametrize("grid", [(2, 2), (2, 3)])
def test_blocks_of_scalapack_cost_what_its_own_product_costs(grid):
    """Each rank receives the rest of its rows of A and of its columns of B, and nothing of C."""
    p, ranks = Problem(960, 960, 960), grid[0] * grid[1]
    of_grid = Placement.of_blocks(p, *grid)
    topology = Topology.of_equal_nodes(ranks, 1)
    chosen = choose(p, topology, of_grid, PLENTY)
    assert (chosen.rows, chosen.columns, chosen.layers) == (*grid, 1)
    for rank in range(ranks):
        (rows, inner), (depth, columns) = of_grid.a[rank].shape, of_grid.b[rank].shape
        assert received(chosen, rank, p, topology, of_grid) == rows * (960 - inner) + (960 - depth) * columns


def test_grids_are_read_and_others_refused():
    assert parse("auto", 4) is None
    assert [parse(text, nodes) for text, nodes in (("rows", 4), ("2x3x2", 12))] == [Grid(4, 1), Grid(2, 3, 2)]
    for text in ("2x3", "1x2", "", "2", "2x", "0x4", "2x2x2x2", "2×2", "-1x4", "x", "2x2 ", "9999999x1"):
        with pytest.raises(UsageError):
            parse(text, 4)
    assert all(len({grid.place(node) for node in range(12)}) == 12 for grid in candidates(12))


sides = st.integers(1, 10_000)


def best(problem, nodes):
    return min(received_where_it_suits(grid, problem) for grid in candidates(nodes))


@given(st.builds(Problem, sides, sides, sides), st.integers(1, 64))
def test_no_grid_receives_less_than_is_proven(problem, nodes):
    if nodes <= min(problem.n, problem.l, problem.m):
        assert best(problem, nodes) >= least_received(problem, nodes) * (1 - 1e-9)


@pytest.mark.parametrize("problem", [Problem(100_000, 100_000, 100_000), Problem(1_000_000, 10_000, 10_000)])
def test_from_4_to_1024_nodes_the_best_grid_is_within_14_percent_of_the_proven_least(problem):
    """As docs/algorithm.md states."""
    assert all(best(problem, 2**power) <= 1.14 * least_received(problem, 2**power) for power in range(2, 11))


@pytest.mark.parametrize(
    ("sizes", "nodes", "least"), [((80, 8, 4), 4, 24), ((100, 100, 4), 4, 200), ((64, 64, 64), 8, 1536), ((0, 5, 5), 4, 0)]
)
def test_proven_bounds_by_hand(sizes, nodes, least):
    assert least_received(Problem(*sizes), nodes) == pytest.approx(least)
    assert least_received(Problem(*sizes[::-1]), nodes) == pytest.approx(least)
    assert least_received_with(Problem(10_000, 10_000, 10_000), 64, 100_000) > least_received(Problem(10_000, 10_000, 10_000), 64)


# What many nodes of GPUs are expected to take

FOUR_NODES = Topology.of_equal_nodes(8, 2)


def forecast_of(problem, grid, network, model=H200, speed=1.0, gpus=2, transport="host"):
    parsed = None if grid == "rows" else parse(grid, 4)
    plan = planned(problem, FOUR_NODES, device="cuda", staged=True, grid=parsed).with_transport(transport)
    return node_forecast(plan, model, network, speed, gpus)


def test_where_the_network_is_slow_its_bytes_are_the_time_and_where_it_is_fast_the_kernels():
    problem, of_each = Problem(4000, 4000, 4000), 8 * 4000**2 / 1e3
    rows, grid = (forecast_of(problem, each, 1e3) for each in ("rows", "2x2"))
    assert (rows.a_there, rows.b_there) == (0, pytest.approx(of_each * 3 / 4))
    assert rows.c_there == pytest.approx(of_each * (3 / 4 + 3 / 4), rel=1e-6), "B to the root's node, then C"
    assert grid.a_there == pytest.approx(of_each / 4), "half of A, half of which is there"
    assert grid.b_there == pytest.approx(of_each * (1 / 4 + 3 / 8)), "half of B, a quarter of which is there"
    slow = replace(H200, float64_multiply_adds_per_byte=1.0)
    for each in ("rows", "2x2"):
        expected = forecast_of(problem, each, 1e30, slow)
        assert expected.multiplied == pytest.approx(4000**3 / slow.link_bytes_per_second / 8, rel=0.05)
        assert forecast_of(problem, each, 1e30, slow, speed=2.0).multiplied < 0.6 * expected.multiplied
    fast = replace(H200, float64_multiply_adds_per_byte=1e9)
    by = [forecast_of(problem, "rows", 1e30, fast, transport=each).multiplied for each in ("nccl", "peers", "host")]
    assert by == sorted(by)
    assert len({*by}) == 3


# C from GPU to GPU

TOPOLOGIES = [*(Topology.of_equal_nodes(*each) for each in ((2, 1), (5, 1), (7, 3))), Topology(((0, 2), (1, 3), (4, 5, 6)))]


def joined(problem, topology, **fields):
    return planned(problem, topology, device="cuda", **fields).with_transport("nccl")


def test_receivers_take_turns_and_c_lies_at_the_root_alone():
    plan = joined(Problem(70, 10, 10), Topology.of_equal_nodes(7, 3), root=4)
    assert receivers(plan) == {0: 3, 1: 4, 2: 5, 6: 3}
    assert [len(plan.c_rows_on(node)) for node in range(3)] == [0, 70, 0]
    assert not joined(Problem(70, 10, 10), Topology.of_equal_nodes(4, 4)).c_between_devices, "on one node it need not"
    assert plan.bytes_of_buffers(3) > plan.with_transport("host").bytes_of_buffers(3), "slots count"


@examples(60)
@given(
    problem=st.builds(Problem, st.integers(7, 300), st.integers(1, 40), st.integers(1, 90) | st.integers(1 << 17, 1 << 21)),
    topology=st.sampled_from(TOPOLOGIES),
    root=st.integers(0, 1),
    panels=st.tuples(st.integers(1, 60), st.integers(1, 9)),
)
def test_every_element_arrives_once_in_a_slot_with_room_and_nobody_waits_in_a_circle(problem, topology, root, panels):
    """Each rank submits all broadcasts of B, and then what it sends or receives; none of these ends alone. Wide tiles go in
    several pieces."""
    plan = joined(problem, topology, root=root, panel_rows=panels[0], panel_columns=-(-problem.m // panels[1]))
    elements, queues = Counter(), {}
    received = {rank: pieces_received(plan, rank) for rank in range(topology.size)}
    for rank in range(topology.size):
        pieces, written = received[rank], rows_written(plan, rank)
        assert bool(pieces) == bool(senders_to(plan, rank))
        for each in pieces:
            assert topology.node_of(each.sender) != plan.root_node == topology.node_of(rank)
            assert each.rows.lies_in(plan.shares[each.sender].rows)
            assert each.rows.lies_in(written)
            assert 8 * len(each.rows) * plan.shares[each.sender].layout.width <= slots_of(plan, rank).slot_bytes
            elements[each.sender] += len(each.rows) * len(each.columns)
        queues[rank] = deque([("gather", number) for number in range(len(plan.shares[rank].column_panels))])
        queues[rank] += [("from", each.sender) for each in pieces]
    others = [rank for rank in range(topology.size) if topology.node_of(rank) != plan.root_node]
    assert elements == {rank: len(plan.shares[rank].rows) * problem.m for rank in others}
    for rank in others:
        share, to = plan.shares[rank], receivers(plan)[rank]
        sent = [
            (Span(share.rows.lo + tile.rows.lo + rows.lo, share.rows.lo + tile.rows.lo + rows.hi), tile.columns)
            for tile in share.tiles()
            for rows in rows_of_pieces(plan, share, len(tile.rows))
        ]
        assert sent == [(each.rows, each.columns) for each in received[to] if each.sender == rank]
        queues[rank] += [("to", to)] * len(sent)
    while any(queues.values()):
        first = {rank: queue[0] for rank, queue in queues.items() if queue}
        if len(first) == len(queues) and len({*first.values()}) == 1:
            going = list(queues)
        else:
            pairs = ((sender, to) for sender, (what, to) in first.items() if what == "to")
            going = next((pair for pair in pairs if first[pair[1]] == ("from", pair[0])), None)
            assert going, first
        for rank in going:
            queues[rank].popleft()
