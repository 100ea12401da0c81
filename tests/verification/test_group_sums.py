# SPDX-License-Identifier: MIT
"""The sums of the host's check: those of the loops in C are NumPy's, whatever the elements are."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import ROOT
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.emulation.build import EmulationError, c_compiler
from hybrid.errors import DeviceUnavailable
from hybrid.verification import comparison, group_loops, group_sums
from hybrid.verification.alone import verify_alone
from hybrid.verification.comparison import Comparison, Expected
from hybrid.verification.group_sums import Integers, norms_of, over_rows, sums_and_norms, sums_of_groups, times

SPECIAL = [0.0, -0.0, 1.5, np.nan, np.inf, -np.inf, 1e30, 1e200, 1e-30, 1e-200, 5e-324]


class _Loaded:
    def __init__(self, loaded):
        self.loaded = loaded


@pytest.fixture(scope="module")
def library():
    try:
        return group_loops.load()
    except DeviceUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
def by_loops(library, monkeypatch):
    monkeypatch.setattr(group_loops, "_library", lambda: _Loaded(library))


@pytest.fixture
def by_numpy(monkeypatch):
    monkeypatch.setattr(group_loops, "_library", lambda: _Loaded(None))


def numbers(rng, shape, dtype, kind):
    values = rng.integers(-9, 10, shape).astype(float) if kind != "normal" else rng.standard_normal(shape)
    if kind == "special":
        places = rng.random(shape) < 0.1
        values[places] = rng.choice(SPECIAL, shape)[places]
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def wanted_of(values, x, group):
    """The sums and norms that `sums_of_groups` finds, in float64."""
    with np.errstate(all="ignore"):
        sums, norms = sums_and_norms(values.astype(np.float64), x, group)
        return sums, norms_of(np.ascontiguousarray(norms.T))


@examples(300)
@given(
    rows=st.integers(1, 150),
    columns=st.integers(1, 150),
    more=st.integers(0, 3),
    group=st.sampled_from([1, 7, 64]),
    threads=st.sampled_from([1, 3]),
    dtype=st.sampled_from(["float32", "float64"]),
    kind=st.sampled_from(["integers", "normal", "special"]),
    seed=st.integers(0, 2**32),
)
def test_the_loops_give_what_numpy_does(library, rows, columns, more, group, threads, dtype, kind, seed):
    rng, integers = np.random.default_rng(seed), Integers()
    values, x = numbers(rng, (rows, columns + more), dtype, kind)[:, :columns], rng.standard_normal(columns)
    with mock.patch.object(group_loops, "_library", return_value=_Loaded(library)):
        assert group_loops.can_sum(values)
        sums, norms = sums_of_groups(values, x, group, integers, threads)
    wanted_sums, wanted_norms = wanted_of(values, x, group)
    with np.errstate(all="ignore"):
        bound = 1e-14 * sums_and_norms(np.abs(values.astype(np.float64)), np.abs(x), group)[0]
        assert ((np.abs(sums - wanted_sums) <= bound) | ~np.isfinite(bound)).all()
    np.testing.assert_allclose(norms, wanted_norms, rtol=1e-13, atol=0, equal_nan=True)
    looked = Integers()
    looked.look(values.astype(np.float64))
    assert integers.largest == looked.largest


@examples(300)
@given(
    rows=st.integers(1, 90),
    columns=st.sampled_from([1, 63, 64, 200, 4200]),
    more=st.integers(0, 3),
    dtype=st.sampled_from(["float32", "float64"]),
    kind=st.sampled_from(["integers", "normal", "special"]),
    kinds_of_norms=st.sampled_from(["usual", "special"]),
    integral=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_loops_find_what_numpy_does(library, rows, columns, more, dtype, kind, kinds_of_norms, integral, seed):
    rng, groups = np.random.default_rng(seed), -(-columns // 64)
    c, x = numbers(rng, (rows, columns + more), dtype, kind)[:, :columns], rng.standard_normal(columns)
    with np.errstate(all="ignore"):
        right = sums_and_norms(np.nan_to_num(c.astype(np.float64)), x, 64)[0]
        sums = right + 1e-3 * (1 + np.abs(right)) * rng.standard_normal((rows, groups))
    norms_a, norms_b = (np.abs(numbers(rng, (count,), "float64", kinds_of_norms)) for count in (rows, groups))
    compared = Comparison(Problem(rows, 50, columns, dtype), 1.0)
    expected = Expected(Span(0, columns), x, sums, norms_a, norms_b, integral)
    found = []
    few_rows = mock.patch.multiple(group_sums, CALL_BYTES=4000, _MOST_BYTES=4000, _PIECE_BYTES=1000)  # at a time
    for way in (library, None):
        with few_rows, mock.patch.object(group_loops, "_library", return_value=_Loaded(way)):
            sizes = np.full((rows, groups + 1), 7, np.float32)
            found.append((*compared.suspects(c, 10, expected, 2, sizes), sizes))
    (totals, suspects, sizes), (wanted, wanted_suspects, wanted_sizes) = found
    assert (totals.not_judged, totals.judged, totals.count) == (wanted.not_judged, wanted.judged, wanted.count)
    assert totals.judged + totals.not_judged == rows * groups
    bound = {"rtol": 1e-6, "atol": 1e-40}  # the sums differ in their last bits, and sizes are kept in float32
    np.testing.assert_allclose(sizes, wanted_sizes, **bound)
    np.testing.assert_allclose([totals.total, totals.worst], [wanted.total, wanted.worst], **bound)
    np.testing.assert_allclose([each.size for each in suspects], [each.size for each in wanted_suspects], **bound)
    assert len({each.row for each in suspects}) == len(suspects) <= 16
    for suspect in suspects:
        assert np.float32(min(suspect.size, 1e30)) == sizes[suspect.row - 10, suspect.columns.lo // 64]


def test_sizes_of_elements_whose_squares_underflow_are_the_same(request):
    c, x, norms = np.full((3, 64), 1e-210), np.ones(64), np.full(3, 1e-100)
    expected, found = Expected(Span(0, 64), x, np.full((3, 1), 7e-209), norms, norms[:1], False), []
    for way in ("by_loops", "by_numpy"):
        request.getfixturevalue(way)
        found.append(Comparison(Problem(3, 5000, 64, "float64"), 1.0).suspects(c, 0, expected, 1)[0].worst)
    assert found[0] == pytest.approx(found[1], rel=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["integers", "normal", "special"])
@pytest.mark.parametrize("threads", [1, 3])
def test_products_with_the_sums_are_the_same(request, rng, monkeypatch, dtype, kind, threads):
    monkeypatch.setattr(group_loops, "_BYTES_A_THREAD", 300_000)  # several calls
    a, y = numbers(rng, (299, 1300), dtype, kind)[:, :1211], rng.standard_normal((1211, 13))
    found = []
    for way in ("by_loops", "by_numpy"):
        request.getfixturevalue(way)
        integers = Integers()
        found.append((*times(a, y, integers, threads), integers.largest))
    (product, norms, largest), (wanted, wanted_norms, wanted_largest) = found
    with np.errstate(all="ignore"):
        bound = 1e-14 * (np.abs(a).astype(np.float64) @ np.abs(y))
    np.testing.assert_array_equal(np.isfinite(product), np.isfinite(wanted))
    assert (np.abs(product - wanted)[np.isfinite(bound)] <= bound[np.isfinite(bound)]).all()
    np.testing.assert_allclose(norms, wanted_norms, rtol=1e-13, equal_nan=True)
    assert largest == wanted_largest


@pytest.mark.parametrize("way", ["by_loops", "by_numpy"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["integers", "normal"])
def test_both_ways_find_the_same_wrong_element(request, rng, way, dtype, kind):
    request.getfixturevalue(way)
    a, b = numbers(rng, (130, 90), dtype, kind), numbers(rng, (90, 200), dtype, kind)
    c = a @ b
    assert verify_alone(a, b, c, 2).ok
    for change in (0.5, 40):  # in a product of integers also a fraction
        if kind == "normal" and change < 1:
            continue
        c[70, 130] += change
        wrong = verify_alone(a, b, c, 2)
        c[70, 130] -= change
        assert not wrong.ok
        assert "row 70 of C, columns 130" in wrong.faults[0]


@pytest.mark.parametrize(("tiny", "rows_again"), [(0.0, 0), (5e-324, 36)])
def test_groups_of_zeros_are_not_summed_again(by_loops, rng, monkeypatch, tiny, rows_again):
    again = []
    original = group_sums.sums_and_norms
    monkeypatch.setattr(group_sums, "sums_and_norms", lambda values, *of: (again.append(len(values)), original(values, *of))[1])
    values = np.tril(rng.standard_normal((100, 250)))
    values[80, 210] = tiny  # else the last group has zeros only
    _, norms = sums_of_groups(values, rng.standard_normal(250), 64, Integers(), 1)
    assert sum(again) == rows_again  # those whose squares were added up
    np.testing.assert_allclose(norms, wanted_of(values, np.zeros(250), 64)[1], rtol=1e-13)


def test_rows_are_compared_again_only_where_squares_are_in_doubt(by_loops, rng, monkeypatch):
    again = []
    original = comparison.sums_and_norms
    monkeypatch.setattr(comparison, "sums_and_norms", lambda values, *of: (again.append(len(values)), original(values, *of))[1])
    c, ones = np.tril(rng.standard_normal((100, 250))), np.ones(100)
    c[80, 200] = 1e200
    expected = Expected(Span(0, 250), np.ones(250), sums_and_norms(c, np.ones(250), 64)[0], ones, ones[:4], False)
    totals, _ = Comparison(Problem(100, 50, 250), 1.0).suspects(c, 0, expected, 1)
    assert again == [1]
    assert totals.judged == 400


@pytest.mark.parametrize("way", ["by_loops", "by_numpy"])
def test_a_wrong_element_far_to_the_right_is_named(request, way):
    request.getfixturevalue(way)
    c, ones = np.zeros((20, 6000)), np.ones(93)
    c[7, 5000] = 1
    expected = Expected(Span(64, 6000), np.ones(5936), np.zeros((20, 93)), ones[:20], ones, True)
    _, (suspect,) = Comparison(Problem(20, 50, 6000), 1.0).suspects(c, 100, expected, 2)
    assert (suspect.row, suspect.columns) == (107, Span(4992, 5056))


def test_what_the_loops_cannot_read_numpy_sums(by_loops, rng):
    square = rng.standard_normal((40, 40))
    for values in (square.T, square[:, ::2], square.astype(">f8"), square.astype(np.float16)):
        assert not group_loops.can_sum(values)
        sums, _ = sums_of_groups(values, np.ones(values.shape[1]), 64, Integers(), 2)
        np.testing.assert_allclose(sums[:, 0], values.astype(float).sum(axis=1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("why", [DeviceUnavailable("no compiler"), EmulationError("build", "it does not compile")])
def test_without_a_compiler_numpy_sums(monkeypatch, rng, why):
    def fail():
        raise why

    monkeypatch.setattr(group_loops, "load", fail)
    group_loops._library.cache_clear()
    assert not group_loops.can_sum(rng.standard_normal((4, 4)))
    group_loops._library.cache_clear()


def test_threads_that_call_at_once_get_their_own_sums(by_loops, rng):
    matrices = [numbers(rng, (500 + 100 * number, 130), "float64", "normal") for number in range(6)]
    x = rng.standard_normal(130)
    wanted = [wanted_of(matrix, x, 64) for matrix in matrices]

    def right(number):
        found = [sums_of_groups(matrices[number], x, 64, Integers(), 4) for _ in range(50)]
        return all(np.abs(mine - right).max() < 1e-11 for each in found for mine, right in zip(each, wanted[number], strict=True))

    with ThreadPoolExecutor(6) as users:
        assert all(users.map(right, range(6)))


def test_threads_that_need_a_pool_at_once_share_one(library, monkeypatch):
    made, both_make = [], Barrier(2)

    def make():
        with suppress(BrokenBarrierError):
            both_make.wait(0.5)
        made.append(library.new_loop_pool())
        return made[-1]

    monkeypatch.setattr(group_loops, "_library", lambda: _Loaded(SimpleNamespace(new_loop_pool=make)))
    monkeypatch.setattr(group_loops, "_pools", {})
    with ThreadPoolExecutor(2) as users:
        pools = list(users.map(lambda _: group_loops._pool(), range(2)))
    assert len(set(pools)) == 1
    assert pools[0] in made
    assert group_loops._pool() == pools[0]


def test_no_call_begins_within_rows_whose_squares_are_added_up(by_loops, monkeypatch):
    monkeypatch.setattr(group_loops, "_BYTES_A_THREAD", 100_000)
    begun, original = [], group_loops.pieces
    monkeypatch.setattr(group_loops, "pieces", lambda *given: begun.extend(original(*given)) or begun)
    sums_of_groups(np.ones((1000, 129)), np.ones(129), 64, Integers(), 2)  # 193 rows have so many bytes
    assert len(begun) > 2
    assert [each.lo % group_loops.TOGETHER for each in begun] == [0] * len(begun)


@pytest.mark.parametrize("flags", [(), ("-fsanitize=thread",)], ids=["as usual", "ThreadSanitizer"])
def test_each_row_of_many_loops_is_taken_once(tmp_path, flags):
    try:
        compiler = c_compiler()
    except DeviceUnavailable as missing:
        pytest.skip(str(missing))
    program = [str(tmp_path / "many_loops"), str(Path(__file__).parent / "programs" / "many_loops.c")]
    command = [compiler, "-std=gnu11", "-O2", "-g", "-pthread", *flags, f"-I{group_loops.SOURCE.parent}", "-o", *program]
    compiled = subprocess.run(command, capture_output=True, text=True)
    if flags and compiled.returncode:
        pytest.skip("this compiler has no ThreadSanitizer")
    assert not compiled.returncode, compiled.stderr
    done = subprocess.run(program[:1], capture_output=True, text=True, timeout=60)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not run on this kernel")
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


FORKS = """
import os, signal, sys
import numpy as np
from unittest import mock
from hybrid.verification import group_loops
from hybrid.verification.group_sums import Integers, sums_of_groups

