# SPDX-License-Identifier: MIT
"""Exact products of integers by floating-point products without rounding.

If no sum exceeds 2^24 (float32) or 2^53 (float64), one product of the integers themselves is exact. Otherwise remainders modulo
several primes are multiplied in float64. The primes' product exceeds twice the largest possible element, so Garner's algorithm
recovers every element (hybrid.execution.real_products), and overflow of C's type is detected.

Host threads take parts of rows that fit a core's cache; on a GPU, parts are large enough for a launch, but temporaries small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from hybrid.arrays.interop import by_rows, empty_beside, gpu_kernel, on_device_of, on_gpu, to_device_of
from hybrid.core.problem import INTEGERS, Span, record
from hybrid.errors import CheckFailed, Overflow, UsageError
from hybrid.host.threads import CALL_BYTES, on_threads, rows_of_about
from hybrid.planning.arithmetic import EXACT_BITS

DIGIT = np.dtype(np.int32)  # of an element's remainder modulo one prime
_SEGMENT = 1 << 18  # numbers per segment of the sieve
_CACHED_BYTES = CALL_BYTES // 16  # of elements per step on the host; each temporary array takes as much
_GPU_BYTES = 32 << 20  # the same on a GPU
LARGEST_MODULUS = 1 << 63  # that a user may ask for


def least_remainders(matrix: Any, modulus: int, threads: int = 1) -> Any:
    """The balanced remainders, from -modulus/2 to modulus/2, as int64; the array itself if its elements are in that range, or the
    modulus is 0."""
    if not modulus or (matrix.dtype.kind in "bi" and matrix.dtype.itemsize < 8 and largest_of(matrix, threads) <= modulus // 2):
        return matrix
    made = empty_beside(matrix, matrix.shape, np.int64)

    def write(rows: Span) -> None:
        made[rows.slice] = _balanced_in_64_bits(matrix[rows.slice], modulus)

    by_rows(made, write, threads)
    return made


def _balanced_in_64_bits(numbers: Any, modulus: int) -> Any:
    """Balanced remainders modulo a number up to 2^63, which exceeds int64: modulo 2^63, a negative number's bits are those of a
    congruent unsigned one."""
    kind = np.uint64 if _is_uint64(numbers) else np.int64
    unsigned, numbers = kind is np.uint64 or modulus == LARGEST_MODULUS, numbers.astype(kind)
    rest = np.remainder(numbers.view(np.uint64), np.uint64(modulus)) if unsigned else np.remainder(numbers, modulus)
    rest = rest.view(np.int64)
    return rest - (rest > modulus // 2) * wrapped(modulus)


def _is_uint64(numbers: Any) -> bool:
    return numbers.dtype.name == "uint64"  # in either byte order


def joined_modulo(digits: Any, primes: tuple[int, ...], modulus: int) -> Any:
    """d₀ + p₀·(d₁ + p₁·(…)) modulo a number up to 2^63, as int64 from 0 to the modulus.

    Each step's quotient is below a prime, below 2^28, so its float64 value is off by at most one. The rest, computed modulo 2^64,
    is small, and corrected.
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
    """The largest p for which sums of `terms` products of balanced remainders are exact, and at most `most`."""
    limit = 1 << EXACT_BITS[dtype] if most is None else min(1 << EXACT_BITS[dtype], most)
    return 2 * math.isqrt(limit // max(1, terms)) + 1


def primes_below(limit: int) -> Iterator[int]:
    """The odd primes up to and including `limit`, in descending order, by a segmented sieve."""
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

    bound: int  # of the magnitudes in C
    computed: str  # the products' type
    primes: tuple[int, ...] = ()  # (): one product, of the integers themselves

    @classmethod
    def of(
        cls, terms: int, largest: tuple[int, int], *, alpha: int = 1, beta: int = 0, largest_c: int = 0, most: int | None = None
    ) -> Exact:
        """How to compute sums of `terms` products of integers up to `largest` in A and in B exactly. UsageError if there are not
        enough primes. `most`: avoid larger sums if possible, and sums that reach their type's limit."""
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
        """Temporary bytes for this many elements of C, without the floating-point product's C."""
        return elements * (len(self.primes) * DIGIT.itemsize + np.dtype(result).itemsize)


@lru_cache(maxsize=64)
def _primes_above(number: int, terms: int, most: int | None = None) -> tuple[int, ...] | None:
    """The largest usable primes, just enough for a product above the number; None if even all are too few. `most`: as for
    `largest_modulus`."""
    chosen, product = [], 1
    for prime in primes_below(min(largest_modulus(terms, "float64", most), np.iinfo(DIGIT).max)):
        chosen.append(prime)
        product *= prime
        if product > number:
            return tuple(chosen)
    return None


Room = list[Any]  # work arrays of `balanced` for reuse: page faults of new ones take longer than the arithmetic


def _room(shape: tuple[int, ...]) -> Room:
    """Host arrays of this shape: for the result, and two temporaries."""
    return [np.empty(shape, dtype) for dtype in (np.int64, np.int64, np.float64)]


def balanced(numbers: Any, moduli: np.ndarray | int, room: Room | None = None, *, nearly: bool = False) -> Any:
    """The remainders from -(p-1)/2 to (p-1)/2, as int64, of integers of any type in a NumPy or CuPy array. The moduli, odd and
    below 2^31, are broadcast.

    With `room` the result is in its first rows, and `numbers` may be the previous result there. `nearly`: remainders may exceed
    the range by 2^-50 of the numbers.

    On the host, a floating-point multiplication gives the quotient, ten times as fast as an integer division. It may be off by
    one, or by more for numbers beyond 2^53: then the rest is small, and a second pass balances it. Integers of up to 32 bits need
    one pass: below 2^51, no quotient is as near to a half as its rounding error. On a GPU, which memory bandwidth limits, an
    integer division takes fewer passes.
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
        left[...] = numbers  # modulo 2^64, as the subtraction below
    inverse = 1.0 / moduli
    for _ in range(1 if nearly or always_right else 2):
        np.rint(np.multiply(numbers, inverse, out=quotients, dtype=np.float64), out=quotients)
        whole[...] = quotients
        whole *= moduli
        left -= whole
        numbers = left
    return left


def largest_of(matrix: Any, threads: int) -> int:
    """The largest magnitude of the integers in a matrix or stack, on its own device."""

    def look(rows: Span) -> int:
        part = matrix[rows.slice]
        return max(abs(int(part.min())), abs(int(part.max())))  # Python's integers: abs of the least int64 overflows

    if not matrix.size:
        return 0
    matrix = matrix[tuple(slice(1 if step == 0 else None) for step in matrix.strides)]  # broadcast elements once
    return max(by_rows(matrix, look, threads))


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
    """Call `work(rows, room)` for some rows at a time of a matrix of this shape, on the GPU of `beside` or by `threads`.

    `with_room`: on the host, pass work arrays for remainders, and rows that fit a core's cache.
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
    """The peak of a GPU's temporary arrays, in bytes, while matrices of these shapes are converted from or to `remainders`, or
    else checked."""
    return (8 if remainders else 3) * max(
        8 * columns * min(rows, max(1, _GPU_BYTES // max(1, columns * 8))) for rows, columns in shapes
    )


def magnitude(dtype: np.dtype) -> int:
    """The largest magnitude that the type holds with both signs; 0 for unsigned types."""
    return 0 if dtype.kind == "u" else int(np.iinfo(dtype).max)


def refusal(exact: Exact, dtype: np.dtype, value: int, place: str) -> Overflow | CheckFailed:
    """The error for an element of C that its type cannot hold, or that exceeds the bound of a right product."""
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


# The check of a product of integers compares C·x with alpha·A·(B·x) + beta·C₀·x modulo 2⁶⁴, on the matrices' devices, in the
# user's types. So it covers remainders, their products and the reconstruction. An odd x hides no single wrong element of a row;
# several whose differences are multiples of 2ᵏ are hidden with probability 2ᵏ⁻⁶⁴.


def odd_words(random: np.random.Generator, count: int) -> np.ndarray:
    """Random odd 64-bit integers."""
    return random.integers(0, 1 << 64, count, np.uint64).view(np.int64) | 1


def times_words(matrix: Any, x: np.ndarray, threads: int) -> Any:
    """matrix·x modulo 2⁶⁴, on the matrix's device. Its elements are integers of any type, also floating-point ones."""
    if on_gpu(matrix):
        with on_device_of(matrix):
            return gpu_kernel("times_words")(matrix, to_device_of(matrix, x), axis=1)
    product = np.empty(len(matrix), np.int64)

    def multiply(rows: Span, room: Room) -> None:
        part = matrix[rows.slice]
        if part.dtype.kind == "f" or _is_uint64(part):  # products with int64 would be rounded
            with np.errstate(invalid="ignore"):  # what is no integer becomes any number
                part = part.astype(np.int64)
        product[rows.slice] = np.einsum("ij,j->i", part, x)

    by_parts(matrix, matrix.shape, multiply, threads, with_room=False)
    return product


def combine(product: Any, alpha: int, beta: int, c: Any, into: Any) -> None:
    """Write alpha·product + beta·c, exact in float64, to `into`, which may be `c`. All on one GPU; `c` is None if beta is 0."""
    with on_device_of(into):
        if (alpha, beta) == (1, 0):
            into[...] = product
        else:
            gpu_kernel("combine")(product, product if c is None else c, float(alpha), float(beta), into)


def wrapped(number: int) -> np.int64:
    """The number modulo 2⁶⁴, as int64."""
    return np.int64((number + (1 << 63)) % (1 << 64) - (1 << 63))
