# SPDX-License-Identifier: MIT
"""The sums of the host's check: those of the loops in C are NumPy's, whatever the elements are."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.emulation.build import EmulationError
from hybrid.errors import DeviceUnavailable
from hybrid.verification import group_loops, group_sums
from hybrid.verification.alone import verify_alone
from hybrid.verification.group_sums import Integers, over_rows, summed, sums_and_norms, times

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


def all_of(values, x, group):
    """The sums and norms of all rows, and the Integers that looked at them."""
    integers, found = Integers(), []
    with np.errstate(all="ignore"):
        for _, _, sums, norms in summed(values, x, group, integers):
            found.append((sums, norms))
    return *(np.concatenate(each) for each in zip(*found, strict=True)), integers


@examples(300)
@given(
    rows=st.integers(1, 20),
    columns=st.integers(1, 150),
    more=st.integers(0, 3),
    group=st.sampled_from([1, 7, 64]),
    dtype=st.sampled_from(["float32", "float64"]),
    kind=st.sampled_from(["integers", "normal", "special"]),
    seed=st.integers(0, 2**32),
)
def test_the_loops_give_what_numpy_does(library, rows, columns, more, group, dtype, kind, seed):
    rng = np.random.default_rng(seed)
    values, x = numbers(rng, (rows, columns + more), dtype, kind)[:, :columns], rng.standard_normal(columns)
    with mock.patch.object(group_loops, "_library", return_value=_Loaded(library)):
        assert group_loops.can_sum(values)
        sums, norms, integers = all_of(values, x, group)
    with np.errstate(all="ignore"):
        wanted_sums, wanted_norms = sums_and_norms(values.astype(np.float64), x, group)
        bound = 1e-14 * sums_and_norms(np.abs(values.astype(np.float64)), np.abs(x), group)[0]
        assert ((np.abs(sums - wanted_sums) <= bound) | ~np.isfinite(bound)).all()
    np.testing.assert_allclose(norms, wanted_norms, rtol=1e-13, atol=0, equal_nan=True)
    looked = Integers()
    looked.look(values.astype(np.float64))
    assert integers.largest == looked.largest


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["integers", "normal", "special"])
@pytest.mark.parametrize("threads", [1, 3])
def test_products_with_the_sums_are_the_same(request, rng, monkeypatch, dtype, kind, threads):
    monkeypatch.setattr(group_sums, "ROWS_AT_ONCE", 10)
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


@pytest.mark.parametrize(("tiny", "rows_again"), [(0.0, 0), (5e-324, 1)])
def test_groups_of_zeros_are_not_summed_again(by_loops, rng, monkeypatch, tiny, rows_again):
    again = []
    original = group_sums.sums_and_norms
    monkeypatch.setattr(group_sums, "sums_and_norms", lambda values, *of: (again.append(len(values)), original(values, *of))[1])
    values = np.tril(rng.standard_normal((100, 200)))
    values[3, 150] = tiny
    _, norms, _ = all_of(values, rng.standard_normal(200), 64)
    assert sum(again) == rows_again
    np.testing.assert_allclose(norms, original(values, np.zeros(200), 64)[1], rtol=1e-13)


def test_what_the_loops_cannot_read_numpy_sums(by_loops, rng):
    square = rng.standard_normal((40, 40))
    for values in (square.T, square[:, ::2], square.astype(">f8"), square.astype(np.float16)):
        assert not group_loops.can_sum(values)
        sums, _, _ = all_of(values, np.ones(values.shape[1]), 64)
        np.testing.assert_allclose(sums[:, 0], values.astype(float).sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize("why", [DeviceUnavailable("no compiler"), EmulationError("build", "it does not compile")])
def test_without_a_compiler_numpy_sums(monkeypatch, rng, why):
    def fail():
        raise why

    monkeypatch.setattr(group_loops, "load", fail)
    group_loops._library.cache_clear()
    assert not group_loops.can_sum(rng.standard_normal((4, 4)))
    group_loops._library.cache_clear()


@pytest.mark.parametrize("threads", [1, 2, 40])
def test_all_threads_get_rows_and_all_rows_are_taken_once(monkeypatch, threads):
    monkeypatch.setattr(group_sums, "CALL_BYTES", 800)
    monkeypatch.setattr(group_sums, "_MOST_BYTES", 8000)
    matrix = np.zeros((1000, 10))
    taken = list(over_rows(matrix, threads, lambda where, rows: (where.start, where.stop, len(rows))))
    assert [start for start, _, _ in taken] == [0, *(stop for _, stop, _ in taken[:-1])]
    assert taken[-1][1] == sum(count for _, _, count in taken) == 1000
    assert len(taken) >= min(2 * threads, 100)
