# SPDX-License-Identifier: MIT
"""The plan: what arrives when, what memory it takes, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import planned
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.errors import DoesNotFit, UsageError
from hybrid.plan.buffer_layout import layout_of
from hybrid.plan.capacity import FreeMemory, shortage
from hybrid.plan.grid import parse
from hybrid.plan.plan import PROCESS_BYTES
from hybrid.plan.possible_transports import why_no_nccl, why_no_peers
from hybrid.plan.request import RowBlocks, TilingRequest
from hybrid.plan.tiling import choose_tiling

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
PLENTY = 1 << 60

quick = examples(50)
sizes = st.integers(0, 60)
problems = st.builds(Problem, sizes, sizes, sizes, st.sampled_from(["float32", "float64"]))
topologies = st.builds(Topology.of_equal_nodes, st.integers(1, 9), st.integers(1, 9)) | st.builds(
    Topology.from_node_names, st.lists(st.sampled_from("abc"), min_size=1, max_size=9)
)
cuts = {"panel_rows": st.integers(0, 9), "panel_columns": st.integers(0, 9)}
devices = st.sampled_from([("cpu", False), ("cpu", True), ("cuda", True)])


@quick
@given(problem=problems, topology=topologies, device=devices, **cuts)
def test_shares_cover_a_b_and_c_whatever_the_machine(problem, topology, device, panel_rows, panel_columns):
    plan = planned(problem, topology, device=device[0], staged=device[1], panel_rows=panel_rows, panel_columns=panel_columns)
    rows_of_c, rows_of_b = np.zeros((problem.n, problem.m), int), np.zeros(problem.l, int)
    for share in plan.shares:
        rows_of_b[share.b_rows.slice] += 1
        assert not panel_rows or all(len(row_panel) <= panel_rows for row_panel in share.row_panels)
        assert not panel_columns or all(len(column_panel) <= panel_columns for column_panel in share.column_panels)
        for tile in share.tiles():
            rows_of_c[share.rows.slice][tile.rows.slice, tile.columns.slice] += 1
    assert (rows_of_c == 1).all()
    assert (rows_of_b == 1).all()


@quick
@given(problem=problems, topology=topologies, data=st.data())
def test_each_row_of_the_gathered_c_belongs_to_one_rank_of_the_roots_node(problem, topology, data):
    root = data.draw(st.integers(0, topology.size - 1))
    plan = planned(problem, topology, root=root)
    assert root in topology.nodes[plan.root_node]
    taken = np.zeros(problem.n, int)
    for rank in range(topology.size):
        rows = plan.c_rows_at_the_end(rank)
        assert topology.node_of(rank) == plan.root_node or not len(rows)
        taken[rows.slice] += 1
    assert (taken == 1).all()


def test_on_the_roots_node_all_of_c_is_kept_and_elsewhere_the_nodes_rows():
    plan = planned(Problem(12, 5, 7), Topology.of_equal_nodes(4, 2), root=3)
    assert plan.root_node == 1
    assert [str(plan.c_rows_on(node)) for node in (0, 1)] == ["0:6", "0:12"]
    assert [str(plan.a_rows_on(node)) for node in (0, 1)] == ["0:6", "6:12"]
    assert [str(plan.c_rows_at_the_end(rank)) for rank in range(4)] == ["0:0", "0:0", "0:6", "6:12"]
    assert plan.bytes_shared_on_node(0) == 8 * (6 * 5 + 5 * 7 + 6 * 7)
    assert plan.bytes_shared_on_node(1) == 8 * (6 * 5 + 5 * 7 + 12 * 7)


def test_on_the_road_nccl_every_rank_loads_its_rows_and_nodes_share_no_others():
    plan = replace(planned(Problem(12, 5, 7), Topology.of_equal_nodes(4, 2), device="cuda", root=2), transport="nccl")
    assert [plan.b_rows_over_link(rank) for rank in range(4)] == [Span(0, 2), Span(2, 3), Span(3, 4), Span(4, 5)]
    assert [plan.b_rows_on(node) for node in (0, 1)] == [Span(0, 3), Span(3, 5)]
    assert plan.bytes_shared_on_node(0) == 8 * (6 * 5 + 3 * 7)
    assert plan.bytes_shared_on_node(1) == 8 * (6 * 5 + 2 * 7 + 12 * 7), "C lies only where it is gathered"
    assert plan.own_rows_suffice
    assert replace(plan, transport="host").b_rows_on(0) == Span(0, 5)


@quick
@given(problem=problems, ranks=st.integers(1, 9))
def test_the_windows_of_a_single_node_are_the_three_matrices(problem, ranks):
    plan = planned(problem, Topology.of_equal_nodes(ranks, ranks))
    assert plan.bytes_shared_on_node(0) == problem.bytes_of_matrices
    assert plan.bytes_on_node(0) == problem.bytes_of_matrices + ranks * PROCESS_BYTES
    assert all(plan.bytes_on_gpu(rank) == 0 for rank in range(ranks))


@quick
@given(problem=problems, topology=topologies, device=devices, grown=st.sampled_from("nlm"), by=st.integers(1, 20))
def test_a_larger_product_never_needs_less(problem, topology, device, grown, by):
    larger = replace(problem, **{grown: getattr(problem, grown) + by})
    before, after = (planned(each, topology, device=device[0], staged=device[1]) for each in (problem, larger))
    for node in range(len(topology.nodes)):
        assert before.bytes_shared_on_node(node) <= after.bytes_shared_on_node(node)
        assert before.bytes_on_node(node) <= after.bytes_on_node(node)
    for rank in range(topology.size):
        assert before.bytes_on_gpu(rank) <= after.bytes_on_gpu(rank)


def test_float64_takes_twice_the_memory_of_float32():
    small, large = (planned(Problem(30, 20, 10, dtype), Topology.of_equal_nodes(2, 1)) for dtype in ("float32", "float64"))
    assert [2 * small.bytes_shared_on_node(node) for node in (0, 1)] == [large.bytes_shared_on_node(node) for node in (0, 1)]


def test_buffers_are_the_hosts_on_a_staged_cpu_and_the_gpus_on_cuda():
    problem, topology = Problem(10, 4, 6), Topology.of_equal_nodes(2, 2)
    buffers = 256 + 256 + 256  # 5×4 of A, 4×6 of B and 5×6 of C, each in whole 256 bytes
    in_place, staged, cuda = (
        planned(problem, topology, device=device, staged=staged)
        for device, staged in (("cpu", False), ("cpu", True), ("cuda", False))
    )
    assert [plan.bytes_on_rank(0) - PROCESS_BYTES for plan in (in_place, staged, cuda)] == [0, buffers, 0]
    assert [plan.bytes_on_gpu(0) for plan in (in_place, staged, cuda)] == [0, 0, buffers]
    assert cuda.staged


def test_a_rank_without_rows_needs_no_buffers():
    plan = planned(Problem(1, 50, 50), Topology.of_equal_nodes(2, 2), device="cuda")
    assert plan.bytes_on_gpu(0) > 0
    assert plan.bytes_on_gpu(1) == 0


def of_gpus(problem, gpus):
    return planned(problem, Topology.of_equal_nodes(gpus, gpus), device="cuda").shares[0]


def test_a_gpu_begins_with_one_chunk_and_a_panel_and_ends_with_a_chunk():
    share = of_gpus(Problem(8000, 8000, 8000), 1)
    assert [len(row_panel) for row_panel in share.row_panels] == [512] * 15 + [320]
    assert [len(column_panel) for column_panel in share.column_panels] == [2048, 2048, 2048, 1856]
    order = "".join(arrival.operand for arrival in share.order)
    assert order.startswith("AB")
    assert order.endswith("A")


def test_small_matrices_come_at_once():
    share = of_gpus(Problem(500, 500, 500), 1)
    assert len(share.row_panels) == len(share.column_panels) == 1


def test_what_lies_on_the_gpus_already_is_cut_for_the_exchange_alone():
    rows = tuple(Span(first, first + 1000) for first in range(0, 8000, 1000))
    plan = planned(Problem(8000, 8000, 8000), Topology.of_equal_nodes(8, 8), device="cuda", row_blocks=RowBlocks(rows, rows))
    assert {len(share.row_panels) for share in plan.shares} == {1}
    assert {len(share.column_panels) for share in plan.shares} == {8}


def test_b_in_float32_comes_in_panels_as_wide_in_bytes():
    share = of_gpus(Problem(100, 40_000, 40_000, "float32"), 1)
    assert {len(column_panel) for column_panel in share.column_panels[:-1]} == {5_120}


def test_a_cpu_takes_b_as_it_lies():
    assert len(planned(Problem(10, 40_000, 40_000), Topology.of_equal_nodes(1, 1)).shares[0].column_panels) == 1


def test_a_long_product_on_a_cpu_is_cut_into_strips_so_that_progress_shows():
    assert len(planned(Problem(1000, 1000, 1000), Topology.of_equal_nodes(1, 1)).shares[0].row_panels) == 1
    assert len(planned(Problem(100_000, 10_000, 10_000), Topology.of_equal_nodes(1, 1)).shares[0].row_panels) > 10


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_empty_matrices_have_a_plan(device, shape):
    plan = planned(Problem(*shape), Topology.of_equal_nodes(3, 2), device=device)
    released = [tile for share in plan.shares for tile in share.tiles()]
    assert sum(len(tile.rows) * len(tile.columns) for tile in released) == shape[0] * shape[2]


@pytest.mark.parametrize("name", ["n", "l", "m"])
def test_negative_sizes_are_refused_by_name(name):
    with pytest.raises(UsageError, match=f"{name} must not be negative, not -1"):
        Problem(**{"n": 1, "l": 1, "m": 1, name: -1})


def test_types_that_cannot_be_multiplied_are_refused():
    with pytest.raises(UsageError, match="int32"):
        Problem(1, 1, 1, "int32")


def test_operations_are_a_multiplication_and_an_addition_each():
    assert Problem(3, 5, 7).operations == 210


# What does not fit


def refuse_shortage(plan, free, **how):
    missing = shortage(plan, free, **how)
    if missing:
        raise DoesNotFit(missing)


def memory_for(plan, **changed):
    """Every rank's free memory: plenty, and a GPU of its own, but for what is given otherwise."""
    return [
        replace(FreeMemory(f"host{share.node}", PLENTY, PLENTY, PLENTY, f"GPU-{share.rank}"), **changed) for share in plan.shares
    ]


