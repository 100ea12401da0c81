# SPDX-License-Identifier: MIT
"""Primes that are small enough for exact products: of remainders modulo p between -p/2 and p/2 no sum leaves the integers that a
floating-point type holds."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

EXACT_BITS = {"float32": 24, "float64": 53}  # integers up to 2 to this are exact, and so are sums that stay below
_SEGMENT = 1 << 18  # numbers sieved at once


def largest_modulus(terms: int, dtype: str) -> int:
    """The largest p for which sums of so many products of balanced remainders are exact."""
    return 2 * math.isqrt((1 << EXACT_BITS[dtype]) // max(1, terms)) + 1


def primes_below(limit: int) -> Iterator[int]:
    """The odd primes up to `limit`, including it, the largest first."""
    small = _sieve(math.isqrt(limit) + 1)
    high = limit + 1
    while high > 3:
        low = max(3, high - _SEGMENT)
        is_prime = np.ones(high - low, bool)
        for prime in small:
            first = max(prime * prime, -(-low // prime) * prime)
            is_prime[first - low :: prime] = False
        yield from (np.flatnonzero(is_prime)[::-1] + low).tolist()
        high = low


def _sieve(limit: int) -> list[int]:
    is_prime = np.ones(max(2, limit + 1), bool)
    is_prime[:2] = False
    for number in range(2, math.isqrt(limit) + 1):
        is_prime[number * number :: number] = False
    return np.flatnonzero(is_prime).tolist()


def balanced(numbers: np.ndarray, moduli: np.ndarray | int) -> np.ndarray:
    """Remainders from -(p-1)/2 to (p-1)/2, as int64, of whole numbers of any type; the moduli, below 2^31, are broadcast."""
    if numbers.dtype.kind == "u" and numbers.itemsize == 8:
        remainders = np.remainder(numbers, np.asarray(moduli, np.uint64)).astype(np.int64)
    else:
        remainders = np.remainder(numbers.astype(np.int64, copy=False), moduli)
    return np.where(remainders > moduli // 2, remainders - moduli, remainders)
