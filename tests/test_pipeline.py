"""The schedule of one rank on devices that work at once, later, and in any order their promises allow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.devices.cpu import CpuDevice, blas
from hybrid.partition import Topology
from hybrid.pipeline import HostRows, run_share
from hybrid.plan import Problem, make_plan

KINDS = ("copy in", "multiply", "copy out")

sizes = st.integers(0, 20)
cuts = st.integers(1, 7)


@dataclass(eq=False)
class Work:
    run: Callable[[], None]
    after: list[Work]
    done: bool = False


class ShuffledDevice:
    """Works only at finish, in an order drawn from all that the Device protocol allows.

    Work of one kind runs in its order; between the kinds only the marks hold anything back.
    """

    name = "cpu"
    staged = True

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._queues: dict[str, deque[Work]] = {kind: deque() for kind in KINDS}

    def buffer(self, rows, columns, dtype):
        return np.full((rows, columns), np.nan, dtype)

    def copy_in(self, into, source):
        return self._later("copy in", [], partial(np.copyto, into, source))

    def multiply(self, a, b, c, after):
        return self._later("multiply", after, partial(blas, a, b, c))

    def copy_out(self, into, source, after):
        return self._later("copy out", after, partial(np.copyto, into, source))

    def _later(self, kind, after, run):
        work = Work(run, list(after))
        self._queues[kind].append(work)
        return work

    def finish(self):
        eager = {kind: self._random.random() for kind in KINDS}  # a run in which one kind is fast, another slow
        done = []
        while any(self._queues.values()):
            ready = [kind for kind, queue in self._queues.items() if queue and all(mark.done for mark in queue[0].after)]
            assert ready, "work waits for work that was handed over after it"
            kind = self._random.choices(ready, [eager[kind] for kind in ready])[0]
            work = self._queues[kind].popleft()
            work.run()
            work.done = True
            done.append((kind, float(len(done)), float(len(done) + 1)))
        return done


class ForgetfulDevice(ShuffledDevice):
    """Drops the marks of one kind of work, as a pipeline would that forgot to hand them over."""

    def __init__(self, seed: int, kind: str) -> None:
        super().__init__(seed)
        self._forgets = kind

    def _later(self, kind, after, run):
        return super()._later(kind, [] if kind == self._forgets else after, run)


def product_of_shares(n, l, m, device, *, ranks=1, dtype="float64", seed=0, entering=lambda phase: None, **cut):
    """C made share by share on one device, with A and B; NaN where nothing was written."""
    random = np.random.default_rng(seed)
    a, b = random.integers(-9, 9, (n, l)).astype(dtype), random.integers(-9, 9, (l, m)).astype(dtype)
    c = np.full((n, m), np.nan, dtype)
    plan = make_plan(Problem(n, l, m, dtype), Topology.of_equal_nodes(ranks, ranks), staged=device.staged, **cut)
    for share in plan.shares:
        run_share(share, plan.problem, HostRows(a[share.rows.slice], b, c[share.rows.slice]), device, entering)
    return a, b, c


@settings(deadline=None, max_examples=150)
@given(n=sizes, l=sizes, m=sizes, chunk_rows=cuts, panel_columns=cuts, ranks=st.integers(1, 3), staged=st.booleans())
def test_any_chunks_and_panels_give_numpys_product(n, l, m, chunk_rows, panel_columns, ranks, staged):
    device = CpuDevice(staged=staged)
    a, b, c = product_of_shares(n, l, m, device, ranks=ranks, chunk_rows=chunk_rows, panel_columns=panel_columns)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_buffers_and_product_have_the_problems_type(dtype):
    a, b, c = product_of_shares(9, 8, 7, CpuDevice(staged=True), dtype=dtype, chunk_rows=2, panel_columns=3)
    assert c.dtype == dtype
    np.testing.assert_array_equal(c, a @ b)


@settings(deadline=None, max_examples=200)
@given(n=sizes, l=sizes, m=sizes, chunk_rows=cuts, panel_columns=cuts, seed=st.integers(0, 2**32))
def test_the_product_is_right_in_any_order_the_marks_allow(n, l, m, chunk_rows, panel_columns, seed):
    a, b, c = product_of_shares(n, l, m, ShuffledDevice(seed), chunk_rows=chunk_rows, panel_columns=panel_columns)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("seed", range(100))
def test_the_product_is_right_in_many_orders_of_many_pieces(seed):
    a, b, c = product_of_shares(30, 10, 30, ShuffledDevice(seed), chunk_rows=3, panel_columns=4)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("kind", ["multiply", "copy out"])
def test_a_pipeline_without_marks_would_be_found(kind):
    def right(seed):
        a, b, c = product_of_shares(8, 8, 8, ForgetfulDevice(seed, kind), chunk_rows=4, panel_columns=4)
        return np.array_equal(c, a @ b)

    assert not all(right(seed) for seed in range(20))


@pytest.mark.parametrize("seed", range(5))
def test_a_device_reports_every_piece_of_work(seed):
    chunks, panels = 5, 4  # of 10 rows by 2, of 12 columns by 3
    share_of = {"chunk_rows": 2, "panel_columns": 3}
    plan = make_plan(Problem(10, 6, 12), Topology.of_equal_nodes(1, 1), staged=True, **share_of)
    a, b, c = np.ones((10, 6)), np.ones((6, 12)), np.empty((10, 12))
    for device in (CpuDevice(staged=True), ShuffledDevice(seed)):
        done = run_share(plan.shares[0], plan.problem, HostRows(a, b, c), device, lambda phase: None)
        kinds = [kind for kind, begin, end in done]
        assert all(begin <= end for _, begin, end in done)
        strips = chunks + panels - 1  # every arrival but the first releases one
        assert [kinds.count(kind) for kind in KINDS] == [chunks + panels, strips, strips]


def test_a_device_that_works_in_place_copies_nothing():
    plan = make_plan(Problem(10, 6, 12), Topology.of_equal_nodes(1, 1), chunk_rows=4)
    host = HostRows(np.ones((10, 6)), np.ones((6, 12)), np.empty((10, 12)))
    device = CpuDevice()
    done = run_share(plan.shares[0], plan.problem, host, device, lambda phase: None)
    assert [kind for kind, _, _ in done] == ["multiply"] * 3
    assert device.finish() == []


def test_each_piece_is_announced_before_it_is_handed_over():
    entered = []
    product_of_shares(4, 3, 2, CpuDevice(staged=True), entering=entered.append, chunk_rows=2)
    assert entered == ["copy in", "copy in", "multiply", "copy out", "copy in", "multiply", "copy out", "multiply"]


def test_host_matrices_that_are_parts_of_larger_ones_are_read_and_written_in_their_place():
    large_a, large_b, large_c = np.arange(400.0).reshape(20, 20), np.arange(400.0).reshape(20, 20), np.zeros((20, 20))
    plan = make_plan(Problem(6, 5, 7), Topology.of_equal_nodes(1, 1), staged=True, chunk_rows=2, panel_columns=3)
    host = HostRows(large_a[2:8, 3:8], large_b[1:6, 4:11], large_c[3:9, 2:9])
    run_share(plan.shares[0], plan.problem, host, ShuffledDevice(1), lambda phase: None)
    expected = np.zeros((20, 20))
    expected[3:9, 2:9] = large_a[2:8, 3:8] @ large_b[1:6, 4:11]
    np.testing.assert_array_equal(large_c, expected)
