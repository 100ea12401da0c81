# SPDX-License-Identifier: MIT
"""Products of matrices of any type as products of real numbers: C whole at the root's node, or a part of it on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid.arrays.gemm import Gemm, ProductType, complex_view, finished
from hybrid.arrays.integers import DIGIT, Exact, Room, balanced, by_parts, joined_modulo, magnitude, refusal
from hybrid.arrays.interop import empty_beside
from hybrid.core.problem import Span, record
from hybrid.core.settings import Settings
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team

_WRAPPED = 2.0**62  # an element that was wrapped differs by 2^64 at least; one that was not, by its rounding in float64


@record
class Asked:
    """What a call asks for beside its operands. `gemm`: alpha, beta, op and dtype; `flags`: the settings that the call names."""

    root: int
    gemm: Mapping[str, Any]
    flags: Mapping[str, Any]

    def read(self) -> tuple[Settings, Gemm]:
        """Both, validated. UsageError where one cannot be."""
        return Settings.gather(self.flags), Gemm.of(self.gemm)

    def without_transposes(self) -> Asked:
        """The same of operands that are transposed already."""
        return replace(self, gemm={**self.gemm, "transpose_a": False, "transpose_b": False})


def element_of_rows(first_row: int) -> Callable[[int, int], str]:
    """A function that names elements, for messages, of rows that begin at this one."""
    return lambda row, column: f"element [{first_row + row}, {column}] of the product"


class RealProducts:
    """The real products of which one product of any type consists, and one rank's part of C, which is made of its parts of
    theirs:

        for prime in types.primes:
            products.add(the product of A and B modulo the prime)
        c = products.finish()
    """

    def __init__(
        self,
        team: Team,
        types: ProductType,
        threads: int,
        shape: tuple[int, int] | None,
        *,
        c: Any = None,
        named: Callable[[int, int], str] | None = None,
        beside: Any = None,
    ) -> None:
        """`shape`: of this rank's part; None where it has none. `c`: its part of the C that is added. `named(row, column)`: names
        an element of this part, for messages; None: the part is all of C. `beside`: an array on the GPU where products of
        integers and `c` are, and where the result is put together; None: that is host memory."""
        self._team, self._types, self._gemm, self._threads = team, types, types.gemm, threads
        self._shape, self._c, self._named, self._beside = shape, c, named or element_of_rows(0), beside
        self._product: Any = None
        self._added = 0
        self._primes = types.exact.primes if types.exact is not None and shape is not None else ()
        if shape is not None and self._primes:
            self._digits = empty_beside(beside, (len(self._primes), *shape), DIGIT)

    def add(self, product: Any) -> None:
        """Add the next real product: where there are several, its memory may be used for others afterwards.

        Modulo primes this gives the digits of C = d₀ + p₀·(d₁ + p₁·(d₂ + …)), which are balanced: of the product modulo p, all
        but the own digit is known from the primes before (Garner's algorithm).
        """
        if not self._primes or self._shape is None:
            self._product = product
            return
        number = self._added
        *before, prime = self._primes[: number + 1]
        alpha, beta = self._gemm.alpha, self._gemm.beta

        def add(rows: Span, room: Room) -> None:
            rest, weight = balanced(product[rows.slice], prime, room, nearly=True), 1
            rest *= alpha % prime
            if beta:
                rest += balanced(self._c[rows.slice], prime) * (beta % prime)
            for digits, p in zip(self._digits[:number, rows.slice], before, strict=True):
                rest -= np.multiply(digits, weight, dtype=np.int64)  # primes are below 2^28: a few such products add up exactly
                weight = weight * p % prime
            digits = balanced(rest, prime, room, nearly=True)
            digits *= pow(weight, -1, prime)
            self._digits[number, rows.slice] = balanced(digits, prime, room)

        with busy():
            by_parts(self._beside, self._shape, add, self._threads)
        self._added += 1

    def finish(self, into: Any = None) -> Any:
        """This rank's part of C, in `into` where that is given, or None where it has none. Every rank calls it.

        Without conversion, alpha and C it is the real product's memory. `into` may be the C that is added. Overflow where its
        type cannot hold an element, CheckFailed where an element is larger than any can be; then the contents of `into` are
        undefined.
        """
        types, product = self._types, self._product
        if types.complex_b and product is not None:
            product = complex_view(product)
        if not types.finishes:
            return product
        with self._team.phase("gather", timed=False), busy():
            if self._shape is None:
                return None
            if types.exact is None:
                return finished(product, types, self._c, into, self._threads)
            exact, dtype, refused = types.exact, np.dtype(types.result), list[tuple[int, int]]()
            c = empty_beside(self._beside, self._shape, dtype) if into is None else into

            def write(rows: Span, room: Room) -> None:
                refused.extend(self._write(exact, c, rows))

            by_parts(self._beside, self._shape, write, self._threads, with_room=False)
            if refused:
                row, column = min(refused)
                raise refusal(exact, dtype, self._value(row, column), self._named(row, column))
            return c

    def _write(self, exact: Exact, c: Any, rows: Span) -> list[tuple[int, int]]:
        """Write these rows of a C of integers, or return the place of the first element that cannot be written."""
        if modulus := self._gemm.modulus:
            digits = self._digits[:, rows.slice] if self._primes else self._of_plain(rows)[None]
            c[rows.slice] = joined_modulo(digits, self._primes, modulus)
            return []
        values, wrong = self._of_digits(exact, rows) if self._primes else (self._of_plain(rows), None)
        dtype = np.dtype(self._types.result)
        if dtype.kind == "b":
            values = values != 0
        elif exact.bound > magnitude(dtype):
            limits = np.iinfo(dtype)
            least, largest = map(values.dtype.type, (limits.min, limits.max))
            outside = (values < least) | (values > largest)
            wrong = outside if wrong is None else wrong | outside
        if wrong is not None and wrong.any():  # nothing is written, since `c` may be the C that is added, which the message needs
            row, column = np.argwhere(wrong)[0]
            return [(rows.lo + int(row), int(column))]
        with np.errstate(invalid="ignore"):
            c[rows.slice] = values
        return []

    def _of_plain(self, rows: Span) -> Any:
        """These rows of C, from a single product that has rounded nothing."""
        alpha, beta = self._gemm.alpha, self._gemm.beta
        values = self._product[rows.slice].astype(np.float64, copy=self._gemm.combines)  # the product itself stays as it is
        if alpha != 1:
            values *= float(alpha)  # which float64 holds, unless all sums are 0
        if beta:
            values += np.float64(beta) * self._c[rows.slice]
        return values

    def _of_digits(self, exact: Exact, rows: Span) -> tuple[Any, Any]:
        """These rows of C modulo 2^64, and which elements were wrapped, or are larger than any can be: these come from a wrong
        product."""
        *lower, highest = self._digits[:, rows.slice]
        wrapped, rounded = highest.astype(np.int64), highest.astype(np.float64)
        for digits, p in zip(reversed(lower), reversed(self._primes[:-1]), strict=True):
            wrapped, rounded = wrapped * p + digits, rounded * p + digits
        values = wrapped.view(np.uint64) if self._types.result == "uint64" else wrapped
        impossible = np.abs(rounded) > exact.bound * (1 + 2.0**-40)  # the sum may have been rounded
        return values, (np.abs(rounded - values) > _WRAPPED) | impossible

    def _value(self, row: int, column: int) -> int:
        """An element of C, whatever its size."""
        if not self._primes:
            return int(self._of_plain(Span(row, row + 1))[0, column])
        value = 0
        for digits, p in zip(self._digits[::-1], reversed(self._primes), strict=True):
            value = value * p + int(digits[row, column])
        return value


def exactly(settings: Settings, types: ProductType) -> Settings:
    """The settings for a product of these types. Of integers it is native: nothing may be rounded, also not where that would be
    as accurate as float64."""
    return replace(settings, precision="native") if types.exact is not None else settings