def test_what_just_fits_is_not_refused_and_a_missing_mebibyte_of_host_memory_is_named():
    plan = planned(Problem(1000, 1000, 1000), Topology.of_equal_nodes(2, 2))
    need = plan.bytes_on_node(0)
    refuse_shortage(plan, memory_for(plan, host_bytes=need))
    with pytest.raises(DoesNotFit, match=r"214\.9 MiB of memory on host0, which has 213\.9 MiB: 1\.0 MiB are missing"):
        refuse_shortage(plan, memory_for(plan, host_bytes=need - MiB))


def test_missing_shared_memory_is_named_and_a_rank_alone_on_its_node_needs_none():
    plan = planned(Problem(1000, 1000, 1000), Topology.of_equal_nodes(2, 2))
    need = 3 * 8_000_000
    refuse_shortage(plan, memory_for(plan, shared_bytes=need))
    with pytest.raises(DoesNotFit, match=r"shared memory on host0.*512\.0 KiB are missing.*/dev/shm"):
        refuse_shortage(plan, memory_for(plan, shared_bytes=need - 512 * KiB))
    apart = planned(plan.problem, Topology.of_equal_nodes(2, 1))
    refuse_shortage(apart, memory_for(apart, shared_bytes=0))


def test_device_memory_too_small_for_one_element_of_c_is_refused_on_any_device():
    plan = planned(Problem(1400, 1400, 1400), Topology.of_equal_nodes(1, 1), staged=True, device_memory=20_000)
    with pytest.raises(DoesNotFit, match=r"a row of A, a column of B .* rank 0 may take 19\.5 KiB \(--gpu-memory\)"):
        refuse_shortage(plan, memory_for(plan))
    refuse_shortage(replace(plan, device_memory=30_000), memory_for(plan))


