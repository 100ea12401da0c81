# SPDX-License-Identifier: MIT
"""B in slabs: what each arrival adds to C, and when C is complete."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import planned
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology, pieces
from hybrid.errors import UsageError
from hybrid.plan.buffer_layout import Tiling
from hybrid.plan.k_slabs import ALIGNED, slab_arrivals, slabs_of
from hybrid.plan.request import RowBlocks
from hybrid.plan.residency import Residency
from hybrid.plan.schedule import Arrival, Tile

quick = examples(100)


@quick
@given(rows=st.integers(1, 300), links=st.integers(1, 5), slab_rows=st.integers(1, 200))
def test_slabs_are_all_rows_once_and_each_links_follow_each_other(rows, links, slab_rows):
    slabs = slabs_of(rows, links, slab_rows)
    of_links = [[slab[link] for slab in slabs] for link in range(links)]
    in_order = [span for spans in of_links for span in spans]
    assert [row for span in in_order for row in range(span.lo, span.hi)] == list(range(rows))
    assert all(before.hi == after.lo for spans in of_links for before, after in pairwise(spans))
    assert all(any(map(len, slab)) for slab in slabs), "no slab is empty"
    if slab_rows % ALIGNED == 0:
        assert all(span.lo % ALIGNED == 0 or span.lo == rows for span in in_order)
    widest = [max(map(len, spans)) for spans in of_links]
    assert max(widest) <= max(1, -(-slab_rows // links) + ALIGNED)


@quick
@given(
    rows=st.integers(0, 30),
    columns=st.integers(0, 9) | st.sampled_from([128, 129, 300]),
    inner=st.integers(1, 40),
    row_panel=st.integers(1, 9),
    links=st.integers(1, 4),
    slab_rows=st.integers(1, 30),
    interleaved=st.integers(1, 9),
    data=st.data(),
)
def test_strips_compute_all_of_c_in_order_from_what_is_there(
    rows, columns, inner, row_panel, links, slab_rows, interleaved, data
):
    row_panels, slabs = tuple(pieces(Span(0, rows), row_panel)), slabs_of(inner, links, slab_rows)
    own = data.draw(st.integers(0, links - 1))
    order = list(slab_arrivals(row_panels, slabs, Span(0, columns), interleaved, own))
    a_here, b_here = np.zeros(rows, bool), np.zeros(inner, bool)
    met = np.zeros((rows, columns, inner), int)
    written, complete = np.zeros((rows, columns), bool), np.zeros((rows, columns), bool)
    for arrival in order:
        if arrival.operand == "A":
            assert arrival.span == row_panels[arrival.index]
            a_here[arrival.span.slice] = True
        else:
            assert arrival.slab == slabs[arrival.index]
            for part in arrival.slab:
                b_here[part.slice] = True
        for tile in arrival.releases:
            assert len(tile.rows)
            assert len(tile.inner)
            mine = tile.rows.slice, tile.columns.slice
            assert a_here[tile.rows.slice].all()
            assert b_here[tile.inner.slice].all()
            assert (written[mine] == tile.adds).all(), "the first product replaces what was in C, others add to it"
            assert not complete[mine].any()
            met[(*mine, tile.inner.slice)] += 1
            written[mine] = True
            complete[mine] |= tile.completes
            assert not tile.completes or (met[mine] == 1).all()
    if columns:
        assert (met == 1).all()
        assert complete.all()
    assert [arrival.index for arrival in order if arrival.operand == "A"] == list(range(len(row_panels) if columns else 0))
    assert [arrival.index for arrival in order if arrival.operand == "B"] == list(range(len(slabs) if rows and columns else 0))


@quick
@given(rows=st.integers(1, 20), depth=st.integers(1, 12), columns=st.integers(1, 20), interleaved=st.integers(1, 25))
def test_as_much_of_a_comes_as_of_b_until_the_foundation_is_there_and_the_rest_when_all_of_b_is(
    rows, depth, columns, interleaved
):
    row_panels = [Span(row, row + 1) for row in range(rows)]
    here = {"A": 0, "B": 0}
    for arrival in slab_arrivals(row_panels, slabs_of(depth, 1, 1), Span(0, columns), interleaved, 0):
        of_foundation = here["A"] < min(rows, interleaved)
        a_is_behind = here["A"] * depth <= here["B"] * columns
        here[arrival.operand] += 1
        if here["B"] < depth or arrival.operand == "B":
            assert arrival.operand == ("A" if of_foundation and a_is_behind else "B")
        else:
            assert [tile.inner for tile in arrival.releases] == [Span(0, depth)], "all of B at once"
        if here["B"] == depth and arrival.operand == "B":
            assert [len(tile.rows) for tile in arrival.releases] == [1] * here["A"], "chunk by chunk"
    assert here == {"A": rows, "B": depth}


def test_a_rank_multiplies_first_what_came_over_its_own_link():
    order = list(slab_arrivals([Span(0, 1)], slabs_of(6, 3, 3), Span(0, 1), 1, 1))
    assert [[str(tile.inner) for tile in arrival.releases] for arrival in order] == [
        [],
        ["2:3", "4:5", "0:1"],
        ["3:4", "5:6", "1:2"],
    ]


GPU = {"device": "cuda", "accumulates": True}


@pytest.mark.parametrize(
    "other",
    [
        {"accumulates": False},
        {"panel_columns": 512},
        {"row_blocks": RowBlocks((Span(0, 8000),), (Span(0, 8000),))},
        {"topology": Topology(((0,), (1,)))},
        {"device": "cpu"},
        {"problem": Problem(8000, 900, 8000)},
    ],
    ids=str,
)
def test_b_comes_in_slabs_where_a_gpu_holds_it_and_its_kernel_adds(other):
    of_one = {"problem": Problem(8000, 8000, 8000), "topology": Topology(((0,),)), **GPU}
    assert planned(**of_one).shares[0].slabs
    assert not planned(**{**of_one, **other}).shares[0].slabs


def test_where_not_all_is_held_panels_that_stay_come_in_slabs():
    plan = planned(Problem(8000, 8000, 8000), Topology(((0,),)), device_memory=500_000_000, **GPU)
    share = plan.shares[0]
    assert share.tiling.stationary == "B"
    assert not share.in_slabs
    loads = [(arrival.span, arrival.slab) for arrival in share.order if arrival.operand == "B"]
    slabs = [(Span(lo, min(lo + 1024, 8000)),) for lo in range(0, 8000, 1024)]
    assert loads == [(column_panel, slab) for column_panel in share.column_panels for slab in slabs]
    of_rows = planned(Problem(2000, 40_000, 40_000), Topology(((0,),)), device_memory=4 << 30, **GPU).shares[0]
    assert of_rows.tiling.stationary == "A"
    assert not of_rows.slabs, "panels that pass come at once"


@quick
@given(
    rows=st.integers(0, 40),
    inner=st.integers(0, 30),
    columns=st.integers(0, 20),
    ranks=st.integers(1, 4),
    panel_rows=st.integers(1, 4),
    slab_rows=st.integers(1, 9),
    spared=st.integers(0, 2000),
)
def test_ranks_whose_rows_just_fit_and_those_whose_do_not_follow_one_cut(
    rows, inner, columns, ranks, panel_rows, slab_rows, spared
):
    problem, topology = Problem(rows, inner, columns), Topology((tuple(range(ranks)),))
    sizes = {"staged": True, "accumulates": True, "panel_rows": panel_rows, "slab_rows": slab_rows}
    all_of_it = planned(problem, topology, **sizes).shares[0].layout.bytes
    plan = planned(problem, topology, device_memory=max(1, all_of_it - spared), **sizes)
    plan.refuse_endless()
    for share in plan.shares:
        computed = sum(len(s.rows) * len(s.columns) * len(s.inner or range(inner)) for s in share.tiles())
        assert computed == len(share.rows) * columns * inner
        assert share.in_slabs == plan.shares[0].in_slabs


def test_panels_of_very_many_slabs_are_refused():
    sizes = {"slab_rows": 1, "panel_columns": 1, "panel_rows": 1, "device_memory": 80_000_000}
    plan = planned(Problem(3000, 3000, 3000), Topology(((0,),)), staged=True, accumulates=True, **sizes)
    assert plan.shares[0].tiling.stationary == "B"
    with pytest.raises(UsageError, match="9,006,000 panels, more than 2,097,152: allow more memory or larger panels"):
        plan.refuse_endless()


def test_a_slab_waits_for_those_strips_only_that_read_its_rows():
    held, columns = Residency(), Span(0, 10)
    slabs = [Arrival("B", 0, columns, columns, 0, (), (rows,)) for rows in (Span(0, 4), Span(4, 8))]
    for number, slab in enumerate(slabs):
        held.put(slab, number)
    rows = Span(0, 3)
    tiles = [Tile(rows, columns, rows, columns, inner=inner) for inner in (Span(0, 4), Span(3, 5), Span(4, 8), None)]
    assert [held.read_by(tile) for tile in tiles] == [[0], [0, 1], [1], [0, 1]]
    assert [held.under(slab) for slab in slabs] == [[0], [1]]


def test_nccl_brings_panels():
    plan = planned(Problem(8000, 8000, 8000), Topology(((0, 1),)), **GPU)
    assert plan.with_transport("peers").shares[1].slabs
    assert not plan.with_transport("nccl").shares[1].slabs
    assert plan.with_transport("nccl").b_rows_over_link(1) == Span(4000, 8000)


def test_the_foundation_keeps_a_gpu_busy_and_no_more_and_lets_c_go_home_in_time():
    def interleaved(depth, links=1):
        plan = planned(Problem(8192 * links, depth, 8192), Topology((tuple(range(links)),)), **GPU)
        return plan.shares[0].tiling.interleaved * plan.shares[0].tiling.panel_rows

    assert interleaved(2000) == interleaved(4000) == 512, "the link is slower than the kernels: C must go home early"
    assert interleaved(6000) == 2560
    assert interleaved(16000) == interleaved(32000) == 3584
    assert interleaved(16000, links=2) == 1536, "of B each link brings half"


def test_a_size_asked_for_is_kept_also_on_a_cpu():
    plan = planned(Problem(40, 30, 20), Topology(((0, 1),)), staged=True, accumulates=True, slab_rows=8, panel_rows=6)
    assert [tuple(map(str, slab)) for slab in plan.shares[0].slabs][:2] == [("0:4", "15:19"), ("4:8", "19:23")]
    assert isinstance(plan.shares[0].tiling, Tiling)
    assert plan.b_rows_over_link(1) == Span(15, 30)
