# SPDX-License-Identifier: MIT
"""The check of a product beside its copies and multiplications, on devices that run all of them in any order the events allow."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import patch

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
from hybrid.execution.pipeline import run_share
from hybrid.host.row_view import RowView
from hybrid.plan.check_layout import check_layout, group_columns, most_bytes_of_check
from hybrid.transport.base import RankMatrices
from hybrid.transport.host import HostTransport
from hybrid.verification import device_check
from hybrid.verification.check import Findings, judge
from hybrid.verification.copied import CopiedPieces, PiecesOfRanks
from hybrid.verification.copy_checksums import CopyChecksums
from hybrid.verification.device_check import DeviceCheck
from hybrid.verification.rounding import THRESHOLD

sizes = st.integers(0, 20)
cuts = st.integers(1, 7)
groups = st.sampled_from([1, 3, 64])  # columns of a sum
seeds = st.integers(0, 2**32)


def checked_product(n, l, m, device, *, ranks=1, dtype="float64", group=None, products=2, **tiling):
    """A product share by share on one device, more than once: of each time the check, and whether the product is right."""
    problem = Problem(n, l, m, dtype)
    plan = planned(problem, Topology.of_equal_nodes(ranks, ranks), staged=True, **tiling)
    group = group or group_columns(plan.device_memory)
    pieces = PiecesOfRanks(CopiedPieces(replace(check_layout(plan, rank), group=group)) for rank in range(ranks))
    checks, results = {}, []
    for number in range(products):
        random = np.random.default_rng(number)
        a, b = random.integers(-9, 9, (n, l)).astype(dtype), random.integers(-9, 9, (l, m)).astype(dtype)
        c = np.full((n, m), np.nan, dtype)
        findings = []
        for share, of_rank in zip(plan.shares, pieces, strict=True):
            matrices = RankMatrices(a[share.rows.slice], RowView(b, Span(0, l)), c[share.rows.slice])
            if share.rank not in checks:
                checks[share.rank] = _set_up(plan, share, device, of_rank)
            findings.append(_findings(share, problem, matrices, device, of_rank, *checks[share.rank]))
        results.append((judge(problem, group, findings, pieces, 0), np.array_equal(c, a @ b)))
    return results


def _set_up(plan, share, device, pieces):
    """The buffers of a share, and their check; None where there is nothing to multiply."""
    buffers = Buffers(device, device.reserve(share.layout.bytes, shared=False), share, plan.problem)
    if not share.order:
        return buffers, None
    operations = device.check_operations()
    check = DeviceCheck(operations, pieces.layout, plan.problem)
    check.use(buffers)
    if pieces.layout.group == group_columns(plan.device_memory):
        assert operations.made <= most_bytes_of_check(plan.problem, len(share.rows), share.tiling, plan.device_memory)
    return buffers, check


def _findings(share, problem, matrices, device, pieces, buffers, check):
    transport = HostTransport(device, share.rank, matrices)
    list(run_share(share, buffers, transport, device, lambda phase: None, check))
    operands = matrices.a, matrices.b, matrices.c
    copies = CopyChecksums(
        problem, {share.rank: pieces}, CpuDevice(), {share.rank: range(len(pieces.places))}, operands, share.rows.lo, 1
    )
    copies.begin()
    for arrival in share.order:
        copies.loaded(share.rank, arrival, None)
        for tile in filter(lambda tile: tile.completes, arrival.releases):
            copies.stored(share.rank, tile, Span(0, len(tile.rows)), None)
    copies.complete()
    results = copies.results()
    if check is None:
        return Findings("here", None, np.empty(0, np.uint64), results)
    sums, suspects, wrong = check.sums.compared(THRESHOLD)
    return Findings("here", sums, check.sums.checksums_of_pieces(), results, suspects, wrong)


def assert_right(results):
    for check, right in results:
        assert right
        assert check.ok, check.faults
        assert (check.kind, check.error) == ("exact", 0.0)


@examples(40)
@given(n=sizes, l=sizes, m=sizes, panel_rows=cuts, panel_columns=cuts, ranks=st.integers(1, 3), group=groups, seed=seeds)
def test_nothing_is_found_in_a_right_product(n, l, m, panel_rows, panel_columns, ranks, group, seed):
    tiling = {"panel_rows": panel_rows, "panel_columns": panel_columns, "ranks": ranks}
    assert_right(checked_product(n, l, m, ShuffledDevice(seed), group=group, **tiling))


@examples(40)
@given(n=sizes, l=sizes, m=sizes, panel_rows=cuts, slab_rows=cuts, ranks=st.integers(1, 3), group=groups, seed=seeds)
def test_nothing_is_found_where_b_comes_in_slabs(n, l, m, panel_rows, slab_rows, ranks, group, seed):
    tiling = {"panel_rows": panel_rows, "slab_rows": slab_rows, "accumulates": True, "ranks": ranks}
    assert_right(checked_product(n, l, m, ShuffledDevice(seed), group=group, **tiling))


@examples(40)
@given(n=sizes, l=sizes, m=sizes, memory=st.integers(1, 9000), group=groups, at_once=st.sampled_from([1, 8, 4096]), seed=seeds)
def test_nothing_is_found_in_little_memory(n, l, m, memory, group, at_once, seed):
    with patch.object(device_check, "_ROWS_AT_ONCE", at_once):
        assert_right(checked_product(n, l, m, ShuffledDevice(seed), group=group, device_memory=memory))


def test_rows_that_are_subtracted_together_are_all_read_before_they_are_overwritten():
    with patch.object(device_check, "_ROWS_AT_ONCE", 8):  # those of four panels, the first of which is the next to go
        for seed in range(10):
            assert_right(checked_product(10, 3, 11, ShuffledDevice(seed), group=1, device_memory=1024))


@examples(40)
@given(n=sizes, l=st.integers(1, 20), m=sizes, memory=st.integers(200, 4000), slab_rows=cuts, group=groups, seed=seeds)
def test_nothing_is_found_where_panels_that_stay_come_in_slabs(n, l, m, memory, slab_rows, group, seed):
    tiling = {"panel_rows": 2, "panel_columns": 3, "slab_rows": slab_rows, "accumulates": True, "device_memory": memory}
    assert_right(checked_product(n, l, m, ShuffledDevice(seed), group=group, **tiling))


@examples(15)
@given(dtype=st.sampled_from(["float32", "float64"]), memory=st.sampled_from([0, 3000]), seed=seeds)
def test_the_check_takes_no_more_memory_than_the_plan_says(dtype, memory, seed):
    device = ShuffledDevice(seed)
    assert_right(checked_product(30, 10, 30, device, dtype=dtype, panel_rows=3, panel_columns=4, device_memory=memory))


SLABS = {"panel_rows": 3, "panel_columns": 4, "slab_rows": 3, "accumulates": True, "device_memory": 3000}
LITTLE = {"panel_rows": 4, "panel_columns": 4, "device_memory": 1500}
RESIDENT = {"panel_rows": 4, "panel_columns": 4}


@pytest.mark.parametrize("tiling", [RESIDENT, LITTLE, SLABS])
def test_a_check_that_waits_for_nothing_would_be_found(tiling):
    found = [checked_product(24, 10, 24, ForgetfulDevice(seed, "check"), products=1, **tiling)[0] for seed in range(20)]
    assert all(right for _, right in found)
    assert any(not check.ok for check, _ in found)


@pytest.mark.parametrize(("kind", "of"), [("check", "check beside"), ("check beside", "check")])
def test_the_check_and_what_runs_beside_it_wait_for_each_other(monkeypatch, kind, of):
    monkeypatch.setattr(device_check, "_ROWS_AT_ONCE", 8)  # so that several batches run beside the others

    def result(seed):
        return checked_product(24, 10, 24, ForgetfulDevice(seed, kind, of), products=1, **RESIDENT)[0]

    found = [result(seed) for seed in range(20)]
    assert all(right for _, right in found)
    assert any(not check.ok for check, _ in found)


# "copy in" overwrites panels of A and B, "multiply" tiles of C: before the check has read them, if nothing keeps it from that.
# In other plans than SLABS the panels of a new tile, which are copied in first, have waited for the check of the old one.
@pytest.mark.parametrize(
    ("kind", "tiling", "at_once"),
    [("copy in", LITTLE, 4096), ("copy in", LITTLE, 1), ("copy in", SLABS, 4096), ("multiply", SLABS, 4096)],
)
def test_what_the_check_reads_is_not_overwritten_before(monkeypatch, kind, tiling, at_once):
    monkeypatch.setattr(device_check, "_ROWS_AT_ONCE", at_once)

    def result(seed):
        return checked_product(24, 10, 24, ForgetfulDevice(seed, kind, of="check"), products=1, **tiling)[0]

    found = [result(seed) for seed in range(20)]
    assert all(right for _, right in found)  # the product does not need these events
    assert any(not check.ok for check, _ in found)


class WrongDevice(ShuffledDevice):
    """One multiplication changes one element of its tile."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._left = seed % 5

    def multiply(self, a, b, c, after, *, adding=False):
        event, self._left = super().multiply(a, b, c, after, adding=adding), self._left - 1
        if self._left != -1:
            return event

        def spoil():
            c[len(c) // 2, -1] += 1

        return self.later("multiply", [event], spoil)


@pytest.mark.parametrize("tiling", [RESIDENT, LITTLE, SLABS])
@pytest.mark.parametrize("seed", range(5))
def test_one_wrong_element_is_found_in_any_order(tiling, seed):
    ((check, right),) = checked_product(24, 10, 24, WrongDevice(seed), products=1, **tiling)
    assert not right
    assert not check.ok
    assert check.kind == "exact"
    assert "multiplied wrong" in check.faults[0]


def test_what_moves_meanwhile_goes_on_after_each_step_of_the_check():
    """Other ranks' tiles, and C of other nodes, do not wait until all of the check is submitted."""
    steps = steps_of_a_checked_product(panel_rows=3, panel_columns=4)
    checks = [index for index, step in enumerate(steps) if step == "check"]
    assert len(checks) > 30
    for moving in ("transport", "gather"):
        moved = [index for index, step in enumerate(steps) if step == moving]
        between = [sum(before < check < after for check in checks) for before, after in pairwise([-1, *moved, len(steps)])]
        assert max(between) == 1, moving


def steps_of_a_checked_product(**tiling):
    """Of which each is a step of the check, or lets the transport go on, or what gathers C."""
    plan, device, steps = planned(Problem(30, 10, 30), Topology(((0,),)), staged=True, **tiling), ShuffledDevice(1), []
    (share,), pieces = plan.shares, CopiedPieces(check_layout(plan, 0))
    buffers, check = _set_up(plan, share, device, pieces)

    def noting(of, name, step):
        original = getattr(of, name, lambda *these: None)
        setattr(of, name, lambda *these: (steps.append(step), original(*these))[1])

    matrices = RankMatrices(np.ones((30, 10)), RowView(np.ones((10, 30)), Span(0, 10)), np.ones((30, 30)))
    transport = HostTransport(device, 0, matrices)
    gather = SimpleNamespace(will_be_stored=lambda *these: None, wait_for_stored=lambda: None)
    for of, name, step in (
        (check, "begin", "check"),
        (check, "arrived", "check"),
        (check, "computed", "check"),
        (transport, "advance", "transport"),
        (gather, "advance", "gather"),
    ):
        noting(of, name, step)
    list(run_share(share, buffers, transport, device, lambda phase: None, check, gather))
    return steps


def test_what_is_copied_to_where_an_array_lay_that_was_multiplied_in_place_is_summed():
    device, problem = CpuDevice(staged=True), Problem(70, 40, 65, "float64")
    plan = planned(problem, Topology.of_equal_nodes(1, 1), staged=True)
    share, layout = plan.shares[0], check_layout(plan, 0)
    pieces = PiecesOfRanks([CopiedPieces(layout)])
    memory = device.reserve(share.layout.bytes, shared=False)
    array = device.matrix(memory, 0, problem.n, problem.l, problem.dtype)
    check = DeviceCheck(device.check_operations(), layout, problem)
    of_array, buffers = (Buffers(device, memory, share, problem, there) for there in ({"A": array}, {}))
    assert of_array.places == buffers.places
    random = np.random.default_rng(0)
    a, b = random.integers(-9, 9, (problem.n, problem.l)) * 1.0, random.integers(-9, 9, (problem.l, problem.m)) * 1.0
    matrices = RankMatrices(a, RowView(b, Span(0, problem.l)), np.empty((problem.n, problem.m)))
    for used in (of_array, buffers):
        check.use(used)
    findings = _findings(share, problem, matrices, device, pieces[0], buffers, check)
    assert judge(problem, layout.group, [findings], pieces, 0).ok


@pytest.mark.parametrize("columns", [65, 200])
def test_the_rows_of_an_a_that_is_multiplied_in_place_are_measured_once(columns):
    device, problem = CpuDevice(staged=True), Problem(70, 40, columns, "float64")
    plan = planned(problem, Topology.of_equal_nodes(1, 1), staged=True, panel_columns=64)
    share, layout = plan.shares[0], check_layout(plan, 0)
    random = np.random.default_rng(0)
    a, b = random.integers(-9, 9, (problem.n, problem.l)) * 1.0, random.integers(-9, 9, (problem.l, problem.m)) * 1.0
    a[69, 39], b[39, columns - 1] = 500, -700
    matrices = RankMatrices(a, RowView(b, Span(0, problem.l)), np.empty((problem.n, problem.m)))
    buffers = Buffers(device, device.reserve(share.layout.bytes, shared=False), share, problem, {"A": a})
    check = DeviceCheck(device.check_operations(), layout, problem)
    check.use(buffers)
    for _ in range(2):
        list(run_share(share, buffers, HostTransport(device, 0, matrices, in_place={"A"}), device, lambda phase: None, check))
        np.testing.assert_array_equal(check.sums.row_squares[:, 0], np.square(a).sum(axis=1))
        sums, suspects, _ = check.sums.compared(THRESHOLD)
        assert (sums.largest_a, sums.largest_b, suspects) == (500, 700, ())
        np.testing.assert_array_equal(matrices.c, a @ b)
