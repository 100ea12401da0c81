# SPDX-License-Identifier: MIT
"""Exact products of integers, by products of floating-point numbers that round nothing.

Where no sum can exceed 2^24 (float32) or 2^53 (float64), one product of the integers themselves is exact. Beyond, there is one
product in float64 for each of several primes, of the remainders modulo it; with the primes' product above twice the largest
possible element these tell each element, whatever its size (Garner's algorithm). So an element that the result's type cannot
hold is noticed, and none is wrapped.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from hybrid.arrays.integer_parts import by_parts, with_room
from hybrid.arrays.interop import on_device_of, on_gpu
from hybrid.arrays.primes import EXACT_BITS, balanced, largest_modulus, primes_below
from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.errors import UsageError

DIGIT = np.dtype(np.int32)  # of what is known of an element of C by one prime


@record
class Exact:
    """How a product of integers is computed, the same on every rank.

    Without `primes` it is one product, of the integers themselves.
    """

    bound: int  # no element of C has a larger magnitude
    computed: str  # the type in which the products are computed
    primes: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        terms: int,
        largest: tuple[int, int],
        *,
        alpha: int = 1,
        beta: int = 0,
        largest_c: int = 0,
        most: int | None = None,
    ) -> Exact:
        """How to compute sums of so many products exactly, of integers up to `largest` in A and in B. UsageError where no primes
        are enough.

        `most`: larger sums shall not occur where that can be, nor any that reach the limit of the type that they have.
        """
        sums = terms * largest[0] * largest[1]
        bound = abs(alpha) * sums + abs(beta) * largest_c
        for dtype, bits in EXACT_BITS.items():
            limit = 1 << bits if most is None else min((1 << bits) - 1, most)
            if sums <= limit and max(largest) <= 1 << bits and bound <= 1 << EXACT_BITS["float64"]:
                return cls(bound, dtype)
        primes = next(filter(None, (_primes_above(2 * bound, terms, limit) for limit in (most, None))), None)
        if primes is None:
            raise UsageError(
                f"sums of {terms} products of integers up to {max(largest)} are too long for an exact product", code="too-long"
            )
        return cls(bound, "float64", primes)

    @property
    def products(self) -> tuple[int, ...]:
        """The products that are computed: modulo these primes, or of the integers themselves (0)."""
        return self.primes or (0,)

    def bytes_beside(self, elements: int, result: str) -> int:
        """The bytes that so many elements of C take beside those of one product in floating point."""
        return elements * (len(self.primes) * DIGIT.itemsize + np.dtype(result).itemsize)


@lru_cache(maxsize=64)
def _primes_above(number: int, terms: int, most: int | None = None) -> tuple[int, ...] | None:
    """The fewest of the largest usable primes whose product exceeds the number; None where even all of them do not. `most`: as
    of `largest_modulus`."""
    chosen, product = [], 1
    for prime in primes_below(min(largest_modulus(terms, "float64", most), np.iinfo(DIGIT).max)):
        chosen.append(prime)
        product *= prime
        if product > number:
            return tuple(chosen)
    return None


def largest_of(matrix: Any, threads: int) -> int:
    """The largest magnitude of the matrix's integers. It is NumPy's or CuPy's: on a GPU this is found there."""

    def look(rows: Span) -> int:
        part = matrix[rows.slice]
        return max(abs(int(part.min())), abs(int(part.max())))  # as Python's integers: of the least one no type holds it

    if not matrix.size:
        return 0
    matrix = matrix[tuple(slice(1 if step == 0 else None) for step in matrix.strides)]  # nothing twice that was broadcast
    if on_gpu(matrix):
        with on_device_of(matrix):
            return look(Span(0, len(matrix)))
    return max(by_parts(None, matrix.shape, look, threads, matrix.itemsize))


def write_remainders(matrix: Any, prime: int, rows: Span, into: Any, threads: int) -> None:
    """Write the remainders of these rows modulo the prime into `into`; with the prime 0, the integers themselves. Both arrays
    are in host memory, or on the same GPU."""

    def write(part: Span) -> None:
        for some, room in with_room(part, into.shape[1], into):
            numbers = matrix[rows.lo + some.lo : rows.lo + some.hi]
            into[some.slice] = balanced(numbers, prime, room) if prime else numbers

    with on_device_of(into):
        for _ in by_parts(into, into.shape, write, threads):
            pass
