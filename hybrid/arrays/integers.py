# SPDX-License-Identifier: MIT
"""Exact products of integers, by products of floating-point numbers that round nothing.

Where no sum can exceed 2^24 (float32) or 2^53 (float64), one product of the integers themselves is exact. Beyond, there is one
product in float64 for each of several primes, of the remainders modulo it; with the primes' product above twice the largest
possible element these tell each element, whatever its size (Garner's algorithm). So an element that the result's type cannot
hold is noticed, and none is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from hybrid.arrays.primes import EXACT_BITS, Room, balanced, largest_modulus, primes_below
from hybrid.core.problem import INTEGERS
from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.errors import CheckFailed, Overflow, UsageError
from hybrid.host.thread_map import CALL_BYTES, on_threads, rows_of_about

_CACHED_BYTES = CALL_BYTES // 16  # of the elements on which several steps are done together; temporary arrays take as much each
_DIGIT = np.dtype(np.int32)
_WRAPPED = 2.0**62  # an element that was wrapped differs by 2^64 at least; one that was not, by its rounding in float64


@record
class Exact:
    """How a product of integers is computed, the same on every rank.

    Without `primes` it is one product, of the integers themselves.
    """

    bound: int  # no element of C has a larger magnitude
    computed: str  # the type in which the products are computed
    primes: tuple[int, ...] = ()

    @classmethod
    def of(cls, terms: int, largest: tuple[int, int], *, alpha: int = 1, beta: int = 0, largest_c: int = 0) -> Exact:
        """How to compute sums of so many products exactly, of integers up to `largest` in A and in B. UsageError where no primes
        are enough."""
        sums = terms * largest[0] * largest[1]
        bound = abs(alpha) * sums + abs(beta) * largest_c
        for dtype, bits in EXACT_BITS.items():
            if max(sums, *largest) <= 1 << bits and bound <= 1 << EXACT_BITS["float64"]:
                return cls(bound, dtype)
        primes = _primes_above(2 * bound, terms)
        if primes is None:
            raise UsageError(f"sums of {terms} products of integers up to {max(largest)} are too long for an exact product")
        return cls(bound, "float64", primes)

    @property
    def products(self) -> tuple[int, ...]:
        """The products that are computed: modulo these primes, or of the integers themselves (0)."""
        return self.primes or (0,)

    def bytes_beside(self, elements: int, result: str) -> int:
        """The bytes that so many elements of C take beside those of one product in floating point."""
        return elements * (len(self.primes) * _DIGIT.itemsize + np.dtype(result).itemsize)


@lru_cache(maxsize=64)
def _primes_above(number: int, terms: int) -> tuple[int, ...] | None:
    """The fewest of the largest usable primes whose product exceeds the number; None where even all of them do not."""
    chosen, product = [], 1
    for prime in primes_below(min(largest_modulus(terms, "float64"), np.iinfo(_DIGIT).max)):
        chosen.append(prime)
        product *= prime
        if product > number:
            return tuple(chosen)
    return None


def largest_of(matrix: np.ndarray, threads: int) -> int:
    """The largest magnitude of the matrix's integers."""

    def look(rows: Span) -> int:
        part = matrix[rows.slice]
        return max(abs(int(part.min())), abs(int(part.max())))

    if not matrix.size:
        return 0
    matrix = matrix[tuple(slice(1 if step == 0 else None) for step in matrix.strides)]  # nothing twice that was broadcast
    return max(on_threads(threads, look, _parts(matrix.shape, matrix.itemsize)))


def write_remainders(matrix: np.ndarray, prime: int, rows: Span, into: np.ndarray, threads: int) -> None:
    """Write the remainders of these rows modulo the prime into `into`; with the prime 0, the integers themselves."""

    def write(part: Span) -> None:
        for some, room in _in_cache(part, into.shape[1]):
            numbers = matrix[rows.lo + some.lo : rows.lo + some.hi]
            into[some.slice] = balanced(numbers, prime, room) if prime else numbers

    for _ in on_threads(threads, write, _parts(into.shape)):
        pass


def element_of_rows(first_row: int) -> Callable[[int, int], str]:
    """A function that names elements, for messages, of rows that begin at this one."""
    return lambda row, column: f"element [{first_row + row}, {column}] of the product"


