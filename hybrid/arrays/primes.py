# SPDX-License-Identifier: MIT
"""Primes that are small enough for exact products: of remainders modulo p between -p/2 and p/2 no sum leaves the integers that a
floating-point type holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hybrid.arrays.interop import empty_beside

EXACT_BITS = {"float32": 24, "float64": 53}  # integers up to 2 to this are exact, and so are sums that stay below
_SEGMENT = 1 << 18  # numbers sieved at once


def largest_modulus(terms: int, dtype: str, most: int | None = None) -> int:
    """The largest p for which sums of so many products of balanced remainders are exact; with `most`, and not larger than
    this."""
    limit = 1 << EXACT_BITS[dtype] if most is None else min(1 << EXACT_BITS[dtype], most)
    return 2 * math.isqrt(limit // max(1, terms)) + 1


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

    def __init__(self, elements: int, beside: Any = None) -> None:
        """`beside`: an array on the GPU where the memory shall be; else it is the host's."""
        self._elements, self._beside = elements, beside
        self._memory: list[Any] = []
        self._views: list[Any] = []

    def of(self, shape: tuple[int, ...]) -> list[Any]:
        """Three arrays of this shape, the same ones as before where the shape is: of int64 for the result, and two temporary
        ones, of int64 and float64."""
        if not self._memory:
            self._memory = [empty_beside(self._beside, (self._elements,), dtype) for dtype in (np.int64, np.int64, np.float64)]
        if not self._views or self._views[0].shape != shape:
            self._views = [each[: math.prod(shape)].reshape(shape) for each in self._memory]
        return self._views


def balanced(numbers: Any, moduli: np.ndarray | int, room: Room | None = None, *, nearly: bool = False) -> Any:
    """The remainders from -(p-1)/2 to (p-1)/2, as int64, of whole numbers of any type, in an array of NumPy's or CuPy's. The
    moduli, which are odd and below 2^31, are broadcast.

    With `room` the result lies there, and the numbers may be what it held last. `nearly`: remainders may be larger by a 2^50th
    of the numbers.

    The quotient comes from a multiplication in floating point: whole numbers are divided ten times as slowly. It may be wrong by
    one, or for numbers beyond 2^53 by some; then what is left is small, but not balanced yet.
    """
    shape = np.broadcast_shapes(numbers.shape, np.shape(moduli))
    left, whole, quotients = (room or Room(math.prod(shape), numbers)).of(shape)
    if numbers is not left:
        left[...] = numbers  # uint64 modulo 2^64, and so is what is subtracted
    inverse = 1.0 / moduli
    for _ in range(1 if nearly or _always_right(numbers.dtype) else 2):
        np.rint(np.multiply(numbers, inverse, out=quotients, dtype=np.float64), out=quotients)
        whole[...] = quotients
        whole *= moduli
        left -= whole
        numbers = left
    return left


def _always_right(dtype: np.dtype) -> bool:
    """Whether the quotient of any integer of this type is right: below 2^51 none comes as near to a half as its rounding error
    is large."""
    return dtype.kind in "biu" and dtype.itemsize <= 4
