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


class Room:
    """Memory for the steps of `balanced`, to be used again and again: fresh pages would take longer than the arithmetic."""

    def __init__(self, elements: int) -> None:
        self._whole, self._left, self._quotients = np.empty(elements, np.int64), np.empty(elements, np.int64), np.empty(elements)

    def of(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Three arrays of this shape: one of int64 for the result, and two temporary ones, of int64 and float64."""
        elements = math.prod(shape)
        left, whole, quotients = (each[:elements].reshape(shape) for each in (self._left, self._whole, self._quotients))
        return left, whole, quotients


def balanced(numbers: np.ndarray, moduli: np.ndarray | int, room: Room | None = None, *, nearly: bool = False) -> np.ndarray:
    """The remainders from -(p-1)/2 to (p-1)/2, as int64, of whole numbers of any type. The moduli, which are odd and below 2^31,
    are broadcast.

    With `room` the result lies there, and the numbers may be what it held last. `nearly`: remainders may be larger by a 2^50th
    of the numbers.

    The quotient comes from a multiplication in floating point: whole numbers are divided ten times as slowly. It may be wrong by
    one, or for numbers beyond 2^53 by some; then what is left is small, but not balanced yet.
    """
    shape = np.broadcast_shapes(numbers.shape, np.shape(moduli))
    left, whole, quotients = (room or Room(math.prod(shape))).of(shape)
    np.copyto(left, numbers, casting="unsafe")  # uint64 modulo 2^64, and so is what is subtracted
    inverse = 1.0 / moduli
    for _ in range(1 if nearly or _always_right(numbers.dtype) else 2):
        np.rint(np.multiply(numbers, inverse, out=quotients, dtype=np.float64), out=quotients)
        np.copyto(whole, quotients, casting="unsafe")
        whole *= moduli
        left -= whole
        numbers = left
    return left


def _always_right(dtype: np.dtype) -> bool:
    """Whether the quotient of any integer of this type is right: below 2^51 none comes as near to a half as its rounding error
    is large."""
    return dtype.kind in "biu" and dtype.itemsize <= 4
