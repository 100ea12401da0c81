# SPDX-License-Identifier: MIT
"""How C goes from device to device to the root's node, as numbers: who receives it, in which pieces and order, and where."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import planned
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.plan import gather_layout
from hybrid.plan.gather_layout import SLOTS, pieces_received, receivers, rows_of_pieces, rows_written, senders_to, slots_of

TOPOLOGIES = [
    Topology.of_equal_nodes(2, 1),
    Topology.of_equal_nodes(5, 1),
    Topology.of_equal_nodes(7, 3),
    Topology(((0,), (1, 2, 3))),
    Topology(((0, 2), (1, 3), (4, 5, 6))),
]


def plan_of(problem, topology, **fields):
    return planned(problem, topology, device="cuda", **fields).with_transport("nccl")


def rows_of(plan, rank):
    """The pieces of this sender's rows, in the order in which it sends them."""
    share = plan.shares[rank]
    for tile in share.tiles():
        for rows in rows_of_pieces(plan, share, len(tile.rows)):
            first = share.rows.lo + tile.rows.lo
            yield Span(first + rows.lo, first + rows.hi), tile.columns


def test_the_links_of_the_roots_node_are_used_evenly():
    plan = plan_of(Problem(70, 10, 10), Topology.of_equal_nodes(7, 3), root=4)
    assert receivers(plan) == {0: 3, 1: 4, 2: 5, 6: 3}
    plan = plan_of(Problem(70, 10, 10), Topology(((0, 1, 2), (3,), (4,), (5,))))
    assert receivers(plan) == {3: 0, 4: 1, 5: 2}, "also where every other node has one rank"


def test_only_where_nccl_joins_several_nodes_c_goes_from_device_to_device():
    problem, two = Problem(70, 10, 10), Topology.of_equal_nodes(4, 2)
    assert plan_of(problem, two).c_between_devices
    assert not planned(problem, two, device="cuda").with_transport("host").c_between_devices
    assert not plan_of(problem, Topology.of_equal_nodes(4, 4)).c_between_devices
    plan = plan_of(problem, two, root=2)
    assert [plan.c_rows_on(node) for node in (0, 1)] == [Span(0, 0), Span(0, 70)]
    kept = sum(plan.problem.bytes(len(plan.c_rows_on(node)), 10) for node in (0, 1))
    assert kept == plan.problem.bytes(70, 10), "host memory has C once"


def test_slots_lie_behind_the_buffers_and_count_among_them(monkeypatch):
    plan = plan_of(Problem(1000, 300, 601), Topology.of_equal_nodes(2, 1), panel_columns=601)
    for piece, rows in ((1 << 30, 500), (1 << 20, (1 << 20) // (8 * 602)), (1, 1)):
        monkeypatch.setattr(gather_layout, "PIECE_BYTES", piece)
        slots, buffers = slots_of(plan, 0), plan.shares[0].layout.bytes
        assert slots.offset >= buffers
        assert slots.slot_bytes >= rows * 602 * 8, "of rows whose stride is a multiple of 16 bytes"
        assert slots.slot_bytes < rows * 602 * 8 + 512
        assert plan.bytes_of_buffers(0) == slots.offset + SLOTS * slots.slot_bytes
        assert plan.bytes_on_gpu(0) == plan.bytes_of_buffers(0) + plan.bytes_of_device_check(0)
        assert plan.bytes_of_buffers(1) == plan.shares[1].layout.bytes, "who sends needs none"
    assert replace(plan, transport="host").bytes_of_buffers(0) == buffers


@examples(60)
@given(
    problem=st.builds(Problem, st.integers(7, 300), st.integers(1, 40), st.integers(1, 90)),
    topology=st.sampled_from(TOPOLOGIES),
    root=st.integers(0, 1),
    piece=st.sampled_from([1, 1000, 9000, 1 << 20]),
    panels=st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
def test_every_element_of_other_nodes_is_received_once_and_in_the_order_of_sending(problem, topology, root, piece, panels):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather_layout, "PIECE_BYTES", piece)
        plan = plan_of(problem, topology, root=root, panel_rows=panels[0], panel_columns=panels[1])
        elements = Counter()
        for rank in range(topology.size):
            received = pieces_received(plan, rank)
            written = rows_written(plan, rank)
            assert bool(received) == bool(senders_to(plan, rank))
            for sender in senders_to(plan, rank):
                assert [(each.rows, each.columns) for each in received if each.sender == sender] == [*rows_of(plan, sender)]
            for each in received:
                assert topology.node_of(each.sender) != plan.root_node == topology.node_of(rank)
                assert each.rows.lies_in(plan.shares[each.sender].rows)
                assert each.rows.lies_in(written)
                stride = -(-plan.shares[each.sender].layout.width // 2) * 2 * 8
                assert len(each.rows) * stride <= slots_of(plan, rank).slot_bytes
                elements[each.sender] += len(each.rows) * len(each.columns)
            if topology.node_of(rank) == plan.root_node:
                assert plan.shares[rank].rows.lies_in(written)
            else:
                assert not len(written)
        others = [rank for rank in range(topology.size) if topology.node_of(rank) != plan.root_node]
        assert elements == {rank: len(plan.shares[rank].rows) * problem.m for rank in others}


@examples(60)
@given(topology=st.sampled_from(TOPOLOGIES), root=st.integers(0, 1), rows=st.integers(1, 9), panels=st.integers(1, 30))
def test_nobody_waits_for_ever_where_every_device_does_one_thing_after_the_other(topology, root, rows, panels):
    """Each rank enqueues all collectives of B, and then what it sends or receives, none of which ends alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather_layout, "PIECE_BYTES", 8 * 8 * rows)
        plan = plan_of(Problem(60, 10, 60), topology, root=root, panel_rows=rows, panel_columns=panels)
        queues = {}
        for rank, share in enumerate(plan.shares):
            queue = [("gather", number) for number in range(len(share.column_panels))]
            queue += [("from", each.sender) for each in pieces_received(plan, rank)]
            if rank in receivers(plan):
                queue += [("to", receivers(plan)[rank])] * len([*rows_of(plan, rank)])
            queues[rank] = deque(queue)
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


def test_the_memory_of_many_nodes_is_known_without_looking_at_all_senders_for_each(monkeypatch):
    looked, original = [], gather_layout.receivers
    monkeypatch.setattr(gather_layout, "receivers", lambda plan: (looked.append(plan), original(plan))[1])
    plan = plan_of(Problem(400, 10, 10), Topology.of_equal_nodes(200, 2), root=3)
    needed = [plan.bytes_of_buffers(rank) - plan.shares[rank].layout.bytes for rank in range(200)]
    assert [rank for rank, more in enumerate(needed) if more] == [2, 3]
    assert len(looked) == 2
