# SPDX-License-Identifier: MIT
"""What was copied wrong, from the checksums of all ranks: the quick look finds what the thorough one does."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import planned
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Topology
from hybrid.execution.rank_check import own_pieces
from hybrid.plan.check_layout import check_layout
from hybrid.verification import check
from hybrid.verification.check import Findings, all_were_copied_right, wrong_copies
from hybrid.verification.copied import CopiedPieces, PiecesOfRanks


def findings_of(plan):
    """Of a right product: every place has a checksum of its own."""
    pieces = PiecesOfRanks(CopiedPieces(check_layout(plan, rank)) for rank in range(plan.topology.size))
    checksums = [np.array([hash(place) & (1 << 62) - 1 for place in each.places], np.uint64) for each in pieces]
    found = []
    for rank, each in enumerate(pieces):
        own = own_pieces(plan, pieces, rank)
        summed = [piece.number for piece in each.layout.pieces if piece.operand == "C" or piece.number in own]
        found.append(Findings(f"rank {rank}", None, checksums[rank].copy(), {rank: (summed, checksums[rank].copy())}))
    return found, pieces


def plan_of(ranks, transport, **tiling):
    problem = Problem(50, 40, 130, "float64")
    return planned(problem, Topology.of_equal_nodes(ranks, ranks), staged=True, check="on", **tiling).with_transport(transport)


def thoroughly(found, pieces):
    with patch.object(check, "all_were_copied_right", lambda *_: False):
        return wrong_copies(found, pieces, 0)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("tiling", [{}, {"panel_rows": 9, "panel_columns": 64}, {"device_memory": 30000}], ids=str)
def test_of_a_right_product_nothing_is_found(ranks, tiling):
    found, pieces = findings_of(plan_of(ranks, "host", **tiling))
    assert all_were_copied_right(found, pieces)
    assert not thoroughly(found, pieces)


@examples(100)
@given(
    ranks=st.integers(1, 3),
    transport=st.sampled_from(["host", "peers"]),
    on_device=st.booleans(),
    rank=st.integers(0, 2),
    number=st.integers(0, 10**6),
    forgotten=st.booleans(),
)
def test_both_looks_find_the_same(ranks, transport, on_device, rank, number, forgotten):
    found, pieces = findings_of(plan_of(ranks, transport, panel_rows=9, panel_columns=64))
    rank %= ranks
    summed, checksums = found[rank].in_memory[rank]
    if forgotten:
        summed.remove(summed[number % len(summed)])
    elif on_device:
        found[rank].on_device[number % len(checksums)] += np.uint64(1)
    else:
        checksums[summed[number % len(summed)]] += np.uint64(1)
    assert not all_were_copied_right(found, pieces)
    assert thoroughly(found, pieces)
    assert wrong_copies(found, pieces, 0) == thoroughly(found, pieces)


def test_what_differs_in_memory_is_found_even_if_no_device_has_it():
    found, pieces = findings_of(plan_of(2, "host"))
    summed, checksums = found[0].in_memory[0]
    found = [Findings(each.where, None, np.empty(0, np.uint64), {0: (summed, checksums.copy())}) for each in found]
    assert all_were_copied_right(found, pieces)
    found[1].in_memory[0][1][summed[0]] += np.uint64(1)
    assert not all_were_copied_right(found, pieces)
    assert wrong_copies(found, pieces, 0)


def test_where_several_ranks_sum_the_same_place_they_must_agree():
    found, pieces = findings_of(plan_of(2, "host"))
    summed, checksums = found[0].in_memory[0]
    found[1].in_memory[0] = summed[:1], checksums.copy()
    assert all_were_copied_right(found, pieces)
    found[1].in_memory[0][1][summed[0]] += np.uint64(1)
    assert not all_were_copied_right(found, pieces)
    assert thoroughly(found, pieces)
