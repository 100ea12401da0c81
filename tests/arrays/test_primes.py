# SPDX-License-Identifier: MIT
"""Primes, and remainders of which sums of products stay exact."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hybrid.arrays import primes


def test_primes_are_all_primes():
    few = list(primes.primes_below(600_000))
    assert len(few) == 49098 - 1  # π(600000), without 2
    assert few == sorted(few, reverse=True)
    assert few[-3:] == [7, 5, 3]
    assert list(primes.primes_below(3)) == [3]
    assert list(primes.primes_below(2)) == []


@given(st.integers(1, 10**6), st.sampled_from(["float32", "float64"]))
def test_sums_of_balanced_remainders_stay_exact(terms, dtype):
    half = (primes.largest_modulus(terms, dtype) - 1) // 2
    assert terms * half**2 <= 2 ** primes.EXACT_BITS[dtype] < terms * (half + 1) ** 2


@given(st.lists(st.integers(-(2**53), 2**53), min_size=1), st.sampled_from([3, 5, 8191, 94906265]))
def test_balanced_remainders(numbers, modulus):
    found = primes.balanced(np.array(numbers, np.float64), np.array([modulus]))
    assert np.abs(found).max() <= (modulus - 1) // 2
    assert all((int(a) - b) % modulus == 0 for a, b in zip(found, numbers, strict=True))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), st.sampled_from([3, 8191, 94906265]))
def test_balanced_remainders_of_numbers_that_only_unsigned_types_hold(numbers, modulus):
    found = primes.balanced(np.array(numbers, np.uint64), modulus)
    assert np.abs(found).max() <= (modulus - 1) // 2
    assert all((int(a) - b) % modulus == 0 for a, b in zip(found, numbers, strict=True))
