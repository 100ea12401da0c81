# SPDX-License-Identifier: MIT
"""Who takes which rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.core.spans import Span, Topology, block, even_pieces, pieces

quick = examples(150)
spans = st.builds(lambda lo, length: Span(lo, lo + length), st.integers(0, 50), st.integers(0, 200))
equal_nodes = st.builds(Topology.of_equal_nodes, st.integers(1, 12), st.integers(1, 5))
named_nodes = st.builds(Topology.from_node_names, st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))


def covers(parts, span):
    """Whether the parts follow one another from one end of the span to the other."""
    at = span.lo
    for part in parts:
        if part.lo != at or part.hi < part.lo:
            return False
        at = part.hi
    return at == span.hi


@quick
@given(total=st.integers(0, 10_000), parts=st.integers(1, 70))
def test_blocks_cover_all_rows_in_order_and_differ_by_one_row_at_most(total, parts):
    blocks = [block(total, parts, part) for part in range(parts)]
    assert covers(blocks, Span(0, total))
    sizes = [len(each) for each in blocks]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_with_more_parts_than_rows_the_last_parts_are_empty():
    assert [len(block(3, 5, part)) for part in range(5)] == [1, 1, 1, 0, 0]


def test_block_of_ten_rows_in_four():
    assert [str(block(10, 4, part)) for part in range(4)] == ["0:3", "3:6", "6:8", "8:10"]


@quick
@given(span=spans, size=st.integers(1, 60))
def test_pieces_cover_the_span_and_only_the_last_is_shorter(span, size):
    parts = list(pieces(span, size))
    assert covers(parts, span)
    assert all(len(part) == size for part in parts[:-1])
    assert all(0 < len(part) <= size for part in parts)


@quick
@given(span=spans, at_most=st.integers(0, 60))
def test_even_pieces_are_the_fewest_that_are_small_enough_and_nearly_equal(span, at_most):
    parts = even_pieces(span, at_most)
    limit = max(1, at_most)
    assert covers(parts, span)
    assert len(parts) == -(-len(span) // limit)
    sizes = [len(part) for part in parts]
    assert all(0 < size <= limit for size in sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_span_knows_its_slice_its_length_and_its_place_within_another():
    span = Span(5, 9)
    assert len(span) == 4
    assert list(range(20))[span.slice] == [5, 6, 7, 8]
    assert span.within(Span(3, 12)) == Span(2, 6)


@pytest.mark.parametrize(
    ("ranks", "per_node", "nodes"),
    [(4, 2, ((0, 1), (2, 3))), (5, 2, ((0, 1), (2, 3), (4,))), (3, 8, ((0, 1, 2),)), (2, 1, ((0,), (1,)))],
)
def test_equal_nodes_take_consecutive_ranks(ranks, per_node, nodes):
    assert Topology.of_equal_nodes(ranks, per_node).nodes == nodes


def test_ranks_dealt_round_robin_are_sorted_to_their_nodes():
    topology = Topology.from_node_names(["x", "y", "x", "y", "x"])
    assert topology.nodes == ((0, 2, 4), (1, 3))
    assert [topology.node_of(rank) for rank in range(5)] == [0, 1, 0, 1, 0]
    assert [topology.leader(node) for node in (0, 1)] == [0, 1]
    assert [str(topology.rows_of_rank(rank, 50)) for rank in range(5)] == ["0:10", "30:40", "10:20", "40:50", "20:30"]
    assert [str(topology.rows_of_node(node, 50)) for node in (0, 1)] == ["0:30", "30:50"]


@quick
@given(topology=equal_nodes | named_nodes, total=st.integers(0, 300))
def test_rows_of_nodes_are_consecutive_and_are_those_of_their_ranks(topology, total):
    assert covers([topology.rows_of_node(node, total) for node in range(len(topology.nodes))], Span(0, total))
    for node, ranks in enumerate(topology.nodes):
        assert covers([topology.rows_of_rank(rank, total) for rank in ranks], topology.rows_of_node(node, total))
    sizes = [len(topology.rows_of_rank(rank, total)) for rank in range(topology.size)]
    assert max(sizes) - min(sizes) <= 1


@quick
@given(topology=equal_nodes | named_nodes)
def test_every_rank_is_on_one_node_and_its_leader_is_the_lowest(topology):
    assert sorted(rank for ranks in topology.nodes for rank in ranks) == list(range(topology.size))
    for node, ranks in enumerate(topology.nodes):
        assert topology.leader(node) == min(ranks)
        assert {topology.node_of(rank) for rank in ranks} == {node}
