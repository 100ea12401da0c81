# SPDX-License-Identifier: MIT
"""Products of any dtype, assembled from "real products": of real floating-point matrices, or of integers modulo primes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybrid.arrays.gemm import Gemm, ProductType, complex_view, finished
from hybrid.arrays.integers import DIGIT, Exact, Room, balanced, by_parts, combine, joined_modulo, magnitude, refusal
from hybrid.arrays.interop import empty_beside, on_gpu
from hybrid.core.problem import Span, record
from hybrid.core.settings import Settings
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team

Operands = tuple[Any, Any, Any]  # of a call: A, B, and C or None
_WRAPPED = 2.0**62  # int64 and float64 sums differ by at least 2^64 if int64 wrapped around, else by float64's rounding


@record
class CallOptions:
    """A call's options. `gemm`: alpha, beta, op and dtype; `flags`: settings."""

    root: int
    gemm: Mapping[str, Any]
    flags: Mapping[str, Any]

    def read(self) -> tuple[Settings, Gemm]:
        """Both, validated. UsageError if invalid."""
        return Settings.gather(self.flags), Gemm.of(self.gemm)

    def without_transposes(self) -> CallOptions:
        """The same options for operands that are already transposed."""
        return replace(self, gemm={**self.gemm, "transpose_a": False, "transpose_b": False})


def element_namer(first_row: int) -> Callable[[int, int], str]:
    """A function that names elements in messages, for a part of C that begins at this row."""
    return lambda row, column: f"element [{first_row + row}, {column}] of the product"


_ELEMENT_OF_C = element_namer(0)


