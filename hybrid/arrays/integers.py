# SPDX-License-Identifier: MIT
"""Exact products of integers, by products of floating-point numbers that round nothing.

Where no sum exceeds 2^24 (float32) or 2^53 (float64), one product of the integers themselves is exact. Beyond, there is one in
float64 of the remainders modulo each of several primes, whose product exceeds twice the largest possible element: Garner's
algorithm then gives every element (hybrid.execution.real_products), so that none is wrapped unseen.

On the host, threads take parts of rows that fit a core's cache; on a GPU, parts are worth a launch, and their temporaries small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from hybrid.arrays.interop import empty_beside, on_device_of, on_gpu, to_device_of
from hybrid.core.problem import INTEGERS, Span, record
from hybrid.errors import CheckFailed, Overflow, UsageError
from hybrid.host.threads import CALL_BYTES, on_threads, rows_of_about

EXACT_BITS = {"float32": 24, "float64": 53}  # integers up to 2 to this are exact, and so are sums that stay below
DIGIT = np.dtype(np.int32)  # of what is known of an element of C by one prime
_SEGMENT = 1 << 18  # numbers sieved at once
_CACHED_BYTES = CALL_BYTES // 16  # of elements that go through several steps together; temporary arrays take as much each
_GPU_BYTES = 32 << 20  # the same on a GPU
LARGEST_MODULUS = 1 << 63  # of the remainders that a product may be asked for


def least_remainders(matrix: Any, modulus: int, threads: int = 1) -> Any:
    """The remainders of integers modulo this number, from -modulus/2 to modulus/2, as int64; the array itself where that has no
    others."""
    if not modulus or (matrix.dtype.kind in "bi" and matrix.dtype.itemsize < 8 and largest_of(matrix, threads) <= modulus // 2):
        return matrix
    made = empty_beside(matrix, matrix.shape, np.int64)

    def write(rows: Span) -> None:
        made[rows.slice] = _balanced_in_64_bits(matrix[rows.slice], modulus)

    rows = Span(0, len(matrix))
    with on_device_of(matrix):
        if on_gpu(matrix):
            write(rows)
        else:
            on_threads(threads, write, rows_of_about(CALL_BYTES, rows, max(1, made.nbytes // max(1, len(made)))))
    return made


def _balanced_in_64_bits(numbers: Any, modulus: int) -> Any:
    """The remainders modulo a number up to 2^63, which int64 does not hold: of such, the bits of a negative number are right as
    those of a positive one, too."""
    kind = np.uint64 if _is_uint64(numbers) else np.int64
    unsigned, numbers = kind is np.uint64 or modulus == LARGEST_MODULUS, numbers.astype(kind)
    rest = np.remainder(numbers.view(np.uint64), np.uint64(modulus)) if unsigned else np.remainder(numbers, modulus)
    rest = rest.view(np.int64)
    return rest - (rest > modulus // 2) * wrapped(modulus)


def _is_uint64(numbers: Any) -> bool:
    return numbers.dtype.name == "uint64"  # in either order of bytes


def joined_modulo(digits: Any, primes: tuple[int, ...], modulus: int) -> Any:
    """d₀ + p₀·(d₁ + p₁·(…)) modulo a number up to 2^63, from 0 on, as int64.

    The quotient of each step is below a prime, 2^28, so that in float64 it is wrong by one at most; what is left when the modulus
    was subtracted so often is computed modulo 2^64, and small.
    """
    *lower, highest = digits
    left, bits, half = highest.astype(np.int64), wrapped(modulus), modulus // 2
    with np.errstate(over="ignore"):
        for digit, prime in zip(reversed(lower), reversed(primes[:-1]), strict=True):
            quotients = np.rint((left.astype(np.float64) * prime + digit) / modulus).astype(np.int64)
            left = left * prime + digit - quotients * bits
            left -= (left > half) * bits
            left += (left < -half) * bits
        return np.remainder(left, modulus) if modulus < LARGEST_MODULUS else left + (left < 0) * bits


def largest_modulus(terms: int, dtype: str, most: int | None = None) -> int:
    """The largest p, at most `most`, for which sums of `terms` products of balanced remainders are exact."""
    limit = 1 << EXACT_BITS[dtype] if most is None else min(1 << EXACT_BITS[dtype], most)
    return 2 * math.isqrt(limit // max(1, terms)) + 1


def primes_below(limit: int) -> Iterator[int]:
    """The odd primes up to `limit`, including it, the largest first, by a segmented sieve."""
    small = [2, *primes_below(math.isqrt(limit))] if limit > 3 else []
    high = limit + 1
    while high > 3:
        low = max(3, high - _SEGMENT)
        is_prime = np.ones(high - low, bool)
        for prime in small:
            first = max(prime * prime, -(-low // prime) * prime)
            is_prime[first - low :: prime] = False
        yield from (np.flatnonzero(is_prime)[::-1] + low).tolist()
        high = low


@record
class Exact:
    """How a product of integers is computed, the same on every rank."""

    bound: int  # no element of C has a larger magnitude
    computed: str  # the type in which the products are computed
    primes: tuple[int, ...] = ()  # (): one product, of the integers themselves

    @classmethod
    def of(
        cls, terms: int, largest: tuple[int, int], *, alpha: int = 1, beta: int = 0, largest_c: int = 0, most: int | None = None
    ) -> Exact:
        """How to compute sums of so many products exactly, of integers up to `largest` in A and in B. UsageError where no primes
        are enough. `most`: larger sums are avoided where possible, and such that reach the limit of their type."""
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

    def bytes_beside(self, elements: int, result: str) -> int:
        """Temporary bytes for this many elements of C, without one floating-point product."""
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


Room = list[Any]  # memory for the steps of `balanced`, which is reused: fresh pages take longer than the arithmetic


def _room(shape: tuple[int, ...]) -> Room:
    """Arrays of this shape in host memory: for the result, and two temporary ones."""
    return [np.empty(shape, dtype) for dtype in (np.int64, np.int64, np.float64)]


def balanced(numbers: Any, moduli: np.ndarray | int, room: Room | None = None, *, nearly: bool = False) -> Any:
    """The remainders from -(p-1)/2 to (p-1)/2, as int64, of whole numbers of any type, in an array of NumPy's or CuPy's. The
    moduli, odd and below 2^31, are broadcast.

    With `room` the result lies in its first rows, and the numbers may be the last result there. `nearly`: remainders may be
    larger by a 2^50th of the numbers.

    The quotient comes from a floating-point multiplication, ten times as fast as an integer division. It may be wrong by one, or
    for numbers beyond 2^53 by some: then the rest is small, but must be balanced once more. For integers of 32 bits it never is:
    below 2^51 none comes as near to a half as its rounding error is large. On a GPU, where memory limits each step, an integer
    division takes fewer of them.
    """
    if on_gpu(numbers):
        left = numbers if numbers.dtype == np.uint64 else numbers.astype(np.int64, copy=False)
        left = (left % moduli).astype(np.int64, copy=False)
        left -= (left > moduli // 2) * moduli
        return left
    shape = np.broadcast_shapes(numbers.shape, np.shape(moduli))
    left, whole, quotients = _room(shape) if room is None else (each[: shape[0]] for each in room)
    always_right = numbers.dtype.kind in "biu" and numbers.dtype.itemsize <= 4
    if room is None or numbers.base is not room[0]:
        left[...] = numbers  # uint64 modulo 2^64, and so is what is subtracted
    inverse = 1.0 / moduli
    for _ in range(1 if nearly or always_right else 2):
        np.rint(np.multiply(numbers, inverse, out=quotients, dtype=np.float64), out=quotients)
        whole[...] = quotients
        whole *= moduli
        left -= whole
        numbers = left
    return left


def largest_of(matrix: Any, threads: int) -> int:
    """The largest magnitude of the integers in a matrix or stack, found where it lies."""

    def look(rows: Span) -> int:
        part = matrix[rows.slice]
        return max(abs(int(part.min())), abs(int(part.max())))  # as Python's integers: of the least one no type holds it

    if not matrix.size:
        return 0
    matrix = matrix[tuple(slice(1 if step == 0 else None) for step in matrix.strides)]  # nothing twice that was broadcast
    rows = Span(0, len(matrix))
    if on_gpu(matrix):
        with on_device_of(matrix):
            return look(rows)
    return max(on_threads(threads, look, rows_of_about(CALL_BYTES, rows, matrix.size // len(matrix) * matrix.itemsize)))


def largest_of_type(dtype: np.dtype) -> int:
    """The largest magnitude of an integer of this type."""
    return 1 if dtype.kind == "b" else -int(np.iinfo(dtype).min) or int(np.iinfo(dtype).max)


def write_remainders(matrix: Any, prime: int, rows: Span, into: Any, threads: int) -> None:
    """Write the remainders of these rows modulo the prime into `into`, on the same device."""

    def write(some: Span, room: Room) -> None:
        into[some.slice] = balanced(matrix[rows.lo + some.lo : rows.lo + some.hi], prime, room)

    by_parts(into, into.shape, write, threads)


def by_parts(
    beside: Any, shape: tuple[int, int], work: Callable[[Span, Room], None], threads: int, *, with_room: bool = True
) -> None:
    """`work(rows, room)` for some rows at a time of a matrix of this shape, on the GPU of `beside` or by `threads`.

    `with_room`: in host memory these rows are few, and there is room for their remainders.
    """
    height, width = shape
    there = on_gpu(beside)

    def do(rows: Span) -> None:
        parts = list(rows_of_about(_CACHED_BYTES, rows, width * 8)) if with_room and not there else [rows]
        room = _room((max(map(len, parts), default=0), width)) if with_room and not there else []
        for part in parts:
            work(part, room)

    at_once = _GPU_BYTES if there else CALL_BYTES
    with on_device_of(beside):
        on_threads(1 if there else threads, do, rows_of_about(at_once, Span(0, height), width * 8))


def temporary_bytes(shapes: list[tuple[int, int]], *, remainders: bool = True) -> int:
    """The most bytes of a GPU's temporary arrays while matrices of these shapes become `remainders` or a result, or are
    checked."""
    return (8 if remainders else 3) * max(
        8 * columns * min(rows, max(1, _GPU_BYTES // max(1, columns * 8))) for rows, columns in shapes
    )


def magnitude(dtype: np.dtype) -> int:
    """The largest magnitude up to which the type holds the integers of both signs."""
    return 0 if dtype.kind == "u" else int(np.iinfo(dtype).max)


def refusal(exact: Exact, dtype: np.dtype, value: int, place: str) -> Overflow | CheckFailed:
    """The error for an element of C that its type cannot hold, or that is larger than any can be."""
    if abs(value) > exact.bound:
        return CheckFailed(f"the product is wrong: {place} is {value}, and no larger one than {exact.bound} is possible")
    limits = np.iinfo(dtype)
    holds = [name for name in INTEGERS if magnitude(np.dtype(name)) >= exact.bound]
    other = f"dtype='{holds[0]}' holds all" if holds else "dtype='float64' rounds it"
    if not holds and value > 0 and exact.bound <= np.iinfo(np.uint64).max:
        other = "dtype='uint64' holds all that are not negative"
    return Overflow(
        f"{place} is {value}, which {dtype} ({limits.min} to {limits.max}) does not hold: {other} (of elements up to "
        f"{exact.bound}, as these operands can have)"
    )


# The check of a product of integers, from its operands to C in its own type: C·x is compared with alpha·A·(B·x) + beta·C₀·x
# modulo 2⁶⁴, where the matrices lie. So it covers the parts, their products and how these are put together. An odd x
# hides no single wrong element of a row; several whose differences are multiples of 2ᵏ are hidden by one x in 2⁶⁴⁻ᵏ.


def odd_words(random: np.random.Generator, count: int) -> np.ndarray:
    """Random odd numbers of 64 bits."""
    return random.integers(0, 1 << 64, count, np.uint64).view(np.int64) | 1


def times_words(matrix: Any, x: np.ndarray, threads: int) -> Any:
    """matrix·x modulo 2⁶⁴, of integers of any type, or of floating-point numbers that are integers, on the GPU where the matrix
    lies, or in host memory."""
    product, there = empty_beside(matrix, (len(matrix),), np.int64), to_device_of(matrix, x)

    def multiply(rows: Span, room: Room) -> None:
        part = matrix[rows.slice]
        if part.dtype.kind == "f" or _is_uint64(part):  # whose products would be rounded
            with np.errstate(invalid="ignore"):  # of what is no integer, any number will do
                part = part.astype(np.int64)
        on_host = type(part) is np.ndarray  # where this takes a third of the time
        product[rows.slice] = np.einsum("ij,j->i", part, there) if on_host else (part * there).sum(axis=1)

    by_parts(matrix, matrix.shape, multiply, threads, with_room=False)
    return product


def wrapped(number: int) -> np.int64:
    """The number modulo 2⁶⁴."""
    return np.int64((number + (1 << 63)) % (1 << 64) - (1 << 63))
