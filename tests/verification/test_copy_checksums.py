# SPDX-License-Identifier: MIT
"""Checksums of the matrices that copies read and write: by threads and by a device, complete or given up."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from contextlib import suppress
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.devices.base import EventWait
from hybrid.devices.cpu import CpuDevice
from hybrid.errors import DeviceUnavailable
from hybrid.host.row_view import RowView
from hybrid.plan.check_layout import check_layout
from hybrid.verification import copy_checksums, row_checksums_library, row_summing
from hybrid.verification import summing as ways
from hybrid.verification.copied import CopiedPieces
from hybrid.verification.copy_checksums import CopyChecksums

N, L, M = 45, 33, 130


class Copied(threading.Event):
    """The event of a copy. It comes when it is set."""

    of_ptr: ClassVar[dict[int, Copied]] = {}

    def __init__(self):
        super().__init__()
        self.ptr = len(self.of_ptr) + 1
        self.of_ptr[self.ptr] = self
        self.is_awaited = threading.Event()

    def wait(self, timeout=None):
        self.is_awaited.set()
        return super().wait(timeout)


class SlowDevice(CpuDevice):
    def __init__(self):
        super().__init__(staged=True)
        self.failure = None

    def wait(self, event):
        assert event.wait(10)
        if self.failure is not None:
            raise self.failure

    def for_threads_in_c(self):
        """Have these wait for its events."""
        of_pointer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
        entered = {}  # by thread, which Python does not know from one call to the next

        def enter(context):
            entered[threading.get_native_id()] = context
            return 0

        def wait(pointer):
            right = entered[threading.get_native_id()] == 12 and Copied.of_ptr[pointer].wait(10)
            return (7 if self.failure is not None else 0) if right else 8

        self._functions = of_pointer(enter), of_pointer(wait)
        first, second = (ctypes.cast(each, ctypes.c_void_p).value for each in self._functions)
        self.event_wait = EventWait(first, 12, second)


@pytest.fixture(params=["Python", "C"])
def device(request, monkeypatch):
    """Whose events threads of Python's wait for, or threads in C."""
    made = SlowDevice()
    if request.param == "C":
        try:
            library = row_summing.load()
        except DeviceUnavailable as missing:
            pytest.skip(str(missing))
        pool = library.new_pool()
        monkeypatch.setattr(ways, "row_sums", lambda threads, links: row_summing.InC(library, pool, threads))
        made.for_threads_in_c()
    return made


@pytest.fixture(params=["threads", "device"])
def summing(request, monkeypatch):
    """By threads or, as for arrays on a GPU, by the device's operations."""
    if request.param == "device":
        monkeypatch.setattr(
            copy_checksums, "ByThreads", lambda device, weights, pieces, threads: by_device(device, weights, pieces)
        )
    return request.param


def by_device(device, weights, pieces):
    made = ways.ByDevice(device, weights, pieces)
    original = made.sum

    def waiting(rank, piece, part, matrix, first, event):
        device.wait(event)
        original(rank, piece, part, matrix, first, event)

    made.sum = waiting
    return made


def made(device, rng, dtype="float64", **pieces):
    problem = Problem(N, L, M, "float32", dtype) if dtype == "float16" else Problem(N, L, M, dtype)
    types = dtype, dtype, problem.dtype
    matrices = [rng.standard_normal(shape).astype(each) for shape, each in zip(((N, L), (L, M), (N, M)), types, strict=True)]
    plan = planned(problem, Topology(((0,),)), staged=True, check="on", **pieces).with_transport("host")
    layout = CopiedPieces(check_layout(plan, 0))
    a, b, c = matrices
    sums = CopyChecksums(problem, {0: layout}, device, {0: range(len(layout.places))}, (a, RowView(b, Span(0, L)), c), 0, 4)
    return sums, layout, plan.shares[0], matrices


def tell(sums, share, event):
    for arrival in share.order:
        sums.loaded(0, arrival, event)
        for tile in arrival.releases:
            if tile.completes:
                sums.stored(0, tile, Span(0, len(tile.rows)), event)