def test_two_ranks_on_one_gpu_need_room_for_both():
    plan = planned(Problem(1000, 1000, 1000), Topology.of_equal_nodes(2, 2), device="cuda")
    need = plan.bytes_on_gpu(0)
    refuse_shortage(plan, memory_for(plan, gpu_bytes=need))
    with pytest.raises(DoesNotFit, match=rf"the GPU of ranks 0, 1 on host0.*{need / MiB:.1f} MiB are missing"):
        refuse_shortage(plan, memory_for(plan, gpu_bytes=need, gpu_id="GPU-same"))
    refuse_shortage(plan, memory_for(plan, gpu_bytes=2 * need, gpu_id="GPU-same"))


def test_a_gpu_that_is_too_small_is_named_with_its_rank():
    plan = planned(Problem(1000, 1000, 1000), Topology.of_equal_nodes(2, 2), device="cuda")
    free = memory_for(plan)
    free[1] = replace(free[1], gpu_bytes=plan.bytes_on_gpu(1) - 3 * MiB)
    with pytest.raises(DoesNotFit, match=r"the GPU of rank 1 on host0.*3\.0 MiB are missing; use more GPUs"):
        refuse_shortage(plan, free)


def test_what_arrays_take_of_a_gpu_beside_the_plan_must_fit_too():
    plan = planned(Problem(1000, 1000, 1000), Topology.of_equal_nodes(2, 2), device="cuda")
    need = plan.bytes_on_gpu(0) + 3 * MiB
    refuse_shortage(plan, memory_for(plan, gpu_bytes=need), besides_on_gpu=(3 * MiB, 0))
    with pytest.raises(DoesNotFit, match=r"the GPU of rank 0 on host0.*1\.0 MiB are missing"):
        refuse_shortage(plan, memory_for(plan, gpu_bytes=need - MiB), besides_on_gpu=(3 * MiB, 0))
    on_cpu = planned(plan.problem, plan.topology)
    refuse_shortage(on_cpu, memory_for(on_cpu, gpu_bytes=0), besides_on_gpu=(3 * MiB, 0))