class ExactResult:
    """One rank's part of C = alpha·A·B + beta·C, from the products of A and B modulo all primes."""

    def __init__(
        self,
        exact: Exact,
        result: str,
        shape: tuple[int, int],
        *,
        alpha: int = 1,
        beta: int = 0,
        c: np.ndarray | None = None,
        named: Callable[[int, int], str] | None = None,
    ) -> None:
        """`named(row, column)`: names an element of this part of C, for messages. None: the part is all of C."""
        self._exact, self._result, self._shape = exact, np.dtype(result), shape
        self._named = named or element_of_rows(0)
        self._alpha, self._beta, self._c = alpha, beta if c is not None else 0, c
        self._digits = np.empty((len(exact.primes), *shape), _DIGIT)
        self._plain: np.ndarray | None = None

    def add(self, number: int, product: np.ndarray, threads: int) -> None:
        """Add the product modulo prime `number`. Its memory may be used for others afterwards."""
        if not self._exact.primes:
            self._plain = product
            return

        def add(part: Span) -> None:
            for rows, room in _in_cache(part, self._shape[1]):
                self._add_digits(number, product, rows, room)

        for _ in on_threads(threads, add, _parts(self._shape)):
            pass

    def _add_digits(self, number: int, product: np.ndarray, rows: Span, room: Room) -> None:
        """Compute this prime's digits of C = d₀ + p₀·(d₁ + p₁·(d₂ + …)), which are balanced: of the product modulo p, all but
        the own digit is known from the primes before."""
        *before, prime = self._exact.primes[: number + 1]
        rest, weight = balanced(product[rows.slice], prime, room, nearly=True), 1
        rest *= self._alpha % prime
        if self._beta and self._c is not None:
            rest += balanced(self._c[rows.slice], prime) * (self._beta % prime)
        for digits, p in zip(self._digits[:number, rows.slice], before, strict=True):
            rest -= np.multiply(digits, weight, dtype=np.int64)  # primes are below 2^28: a few such products add up exactly
            weight = weight * p % prime
        digits = balanced(rest, prime, room, nearly=True)
        digits *= pow(weight, -1, prime)
        self._digits[number, rows.slice] = balanced(digits, prime, room)

    def result(self, into: np.ndarray | None, threads: int) -> np.ndarray:
        """C, in `into` where that is given.

        Overflow where its type cannot hold an element, CheckFailed where an element is larger than any can be; then the contents
        of `into` are undefined.
        """
        c = np.empty(self._shape, self._result) if into is None else into
        for where in on_threads(threads, lambda rows: self._write(c, rows), _parts(self._shape)):
            if where is not None:
                raise self._refusal(*where)
        return c

    def _write(self, c: np.ndarray, rows: Span) -> tuple[int, int] | None:
        """Write these rows of C. Returns the place of the first element that cannot be written, if there is one."""
        if self._plain is not None:
            values, wrong = self._of_plain(rows), np.zeros(1, bool)
        else:
            values, wrong = self._of_digits(rows)
        if self._result.kind == "b":
            values = values != 0
        elif self._exact.bound > _magnitude(self._result):
            limits = np.iinfo(self._result)
            wrong = wrong | (values < limits.min) | (values > limits.max)
        if wrong.any():  # nothing is written, since `c` may be the C that is added, which the message needs
            row, column = np.argwhere(wrong)[0]
            return rows.lo + int(row), int(column)
        with np.errstate(invalid="ignore"):
            c[rows.slice] = values
        return None

    def _of_plain(self, rows: Span) -> np.ndarray:
        assert self._plain is not None
        values = self._plain[rows.slice].astype(np.float64)
        values *= self._alpha
        if self._beta and self._c is not None:
            values += np.float64(self._beta) * self._c[rows.slice]
        return values

    def _of_digits(self, rows: Span) -> tuple[np.ndarray, np.ndarray]:
        """These rows of C modulo 2^64, and which elements were wrapped, or are larger than any can be: these come from a wrong
        product."""
        shape = self._digits[0, rows.slice].shape
        wrapped, rounded = np.zeros(shape, np.int64), np.zeros(shape)
        for digits, p in zip(reversed(self._digits[:, rows.slice]), reversed(self._exact.primes), strict=True):
            wrapped, rounded = wrapped * p + digits, rounded * p + digits
        values = wrapped.view(np.uint64) if self._result == np.uint64 else wrapped
        impossible = np.abs(rounded) > self._exact.bound * (1 + 2.0**-40)  # the sum may have been rounded
        return values, (np.abs(rounded - values) > _WRAPPED) | impossible

    def _refusal(self, row: int, column: int) -> Overflow | CheckFailed:
        value = int(self._of_plain(Span(row, row + 1))[0, column]) if self._plain is not None else 0
        for digits, p in zip(reversed(self._digits), reversed(self._exact.primes), strict=True):
            value = value * p + int(digits[row, column])
        bound, place = self._exact.bound, self._named(row, column)
        if abs(value) > bound:
            return CheckFailed(f"the product is wrong: {place} is {value}, and no larger one than {bound} is possible")
        limits = np.iinfo(self._result)
        holds = [name for name in INTEGERS if _magnitude(np.dtype(name)) >= bound]
        other = f"dtype='{holds[0]}' holds all" if holds else "dtype='float64' rounds it"
        if not holds and value > 0 and bound <= np.iinfo(np.uint64).max:
            other = "dtype='uint64' holds all that are not negative"
        return Overflow(
            f"{place} is {value}, which {self._result} ({limits.min} to {limits.max}) does not hold: {other} (of elements up to "
            f"{bound}, as these operands can have)"
        )


def _magnitude(dtype: np.dtype) -> int:
    """The largest magnitude up to which the type holds the integers of both signs."""
    return 0 if dtype.kind == "u" else int(np.iinfo(dtype).max)


def _parts(shape: tuple[int, ...], item_size: int = 8) -> Iterator[Span]:
    return rows_of_about(CALL_BYTES, Span(0, shape[0]), shape[1] * item_size)


def _in_cache(rows: Span, columns: int) -> Iterator[tuple[Span, Room]]:
    """A few of these rows at a time, with room for as many remainders."""
    parts = list(rows_of_about(_CACHED_BYTES, rows, columns * 8))
    room = Room(max(map(len, parts), default=0) * columns)
    return ((part, room) for part in parts)
