# SPDX-License-Identifier: MIT
"""Stacks whose products are divided among ranks: each rank gets whole matrices, and makes of them the real ones that are
multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hybrid.arrays.complex_matrices import real_operands
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.integers import Exact, write_remainders
from hybrid.arrays.product_type import ProductType, numpy_type
from hybrid.core.problem import Problem
from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.host.row_copy import copy_rows


@record
class StackOperand:
    """A or B of all products, as they lie at the root. `shape`: the number of matrices (1: all products have the same), and
    their rows and columns."""

    shape: tuple[int, int, int]
    dtype: np.dtype
    transposed: bool  # is taken of each matrix before it is multiplied

    def shape_of(self, span: Span) -> tuple[int, int, int]:
        """The shape of what a rank gets that computes these products."""
        count, rows, columns = self.shape
        return (len(span) if count > 1 else min(1, len(span))), rows, columns

    def part(self, stack: np.ndarray, span: Span) -> np.ndarray:
        """What such a rank gets of the root's stack."""
        return stack[span.slice] if self.shape[0] > 1 else stack[: min(1, len(span))]

    def bytes_of(self, span: Span) -> int:
        """The bytes of what such a rank gets."""
        count, rows, columns = self.shape_of(span)
        return count * rows * columns * self.dtype.itemsize


@record
class StackShape:
    """What all ranks know of a stack.

    `core`: the rows of A, the columns of A and the columns of B, in each product. `at_root`: the bytes that the root takes for
    the result and for copies.
    """

    count: int
    core: tuple[int, int, int]
    a: StackOperand
    b: StackOperand
    dtype_c: np.dtype | None
    types: ProductType
    exact: Exact | None
    at_root: int

    @cached_property
    def problem(self) -> Problem:
        """The real product that gives each of the products."""
        return self.types.problem(*self.core)

    @property
    def products(self) -> tuple[int, ...]:
        """The primes modulo each of which there is a product, or 0 for the elements themselves; see hybrid.arrays.integers."""
        return self.exact.products if self.exact is not None else (0,)

    def bytes_on_rank(self, span: Span, *, is_root: bool) -> int:
        """The most host memory that a rank takes for these products, beside what the root has."""
        real, (n, _, m) = self.problem, self.core
        given = 0 if is_root else self.a.bytes_of(span) + self.b.bytes_of(span)
        given += 0 if is_root or self.dtype_c is None else len(span) * n * m * self.dtype_c.itemsize
        counts = [operand.shape_of(span)[0] for operand in (self.a, self.b)]
        made = real.item_size * (counts[0] * real.n * real.l + counts[1] * real.l * real.m + len(span) * real.n * real.m)
        elements = len(span) * n * m
        made += elements * numpy_type(self.types.result).itemsize if self.types.converts else 0
        return given + made + (self.exact.bytes_beside(elements, self.types.result) if self.exact is not None else 0)


@dataclass(frozen=True)
class StackShare:
    """One rank's products: its matrices, stored as they are at the root."""

    shape: StackShape
    span: Span
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None

    @property
    def rows_of_c(self) -> np.ndarray | None:
        """C's matrices, one below the other; None without C."""
        return None if self.c is None else _rows(self.c)

    def real_operands(self, gemm: Gemm, prime: int, threads: int) -> tuple[np.ndarray, np.ndarray]:
        """The real stacks whose products give C, of the sizes of `shape.problem`. Transposed ones are views. `prime`: they are
        remainders modulo this, where it is not 0."""
        types = self.shape.types
        if not types.complex_b:
            pairs = (self.a, self.shape.a), (self.b, self.shape.b)
            first, second = (_turned(_converted(each, types.computed, prime, threads), of.transposed) for each, of in pairs)
            return first, second
        a, b = (_rows(_turned(*each)) for each in ((self.a, self.shape.a.transposed), (self.b, self.shape.b.transposed)))
        if not types.complex_a:
            a = _converted(a[None], types.computed, 0, threads)[0]
        first, second = real_operands(a, b, types, gemm, device="cpu", threads=threads)
        problem = self.shape.problem
        return first.reshape(len(self.a), problem.n, problem.l), second.reshape(len(self.b), problem.l, problem.m)


def _converted(stack: np.ndarray, dtype: str, prime: int, threads: int) -> np.ndarray:
    """The stack in this type: the stack itself if it has it. Its remainders modulo the prime, where that is not 0."""
    if not prime and stack.dtype == dtype and stack.dtype.isnative:
        return stack
    made = np.empty(stack.shape, dtype)
    if prime:
        rows = _rows(stack)
        write_remainders(rows, prime, Span(0, len(rows)), _rows(made), threads)
    else:
        copy_rows(_rows(made), _rows(stack), threads)
    return made


def _turned(stack: np.ndarray, transposed: bool) -> np.ndarray:
    """The stack, with each matrix transposed where that is wanted."""
    return np.swapaxes(stack, 1, 2) if transposed else stack


def _rows(stack: np.ndarray) -> np.ndarray:
    """The matrices of the stack one below the other; a copy where they do not lie so."""
    count, rows, columns = stack.shape
    return stack.reshape(count * rows, columns)