def test_pretended_nodes_of_one_host_share_its_memory():
    plan = planned(Problem(1000, 1000, 1000), Topology.of_equal_nodes(2, 1))
    need = plan.bytes_on_node(0) + plan.bytes_on_node(1)
    apart, together = (memory_for(plan, host_bytes=need - MiB, **more) for more in ({}, {"host": "same"}))
    refuse_shortage(plan, apart)
    with pytest.raises(DoesNotFit, match=r"on same.*1\.0 MiB are missing"):
        refuse_shortage(plan, together)


def test_what_is_already_there_is_not_counted_on_the_roots_node():
    plan = planned(Problem(1000, 1000, 1000), Topology.of_equal_nodes(2, 1), root=1)
    free = memory_for(plan)
    free[1] = replace(free[1], host_bytes=plan.bytes_on_node(1) - 8_000_000)
    refuse_shortage(plan, free, already_there=8_000_000)
    with pytest.raises(DoesNotFit, match=r"host1.*7\.6 MiB are missing"):
        refuse_shortage(plan, free)
    free[0] = replace(free[0], host_bytes=plan.bytes_on_node(0) - MiB)
    with pytest.raises(DoesNotFit, match=r"host0.*1\.0 MiB are missing"):
        refuse_shortage(plan, free, already_there=8_000_000)


# Cut to what a device holds


