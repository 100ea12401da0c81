# SPDX-License-Identifier: MIT
"""The pieces of a check: all that is copied is in one, each knows where its checksums are, and somebody sums each in memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.plans import planned
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.devices.buffers import Buffers
from hybrid.devices.cpu import CpuDevice
from hybrid.errors import UsageError
from hybrid.execution.rank_check import own_pieces
from hybrid.plan.check_layout import check_layout, memory_for_check, most_bytes_of_check
from hybrid.plan.planning import make_plan
from hybrid.plan.possible_transports import why_no_peers
from hybrid.plan.request import PlanRequest, RowBlocks
from hybrid.verification.copied import CopiedPieces
from hybrid.verification.device_check import DeviceCheck

sizes = st.integers(0, 150)


@st.composite
def plans(draw):
    n, l, m, ranks = draw(sizes), draw(sizes), draw(st.integers(0, 900)), draw(st.integers(1, 5))
    topology = Topology.of_equal_nodes(ranks, draw(st.integers(1, ranks)))
    problem = Problem(n, l, m, draw(st.sampled_from(["float32", "float64"])))
    memory = draw(st.sampled_from([0, 0, 20, 50, 90])) * problem.bytes_of_matrices // 100
    request = PlanRequest(
        problem,
        topology,
        root=draw(st.integers(0, ranks - 1)),
        staged=True,
        accumulates=True,
        panel_rows=draw(st.sampled_from([0, 1, 7, 40])),
        panel_columns=draw(st.sampled_from([0, 30, 64, 100, 512])),
        slab_rows=draw(st.sampled_from([0, 0, 9, 50])),
        device_memory=memory,
        check="on",
    )
    try:
        plan = make_plan(request)
    except UsageError:
        assume(False)
    peers = draw(st.booleans()) and not why_no_peers(plan)
    return plan.with_transport("peers" if peers else "host")


@examples(75)
@given(plan=plans())
def test_pieces_cover_what_arrives_and_each_element_of_c_once(plan):
    for rank, share in enumerate(plan.shares):
        layout = check_layout(plan, rank)
        c = np.zeros((len(share.rows), plan.problem.m), int)
        groups = np.zeros((len(share.rows), layout.groups), int)
        offset = 0
        for number, piece in enumerate(layout.pieces):
            assert (piece.number, piece.offset) == (number, offset)
            assert len(piece.rows)
            offset += len(piece.rows)
            if piece.operand == "C":
                c[piece.rows.slice, piece.columns.slice] += 1
                groups[piece.rows.slice, piece.groups.slice] += 1
        assert layout.checksums == offset
        assert not share.order or ((c == 1).all() and (groups == 1).all())
        for arrival, (own, _) in zip(share.order, layout.by_arrival, strict=True):
            arrived = sum(len(piece.rows) * len(piece.columns) for piece in own)
            if arrival.operand == "A":
                assert arrived == len(arrival.span) * plan.problem.l
            else:
                rows = sum(map(len, arrival.slab)) if arrival.slab else plan.problem.l
                assert arrived == len(arrival.span) * rows
            same = layout.pieces_of_arrival(arrival)
            assert [(each.operand, each.rows, each.columns) for each in same] == [(p.operand, p.rows, p.columns) for p in own]


@examples(75)
@given(plan=plans())
def test_every_piece_that_reaches_a_device_is_summed_by_one_rank_of_its_node(plan):
    pieces = [CopiedPieces(check_layout(plan, rank)) for rank in range(plan.topology.size)]
    for ranks in plan.topology.nodes:
        summed = []
        for rank in ranks:
            own = own_pieces(plan, pieces, rank)
            summed += {
                place
                for piece, place in zip(pieces[rank].layout.pieces, pieces[rank].places, strict=True)
                if piece.operand == "B" and piece.number in own
            }
            assert {piece.number for piece in pieces[rank].layout.pieces if piece.operand == "A"} <= own
        arriving = {place for rank in ranks for place in pieces[rank].places if place[0] == "B"}
        assert len(summed) == len(set(summed))
        assert set(summed) == arriving


@examples(50)
@given(plan=plans())
def test_the_check_takes_no_more_memory_than_is_forecast(plan):
    for rank, share in enumerate(plan.shares):
        if not share.order:
            continue
        layout, device, made = check_layout(plan, rank), CpuDevice(staged=True), []
        operations = device.check_operations()
        make = operations.make

        def counting(shapes, make=make, made=made):
            matrices = make(shapes)
            made += [-(-8 * rows * columns // 512) * 512 for rows, columns in shapes.values()]  # as CuPy allocates
            return matrices

        operations.make = counting
        buffers = Buffers(device, device.reserve(share.layout.bytes, shared=False), share, plan.problem)
        DeviceCheck(operations, layout, plan.problem).use(buffers)
        most = most_bytes_of_check(plan.problem, len(share.rows), share.tiling, plan.device_memory)
        assert sum(made) <= most


@given(memory=st.integers(1, 1 << 40), n=st.integers(1, 10**5), l=st.integers(1, 10**5), m=st.integers(1, 10**5))
def test_the_check_gets_an_eighth_of_the_memory_at_most_or_nothing(memory, n, l, m):
    assert 0 <= memory_for_check(Problem(n, l, m, "float32"), n, memory) <= memory // 8


def test_row_blocks_of_any_height_have_their_own_rows_named():
    topology = Topology(((0, 1, 2),))
    blocks = RowBlocks((Span(0, 9), Span(9, 10), Span(10, 40)), (Span(0, 4), Span(4, 20), Span(20, 30)))
    plan = planned(Problem(40, 30, 70, "float64"), topology, staged=True, check="on", row_blocks=blocks, panel_rows=4)
    for rank, rows in enumerate(blocks.a):
        places = CopiedPieces(check_layout(plan.with_transport("host"), rank)).places
        for operand in "AC":
            named = [place[1] for place in places if place[0] == operand]
            assert min(span.lo for span in named) == rows.lo
            assert max(span.hi for span in named) == rows.hi


@pytest.mark.parametrize("distance", [1, 2048, 4096])
def test_checksums_of_pieces_tell_their_rows_apart(distance):
    plan = planned(Problem(8192, 4, 4, "float64"), Topology(((0,),)), staged=True, check="on", panel_rows=8192)
    pieces = CopiedPieces(check_layout(plan.with_transport("host"), 0))
    of_rows = np.zeros(pieces.layout.checksums, np.uint64)
    of_rows[::3] = np.uint64(1023 << 52)  # of a one: as float64 its last 52 bits are zeros
    before = pieces.of_pieces(of_rows)
    of_rows[[0, distance]] = of_rows[[distance, 0]]
    assert (pieces.of_pieces(of_rows) != before).sum() == (distance % 3 != 0)
