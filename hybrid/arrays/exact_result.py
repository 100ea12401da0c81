# SPDX-License-Identifier: MIT
"""C of a product of integers, put together of products in floating point: in host memory, or on the GPU where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hybrid.arrays.integer_parts import by_parts, with_room
from hybrid.arrays.integers import DIGIT, Exact
from hybrid.arrays.interop import empty_beside, on_device_of
from hybrid.arrays.primes import Room, balanced
from hybrid.core.problem import INTEGERS
from hybrid.core.spans import Span
from hybrid.errors import CheckFailed, Overflow

_WRAPPED = 2.0**62  # an element that was wrapped differs by 2^64 at least; one that was not, by its rounding in float64


def element_of_rows(first_row: int) -> Callable[[int, int], str]:
    """A function that names elements, for messages, of rows that begin at this one."""
    return lambda row, column: f"element [{first_row + row}, {column}] of the product"


def temporary_arrays(exact: Exact, result: str, *, combines: bool) -> int:
    """How many arrays of a part's size, of 8 bytes an element, exist at most at a time while a result is put together.

    `combines`: as of `Gemm`.
    """
    if exact.primes:
        return 8
    if combines:
        return 3
    converted, compared = exact.computed != "float64", result == "bool" or exact.bound > _magnitude(np.dtype(result))
    return converted + compared


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
        c: Any = None,
        named: Callable[[int, int], str] | None = None,
        beside: Any = None,
    ) -> None:
        """`named(row, column)`: names an element of this part of C, for messages. None: the part is all of C. `beside`: an array
        on the GPU where the products and `c` are, and where the result is put together; None: that is host memory."""
        self._exact, self._result, self._shape = exact, np.dtype(result), shape
        self._named = named or element_of_rows(0)
        self._alpha, self._beta, self._c = alpha, beta if c is not None else 0, c
        self._beside = beside
        self._digits = empty_beside(beside, (len(exact.primes), *shape), DIGIT)
        self._plain: Any = None

    def add(self, number: int, product: Any, threads: int) -> None:
        """Add the product modulo prime `number`. Its memory may be used for others afterwards."""
        if not self._exact.primes:
            self._plain = product
            return

        def add(part: Span) -> None:
            for rows, room in with_room(part, self._shape[1], self._beside):
                self._add_digits(number, product, rows, room)

        with on_device_of(self._beside):
            for _ in by_parts(self._beside, self._shape, add, threads):
                pass

    def _add_digits(self, number: int, product: Any, rows: Span, room: Room) -> None:
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

    def result(self, into: Any, threads: int) -> Any:
        """C, in `into` where that is given.

        Overflow where its type cannot hold an element, CheckFailed where an element is larger than any can be; then the contents
        of `into` are undefined.
        """
        with on_device_of(self._beside):
            c = empty_beside(self._beside, self._shape, self._result) if into is None else into
            for where in by_parts(self._beside, self._shape, lambda rows: self._write(c, rows), threads):
                if where is not None:
                    raise self._refusal(*where)
        return c

    def _write(self, c: Any, rows: Span) -> tuple[int, int] | None:
        """Write these rows of C. Returns the place of the first element that cannot be written, if there is one."""
        values, wrong = (self._of_plain(rows), None) if self._plain is not None else self._of_digits(rows)
        if self._result.kind == "b":
            values = values != 0
        elif self._exact.bound > _magnitude(self._result):
            limits = np.iinfo(self._result)
            least, largest = map(values.dtype.type, (limits.min, limits.max))
            outside = (values < least) | (values > largest)
            wrong = outside if wrong is None else wrong | outside
        if wrong is not None and wrong.any():  # nothing is written, since `c` may be the C that is added, which the message needs
            row, column = np.argwhere(wrong)[0]
            return rows.lo + int(row), int(column)
        with np.errstate(invalid="ignore"):
            c[rows.slice] = values
        return None

    def _of_plain(self, rows: Span) -> Any:
        combines = self._alpha != 1 or self._beta != 0
        values = self._plain[rows.slice].astype(np.float64, copy=combines)  # the product itself stays as it is
        if combines:
            values *= float(self._alpha)  # which float64 holds, unless all sums are 0
        if self._beta and self._c is not None:
            values += np.float64(self._beta) * self._c[rows.slice]
        return values

    def _of_digits(self, rows: Span) -> tuple[Any, Any]:
        """These rows of C modulo 2^64, and which elements were wrapped, or are larger than any can be: these come from a wrong
        product."""
        *lower, highest = self._digits[:, rows.slice]
        wrapped, rounded = highest.astype(np.int64), highest.astype(np.float64)
        for digits, p in zip(reversed(lower), reversed(self._exact.primes[:-1]), strict=True):
            wrapped, rounded = wrapped * p + digits, rounded * p + digits
        values = wrapped.view(np.uint64) if self._result == np.uint64 else wrapped
        impossible = np.abs(rounded) > self._exact.bound * (1 + 2.0**-40)  # the sum may have been rounded
        return values, (np.abs(rounded - values) > _WRAPPED) | impossible

    def _refusal(self, row: int, column: int) -> Overflow | CheckFailed:
        value = int(self._of_plain(Span(row, row + 1))[0, column]) if self._plain is not None else 0
        for digits, p in zip(self._digits[::-1], reversed(self._exact.primes), strict=True):
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