@quick
@given(problem=problems, rows=st.integers(1, 60), memory=st.integers(1, 30_000), device=st.sampled_from(["cpu", "cuda"]), **cuts)
def test_a_cut_fits_its_memory_or_is_the_smallest(problem, rows, memory, device, panel_rows, panel_columns):
    asked = {"panel_rows": panel_rows, "panel_columns": panel_columns}
    tiling = choose_tiling(TilingRequest(problem, rows, device, memory=memory, **asked))
    smallest = (tiling.row_panels, tiling.column_panels) == (1, 1) and (tiling.panel_rows, tiling.panel_columns) in (
        (1, 1),
        (panel_rows or 1, panel_columns or 1),
    )
    assert layout_of(problem, rows, tiling, device).bytes <= memory or smallest


def test_what_would_come_in_too_many_pieces_is_refused_also_where_the_same_come_again():
    def plan(n, memory):
        return planned(Problem(n, 1, n), Topology.of_equal_nodes(1, 1), device="cuda", device_memory=memory)

    small = plan(700, 2000)
    small.refuse_endless()
    assert len(small.shares[0].order) > 1_000
    with pytest.raises(UsageError, match=r"would be cut into \d[\d,]+ panels, more than 2,097,152: allow more memory"):
        plan(200_000, 20_000).refuse_endless()


def tight(problem, rows, memory):
    tiling = choose_tiling(TilingRequest(problem, rows, "cuda", memory=memory))
    assert 0.75 * memory < layout_of(problem, rows, tiling, "cuda").bytes <= memory
    assert tiling.panel_rows % 128 == tiling.panel_columns % 128 == 0
    return tiling


def test_where_memory_is_short_half_of_b_stays_while_chunks_of_a_pass():
    tiling = tight(Problem(8000, 8000, 8000), 8000, 8 * 8000**2)
    assert tiling.stationary == "B"
    assert 4000 <= tiling.column_panels * tiling.panel_columns < 4500
    assert tiling.row_panels >= 3


@pytest.mark.parametrize("memory", [2 << 30, 1 << 29, 3 << 27, 1 << 28])
def test_pieces_are_no_smaller_than_a_kernels_tiles_and_three_of_what_passes_are_held(memory):
    n = 40_000 if memory > 1 << 30 else 8000  # of 8000, nearly all of B would fit into 512 MiB
    tiling = choose_tiling(TilingRequest(Problem(n, n, n), n, "cuda", memory=memory))
    assert min(tiling.panel_rows, tiling.panel_columns) >= 128
    assert (tiling.row_panels if tiling.stationary == "B" else tiling.column_panels) >= 3


def test_what_stays_comes_in_several_pieces_where_they_may_be_wide():
    assert tight(Problem(40_000, 40_000, 40_000), 40_000, 4 << 30).column_panels >= 2


def test_where_most_of_b_stays_chunks_of_a_are_still_whole_tiles():
    tiling = tight(Problem(40_000, 40_000, 40_000), 40_000, 16 << 30)
    assert tiling.stationary == "B"
    assert tiling.column_panels * tiling.panel_columns >= 40_000