group_loops._library = mock.Mock(return_value=mock.Mock(loaded=group_loops.load()))
matrix, threads = np.ones((5000, 128)), lambda: len(os.listdir("/proc/self/task"))

def more_threads():  # that the loops start; None if their sums are wrong
    before = threads()
    right = (sums_of_groups(matrix, np.ones(128), 64, Integers(), 4)[0] == 64).all()
    return threads() - before if right else None

assert more_threads() == 3
assert more_threads() == 0  # they are kept
child = os.fork()
if child == 0:
    signal.alarm(30)  # kills it if it waits for ever
    sys.exit(0 if more_threads() == 3 else 9)
(_, child_status) = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(child_status) == 0, child_status
assert more_threads() == 0
print("right")
"""


def test_a_forked_child_has_threads_of_its_own(library):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


@pytest.mark.parametrize("threads", [1, 2, 40])
def test_all_threads_get_rows_and_all_rows_are_taken_once(monkeypatch, threads):
    monkeypatch.setattr(group_sums, "CALL_BYTES", 800)
    monkeypatch.setattr(group_sums, "_MOST_BYTES", 8000)
    matrix = np.zeros((1000, 10))
    taken = list(over_rows(matrix, threads, lambda where, rows: (where.start, where.stop, len(rows))))
    assert [start for start, _, _ in taken] == [0, *(stop for _, stop, _ in taken[:-1])]
    assert taken[-1][1] == sum(count for _, _, count in taken) == 1000
    assert len(taken) >= min(2 * threads, 100)
