# SPDX-License-Identifier: MIT
"""The schedule of one rank on devices that work at once, later, and in any order their promises allow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import planned
from support.selection import examples
from support.shuffled import ForgetfulDevice, ShuffledDevice

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.devices.buffers import Buffers
from hybrid.devices.cpu import CpuDevice
from hybrid.execution.in_place import multiply_in_place
from hybrid.execution.pipeline import LOADS_AHEAD, run_share
from hybrid.host.row_view import RowView
from hybrid.plan import tiling
from hybrid.plan.machine_model import MachineModel
from hybrid.plan.planning import make_plan
from hybrid.transport.base import RankMatrices
from hybrid.transport.host import HostTransport

sizes = st.integers(0, 20)
cuts = st.integers(1, 7)


def whole(b):
    return RowView(b, Span(0, len(b)))


def product_of_shares(
    n, l, m, device, *, ranks=1, dtype="float64", seed=0, entering=lambda phase: None, plan_for="cpu", **tiling
):
    """C made share by share on one device, with A and B; NaN where nothing was written."""
    random = np.random.default_rng(seed)
    a, b = random.integers(-9, 9, (n, l)).astype(dtype), random.integers(-9, 9, (l, m)).astype(dtype)
    c = np.full((n, m), np.nan, dtype)
    plan = planned(
        Problem(n, l, m, dtype), Topology.of_equal_nodes(ranks, ranks), device=plan_for, staged=device.staged, **tiling
    )
    for share in plan.shares:
        run(share, plan.problem, RankMatrices(a[share.rows.slice], whole(b), c[share.rows.slice]), device, entering)
    return a, b, c


def run(share, problem, matrices, device, entering=lambda phase: None):
    if not device.staged:
        return multiply_in_place(share, matrices, device, entering)
    buffers = Buffers(device, device.reserve(share.layout.bytes, shared=False), share, problem)
    return run_share(share, buffers, HostTransport(device, share.rank, matrices), device, entering)


@examples(75)
@given(n=sizes, l=sizes, m=sizes, panel_rows=cuts, panel_columns=cuts, ranks=st.integers(1, 3), staged=st.booleans())
def test_row_and_column_panels_of_any_size_give_numpys_product(n, l, m, panel_rows, panel_columns, ranks, staged):
    device = CpuDevice(staged=staged)
    a, b, c = product_of_shares(n, l, m, device, ranks=ranks, panel_rows=panel_rows, panel_columns=panel_columns)
    np.testing.assert_array_equal(c, a @ b)


@pytest.fixture(scope="module")
def gpu_tiling_of_small_matrices():
    """For a machine on which small matrices have as many panels as those of thousands of rows and columns have on a GPU."""
    sizes = {"least_panel_rows": 3, "least_slab_rows": 2, "panel_row_overhead_bytes": 4, "least_column_panel_bytes": 200}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling, "KERNEL_TILE", 1)
        make_plan.cache_clear()
        yield MachineModel(float64_multiply_adds_per_byte=0.5, least_panel_bytes=1, **sizes)
    make_plan.cache_clear()


@examples(100)
@given(n=sizes, l=sizes, m=sizes, panel_rows=cuts, slab_rows=cuts, ranks=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_slabs_give_numpys_product_in_any_order_the_marks_allow(n, l, m, panel_rows, slab_rows, ranks, seed):
    tiling = {"panel_rows": panel_rows, "slab_rows": slab_rows, "accumulates": True}
    a, b, c = product_of_shares(n, l, m, ShuffledDevice(seed), ranks=ranks, **tiling)
    np.testing.assert_array_equal(c, a @ b)


def test_what_slabs_add_to_is_copied_back_once():
    entered = []
    tiling = {"panel_rows": 3, "slab_rows": 4, "accumulates": True}
    product_of_shares(30, 20, 10, CpuDevice(staged=True), entering=entered.append, **tiling)
    assert entered.count("multiply") > entered.count("copy out") == 10


@examples(100)
@given(n=sizes, l=st.integers(1, 20), m=sizes, memory=st.integers(200, 4000), slab_rows=cuts, seed=st.integers(0, 2**32))
def test_slabs_of_panels_that_stay_give_numpys_product_in_any_order(n, l, m, memory, slab_rows, seed):
    tiling = {"panel_rows": 2, "panel_columns": 3, "slab_rows": slab_rows, "accumulates": True, "device_memory": memory}
    a, b, c = product_of_shares(n, l, m, ShuffledDevice(seed), **tiling)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("kind", ["copy in", "multiply", "copy out"])
def test_slabs_of_panels_that_stay_need_every_mark(kind):
    tiling = {"panel_rows": 3, "panel_columns": 4, "slab_rows": 3, "accumulates": True, "device_memory": 3000}
    products = [product_of_shares(30, 10, 30, ForgetfulDevice(seed, kind), **tiling) for seed in range(20)]
    assert any(not np.array_equal(c, a @ b) for a, b, c in products)


@pytest.mark.parametrize("kind", ["multiply", "copy out"])
def test_slabs_need_every_event(kind):
    """So the test before can fail."""
    tiling = {"panel_rows": 3, "slab_rows": 4, "accumulates": True}
    products = [product_of_shares(30, 20, 10, ForgetfulDevice(seed, kind), **tiling) for seed in range(20)]
    assert any(not np.array_equal(c, a @ b) for a, b, c in products)


@examples(100)
@given(n=sizes, l=sizes, m=st.integers(8, 40), ranks=st.integers(1, 3), seed=st.integers(0, 2**32), adds=st.booleans())
def test_the_product_is_right_as_a_gpu_cuts_it(gpu_tiling_of_small_matrices, n, l, m, ranks, seed, adds):
    how = {"plan_for": "cuda", "accumulates": adds, "model": gpu_tiling_of_small_matrices}
    a, b, c = product_of_shares(n, l, m, ShuffledDevice(seed), ranks=ranks, **how)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_buffers_and_product_have_the_problems_type(dtype):
    a, b, c = product_of_shares(9, 8, 7, CpuDevice(staged=True), dtype=dtype, panel_rows=2, panel_columns=3)
    assert c.dtype == dtype
    np.testing.assert_array_equal(c, a @ b)


@examples(100)
@given(n=sizes, l=sizes, m=sizes, panel_rows=cuts, panel_columns=cuts, seed=st.integers(0, 2**32))
def test_the_product_is_right_in_any_order_the_events_allow(n, l, m, panel_rows, panel_columns, seed):
    a, b, c = product_of_shares(n, l, m, ShuffledDevice(seed), panel_rows=panel_rows, panel_columns=panel_columns)
    np.testing.assert_array_equal(c, a @ b)


@examples(25)
@given(seed=st.integers(0, 2**32), memory=st.sampled_from([0, 3000]))
def test_the_product_is_right_in_any_order_of_many_pieces(seed, memory):
    a, b, c = product_of_shares(30, 10, 30, ShuffledDevice(seed), panel_rows=3, panel_columns=4, device_memory=memory)
    np.testing.assert_array_equal(c, a @ b)


@examples(100)
@given(n=sizes, l=sizes, m=sizes, memory=st.integers(1, 9000), seed=st.integers(0, 2**32))
def test_the_product_is_right_in_little_memory_in_any_order_the_events_allow(n, l, m, memory, seed):
    a, b, c = product_of_shares(n, l, m, ShuffledDevice(seed), device_memory=memory)
    np.testing.assert_array_equal(c, a @ b)


# Where all fits (memory 0) nothing is overwritten, so copies in wait for nothing.
@pytest.mark.parametrize(
    ("kind", "memory"), [("multiply", 0), ("copy out", 0), ("copy in", 1500), ("multiply", 1500), ("copy out", 1500)]
)
def test_a_pipeline_without_events_would_be_found(kind, memory):
    def right(seed):
        device = ForgetfulDevice(seed, kind)
        a, b, c = product_of_shares(16, 8, 16, device, panel_rows=4, panel_columns=4, device_memory=memory)
        return np.array_equal(c, a @ b)

    assert not all(right(seed) for seed in range(20))


def test_loads_run_ahead_of_the_tiles_only_as_far_as_there_is_memory():
    entered = []
    product_of_shares(4, 3, 4, CpuDevice(staged=True), entering=entered.append, panel_rows=2, panel_columns=2)
    assert entered[:4] == ["copy in"] * 4
    entered.clear()
    tiling = {"panel_rows": 2, "panel_columns": 2, "device_memory": 256 * 2 + 32}
    product_of_shares(4, 3, 4, CpuDevice(staged=True), entering=entered.append, **tiling)
    assert entered[:4] == ["copy in", "copy in", "multiply", "copy out"]


def test_the_first_tile_is_not_kept_waiting_for_all_loads():
    entered = []
    product_of_shares(40, 3, 40, CpuDevice(staged=True), entering=entered.append, panel_rows=2, panel_columns=2)
    assert entered.index("multiply") == 2 + LOADS_AHEAD
    assert entered.count("copy in") == 40


@pytest.mark.parametrize("seed", range(5))
def test_a_device_reports_every_piece_of_work(seed):
    row_panels, column_panels = 5, 4  # of 10 rows by 2, of 12 columns by 3
    plan = planned(Problem(10, 6, 12), Topology.of_equal_nodes(1, 1), staged=True, panel_rows=2, panel_columns=3)
    matrices = RankMatrices(np.ones((10, 6)), whole(np.ones((6, 12))), np.empty((10, 12)))
    tiles = list(plan.shares[0].tiles())
    assert sum(len(tile.rows) * len(tile.columns) for tile in tiles) == 120
    for device in (CpuDevice(staged=True), ShuffledDevice(seed)):
        done = run(plan.shares[0], plan.problem, matrices, device)
        kinds = [kind for kind, begin, end in done]
        assert all(begin <= end for _, begin, end in done)
        assert [kinds.count(kind) for kind in ("copy in", "multiply", "copy out")] == [
            row_panels + column_panels,
            len(tiles),
            len(tiles),
        ]


def test_a_device_that_works_in_place_copies_nothing():
    plan = planned(Problem(10, 6, 12), Topology.of_equal_nodes(1, 1), panel_rows=4)
    device = CpuDevice()
    done = run(plan.shares[0], plan.problem, RankMatrices(np.ones((10, 6)), whole(np.ones((6, 12))), np.empty((10, 12))), device)
    assert [kind for kind, _, _ in done] == ["multiply"] * 3
    assert device.finish() == []


def test_matrices_that_are_parts_of_larger_ones_are_read_and_written_in_their_place():
    large_a, large_b, large_c = np.arange(400.0).reshape(20, 20), np.arange(400.0).reshape(20, 20), np.zeros((20, 20))
    plan = planned(Problem(6, 5, 7), Topology.of_equal_nodes(1, 1), staged=True, panel_rows=2, panel_columns=3)
    run(
        plan.shares[0],
        plan.problem,
        RankMatrices(large_a[2:8, 3:8], whole(large_b[1:6, 4:11]), large_c[3:9, 2:9]),
        ShuffledDevice(1),
    )
    expected = np.zeros((20, 20))
    expected[3:9, 2:9] = large_a[2:8, 3:8] @ large_b[1:6, 4:11]
    np.testing.assert_array_equal(large_c, expected)