def test_a_product_that_begins_takes_nothing_before_its_first_copy(device, rng, monkeypatch):
    sums, _, share, _ = made(device, rng)
    right = told(sums, share)[1]
    begun, begin = [], ways.ByThreads.begin
    monkeypatch.setattr(ways.ByThreads, "begin", lambda self, kept: begun.append(kept) or begin(self, kept))
    sums.begin()
    assert begun == []
    tell(sums, share, ready())
    assert len(begun) == 1
    np.testing.assert_array_equal(finished(sums)[0][1], right)


def ready():
    event = Copied()
    event.set()
    return event


def finished(sums):
    sums.complete()
    return sums.results()


def told(sums, share):
    sums.begin()
    tell(sums, share, ready())
    return finished(sums)[0]


PIECES = [{}, {"panel_rows": 9, "panel_columns": 50}, {"panel_rows": 20, "panel_columns": 33}]


@pytest.mark.parametrize("pieces", PIECES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_each_piece_has_the_checksum_of_its_rows(device, rng, summing, pieces, dtype):
    sums, layout, share, matrices = made(device, rng, dtype, **pieces)
    numbers, before = told(sums, share)
    assert sorted(numbers) == list(range(len(layout.places)))
    np.testing.assert_array_equal(told(sums, share)[1], before)
    for operand, matrix in zip("ABC", matrices, strict=True):
        row, column = len(matrix) - 1, matrix.shape[1] // 2
        element = matrix[row, column]
        matrix[row, column] += 1
        sums.abandon()  # so that the operands are summed again, too
        after = told(sums, share)[1]
        matrix[row, column] = element
        for (named, rows, columns), first, second in zip(layout.places, before, after, strict=True):
            holds_it = named == operand and rows.lo <= row < rows.hi and columns.lo <= column < columns.hi
            assert (first != second) == holds_it


def test_c_is_summed_in_every_product(device, rng, summing):
    sums, layout, share, (_, _, c) = made(device, rng)
    before = told(sums, share)[1]
    c[3, 4] += 1
    after = told(sums, share)[1]
    assert [place[0] for place, same in zip(layout.places, before == after, strict=True) if not same] == ["C"]


@pytest.mark.parametrize("operand", "ABC")
def test_what_is_copied_is_summed_only_after_its_event(device, rng, operand):
    sums, _, share, matrices = made(device, rng)
    event = Copied()
    sums.begin()
    tell(sums, share, event)
    time.sleep(0.02)  # a thread that did not wait would have summed by now
    matrices["ABC".index(operand)] += 1
    event.set()
    late = finished(sums)[0][1]
    sums.abandon()  # so that the operands are summed again, too
    np.testing.assert_array_equal(late, told(sums, share)[1])


def test_what_is_written_over_c_after_it_was_summed_shows(device, rng):
    sums, layout, share, (_, _, c) = made(device, rng)
    right = told(sums, share)[1]
    sums.begin()
    tell(sums, share, ready())
    time.sleep(0.05)
    c[: len(c) // 2, 40:50] = 0  # every 64th row is summed again
    wrong = finished(sums)[0][1]
    assert [place[0] for place, same in zip(layout.places, right == wrong, strict=True) if not same] == ["C"]


def give_up_a_product_whose_copy_is_awaited(sums, share):
    event = Copied()
    sums.begin()
    tell(sums, share, event)
    assert event.is_awaited.wait(10)
    giving_up = threading.Thread(target=sums.abandon)
    giving_up.start()
    giving_up.join(0.05)
    assert giving_up.is_alive()  # the thread that waits for the first event still refers to the matrices
    event.set()
    giving_up.join(10)
    assert not giving_up.is_alive()


def test_after_abandon_no_matrix_is_read_and_no_thread_is_left(device, rng, monkeypatch):
    reads = []
    original = row_summing.row_checksums
    monkeypatch.setattr(row_summing, "row_checksums", lambda *given: (reads.append(1), original(*given)))
    monkeypatch.setattr(ways, "row_sums", lambda threads, links: row_summing.ByNumPy(threads))
    sums, layout, share, _ = made(device, rng, panel_rows=5)
    give_up_a_product_whose_copy_is_awaited(sums, share)
    assert "hybrid-checksums" not in {thread.name for thread in threading.enumerate()}
    seen = len(reads)
    assert seen < len(layout.places)
    time.sleep(0.02)
    assert len(reads) == seen
    # The next product is summed from the beginning, operands as well.
    numbers, after = told(sums, share)
    assert sorted(numbers) == list(range(len(layout.places)))
    np.testing.assert_array_equal(after, told(sums, share)[1])


def test_threads_in_c_give_up_what_waits_for_copies(device, rng):
    sums, _, share, _ = made(device, rng, panel_rows=5)
    right = told(sums, share)[1]
    sums.abandon()
    give_up_a_product_whose_copy_is_awaited(sums, share)
    np.testing.assert_array_equal(told(sums, share)[1], right)


def test_abandon_may_come_at_any_time(device, rng, summing):
    sums, _, share, _ = made(device, rng)
    sums.abandon()
    sums.begin()
    sums.abandon()
    sums.abandon()
    right = told(sums, share)[1]
    sums.abandon()
    np.testing.assert_array_equal(told(sums, share)[1], right)


def test_a_device_that_fails_while_it_is_waited_for_is_heard_of(device, rng):
    sums, _, share, _ = made(device, rng)
    device.failure = OSError("planted")
    sums.begin()
    tell(sums, share, ready())
    told_of = (OSError, "planted") if device.event_wait is None else (DeviceUnavailable, r"failed \(CUDA error 7\)")
    with pytest.raises(told_of[0], match=told_of[1]):
        finished(sums)
    device.failure = None
    assert len(told(sums, share)[0])


def test_a_copy_that_fails_is_heard_of_though_one_in_the_other_direction_ends_well_later(rng):
    try:
        library = row_summing.load()
    except DeviceUnavailable as missing:
        pytest.skip(str(missing))
    first_waits, first_ends, second_has_failed = threading.Event(), threading.Event(), threading.Event()

    def wait(pointer):
        if pointer == 1:
            first_waits.set()
            assert first_ends.wait(10)
            return 0
        assert first_waits.wait(10)
        second_has_failed.set()
        return 7

    of_pointer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    functions = of_pointer(lambda context: 0), of_pointer(wait)
    enter_address, wait_address = (ctypes.cast(each, ctypes.c_void_p).value for each in functions)
    how, matrix = EventWait(enter_address, 12, wait_address), rng.standard_normal((4, 8))
    sums, whole = row_summing.InC(library, library.new_pool(), 2), Span(0, 4)
    of_rows = np.ones(8, np.uint64), np.zeros(4, np.uint64), 0, np.zeros(1, np.uint64), 0, 0
    for pointer, operand in ((1, "A"), (2, "C")):
        event = Copied()
        event.ptr = pointer
        assert sums.sum_after(row_summing.RowsToSum(operand, matrix, whole, Span(0, 8), *of_rows), event, how, 0)
    assert second_has_failed.wait(10)
    time.sleep(0.02)  # so that its thread has noted it
    first_ends.set()
    sums.complete()
    with pytest.raises(DeviceUnavailable, match=r"failed \(CUDA error 7\)"):
        sums.wait()
    sums.abandon()


@pytest.mark.parametrize("link", [1, 9])
def test_a_link_is_not_kept_waiting_by_the_copies_of_another(rng, link):
    """But by those of the eighth after it, with which it shares a line."""
    try:
        library = row_summing.load()
    except DeviceUnavailable as missing:
        pytest.skip(str(missing))
    first_ends = threading.Event()
    of_pointer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    functions = of_pointer(lambda context: 0), of_pointer(lambda event: int(event == 1 and not first_ends.wait(20)))
    enter_address, wait_address = (ctypes.cast(each, ctypes.c_void_p).value for each in functions)
    how, matrix, whole = EventWait(enter_address, 12, wait_address), np.ones((4, 8)), Span(0, 4)
    sums, found = row_summing.InC(library, library.new_pool(), 2), [np.full(4, 7, np.uint64) for _ in range(2)]
    for pointer, of_link, of_rows in ((1, 1 if link == 9 else 0, found[0]), (2, link, found[1])):
        event = Copied()
        event.ptr = pointer
        places = np.ones(8, np.uint64), of_rows, 0, np.zeros(1, np.uint64), 0, 0
        assert sums.sum_after(row_summing.RowsToSum("A", matrix, whole, Span(0, 8), *places), event, how, of_link)
    until = time.monotonic() + (20 if link == 1 else 0.2)
    while found[1][3] == 7 and time.monotonic() < until:
        time.sleep(0.001)
    assert (found[1][3] == 7) == (link == 9)
    first_ends.set()
    sums.complete()
    sums.wait()
    assert not any((of_rows == 7).any() for of_rows in found)
    sums.abandon()


def test_each_ranks_copies_are_summed_as_those_of_its_own_link(monkeypatch):
    links = []
    summing = SimpleNamespace(sum_after=lambda rows, event, how, link: links.append(link) or True)
    monkeypatch.setattr(ways, "row_sums", lambda threads, of_links: (links.append(of_links), summing)[1])
    plan = planned(Problem(N, L, M), Topology.of_equal_nodes(3, 3), staged=True, check="on")
    layouts = {rank: CopiedPieces(check_layout(plan, rank)) for rank in range(3)}
    device = CpuDevice(staged=True)
    device.event_wait = EventWait(0, 0, 0)
    sums = ways.ByThreads(device, {"A": np.ones(L, np.uint64)}, layouts, 40)
    sums.begin({rank: [] for rank in layouts})
    for rank in (2, 0, 1):
        piece = next(each for each in layouts[rank].layout.pieces if each.operand == "A")
        sums.sum(rank, piece, Span(0, len(piece.rows)), np.ones((N, L)), 0, None)
    assert links == [3, 2, 0, 1]


def test_there_are_two_lines_for_each_link_that_is_told_apart():
    source = (row_checksums_library.SOURCE.parent / "row_pool.h").read_text()
    assert f"enum {{ LINES = {2 * row_summing._LINKS} }};" in source


def test_without_a_thread_that_waits_for_events_the_product_fails_and_does_not_hang(device, rng, monkeypatch):
    class NoMore:
        @staticmethod
        def start_new_thread(*_):
            raise RuntimeError("can't start new thread")

    device.event_wait = None
    sums, _, share, _ = made(device, rng)
    right = told(sums, share)[1]
    with monkeypatch.context() as patch:
        patch.setattr(ways, "_thread", NoMore)
        sums.begin()
        with pytest.raises(RuntimeError, match="can't start"):
            tell(sums, share, ready())
        giving_up = threading.Thread(target=sums.abandon, daemon=True)
        giving_up.start()
        giving_up.join(10)
        assert not giving_up.is_alive()
    np.testing.assert_array_equal(told(sums, share)[1], right)


def test_no_event_is_referred_to_when_all_rows_have_been_handed_on(device):
    """Else the thread would destroy it later, perhaps while the process ends."""
    copied, event, referred_to = ways._WhenCopied(device), threading.Event(), []
    event.set()
    last = weakref.ref(event)

    class Ended(threading.Event):
        def set(self):
            referred_to.append(last() is not None)
            super().set()

    copied._ended = Ended()
    copied._ended.set()
    copied.begin(SimpleNamespace(sum=lambda rows: None))
    copied.put(None, event)
    del event
    copied.end()
    assert referred_to == [True, False]


def test_what_a_failed_wait_used_is_freed_without_the_garbage_collector(device):
    copied, matrix, event = ways._WhenCopied(device), np.zeros(3), threading.Event()
    there = weakref.ref(matrix)
    event.set()
    device.failure = DeviceUnavailable("planted")
    copied.begin(SimpleNamespace(sum=lambda rows: None))
    copied.put(matrix, event)
    copied.end()
    with suppress(DeviceUnavailable):
        copied.raise_failure()
        pytest.fail("not raised")
    device.failure = None
    del matrix
    assert there() is None
    copied.raise_failure()  # no more
