# SPDX-License-Identifier: MIT
"""The check of C: finds what is wrong, and cries over nothing that rounding alone explains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import planned
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.host.row_view import RowView
from hybrid.ranks.team import Team
from hybrid.verification.freivalds import Check, verify

sizes = st.integers(1, 70)
dtypes = st.sampled_from(["float32", "float64"])
seeds = st.integers(0, 2**32)
DTYPES = ["float32", "float64"]


def checked(a, b, c, threads=1):
    team = Team()
    plan = planned(Problem(a.shape[0], a.shape[1], b.shape[1], c.dtype.name), team.topology)
    return verify(team, plan, *(RowView(matrix, Span(0, len(matrix))) for matrix in (a, b, c)), threads)


def product(a, b):
    with np.errstate(all="ignore"):
        return a @ b


def uniform(shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).random(shape).astype(dtype)


def whole(shape, below, dtype="float64", seed=0):
    return np.random.default_rng(seed).integers(-below, below, shape, endpoint=True).astype(dtype)


def normal(rng, shape, dtype):
    n, l, m = shape
    a, b = rng.standard_normal((n, l), np.float32).astype(dtype), rng.standard_normal((l, m), np.float32).astype(dtype)
    if dtype == "float64":  # all bits of both are used
        a, b = a * np.pi, b * np.pi
    return a, b, a @ b


def operands(shape, dtype="float64", seed=0, make=uniform):
    n, l, m = shape
    a, b = make((n, l), dtype=dtype, seed=seed), make((l, m), dtype=dtype, seed=seed + 1)
    return a, b, product(a, b)


def whole_up_to(below):
    return lambda shape, dtype, seed: whole(shape, below, dtype, seed)


# What must be found


def rounding_error(a, b, c):
    """The largest of any element."""
    return float(np.abs(c - a.astype(np.longdouble) @ b.astype(np.longdouble)).max())


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_element_off_by_20_times_the_largest_rounding_error_is_found(rng, dtype):
    a, b, c = normal(rng, (256, 300, 256), dtype)
    error = rounding_error(a, b, c)
    clean = checked(a, b, c)
    assert (clean.kind, clean.ok, clean.note) == ("freivalds", True, "")
    for _ in range(100):
        row, column, wrong = rng.integers(256), rng.integers(256), c.copy()
        wrong[row, column] += rng.choice([-1, 1]) * 22 * error
        found = checked(a, b, wrong)
        assert not found.ok, found
        assert found.error > found.tolerance
        assert found.faults[0].startswith(f"row {row} of C, columns {column}: wrong by ")


def test_right_products_are_not_suspected(rng):
    for dtype in DTYPES:
        for make in (rng.standard_normal, rng.random, rng.standard_cauchy):
            a, b = make((200, 150)).astype(dtype), make((150, 220)).astype(dtype)
            for _ in range(20):
                found = checked(a, b, a @ b)
                assert found.ok, found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 64, 64), (300, 250, 600), (2, 3, 40)], ids=str)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: c.__setitem__((1, 1), 0),
        lambda c: c.__setitem__((slice(1, 2), slice(1, 3)), np.nan),
        lambda c: c.__setitem__((-1, -1), np.inf),
        lambda c: c.__setitem__(slice(2), c[1::-1].copy()),
        lambda c: c.__imul__(1.01),
        lambda c: c.__setitem__((slice(1, 2), slice(0, 30)), 0),
    ],
    ids=["an element zeroed", "NaN left over", "infinity", "rows swapped", "one per cent", "a strip of zeros"],
)
def test_gross_faults_are_found(shape, dtype, spoil):
    a, b, c = operands(shape, dtype)
    spoil(c)
    assert not checked(a, b, c).ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [uniform, whole_up_to(9)], ids=["uniform", "integers"])
def test_the_transposed_product_is_found(dtype, make):
    a, b, c = operands((90, 80, 90), dtype, make=make)
    assert checked(a, b, c).ok
    assert not checked(a, b, np.ascontiguousarray(c.T)).ok


@pytest.mark.parametrize("make", [uniform, whole_up_to(3)], ids=["uniform", "integers"])
def test_a_missing_strip_is_found(make):
    a, b, c = operands((100, 30, 500), make=make)
    c[40:60, 100:200] = np.nan
    found = checked(a, b, c)
    assert not found.ok
    assert found.error > 1e299 or found.kind == "exact"


@pytest.mark.parametrize("make", [uniform, whole_up_to(9)], ids=["uniform", "integers"])
def test_two_columns_in_each_others_place_are_found_every_time(make):
    a, b, c = operands((30, 40, 50), make=make)
    c[:, [3, 17]] = c[:, [17, 3]]
    assert not any(checked(a, b, c).ok for _ in range(20))


@pytest.mark.parametrize("column", [0, 511, 512, 1023, 1024, 9_999])
def test_an_element_is_found_in_every_group_of_columns(column):
    a, b, c = operands((3, 4, 10_000))
    assert checked(a, b, c).ok
    c[2, column] += 1e-8
    assert not checked(a, b, c).ok


@examples(30)
@given(n=sizes, l=sizes, m=sizes, dtype=dtypes, seed=seeds, data=st.data())
def test_a_wrong_integer_is_found_wherever_it_is(n, l, m, dtype, seed, data):
    a, b, c = operands((n, l, m), dtype, seed, whole_up_to(5))
    assert checked(a, b, c) == Check("exact", 0.0, 0.0, True)
    row, column = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, m - 1))
    c[row, column] += data.draw(st.sampled_from([-1, 1, 0.5, 3]))
    found = checked(a, b, c)
    assert (found.kind, found.ok) == ("exact", False)


def test_an_integer_product_off_by_a_billionth_is_found():
    a, b, c = operands((50, 60, 70), make=whole_up_to(2))
    c[17, 23] = 5 + 1e-9
    found = checked(a, b, c)
    assert (found.kind, found.error, found.ok) == ("exact", 1, False)


def test_an_exact_check_counts_the_sums_that_differ_and_names_elements():
    a, b, c = operands((50, 60, 70), make=whole_up_to(2))
    c[17, [23, 24, 69]] += 3
    c[18, 5] -= 1
    found = checked(a, b, c)
    assert (found.error, len(found.faults)) == (3, 2)  # of each row one group is named
    of_17 = [f"row 17 of C, columns {columns}: wrong by 3.00e+00" for columns in ("23:25", "69")]
    assert set(found.faults) - set(of_17) == {"row 18 of C, columns 5: wrong by 1.00e+00"}


def test_a_number_too_large_for_the_product_is_found():
    a, b, c = operands((5, 6, 7), make=whole_up_to(2))
    c[1, 1] = 1e300
    assert not checked(a, b, c).ok


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("make", [uniform, whole_up_to(9)], ids=["uniform", "integers"])
def test_every_row_is_checked_by_any_number_of_threads(make, threads):
    a, b, c = operands((3000, 10, 300), make=make)  # more of C than is looked at in one go
    assert checked(a, b, c, threads).ok
    for row in (0, 1000, 2999):
        wrong = c.copy()
        wrong[row, row % 300] += 1
        assert not checked(a, b, wrong, threads).ok


# Where integers are exact


def test_large_integers_are_checked_modulo_two_to_the_64():
    n, l, m, largest = 20, 8, 100, 2**25  # l·largest² = 2^53, and m times that in the sums of the check
    a, b = whole((n, l), largest), whole((l, m), largest, seed=1)
    a[0, 0], b[0, 0] = largest, -largest
    c = a @ b
    assert (c == a.astype(np.int64) @ b.astype(np.int64)).all()
    assert checked(a, b, c) == Check("exact", 0.0, 0.0, True)
    for row, column, by in ((0, 0, 1), (19, 99, -1), (7, 50, 2)):
        wrong = c.copy()
        wrong[row, column] += by
        found = checked(a, b, wrong)
        assert (found.kind, found.ok) == ("exact", False)
        assert found.error >= 1


def test_large_integers_of_one_sign_are_exact_too():
    a, b = np.full((4, 8), 2.0**25), np.full((8, 1000), 2.0**25)
    c = a @ b
    assert checked(a, b, c).ok
    c[3, 999] -= 1
    found = checked(a, b, c)
    assert (found.kind, found.ok) == ("exact", False)


@pytest.mark.parametrize(
    ("dtype", "a", "b", "l", "kind"),
    [
        ("float32", 2**12, 2**12, 1, "exact"),
        ("float32", 2**12 + 1, 2**12, 1, "freivalds"),
        ("float32", 2**11, 2**12, 2, "exact"),
        ("float32", 2**11, 2**12, 3, "freivalds"),
        ("float64", 2**11, 2**12, 3, "exact"),
        ("float64", 2**26, 2**27, 1, "exact"),
        ("float64", 2**26, 2**27, 2, "freivalds"),
        ("float64", 2**26 + 1, 2**27, 1, "freivalds"),
    ],
)
def test_exact_is_what_cannot_round_in_the_products_type(dtype, a, b, l, kind):
    a, b = np.full((3, l), a, dtype), np.full((l, 4), b, dtype)
    assert (checked(a, b, a @ b).kind, checked(a, b, a @ b).ok) == (kind, True)


def test_a_single_fraction_makes_the_check_a_rounded_one():
    a, b, _ = operands((5, 6, 7), make=whole_up_to(2))
    b[5, 6] = 0.5
    assert checked(a, b, a @ b).kind == "freivalds"


def test_zeros_times_the_largest_numbers_are_zero():
    a, b = np.zeros((5, 6)), np.full((6, 700), 1e308)
    assert checked(a, b, a @ b).ok
    assert checked(b.T, a.T, (a @ b).T.copy()).ok


# What is right


@examples(75)
@given(
    n=sizes,
    l=st.integers(0, 200),
    m=sizes,
    dtype=dtypes,
    seed=seeds,
    scale_a=st.integers(-150, 150),
    scale_b=st.integers(-150, 150),
    normal=st.booleans(),
)
def test_a_right_product_passes_at_any_scale(n, l, m, dtype, seed, scale_a, scale_b, normal):
    random = np.random.default_rng(seed)
    draw = random.standard_normal if normal else random.random
    if dtype == "float32":
        scale_a, scale_b = scale_a % 75 - 37, scale_b % 75 - 37
    with np.errstate(all="ignore"):
        a, b = (draw((n, l)) * 10.0**scale_a).astype(dtype), (draw((l, m)) * 10.0**scale_b).astype(dtype)
    assert checked(a, b, product(a, b)).ok


@pytest.mark.parametrize(("of_a", "of_b"), [(1, 1e-200), (1e200, 1e-200), (1e-200, 1e200), (1, 1e200), (1e300, 1e-300)])
def test_a_check_far_from_one_neither_cries_nor_looks_away(of_a, of_b):
    a, b, _ = operands((30, 40, 50))
    a, b = a * of_a, b * of_b
    c = a @ b
    clean = checked(a, b, c)
    assert (clean.kind, clean.ok) == ("freivalds", True)
    c[3, 4] *= 1.001
    assert not checked(a, b, c).ok


@examples(50)
@given(n=sizes, l=sizes, m=sizes, dtype=dtypes, seed=seeds)
def test_rows_and_columns_of_very_different_sizes_pass(n, l, m, dtype, seed):
    random = np.random.default_rng(seed)
    reach = 12 if dtype == "float32" else 70
    a = (random.standard_normal((n, l)) * 10.0 ** random.uniform(-reach, reach, (n, l))).astype(dtype)
    b = (random.standard_normal((l, m)) * 10.0 ** random.uniform(-reach, reach, (l, m))).astype(dtype)
    assert checked(a, b, product(a, b)).ok


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("scale_a", "scale_b"), [(1e-30, 1e-30), (1e-38, 1), (1, 1e-40), (1e-20, 1e-20), (1e30, 1e-42), (1e-44, 1e-44)]
)
def test_underflow_in_float32_passes_with_and_without_subnormal_numbers(scale_a, scale_b, seed):
    tiny = np.finfo(np.float32).tiny

    def flushed(matrix):
        return np.where(np.abs(matrix) < tiny, np.float32(0), matrix)

    random = np.random.default_rng(seed)
    a = (random.standard_normal((40, 90)) * scale_a).astype(np.float32)
    b = (random.standard_normal((90, 50)) * scale_b).astype(np.float32)
    assert checked(a, b, product(a, b)).ok
    # A kernel may take subnormal numbers for zero, in what it reads, in each product and in what it writes.
    terms = flushed(flushed(a)[:, :, None] * flushed(b)[None])
    assert checked(a, b, flushed(terms.sum(axis=1))).ok


@pytest.mark.parametrize(("scale_a", "scale_b"), [(1, 1e-310), (1e-310, 1), (1e-310, 1e-310), (1e300, 1e-310), (1e-160, 1e-160)])
def test_subnormal_numbers_in_float64_pass(scale_a, scale_b):
    a, b, _ = operands((30, 40, 50))
    a, b = a * scale_a, b * scale_b
    assert checked(a, b, product(a, b)).ok


@examples(30)
@given(n=sizes, l=sizes, m=sizes, dtype=dtypes, seed=seeds, left=st.floats(0, 1e-3))
def test_sums_that_cancel_pass(n, l, m, dtype, seed, left):
    half_a, half_b, _ = operands((n, l, m), dtype, seed)
    a, b = np.hstack([half_a, -half_a]), np.vstack([half_b, (half_b * (1 + left)).astype(dtype)])
    assert checked(a, b, product(a, b)).ok


def test_a_naive_sum_in_float32_of_many_positive_numbers_passes():
    n, l, m = 8, 20_000, 24
    a, b = uniform((n, l), "float32"), uniform((l, m), "float32", 1)
    c = np.zeros((n, m), np.float32)
    for k in range(l):
        c += a[:, k, None] * b[k]
    assert np.abs(c - a.astype(np.float64) @ b).max() > 0.01  # this is no product for the fastidious
    assert checked(a, b, c).ok


def test_a_sum_in_float32_that_loses_every_term_passes():
    # To 2^24 a float32 cannot add 1: each of the other terms is lost, the largest error that rounding can make.
    n, l, m = 8, 20_000, 1  # in a sum over several columns some would cancel by chance
    a, b = np.ones((n, l), np.float32), np.ones((l, m), np.float32)
    b[0] = 2**24
    assert np.cumsum(b[:, 0], dtype=np.float32)[-1] == 2**24
    found = checked(a, b, np.full((n, m), 2**24, np.float32))
    assert (found.kind, found.ok) == ("freivalds", True)
    assert found.error > found.tolerance
    assert "those of plain summation are up to 2.00e+04" in found.note


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (0, 0, 4), (3, 0, 0)])
def test_empty_matrices_pass(shape):
    n, l, m = shape
    found = checked(np.empty((n, l)), np.empty((l, m)), np.zeros((n, m)))
    assert (found.kind, found.ok) == ("exact", True)


def test_without_inner_size_only_zeros_are_right():
    wrong = np.zeros((3, 4))
    wrong[1, 2] = 1e-300
    assert not checked(np.empty((3, 0)), np.empty((0, 4)), wrong).ok


# NaN and infinity in the inputs


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("make", [uniform, whole_up_to(5)], ids=["uniform", "integers"])
def test_rows_of_c_that_a_spoils_are_left_out_and_the_others_are_checked(make, bad):
    a, b, _ = operands((20, 30, 40), make=make)
    a[7, 3] = bad
    c = product(a, b)
    found = checked(a, b, c)
    assert (found.kind, found.ok) == ("freivalds", True)
    c[8, 5] += 1
    assert not checked(a, b, c).ok


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_where_b_spoils_all_of_c_there_is_nothing_to_check(bad):
    a, b, _ = operands((20, 30, 40))
    b[4] = bad
    found = checked(a, b, product(a, b))
    assert (found.kind, found.ok) == ("none", True)


def test_columns_far_from_those_that_b_spoils_are_checked():
    a, b, _ = operands((4, 5, 1024))
    b[2, 1] = np.nan
    c = product(a, b)
    found = checked(a, b, c)
    assert (found.kind, found.ok) == ("freivalds", True)
    c[3, 1000] += 1
    assert not checked(a, b, c).ok


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_that_overflows_is_no_fault(dtype):
    large = np.finfo(dtype).max / 4
    a, b = np.full((3, 20), large, dtype), np.full((20, 5), large, dtype)
    a[1] = 0
    c = product(a, b)
    assert np.isinf(c[0]).all()
    assert checked(a, b, c).ok


def test_nan_where_the_inputs_are_finite_is_a_fault():
    a, b, c = operands((5, 6, 7))
    c[2, 2] = np.nan
    assert checked(a, b, c).error > 1e299


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308])
@pytest.mark.parametrize("m", [64, 200])
def test_columns_beside_one_that_cannot_be_judged_are(value, m):
    a, b, _ = operands((100, 50, m))
    b[3, 5] = value
    right = product(a, b)
    clean = checked(a, b, right)
    assert clean.ok
    assert clean.kind == "freivalds"
    assert "not judged" in clean.note
    for column in (4, 6, 63):
        c = right.copy()
        c[7, column] += 1e-9
        found = checked(a, b, c)
        assert not found.ok
        assert f"row 7 of C, columns {column}: wrong by 1.00e-09" in found.faults[0]


def test_where_a_row_cannot_be_judged_the_others_are(rng):
    a, b, _ = operands((100, 50, 130))
    a[3, 5] = np.nan
    c = product(a, b)
    assert checked(a, b, c).ok
    c[7, 70] += 1e-9
    assert "row 7 of C, columns 70: wrong by 1.00e-09" in checked(a, b, c).faults[0]


def cosines(n, dtype):
    k = np.arange(n)
    return np.cos(np.pi / n * np.outer(k, k + 0.5)).astype(dtype)


SMOOTH = {
    "cosines": lambda n, dtype, rng: (cosines(n, dtype), cosines(n, dtype).T.copy()),
    "of a vector": lambda n, dtype, rng: (cosines(n, dtype), rng.standard_normal((n, 1)).astype(dtype)),
    "of walks": lambda n, dtype, rng: (cosines(n, dtype), (128 + rng.standard_normal((n, n)).cumsum(axis=0)).astype(dtype)),
    "powers": lambda n, dtype, rng: (np.vander(np.linspace(0.1, 1, n), n // 2).astype(dtype), uniform((n // 2, n), dtype)),
    "alike": lambda n, dtype, rng: (np.full((203, n), rng.random(), dtype), whole((n, 1), 3, dtype)),
    "cancelling": lambda n, dtype, rng: (
        np.hstack([x := rng.standard_normal((n, n)), -x]).astype(dtype),
        uniform((2 * n, n), dtype),
    ),
}


@pytest.mark.parametrize("kind", SMOOTH)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [200, 500])
def test_right_products_of_smooth_matrices_pass_in_any_order_of_summation(rng, n, dtype, kind):
    a, b = SMOOTH[kind](n, dtype, rng)
    in_lanes = sum(a[:, lane::8] @ b[lane::8] for lane in range(8))
    for c in (a @ b, in_lanes, (a[:, ::-1] @ b[::-1])):
        assert checked(a, b, c).ok
    wrong, terms = a @ b, np.abs(a[7]) @ np.abs(b[:, -1])
    wrong[7, -1] += 1e-2 * terms
    assert not checked(a, b, wrong).ok