@dataclass
class RealProducts:
    """Assembles one rank's part of C, of any dtype, from its parts of real products:

    for prime in types.primes:
        products.add(the product of A and B modulo the prime)
    c = products.finish()
    """

    team: Team
    types: ProductType
    threads: int
    shape: tuple[int, int] | None  # of this rank's part of C; None if it has none
    c: Any = None  # this rank's part of the added C
    name_of: Callable[[int, int], str] = _ELEMENT_OF_C  # names an element of this part in messages, by row and column
    beside: Any = None  # an array on the GPU that holds the products and `c`, where integers are assembled; None: host memory

    def __post_init__(self) -> None:
        self._gemm, self._added = self.types.gemm, 0
        self._product: Any = None
        self._primes = self.types.exact.primes if self.types.exact is not None and self.shape is not None else ()
        if self.shape is not None and self._primes:
            self._digits = empty_beside(self.beside, (len(self._primes), *self.shape), DIGIT)

    def add(self, product: Any) -> None:
        """Add the next real product. If there are several, its memory may be reused afterwards.

        From products modulo primes, Garner's algorithm computes the balanced digits of C = d₀ + p₀·(d₁ + p₁·(d₂ + …)): each
        product modulo p yields one digit, given those of the primes before.
        """
        if not self._primes or self.shape is None:
            self._product = product
            return
        number = self._added
        *before, prime = self._primes[: number + 1]
        alpha, beta = self._gemm.alpha, self._gemm.beta

        def add(rows: Span, room: Room) -> None:
            rest, weight = balanced(product[rows.slice], prime, room, nearly=True), 1
            rest *= alpha % prime
            if beta:
                rest += balanced(self.c[rows.slice], prime) * (beta % prime)
            for digits, p in zip(self._digits[:number, rows.slice], before, strict=True):
                rest -= np.multiply(digits, weight, dtype=np.int64)  # primes are below 2^28: the sum does not overflow
                weight = weight * p % prime
            digits = balanced(rest, prime, room, nearly=True)
            digits *= pow(weight, -1, prime)
            self._digits[number, rows.slice] = balanced(digits, prime, room)

        with busy():
            by_parts(self.beside, self.shape, add, self.threads)
        self._added += 1

    def finish(self, into: Any = None) -> Any:
        """This rank's part of C, in `into` if given; None if it has no part. Collective.

        Without conversion, alpha or added C, the result is the real product's memory. `into` may be the added C. Overflow if the
        result's dtype cannot hold an element, CheckFailed for an impossibly large element; then `into` is undefined.
        """
        types, product = self.types, self._product
        if types.complex_b and product is not None:
            product = complex_view(product)
        if not types.finishes:
            return product
        with self.team.phase("gather", timed=False), busy():
            if self.shape is None:
                return None
            if types.exact is None:
                return finished(product, types, self.c, into, self.threads)
            exact, dtype, refused = types.exact, np.dtype(types.result), list[tuple[int, int]]()
            c = empty_beside(self.beside, self.shape, dtype) if into is None else into
            if on_gpu(c) and not self._primes and dtype.kind != "b" and exact.bound <= magnitude(dtype):
                combine(product, self._gemm.alpha, self._gemm.beta, self.c if self._gemm.beta else None, c)
                return c

            def write(rows: Span, room: Room) -> None:
                refused.extend(self._write(exact, c, rows))

            by_parts(self.beside, self.shape, write, self.threads, with_room=False)
            if refused:
                row, column = min(refused)
                raise refusal(exact, dtype, self._value(row, column), self.name_of(row, column))
            return c

    def _write(self, exact: Exact, c: Any, rows: Span) -> list[tuple[int, int]]:
        """Write these rows of an integer C, or return the place of the first element that does not fit."""
        if modulus := self._gemm.modulus:
            digits = self._digits[:, rows.slice] if self._primes else self._unrounded(rows)[None]
            c[rows.slice] = joined_modulo(digits, self._primes, modulus)
            return []
        values, wrong = self._from_digits(exact, rows) if self._primes else (self._unrounded(rows), None)
        dtype = np.dtype(self.types.result)
        if dtype.kind == "b":
            values = values != 0
        elif exact.bound > magnitude(dtype):
            limits = np.iinfo(dtype)
            least, largest = map(values.dtype.type, (limits.min, limits.max))
            outside = (values < least) | (values > largest)
            wrong = outside if wrong is None else wrong | outside
        if wrong is not None and wrong.any():  # write nothing: `c` may be the added C, which the message needs
            row, column = np.argwhere(wrong)[0]
            return [(rows.lo + int(row), int(column))]
        with np.errstate(invalid="ignore"):
            c[rows.slice] = values
        return []

    def _unrounded(self, rows: Span) -> Any:
        """These rows of C, from a single exact product."""
        alpha, beta = self._gemm.alpha, self._gemm.beta
        values = self._product[rows.slice].astype(np.float64, copy=self._gemm.combines)  # keeps the product unchanged
        if alpha != 1:
            values *= float(alpha)  # exact, unless all sums are 0
        if beta:
            values += np.float64(beta) * self.c[rows.slice]
        return values

    def _from_digits(self, exact: Exact, rows: Span) -> tuple[Any, Any]:
        """These rows of C modulo 2^64, and a mask of elements that wrapped around, or that no right product has."""
        *lower, highest = self._digits[:, rows.slice]
        wrapped, rounded = highest.astype(np.int64), highest.astype(np.float64)
        for digits, p in zip(reversed(lower), reversed(self._primes[:-1]), strict=True):
            wrapped, rounded = wrapped * p + digits, rounded * p + digits
        values = wrapped.view(np.uint64) if self.types.result == "uint64" else wrapped
        impossible = np.abs(rounded) > exact.bound * (1 + 2.0**-40)  # the sum may have been rounded
        return values, (np.abs(rounded - values) > _WRAPPED) | impossible

    def _value(self, row: int, column: int) -> int:
        """An element of C as Python integer."""
        if not self._primes:
            return int(self._unrounded(Span(row, row + 1))[0, column])
        value = 0
        for digits, p in zip(self._digits[::-1], reversed(self._primes), strict=True):
            value = value * p + int(digits[row, column])
        return value


def exactly(settings: Settings, types: ProductType) -> Settings:
    """The settings for a product of these types: integers must be exact, so they exclude emulated precision, which rounds."""
    return replace(settings, precision="native") if types.exact is not None else settings
