# SPDX-License-Identifier: MIT
"""Loops in C give what their NumPy form does: the sums and norms of the host's check, whatever the elements are; checksums of
rows, to the last bit; and the kernels `loops` and `loops_ikj`, whose sums are rounded term after term."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.devices.c_loops import compiled_loops
from hybrid.emulation.loaded_soon import wait_until_loaded
from hybrid.host.row_sums import checksum_weights, mixed_total, row_checksums
from hybrid.verification.comparison import Comparison, Expected
from hybrid.verification.group_loops import can_sum
from hybrid.verification.group_sums import Integers, sums_and_norms, sums_of_groups, times
from hybrid.verification.row_summing import ByNumPy, InC, RowsToSum, load

pytestmark = pytest.mark.needs("c compiler")
SPECIAL = [0.0, -0.0, 1.5, np.nan, np.inf, -np.inf, 1e30, 1e200, 1e-30, 1e-200, 5e-324]
KINDS = st.sampled_from(["integers", "normal", "special"])
DTYPES = st.sampled_from(["float32", "float64"])
SEEDS = st.integers(0, 2**32)
THREADS = st.sampled_from([1, 3])


@cache
def sums_in_c():
    library = load()
    pool = library.new_pool()
    return lambda: InC(library, pool, 3)


@pytest.fixture(scope="module", autouse=True)
def _loops_are_loaded():
    can_sum(np.zeros((1, 1)))  # loads them in the background
    wait_until_loaded(60)
    assert can_sum(np.zeros((1, 1)))


def numbers(rng, shape, dtype, kind):
    values = rng.standard_normal(shape) if kind == "normal" else rng.integers(-9, 10, shape).astype(float)
    if kind == "special":
        places = rng.random(shape) < 0.1
        values[places] = rng.choice(SPECIAL, shape)[places]
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def both_ways(matrix, more):
    """The same elements where C can read them, within wider rows, and where only NumPy can."""
    wide = np.full((len(matrix), matrix.shape[1] + more), 7, matrix.dtype)
    wide[:, : matrix.shape[1]] = matrix
    in_c, swapped = wide[:, : matrix.shape[1]], matrix.astype(matrix.dtype.newbyteorder())
    assert can_sum(in_c)
    assert not can_sum(swapped)
    return in_c, swapped


def assert_close(found, wanted, sizes, relative=1e-14):
    """Within rounding of sums of these sizes, where these are finite."""
    with np.errstate(all="ignore"):
        assert ((np.abs(found - wanted) <= relative * sizes) | ~np.isfinite(sizes)).all()


@settings(max_examples=80)
@given(st.integers(1, 150), st.integers(1, 150), st.integers(0, 3), st.sampled_from([1, 7, 64]), THREADS, DTYPES, KINDS, SEEDS)
def test_sums_and_norms_of_groups(rows, columns, more, group, threads, dtype, kind, seed):
    rng = np.random.default_rng(seed)
    values, x = numbers(rng, (rows, columns), dtype, kind), rng.standard_normal(columns)
    (sums, norms, largest), (wanted, wanted_norms, wanted_largest) = (
        (*sums_of_groups(each, x, group, looked := Integers(), threads), looked.largest) for each in both_ways(values, more)
    )
    with np.errstate(all="ignore"):
        assert_close(sums, wanted, sums_and_norms(np.abs(values.astype(np.float64)), np.abs(x), group)[0])
    np.testing.assert_allclose(norms, wanted_norms, rtol=1e-13, atol=0, equal_nan=True)
    assert largest == wanted_largest


@settings(max_examples=20)
@given(st.integers(1, 300), st.integers(1, 1300), st.integers(1, 20), st.integers(0, 3), THREADS, DTYPES, KINDS, SEEDS)
def test_products_with_the_sums(rows, inner, columns, more, threads, dtype, kind, seed):
    rng = np.random.default_rng(seed)
    a, y = numbers(rng, (rows, inner), dtype, kind), rng.standard_normal((inner, columns))
    (product, norms, largest), (wanted, wanted_norms, wanted_largest) = (
        (*times(each, y, looked := Integers(), threads), looked.largest) for each in both_ways(a, more)
    )
    np.testing.assert_array_equal(np.isfinite(product), np.isfinite(wanted))
    with np.errstate(all="ignore"):
        assert_close(product, wanted, np.abs(a).astype(np.float64) @ np.abs(y))
    np.testing.assert_allclose(norms, wanted_norms, rtol=1e-13, equal_nan=True)
    assert largest == wanted_largest


@settings(max_examples=60)
@given(
    st.integers(1, 90), st.sampled_from([1, 63, 64, 200, 4200]), st.integers(0, 3), DTYPES, KINDS, KINDS, st.booleans(), SEEDS
)  # fmt: skip
def test_comparison_of_sums(rows, columns, more, dtype, kind, of_norms, integral, seed):
    rng, groups = np.random.default_rng(seed), -(-columns // 64)
    c, x = numbers(rng, (rows, columns), dtype, kind), rng.standard_normal(columns)
    with np.errstate(all="ignore"):
        right = sums_and_norms(np.nan_to_num(c.astype(np.float64)), x, 64)[0]
        sums = right + 1e-3 * (1 + np.abs(right)) * rng.standard_normal((rows, groups))
    norms_a, norms_b = (np.abs(numbers(rng, (count,), "float64", of_norms)) for count in (rows, groups))
    compared = Comparison(Problem(rows, 50, columns, dtype), 1.0)
    expected, found = Expected(Span(0, columns), x, sums, norms_a, norms_b, integral), []
    for each in both_ways(c, more):
        sizes = np.full((rows, groups + 1), 7, np.float32)
        found.append((*compared.suspects(each, 10, expected, 2, sizes), sizes))
    (totals, suspects, sizes), (wanted, wanted_suspects, wanted_sizes) = found
    assert (totals.not_judged, totals.judged, totals.count) == (wanted.not_judged, wanted.judged, wanted.count)
    assert totals.judged + totals.not_judged == rows * groups
    bound = {"rtol": 1e-6, "atol": 1e-40}  # sizes are kept in float32
    np.testing.assert_allclose(sizes, wanted_sizes, **bound)
    np.testing.assert_allclose([totals.total, totals.worst], [wanted.total, wanted.worst], **bound)
    np.testing.assert_allclose([each.size for each in suspects], [each.size for each in wanted_suspects], **bound)
    assert all(np.float32(min(s.size, 1e30)) == sizes[s.row - 10, s.columns.lo // 64] for s in suspects)


@settings(max_examples=60)
@given(
    st.integers(0, 200), st.integers(0, 70), st.integers(0, 5), st.sampled_from(["f2", "f4", "f8"]), st.sampled_from("ABC"), SEEDS
)
def test_checksums_of_rows(rows, columns, first, dtype, operand, seed):
    """Of all bits: any bytes may be elements. Results are added to what was there, and nothing beside them is written."""
    rng = np.random.default_rng(seed)
    whole = rng.integers(0, 256, (rows, np.dtype(dtype).itemsize * (columns + 8)), np.uint8).view(dtype)
    weights, where = checksum_weights(columns + 8, whole.itemsize), Span(first, first + columns)
    wanted = np.empty(rows, np.uint64)
    row_checksums(whole[:, where.slice], weights[where.slice], wanted)
    for sums in (sums_in_c()(), ByNumPy(3)):
        checksums, totals = np.full(rows + 3, 7, np.uint64), np.full(3, 8, np.uint64)
        sums.sum(RowsToSum(operand, whole, Span(0, rows), where, weights, checksums, 2, totals, 1, 5))
        sums.complete()
        sums.wait()
        np.testing.assert_array_equal(checksums, [7, 7, *wanted, 7])
        assert totals.tolist() == [8, 8 + mixed_total(wanted, 5), 8]


@pytest.mark.parametrize("name", ["loops", "loops_ikj"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 3), (33, 70, 41), (4, 0, 3), (0, 3, 2), (2, 3, 0)])
def test_every_bit_of_the_kernels_is_that_of_sums_in_order(rng, name, dtype, shape):
    (n, l, m), wide = shape, [rng.standard_normal((70, 80)).astype(dtype) for _ in range(3)]
    a, b, c = (matrix[:rows, 3 : 3 + columns] for matrix, rows, columns in zip(wide, (n, l, n), (l, m, m), strict=True))
    in_order, beside = np.zeros((n, m), dtype), wide[2].copy()
    for k in range(l):
        in_order = in_order + a[:, k : k + 1] * b[k : k + 1, :]
    c[...] = np.nan
    compiled_loops(name, dtype)(a, b, c)
    beside[:n, 3 : 3 + m] = in_order
    np.testing.assert_array_equal(wide[2], beside)
