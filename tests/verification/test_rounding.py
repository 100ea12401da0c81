# SPDX-License-Identifier: MIT
"""What rounding explains: right products of any accuracy pass, small faults in accurate ones do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.devices.cpu_check import compare, summary_of
from hybrid.host.row_sums import NOT_INTEGRAL, row_sums
from hybrid.verification.rounding import THRESHOLD, Sums, comparison_numbers, is_exact, random_x, smallest_x

GROUP = 64


def sums_of(a, b, c):
    """As a device finds them."""
    n, m = c.shape
    problem, groups = Problem(n, a.shape[1], m, c.dtype.name), -(-m // GROUP)
    x = random_x(np.random.default_rng(1), [m], GROUP)
    through_b, of_b, through_c, of_c = (np.zeros((rows, groups)) for rows in (len(b), len(b), n, n))
    of_rows, found = np.zeros(n), np.zeros((n, 5))
    with np.errstate(all="ignore"):
        row_sums(b, x, GROUP, through_b, of_b, np.zeros(len(b)))
        row_sums(c, x, GROUP, through_c, of_c, of_rows)
        through_c -= a.astype(np.float64) @ through_b
        squares_a = (a.astype(np.float64) ** 2).sum(axis=1)[:, None]
        compare(through_c, of_c, squares_a, of_b.sum(axis=0)[None], comparison_numbers(problem, GROUP), found)
    return Sums.of(summary_of(found), n, groups, NOT_INTEGRAL, NOT_INTEGRAL)


def naive(a, b):
    """One addition after the other, in the operands' type."""
    c = np.zeros((len(a), b.shape[1]), a.dtype)
    for k in range(a.shape[1]):
        c += a[:, k, None] * b[k]
    return c


@examples(60)
@given(
    n=st.integers(1, 60),
    l=st.integers(0, 300),
    m=st.integers(1, 150),
    dtype=st.sampled_from(["float32", "float64"]),
    positive=st.booleans(),
    product=st.sampled_from([naive, np.matmul]),
    scale=st.integers(-18, 18),
    seed=st.integers(0, 2**32),
)
def test_right_products_are_within_the_threshold(n, l, m, dtype, positive, product, scale, seed):
    random = np.random.default_rng(seed)
    draw = random.random if positive else random.standard_normal
    a, b = (draw((n, l)) * 10.0**scale).astype(dtype), draw((l, m)).astype(dtype)
    sums = sums_of(a, b, product(a, b))
    assert sums.error <= THRESHOLD
    assert sums.not_judged == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("product", [naive, np.matmul])
def test_a_few_units_in_the_last_place_of_the_largest_are_a_fault(rng, dtype, product):
    a, b = rng.standard_normal((200, 100)).astype(dtype), rng.standard_normal((100, 300)).astype(dtype)
    c = product(a, b)
    c[17, 29] += 100 * np.finfo(dtype).eps * np.abs(c).max()
    assert sums_of(a, b, c).error > THRESHOLD


def test_a_product_of_operands_with_fewer_bits_is_wrong_everywhere(rng):
    a, b = rng.standard_normal((100, 80)).astype("float32"), rng.standard_normal((80, 200)).astype("float32")
    fewer = [(matrix.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for matrix in (a, b)]  # TF32 has 10
    assert sums_of(a, b, a @ b).error <= THRESHOLD
    assert sums_of(a, b, fewer[0] @ fewer[1]).error > THRESHOLD


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_what_overflows_is_left_unjudged_and_the_rest_is_judged(rng, bad):
    a, b = rng.standard_normal((20, 30)), rng.standard_normal((30, 130))
    a[4] *= bad
    with np.errstate(all="ignore"):
        c = a @ b
    sums = sums_of(a, b, c)
    assert (sums.not_judged, sums.judged) == (3, 57)
    assert sums.error <= THRESHOLD
    c[5, 129] += 1e-6
    assert sums_of(a, b, c).error > THRESHOLD


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_in_c_alone_is_a_fault(rng, bad):
    a, b = rng.standard_normal((20, 30)), rng.standard_normal((30, 130))
    c = a @ b
    c[7, 100] = bad
    sums = sums_of(a, b, c)
    assert sums.error > THRESHOLD
    assert sums.not_judged == 0


@pytest.mark.parametrize("rows", [1, 128, 300])
def test_few_differences_do_not_tell_how_accurate_a_product_is(rows):
    summary = np.zeros((-(-rows // 128), 4))
    summary[:] = 2.0, 20, 3.0, 0  # small, but for the largest of each 128 rows
    assert Sums.of(summary, rows, 64, 0.0, 0.0).error == 3
    summary[:, :2] *= 1000
    assert Sums.of(summary, rows, 64, 0.0, 0.0).error == pytest.approx(3 / (0.1 / 0.7979))


def test_nothing_is_within_the_threshold():
    assert Sums.of(summary_of(np.zeros((0, 5))), 0, 0, 0.0, 0.0).error == 0


@given(widths=st.lists(st.integers(0, 300), max_size=5), group=st.sampled_from([1, 64, 100, 512]), seed=st.integers(0, 2**32))
def test_x_are_integers_that_differ_within_a_group(widths, group, seed):
    x = random_x(np.random.default_rng(seed), widths, group)
    assert len(x) == sum(widths)
    assert (np.rint(x) == x).all()
    assert ((np.abs(x) >= smallest_x(group)) & (np.abs(x) < 2 * smallest_x(group))).all()
    for end, width in zip(np.cumsum(widths).tolist(), widths, strict=True):
        for begin in range(end - width, end, group):
            part = np.abs(x[begin : min(begin + group, end)])
            assert len(set(part)) == len(part)


@pytest.mark.parametrize(
    ("dtype", "inner", "largest_a", "largest_b", "exact"),
    [
        ("float32", 1, 2**12, 2**12, True),
        ("float32", 1, 2**12 + 1, 2**12, False),
        ("float64", 2**20, 2**10, 2**10, True),
        ("float64", 2**20, 2**10, 2**11, False),  # in the check: 2^41 · 127 · 64 > 2^53
        ("float64", 1, NOT_INTEGRAL, 1, False),
        ("float64", 0, 2**40, 2**40, True),
    ],
)
def test_exact_is_what_rounds_neither_in_the_product_nor_in_the_check(dtype, inner, largest_a, largest_b, exact):
    assert is_exact(Problem(3, inner, 3, dtype), GROUP, largest_a, largest_b) == exact


@pytest.mark.parametrize(("widths", "group"), [([64], 64), ([5, 64, 200, 1], 64), ([1000], 32)])
def test_an_error_that_is_the_same_in_all_columns_shows(widths, group):
    for seed in range(50):
        x, first = random_x(np.random.default_rng(seed), widths, group), 0
        assert len(x) == sum(widths)
        for width in widths:
            for _ in range(0, width, group):
                last = min(first + group, sum(widths[: widths.index(width) + 1]))
                part = x[first:last]
                assert abs(part.sum()) >= np.sqrt((part * part).sum()) * (1 - 1e-12)
                first = last