@pytest.mark.parametrize(("rows", "panel_rows"), [(520, 0), (3000, 700), (300, 1000)])
def test_all_rows_stay_where_they_fit_though_their_chunks_do_not_divide_them(rows, panel_rows):
    problem, memory = Problem(rows, 40_000, 40_000), 8 * 40_000 * (rows + 13_000)
    tiling = choose_tiling(TilingRequest(problem, rows, "cuda", memory=memory, panel_rows=panel_rows))
    assert tiling.stationary == "A"
    assert tiling.row_panels == -(-rows // tiling.panel_rows)
    assert tiling.panel_rows == panel_rows or not panel_rows


@pytest.mark.parametrize("memory", [1500, 0])
def test_on_a_cpu_too_pieces_are_of_one_size_where_they_take_each_others_place(memory):
    sizes = {"panel_rows": 4, "panel_columns": 4}
    share = planned(Problem(13, 13, 13), Topology.of_equal_nodes(1, 1), staged=True, device_memory=memory, **sizes).shares[0]
    assert share.holds_all == (memory == 0)
    for pieces, held in (share.row_panels, share.tiling.row_panels), (share.column_panels, share.tiling.column_panels):
        assert [len(piece) for piece in pieces] == ([4, 3, 3, 3] if held >= 4 else [4, 4, 4, 1])


def test_a_cut_in_very_many_pieces_is_found_in_a_few_steps(monkeypatch):
    looked = []
    monkeypatch.setattr("hybrid.plan.out_of_core.layout_of", lambda *tiling: looked.append(tiling) or layout_of(*tiling))
    sizes = {"panel_rows": 1, "panel_columns": 1}
    choose_tiling(TilingRequest(Problem(100_000, 1, 1), 100_000, "cuda", memory=1 << 20, **sizes))
    assert len(looked) < 10_000


def test_where_memory_is_very_short_less_stays_but_what_passes_is_not_smaller():
    tiling = tight(Problem(40_000, 40_000, 40_000), 40_000, 4 << 30)
    assert tiling.panel_rows * tiling.column_panels * tiling.panel_columns >= 2_000_000


def test_where_only_b_is_too_large_all_rows_stay():
    tiling = tight(Problem(8000, 40_000, 40_000), 2000, 8 << 30)
    assert tiling.stationary == "A"
    assert tiling.panel_rows * tiling.row_panels >= 2000
    assert tiling.column_panels >= 3
    assert tiling.panel_columns * 8 >= 8 << 10


def test_where_only_a_is_too_large_all_of_b_stays():
    tiling = tight(Problem(100_000, 20_000, 10_000), 100_000, 8 << 30)
    assert tiling.stationary == "B"
    assert tiling.panel_columns * tiling.column_panels >= 10_000


@quick
@given(st.builds(Problem, st.integers(1, 60), st.integers(1, 60), st.integers(1, 60)), st.sampled_from(["2x2", "1x4", "1x2x2"]))
def test_every_rank_of_a_grid_has_the_plan_of_its_part(problem, grid):
    plan = planned(problem, Topology.of_equal_nodes(8, 2), device="cuda", staged=True, grid=parse(grid, 4), check="on")
    assert plan.check == "host"
    assert why_no_peers(plan) == why_no_nccl(plan) == "the nodes form a grid, whose parts travel from host to host"
    for rank, part in enumerate(plan.parts):
        rows_of_a, of_c = plan.grid_layout.rows_of_a(rank), plan.grid_layout.part_of_c(rank)
        assert (part.problem.n, part.problem.l, part.problem.m) == (*rows_of_a.shape, len(of_c.columns))
        assert part.shares[0].layout.bytes == plan.bytes_of_buffers(rank) == plan.bytes_on_gpu(rank)
        assert part.bytes_on_gpu(0) <= planned(problem, Topology(((0,),)), device="cuda", staged=True).bytes_on_gpu(0)


def test_the_parts_of_a_grid_are_cut_to_the_memory_of_a_device():
    problem, nodes = Problem(4000, 4000, 4000), Topology.of_equal_nodes(4, 1)
    plan = planned(problem, nodes, device="cuda", staged=True, grid=parse("2x2", 4), device_memory=64 * MiB)
    assert all(plan.bytes_of_buffers(rank) <= 64 * MiB and not plan.parts[rank].shares[0].holds_all for rank in range(4))
    too_small = planned(problem, nodes, device="cpu", staged=True, grid=parse("2x2", 4), device_memory=KiB)
    assert "a row of A, a column of B" in shortage(too_small, [FreeMemory("host", PLENTY, PLENTY)] * 4)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_several_nodes_c_leaves_panel_by_panel_where_it_is_gathered(device):
    problem, nodes = Problem(16000, 8000, 8000), Topology.of_equal_nodes(4, 2)
    share = planned(problem, nodes, device=device, panel_rows=1000).shares[3]
    of_b = [number for number, arrival in enumerate(share.order) if arrival.operand == "B"]
    assert of_b == [1, *range(len(share.row_panels) + 1, len(share.order))]
    rows = tuple(nodes.rows_of_rank(rank, 16000) for rank in range(4))
    stays = planned(problem, nodes, device=device, panel_rows=1000, row_blocks=RowBlocks(rows, rows))
    assert not stays.shares[3].tiling.rows_first, "what stays need not be complete early"
