# SPDX-License-Identifier: MIT
"""The schedule of one rank makes the product in any order that its events allow, however the work is cut; and needs every event,
so that these tests can fail."""

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
from hybrid.execution.in_place import multiply_in_place
from hybrid.execution.pipeline import run_share
from hybrid.host.row_view import RowView
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


@examples(100)
@given(n=sizes, l=sizes, m=sizes, panel_rows=cuts, slab_rows=cuts, ranks=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_slabs_give_numpys_product_in_any_order_the_marks_allow(n, l, m, panel_rows, slab_rows, ranks, seed):
    tiling = {"panel_rows": panel_rows, "slab_rows": slab_rows, "accumulates": True}
    a, b, c = product_of_shares(n, l, m, ShuffledDevice(seed), ranks=ranks, **tiling)
    np.testing.assert_array_equal(c, a @ b)


@examples(100)
@given(n=sizes, l=st.integers(1, 20), m=sizes, memory=st.integers(200, 4000), slab_rows=cuts, seed=st.integers(0, 2**32))
def test_slabs_of_panels_that_stay_give_numpys_product_in_any_order(n, l, m, memory, slab_rows, seed):
    tiling = {"panel_rows": 2, "panel_columns": 3, "slab_rows": slab_rows, "accumulates": True, "device_memory": memory}
    a, b, c = product_of_shares(n, l, m, ShuffledDevice(seed), **tiling)
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
