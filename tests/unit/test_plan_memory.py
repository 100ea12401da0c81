# SPDX-License-Identifier: MIT
"""The plan as numbers: ranks' shares cover A, B and C once on any machine, cuts fit the memory that a device has, what a node or
GPU takes is forecast, and what does not fit is refused with the amount that is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.plans import planned
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.errors import UsageError
from hybrid.plan.buffer_layout import layout_of
from hybrid.plan.capacity import FreeMemory, shortage
from hybrid.plan.check_layout import check_layout
from hybrid.plan.plan import PROCESS_BYTES
from hybrid.plan.possible_transports import why_no_peers
from hybrid.plan.request import TilingRequest
from hybrid.plan.tiling import choose_tiling

KiB, MiB, PLENTY = 1 << 10, 1 << 20, 1 << 60
ALONE = Topology(((0,),))

sizes = st.integers(0, 60)
problems = st.builds(Problem, sizes, sizes, sizes, st.sampled_from(["float32", "float64"]))
topologies = st.builds(Topology.of_equal_nodes, st.integers(1, 9), st.integers(1, 9)) | st.builds(
    Topology.from_node_names, st.lists(st.sampled_from("abc"), min_size=1, max_size=9)
)
devices = st.sampled_from([{"device": "cpu"}, {"device": "cpu", "staged": True}, {"device": "cuda"}])
cuts = {"panel_rows": st.integers(0, 9), "panel_columns": st.integers(0, 9)}


# Shares


@examples(80)
@given(problem=problems, topology=topologies, device=devices, root=st.integers(0, 8), memory=st.integers(0, 3000), **cuts)
def test_shares_cover_a_b_and_c_once(problem, topology, device, root, memory, **asked):
    root %= topology.size
    plan = planned(problem, topology, root=root, device_memory=memory, **device, **asked)
    of_c, of_b, gathered = np.zeros((problem.n, problem.m), int), np.zeros(problem.l, int), np.zeros(problem.n, int)
    for share in plan.shares:
        of_b[share.b_rows.slice] += 1
        for tile in share.tiles():
            of_c[share.rows.slice][tile.rows.slice, tile.columns.slice] += 1
        rows = plan.c_rows_at_the_end(share.rank)
        assert share.node == plan.root_node or not len(rows), "C is gathered on the root's node"
        gathered[rows.slice] += 1
        for panels, size in (share.row_panels, asked["panel_rows"]), (share.column_panels, asked["panel_columns"]):
            assert not size or all(len(panel) <= size for panel in panels)
    assert (of_c == 1).all()
    assert (of_b == 1).all()
    assert (gathered == 1).all()


def test_ranks_that_were_wrong_get_no_rows_where_others_of_their_node_take_them():
    of = [share.rows for share in planned(Problem(12, 4, 4), Topology.of_equal_nodes(4, 2), left_out=(1, 2)).shares]
    assert of == [Span(0, 6), Span(0, 0), Span(6, 6), Span(6, 12)]
    alone = planned(Problem(12, 4, 4), Topology.of_equal_nodes(2, 1), left_out=(1,))
    assert [share.rows for share in alone.shares] == [Span(0, 6), Span(6, 12)]


def test_on_the_roots_node_all_of_c_is_kept_and_elsewhere_the_nodes_rows():
    plan = planned(Problem(12, 5, 7), Topology.of_equal_nodes(4, 2), root=3)
    assert [str(plan.c_rows_on(node)) for node in (0, 1)] == ["0:6", "0:12"]
    assert [str(plan.a_rows_on(node)) for node in (0, 1)] == ["0:6", "6:12"]
    assert [plan.bytes_shared_on_node(node) for node in (0, 1)] == [8 * (30 + 35 + 42), 8 * (30 + 35 + 84)]


# Cuts to the memory of a device


@examples(80)
@given(problem=problems, rows=st.integers(1, 60), memory=st.integers(1, 30_000), device=st.sampled_from(["cpu", "cuda"]), **cuts)
def test_a_cut_fits_its_memory_or_is_the_smallest(problem, rows, memory, device, panel_rows, panel_columns):
    asked = {"panel_rows": panel_rows, "panel_columns": panel_columns}
    tiling = choose_tiling(TilingRequest(problem, rows, device, memory=memory, **asked))
    of_panels = tiling.panel_rows, tiling.panel_columns, tiling.row_panels, tiling.column_panels
    smallest = of_panels in ((1, 1, 1, 1), (panel_rows or 1, panel_columns or 1, 1, 1))
    assert layout_of(problem, rows, tiling, device).bytes <= memory or smallest


@pytest.mark.parametrize(
    ("shape", "memory", "stationary"),
    [
        ((8000, 8000, 8000), 8 * 8000**2, "B"),
        ((40_000, 40_000, 40_000), 4 << 30, None),
        ((40_000, 40_000, 40_000), 16 << 30, "B"),
        ((2000, 40_000, 40_000), 8 << 30, "A"),
        ((100_000, 20_000, 10_000), 8 << 30, "B"),
    ],
)
def test_out_of_core_panels_are_whole_tiles_and_use_most_of_the_memory(shape, memory, stationary):
    problem = Problem(*shape)
    tiling = choose_tiling(TilingRequest(problem, shape[0], "cuda", memory=memory))
    assert 0.75 * memory < layout_of(problem, shape[0], tiling, "cuda").bytes <= memory
    assert tiling.panel_rows % 128 == tiling.panel_columns % 128 == 0
    assert stationary in (None, tiling.stationary)
    assert (tiling.row_panels if tiling.stationary == "B" else tiling.column_panels) >= 3, "of what is streamed"


def test_what_would_come_in_too_many_pieces_is_refused():
    few, many = (
        planned(Problem(n, 1, n), ALONE, device="cuda", device_memory=memory) for n, memory in ((700, 2000), (200_000, 20_000))
    )
    few.refuse_endless()
    with pytest.raises(UsageError):
        many.refuse_endless()
    slabs = {"slab_rows": 1, "panel_columns": 1, "panel_rows": 1, "device_memory": 80_000_000}
    with pytest.raises(UsageError):
        planned(Problem(3000, 3000, 3000), ALONE, staged=True, accumulates=True, **slabs).refuse_endless()


# What is forecast


@examples(60)
@given(problem=problems, topology=topologies, device=devices, grown=st.sampled_from("nlm"), by=st.integers(1, 20))
def test_a_larger_product_never_needs_less(problem, topology, device, grown, by):
    larger = replace(problem, **{grown: getattr(problem, grown) + by})
    before, after = (planned(each, topology, **device) for each in (problem, larger))
    for node in range(len(topology.nodes)):
        assert before.bytes_on_node(node) <= after.bytes_on_node(node)
    for rank in range(topology.size):
        assert before.bytes_on_gpu(rank) <= after.bytes_on_gpu(rank)


def test_what_ranks_nodes_and_gpus_take():
    problem, topology = Problem(10, 4, 6), Topology.of_equal_nodes(2, 2)
    buffers = 256 + 256 + 256  # 5×4 of A, 4×6 of B and 5×6 of C, each in whole 256 bytes
    in_place, staged, cuda = (planned(problem, topology, **how) for how in ({}, {"staged": True}, {"device": "cuda"}))
    assert [plan.bytes_on_rank(0) - PROCESS_BYTES for plan in (in_place, staged, cuda)] == [0, buffers, 0]
    assert [plan.bytes_on_gpu(0) for plan in (in_place, staged, cuda)] == [0, 0, buffers]
    assert in_place.bytes_on_node(0) == problem.bytes_of_matrices + 2 * PROCESS_BYTES
    assert planned(Problem(1, 50, 50), topology, device="cuda").bytes_on_gpu(1) == 0, "a rank without rows"
    single, double = (planned(Problem(30, 20, 10, dtype), topology).bytes_shared_on_node(0) for dtype in ("float32", "float64"))
    assert double == 2 * single


def missing(plan, changed=None, besides_on_gpu=(), already_there=0, **all_ranks):
    """What is said where every rank has plenty of memory and a GPU of its own, but for what is given."""
    free = [
        replace(FreeMemory(f"host{each.node}", PLENTY, PLENTY, PLENTY, f"GPU-{each.rank}"), **all_ranks) for each in plan.shares
    ]
    for rank, of_rank in (changed or {}).items():
        free[rank] = replace(free[rank], **of_rank)
    return str(shortage(plan, free, besides_on_gpu=besides_on_gpu, already_there=already_there) or "")


def test_what_just_fits_is_taken_and_what_is_missing_is_named():
    problem = Problem(1000, 1000, 1000)
    one, two, gpus = (
        planned(problem, topology, device=device)
        for topology, device in (
            (Topology.of_equal_nodes(2, 2), "cpu"),
            (Topology.of_equal_nodes(2, 1), "cpu"),
            (Topology.of_equal_nodes(2, 2), "cuda"),
        )
    )
    host, gpu = one.bytes_on_node(0), gpus.bytes_on_gpu(0)
    for least, plan, name, more in (
        (host, one, "host_bytes", {}),
        (one.bytes_shared_on_node(0), one, "shared_bytes", {}),
        (sum(two.bytes_on_node(node) for node in (0, 1)), two, "host_bytes", {"host": "same"}),
        (host - 8_000_000, one, "host_bytes", {"already_there": 8_000_000}),
        (gpu, gpus, "gpu_bytes", {}),
        (2 * gpu, gpus, "gpu_bytes", {"gpu_id": "GPU-same"}),
        (gpu + 3 * MiB, gpus, "gpu_bytes", {"besides_on_gpu": (3 * MiB, 0)}),
    ):
        assert missing(plan, **{name: least}, **more) == ""
        assert "512.0 KiB are missing" in missing(plan, **{name: least - 512 * KiB}, **more)
    assert missing(two, shared_bytes=0) == "", "a rank alone on its node shares nothing"
    assert missing(one, gpu_bytes=0, besides_on_gpu=(MiB, MiB)) == "", "no GPU is used"
    assert "rank 1 on host0" in missing(gpus, {1: {"gpu_bytes": gpu - 1}})


# The check


@st.composite
def checked_plans(draw):
    size = st.integers(0, 150)
    problem, ranks = Problem(draw(size), draw(size), draw(st.integers(0, 900))), draw(st.integers(1, 5))
    memory = draw(st.sampled_from([0, 0, 20, 50, 90])) * problem.bytes_of_matrices // 100
    panels = {
        "panel_rows": st.sampled_from([0, 1, 7, 40]),
        "panel_columns": st.sampled_from([0, 30, 64, 512]),
        "slab_rows": st.sampled_from([0, 0, 9, 50]),
    }
    asked = {name: draw(values) for name, values in panels.items()}
    topology = Topology.of_equal_nodes(ranks, draw(st.integers(1, ranks)))
    try:
        plan = planned(problem, topology, staged=True, accumulates=True, check="on", device_memory=memory, **asked)
    except UsageError:
        assume(False)
    return plan.with_transport("peers" if draw(st.booleans()) and not why_no_peers(plan) else "host")


@examples(60)
@given(plan=checked_plans())
def test_every_copy_is_checked_in_pieces_and_each_element_of_c_once(plan):
    for rank, share in enumerate(plan.shares):
        layout = check_layout(plan, rank)
        c = np.zeros((len(share.rows), plan.problem.m), int)
        for piece in layout.pieces:
            if piece.operand == "C":
                c[piece.rows.slice, piece.columns.slice] += 1
        assert not share.order or (c == 1).all()
        assert layout.checksums == sum(len(piece.rows) for piece in layout.pieces)
        for arrival, (own, _) in zip(share.order, layout.by_arrival, strict=True):
            lines = sum(map(len, arrival.slab)) if arrival.slab else plan.problem.l
            assert sum(len(piece.rows) * len(piece.columns) for piece in own) == len(arrival.span) * lines
