# SPDX-License-Identifier: MIT
"""How products of integers become exact: in one product where no sum is rounded, else modulo the fewest of the largest primes of
which every product is exact and which together tell all results apart. So are counts of walks, which are powers of a matrix."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.arrays.integers import Exact, balanced, largest_modulus, largest_of, primes_below
from hybrid.graphs import walks
from hybrid.planning.arithmetic import EXACT_BITS


def test_primes_are_all_primes():
    few = list(primes_below(600_000))
    assert len(few) == 49098 - 1  # π(600000), without 2
    assert few == sorted(few, reverse=True)
    for limit in ((1 << 18) + 65537, 65537, 3, 2):  # a prime, the last number of a segment of the sieve, the least
        found = list(primes_below(limit))
        assert found == [n for n in range(limit, 2, -1) if n % 2 and all(n % d for d in range(3, math.isqrt(n) + 1, 2))]


@given(st.integers(1, 10**6), st.sampled_from(["float32", "float64"]))
def test_sums_of_balanced_remainders_stay_exact(terms, dtype):
    half = (largest_modulus(terms, dtype) - 1) // 2
    assert terms * half**2 <= 2 ** EXACT_BITS[dtype] < terms * (half + 1) ** 2


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
@examples(100)
@given(st.data())
def test_balanced_remainders(dtype, data):
    low, high = (-(2**53), 2**53) if dtype == "float64" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    numbers = data.draw(st.lists(st.integers(low, high) | st.sampled_from([low, high, 1, 2, 3]), min_size=1))
    modulus = data.draw(st.sampled_from([3, 5, 8191, 65537, 94906265]))
    found = balanced(np.array(numbers, dtype), np.array([modulus]) if dtype == "float64" else modulus)
    assert np.abs(found).max() <= (modulus - 1) // 2
    assert all((int(a) - b) % modulus == 0 for a, b in zip(found, numbers, strict=True))


def test_what_floating_point_holds_is_one_product():
    assert Exact.of(4, (2**11, 2**11)) == Exact(2**24, "float32")
    assert Exact.of(5, (2**11, 2**11)) == Exact(5 * 2**22, "float64")
    assert Exact.of(8, (2**25, 2**25)) == Exact(2**53, "float64")
    assert len(Exact.of(9, (2**25, 2**25)).primes) > 1
    assert Exact.of(0, (2**60, 2**60)).computed == "float64"  # no sum, but operands that must be converted exactly
    for more in ({"alpha": 2}, {"beta": 1, "largest_c": 1}):  # which must not be rounded either
        assert Exact.of(8, (2**25, 2**25), **more).primes


@examples(200, one_in=2)
@given(st.integers(1, 10**7), st.integers(1, 2**64), st.integers(1, 2**64), st.sampled_from([None, 2**40]))
def test_primes_are_enough_and_none_too_large(terms, largest_a, largest_b, most):
    exact = Exact.of(terms, (largest_a, largest_b), most=most)
    assert exact.bound == terms * largest_a * largest_b
    for prime in exact.primes:
        assert terms * (prime // 2) ** 2 <= 2**53
    assert not exact.primes or math.prod(exact.primes) > 2 * exact.bound >= math.prod(exact.primes[:-1])


@pytest.mark.parametrize(("bits", "checked", "count"), [(31, False, 4), (63, False, 7), (31, True, 5), (63, True, 9)])
def test_the_page_tells_how_many_products_that_takes(bits, checked, count):
    """With 1000 terms: for integers that fill 32 and 64 bits, and on GPUs, whose own check is to be exact, too."""
    assert len(Exact.of(1000, (2**bits, 2**bits), most=2**40 if checked else None).primes) == count


def test_of_what_was_broadcast_nothing_is_looked_at_twice():
    """2⁶² numbers would take longer than anybody waits, and their product is refused for want of memory then."""
    assert largest_of(np.broadcast_to(np.int8(-128), (1 << 31, 1 << 31)), 2) == 128
    assert largest_of(np.broadcast_to(np.arange(5), (1 << 40, 5))[::-1, ::-1], 1) == 4


# Counts of walks by matrix powers


def exact_power(matrix, length):
    """By Python's integers."""
    power, square = (
        np.array([[int(i == j) for j in range(len(matrix))] for i in range(len(matrix))], object),
        matrix.astype(object),
    )
    while length:
        power = power.dot(square) if length & 1 else power
        square, length = square.dot(square), length >> 1
    return power


@st.composite
def matrices(draw, largest):
    size, top = draw(st.integers(1, 5)), draw(st.integers(0, largest))
    values = draw(st.lists(st.integers(0, top), min_size=size * size, max_size=size * size))
    return np.array(values, np.int64).reshape(size, size)


@examples(150)
@given(matrices(2**63 - 1) | matrices(3), st.integers(0, 90))
def test_every_product_is_exact_in_float64_and_so_is_the_power(matrix, length):
    def strictly(a, b):
        assert a.dtype == b.dtype == np.float64
        largest = [max(1, int(np.abs(each).max())) for each in (a, b)]
        assert a.shape[1] * largest[0] * largest[1] <= 2 ** EXACT_BITS["float64"]
        return a @ b

    everything = list(range(len(matrix)))
    arithmetic = walks.choose_arithmetic(matrix, length)
    found = walks.carry_out(arithmetic, matrix, everything, everything, strictly, lambda done, of: None)
    assert (walks.as_integers(arithmetic, found) == exact_power(matrix, length)).all()
