# SPDX-License-Identifier: MIT
"""A product of matrices that any rank can make or read, of any type, as one or several products of real numbers.

For these it is what `RootOperands` is for arrays of the root: complex numbers become a real product of twice the columns,
integers one product that rounds nothing, or one for each of several primes, and numbers of 16 bits are multiplied as numbers of
32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hybrid.arrays.complex_view import complex_view
from hybrid.arrays.elements import Elements
from hybrid.arrays.product_type import ProductType, numpy_type, product_type
from hybrid.arrays.sources import AnyRanksMatrix, MatrixSource
from hybrid.core.problem import Problem
from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team

if TYPE_CHECKING:
    from hybrid.arrays.integers import Exact

Progress = Callable[[int], None]


@record
class TypedProduct:
    """The matrices and types of a product, the same on every rank."""

    a: Elements
    b: Elements
    types: ProductType
    exact: Exact | None = None

    @classmethod
    def of(cls, a: Elements, b: Elements, asked: str) -> TypedProduct:
        """The product of A and B. UsageError where there is none.

        `asked`: the type of C; "": NumPy's. Integers are taken to be as large as their types allow.
        """
        product = cls(a, b, product_type(a.dtype, b.dtype, asked))
        return product._with_bounds(a.most(), b.most()) if product.types.exact else product

    def looked_at(self, team: Team, threads: int) -> TypedProduct:
        """The same with the largest integers that there are, where that may save products. Every rank calls it, and looks at its
        share."""
        if self.exact is None or not self.exact.primes:
            return self
        with team.phase("agree", timed=False) as looking, busy():
            looking.mine = [each.largest(Span(0, each.shape[0]).part(team.size, team.rank), threads) for each in (self.a, self.b)]
        return self._with_bounds(*map(max, zip(*looking.all, strict=True)))

    def _with_bounds(self, largest_a: int, largest_b: int) -> TypedProduct:
        from hybrid.arrays.integers import Exact  # real products start sooner without it

        exact = Exact.of(self.a.shape[1], (largest_a, largest_b))
        return replace(self, exact=exact, types=replace(self.types, computed=exact.computed))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """n, l and m of the product that was asked for."""
        return (*self.a.shape, self.b.shape[1])

    @cached_property
    def problem(self) -> Problem:
        """The real product; where there are several, each of them."""
        return self.types.problem(*self.sizes).with_operands(self.types.short_operands)

    @property
    def result(self) -> np.dtype:
        """The type of C."""
        return numpy_type(self.types.result)

    @property
    def primes(self) -> tuple[int, ...]:
        """The primes modulo which there is a real product each; 0 for a product of the elements themselves."""
        return self.exact.products if self.exact is not None else (0,)

    @property
    def is_plain(self) -> bool:
        """Whether the real product is the one that was asked for."""
        return not (self.types.complex_b or self.types.converts)

    @property
    def bytes_beside(self) -> int:
        """The host memory that is taken on the root's node, beside the real product's matrices."""
        n, _, m = self.sizes
        if self.exact is not None:
            return self.exact.bytes_beside(n * m, self.types.result)
        return n * m * self.result.itemsize if self.types.converts else 0

    def __str__(self) -> str:
        n, l, m = self.sizes
        return f"{n}×{l} · {l}×{m} {self.types}"

    def sources(self, prime: int = 0) -> tuple[MatrixSource, MatrixSource]:
        """A and B of a real product."""
        if prime:
            from hybrid.arrays.derived_sources import Remainders

            return Remainders(self.a, prime), Remainders(self.b, prime)
        if self.types.complex_a:
            from hybrid.arrays.derived_sources import Expanded

            return _Parts(self.a, parts=True), Expanded(self.b, self.types)
        return _Parts(self.a, parts=False), _Parts(self.b, parts=self.types.complex_b)


class _Parts(AnyRanksMatrix):
    """The elements; with `parts` the real and imaginary parts of each beside each other."""

    def __init__(self, elements: Elements, *, parts: bool) -> None:
        self._elements, self._parts = elements, parts
        self.shape = elements.shape[0], elements.shape[1] * (1 + parts)

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        self._elements.write(rows, complex_view(into) if self._parts else into, threads, progress)
