# SPDX-License-Identifier: MIT
"""Exact products of integers, from products in floating point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.arrays import integer_parts
from hybrid.arrays.exact_result import ExactResult
from hybrid.arrays.integers import Exact, largest_of, write_remainders
from hybrid.arrays.product_type import INTEGERS
from hybrid.core.spans import Span
from hybrid.errors import Overflow, UsageError

TYPES = (*INTEGERS, "bool")


def exact_product(a, b, result, *, alpha=1, beta=0, c=None, threads=2):
    largest = largest_of(a, threads), largest_of(b, threads)
    exact = Exact.of(a.shape[1], largest, alpha=alpha, beta=beta, largest_c=0 if c is None else largest_of(c, threads))
    made = ExactResult(exact, result, (len(a), b.shape[1]), alpha=alpha, beta=beta, c=c)
    for number, prime in enumerate(exact.products):
        of_a, of_b = (np.full(each.shape, np.nan, exact.computed) for each in (a, b))
        for each, into in ((a, of_a), (b, of_b)):
            write_remainders(each, prime, Span(0, len(each)), into, threads)
        made.add(number, of_a @ of_b, threads)
    return made.result(None, threads)


@st.composite
def matrices(draw):
    n, l, m = (draw(st.integers(0, 5)) for _ in "nlm")
    found = []
    for shape in ((n, l), (l, m), (n, m)):
        dtype = np.dtype(draw(st.sampled_from(TYPES)))
        limits = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        some = draw(st.sampled_from([(max(-3, limits[0]), min(3, limits[1])), limits]))
        elements = st.integers(*some) | st.sampled_from(some)
        values = draw(st.lists(elements, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
        found.append(np.array(values, dtype).reshape(shape))
    return found


@examples(400, deadline=None)
@given(matrices(), st.sampled_from(INTEGERS), st.sampled_from([(1, 0), (-1, 1), (3, -2), (2**63, -(2**63)), (0, 5)]))
def test_the_product_is_python_s_or_an_overflow(given, result, factors):
    (a, b, c), (alpha, beta) = given, factors
    expected = alpha * (a.astype(object) @ b.astype(object)) + beta * c.astype(object)
    limits = np.iinfo(result)
    if all(limits.min <= int(each) <= limits.max for each in expected.flat):
        made = exact_product(a, b, result, alpha=alpha, beta=beta, c=c if beta else None)
        assert made.dtype == result
        assert made.tolist() == expected.tolist()
    else:
        with pytest.raises(Overflow, match="of the product is"):
            exact_product(a, b, result, alpha=alpha, beta=beta, c=c if beta else None)


@pytest.mark.parametrize(("result", "limit"), [("int64", 2**63 - 1), ("int64", -(2**63)), ("uint64", 2**64 - 1), ("uint64", 0)])
@pytest.mark.parametrize("beyond", [0, 1])
def test_the_last_element_that_fits_is_told_from_the_first_that_does_not(result, limit, beyond):
    value = limit + (beyond if limit > 0 else -beyond)
    high, low = divmod(value, 2**32)
    a, b = np.array([[high, low]], np.int64), np.array([[2**32], [1]], np.int64)
    if beyond:
        with pytest.raises(Overflow, match=rf"element \[0, 0\] of the product is {value}, which {result} .* does not hold"):
            exact_product(a, b, result)
    else:
        assert exact_product(a, b, result).tolist() == [[value]]


@pytest.mark.parametrize("wraps_to", [0, 5, -5])
@pytest.mark.parametrize("times", [1, -1, 2, 2**40])
def test_elements_that_differ_by_multiples_of_two_to_the_64_are_told_apart(wraps_to, times):
    value = wraps_to + times * 2**64
    a = np.array([[times, wraps_to]], np.int64)
    b = np.array([[2**62], [1]], np.int64)
    with pytest.raises(Overflow, match=f"is {value},"):
        exact_product(np.concatenate([a[:, :1]] * 4 + [a[:, 1:]], axis=1), np.concatenate([b[:1]] * 4 + [b[1:]]), "int64")


def test_what_stays_below_what_floating_point_holds_is_one_product():
    assert Exact.of(4, (2**11, 2**11)) == Exact(2**24, "float32")
    assert Exact.of(5, (2**11, 2**11)) == Exact(5 * 2**22, "float64")
    assert Exact.of(8, (2**25, 2**25)) == Exact(2**53, "float64")
    assert len(Exact.of(9, (2**25, 2**25)).primes) > 1
    assert Exact.of(0, (2**60, 2**60)).computed == "float64"  # no sum, but operands that must be converted exactly


@examples(100)
@given(st.integers(1, 10**7), st.integers(1, 2**64), st.integers(1, 2**64))
def test_remainders_leave_sums_exact_and_are_enough(terms, largest_a, largest_b):
    exact = Exact.of(terms, (largest_a, largest_b))
    product = 1
    for prime in exact.primes:
        assert terms * (prime // 2) ** 2 <= 2**53
        product *= prime
    assert product > 2 * exact.bound or not exact.primes
    assert exact.bound == terms * largest_a * largest_b


def test_sums_too_long_for_any_primes_are_refused():
    with pytest.raises(UsageError, match="too long for an exact product"):
        Exact.of(2**52, (2**64, 2**64))


def test_an_overflow_says_what_holds_all():
    ones = np.ones((3, 200), np.int8)
    with pytest.raises(
        Overflow, match=r"element \[0, 0\] of the product is 200, which int8 \(-128 to 127\) .* dtype='int16' holds"
    ):
        exact_product(ones, ones.T, "int8")
    half = np.full((1, 2), 2**31, np.int64)  # 2^63 is the first that int64 does not hold
    with pytest.raises(Overflow, match=r"is 9223372036854775808, which int64 .*: dtype='uint64' holds all that are not negative"):
        exact_product(half, half.T, "int64")
    with pytest.raises(Overflow, match=r"is -9223372036854775808, which uint64 .* does not hold: dtype='float64' rounds it"):
        exact_product(half, -half.T, "uint64")
    huge = np.full((1, 2), 2**63, np.uint64)
    with pytest.raises(Overflow, match="dtype='float64' rounds it"):
        exact_product(huge, huge.T, "int64")


def test_the_work_is_done_in_parts_by_several_threads(monkeypatch):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-(2**40), 2**40, (50, 7)), rng.integers(-(2**15), 2**15, (7, 30))
    monkeypatch.setattr(integer_parts, "CALL_BYTES", 1000)
    monkeypatch.setattr(integer_parts, "_CACHED_BYTES", 500)
    assert (exact_product(a, b, "int64", threads=3) == a.astype(object) @ b.astype(object)).all()
    big = np.zeros((50, 30), np.int64)
    big[41, 17] = 300
    with pytest.raises(Overflow, match=r"\[41, 17\] of the product is 300,"):
        exact_product(np.eye(50, dtype=np.int64), big, "uint8", threads=3)


def test_factors_that_float64_does_not_hold_are_exact_as_well():
    a = np.array([[3]], np.int8)
    factor = 2**53 + 1
    assert exact_product(a, a, "int64", alpha=factor).tolist() == [[9 * factor]]
    assert exact_product(a, a, "int64", beta=factor, c=np.array([[-5]])).tolist() == [[9 - 5 * factor]]


def test_of_what_was_broadcast_nothing_is_looked_at_twice():
    """2⁶² numbers would take longer than anybody waits, and their product is refused for want of memory then."""
    assert largest_of(np.broadcast_to(np.int8(-7), (1 << 31, 1 << 31)), 2) == 7
    assert largest_of(np.broadcast_to(np.arange(5), (1 << 40, 5))[::-1, ::-1], 1) == 4
