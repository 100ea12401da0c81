# SPDX-License-Identifier: MIT
"""The order in which panels of A and B reach a device: each tile of C is computed from what is there, all of C is computed once,
and nothing is overwritten before its last use."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import ForgetfulDevice, ShuffledDevice, planned
from support.selection import examples

from hybrid.core.problem import Problem, Span, Topology, pieces
from hybrid.devices.base import Buffers
from hybrid.execution.pipeline import ShareRun
from hybrid.host.memory import RowView
from hybrid.planning.schedule import ALIGNED, Tiling, arrivals, slabs_of
from hybrid.transport.base import HostTransport, RankMatrices

few = st.integers(1, 12)
operands = st.sampled_from(["A", "B"])


def spans(length, size):
    return tuple(pieces(Span(0, length), size))


@examples(100, one_in=6)
@given(rows=st.integers(1, 300), links=st.integers(1, 5), slab_rows=st.integers(1, 200))
def test_slabs_have_all_rows_once_and_those_of_each_link_follow_each_other(rows, links, slab_rows):
    slabs = slabs_of(rows, links, slab_rows)
    of_links = [[slab[link] for slab in slabs] for link in range(links)]
    in_order = [span for of_one in of_links for span in of_one]
    assert [row for span in in_order for row in range(span.lo, span.hi)] == list(range(rows))
    assert all(before.hi == after.lo for of_one in of_links for before, after in pairwise(of_one))
    assert all(any(map(len, slab)) for slab in slabs), "no slab is empty"
    assert slab_rows % ALIGNED or all(span.lo % ALIGNED == 0 or span.lo == rows for span in in_order)
    assert max(map(len, in_order)) <= -(-slab_rows // links) + ALIGNED


def told(rows_held, columns_held, **how):
    """The order for two row panels of two rows and three column panels of two columns."""
    order = arrivals(spans(4, 2), spans(6, 2), Tiling(2, 2, rows_held, columns_held, **how))
    return [f"{each.operand}{each.span}: " + ", ".join(f"{t.rows}×{t.columns}" for t in each.releases) for each in order]


def test_where_all_fits_panels_come_in_turn_and_each_releases_all_that_it_can():
    assert told(2, 3) == ["A0:2: ", "B0:2: 0:2×0:2", "B2:4: 0:2×2:4", "A2:4: 2:4×0:4", "B4:6: 0:4×4:6"]
    apart = ["A0:2: ", "B0:2: 0:2×0:2", "B2:4: 0:2×2:4", "A2:4: 2:4×0:2, 2:4×2:4", "B4:6: 0:4×4:6"]
    assert told(2, 3, separate_panels=True) == apart


def test_where_little_fits_the_streamed_operand_goes_there_and_back():
    b_passes = ["A0:2: ", "B0:2: 0:2×0:2", "B2:4: 0:2×2:4", "B4:6: 0:2×4:6", "A2:4: 2:4×4:6, 2:4×2:4", "B0:2: 2:4×0:2"]
    assert told(1, 2) == b_passes
    a_passes = ["A0:2: ", "B0:2: 0:2×0:2", "B2:4: 0:2×2:4", "A2:4: 2:4×0:4", "B4:6: 2:4×4:6", "A0:2: 0:2×4:6"]
    assert told(1, 2, stationary="B") == a_passes


@examples(100, one_in=6)
@given(counts=st.tuples(st.integers(1, 20), st.integers(1, 20)), held=st.tuples(few, few), stationary=operands)
def test_what_is_stationary_comes_once_and_what_is_there_at_a_turn_is_not_copied_again(counts, held, stationary):
    tiling = Tiling(1, 1, *held, stationary=stationary)
    loads = [each.operand for each in arrivals(*(spans(count, 1) for count in counts), tiling)]
    of_a, of_b = zip(counts, held, strict=True)
    (stays, stays_held), (passes, passes_held) = (of_a, of_b) if stationary == "A" else (of_b, of_a)
    turns = -(-stays // stays_held) - 1
    assert loads.count(stationary) == stays
    assert len(loads) == stays + passes + turns * max(0, passes - passes_held)
    assert len(loads) == tiling.loads(*counts), "as the plan counts without the order"


# --- The schedule of one rank makes the product in any order that its events allow, however the work is cut; and needs every
# event, so that these tests can fail


sizes = st.integers(0, 20)
cuts = st.integers(1, 7)


def product_of_shares(n, l, m, device, *, ranks=1, **tiling):
    """C made share by share on one device, with A and B; NaN where nothing was written."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-9, 9, shape).astype(float) for shape in ((n, l), (l, m)))
    c = np.full((n, m), np.nan)
    plan = planned(Problem(n, l, m), Topology.of_equal_nodes(ranks, ranks), device="cpu", staged=True, **tiling)
    for share in plan.shares:
        matrices = RankMatrices(a[share.rows.slice], RowView(b, Span(0, len(b))), c[share.rows.slice])
        buffers = Buffers(device, device.reserve(share.layout.bytes, shared=False), share, plan.problem)
        transport = HostTransport(device=device, rank=share.rank, matrices=matrices)
        ShareRun(share, buffers, transport, device, lambda phase: None).run()
    return a, b, c


TILINGS = (
    st.fixed_dictionaries({"panel_rows": cuts, "slab_rows": cuts, "accumulates": st.just(True), "ranks": st.integers(1, 3)})
    | st.fixed_dictionaries({"panel_rows": cuts, "panel_columns": cuts, "device_memory": st.sampled_from([0, 3000])})
    | st.fixed_dictionaries({"device_memory": st.integers(1, 9000)})
)


@examples(300, one_in=6)
@given(lengths=st.tuples(sizes, sizes, sizes) | st.just((30, 10, 30)), tiling=TILINGS, seed=st.integers(0, 2**32))
def test_the_product_is_numpys_in_any_order_the_events_allow(lengths, tiling, seed):
    a, b, c = product_of_shares(*lengths, ShuffledDevice(seed), **tiling)
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
