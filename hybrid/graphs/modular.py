# SPDX-License-Identifier: MIT
"""Exact integers from remainders: primes small enough for exact products, and the Chinese remainder theorem.

A product of matrices modulo p is exact in floating point where no sum leaves the integers that the type holds. With remainders
between -p/2 and p/2 that is so where l·((p-1)/2)² ≤ 2^53 (float64) or 2^24 (float32). With so many primes that their product
exceeds the largest possible entry, the remainders determine the entry itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from hybrid.arrays.integers import largest_modulus, primes_below
from hybrid.errors import UsageError


def bits_within_reach(terms: int, dtype: str) -> int:
    """A bound: the product of all usable primes has no more bits, since Σ log p < 1.017·x over all primes p ≤ x (Rosser,
    Schoenfeld)."""
    return math.ceil(1.017 * largest_modulus(terms, dtype) / math.log(2))


def enough_primes(bits: int, terms: int, dtype: str) -> list[int]:
    """The fewest of the largest primes whose product exceeds 2^bits, and one more.

    The last one serves as a check: with an error in any remainder the result exceeds 2^bits, but for one chance in about p.
    UsageError where there are not so many primes.
    """
    chosen, reached = [], 0.0  # `reached`: bits of the product of all chosen primes
    if bits <= bits_within_reach(terms, dtype):
        for prime in primes_below(largest_modulus(terms, dtype)):
            chosen.append(prime)
            if reached > bits + 1:  # one bit is far more than the logarithms' rounding
                return chosen
            reached += math.log2(prime)
    other = "use --dtype float64, or make" if dtype == "float32" else "make"
    raise UsageError(
        f"numbers of up to {bits} bits need more primes than leave sums of {terms} products exact in {dtype}: "
        f"{other} the length or the graph smaller",
        code="too-long",
    )


class Reconstruction:
    """Finds numbers, below the product of all primes, from their remainders modulo each (Chinese remainder theorem)."""

    def __init__(self, primes: Sequence[int]) -> None:
        self._primes = np.array(primes, np.int64)
        self._products = _products(list(primes))
        inverses = _remainders(self._derivative(), self._products)  # of M/p modulo p
        self._weights = np.array([pow(number, -1, prime) for number, prime in zip(inverses, primes, strict=True)], np.int64)

    def __call__(self, remainders: np.ndarray) -> np.ndarray:
        """The numbers with these remainders, as Python integers. `remainders[prime, …]`: whole numbers."""
        moduli = self._primes.reshape(-1, *[1] * (remainders.ndim - 1))
        scaled = np.remainder(remainders, moduli) * self._weights.reshape(moduli.shape) % moduli
        return np.remainder(self._sum(scaled.astype(object)), self._products[-1][0])

    def _derivative(self) -> int:
        """Σ M/p, with M the product of all primes: modulo each p it is M/p, the other terms being multiples of p."""
        return int(self._sum(np.ones(len(self._primes), object)))

    def _sum(self, numbers: np.ndarray) -> np.ndarray:
        """Σ numbers[p]·M/p in a binary tree, so that the two factors of each multiplication have about the same length."""
        for products in self._products[:-1]:
            odd = numbers[-1:] if len(products) % 2 else numbers[:0]
            pairs = len(products) // 2
            shape = (pairs, *[1] * (numbers.ndim - 1))
            left, right = (np.array(products[side : 2 * pairs : 2], object).reshape(shape) for side in (0, 1))
            numbers = np.concatenate([numbers[0 : 2 * pairs : 2] * right + numbers[1 : 2 * pairs : 2] * left, odd])
        return numbers[0]


def _products(numbers: list[int]) -> list[list[int]]:
    """A tree of products, level by level: the numbers, the products of each two, and so on up to the product of all."""
    levels = [numbers]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([reduce(int.__mul__, below[at : at + 2]) for at in range(0, len(below), 2)])
    return levels


def _remainders(number: int, products: list[list[int]]) -> list[int]:
    """`number` modulo each of the numbers at the bottom of the tree."""
    remainders = [number % products[-1][0]]
    for level in reversed(products[:-1]):
        remainders = [remainders[at // 2] % modulus for at, modulus in enumerate(level)]
    return remainders
