# SPDX-License-Identifier: MIT
"""The arrays of a call at the root, checked, as the matrices of one product; and what becomes of its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from hybrid.arrays.combine import finished
from hybrid.arrays.complex_matrices import write_expanded
from hybrid.arrays.complex_view import complex_view, real_view
from hybrid.arrays.exact_result import ExactResult
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.integers import Exact, largest_of, write_remainders
from hybrid.arrays.interop import as_array, as_gpu_array, on_gpu
from hybrid.arrays.operand_checks import can_hold, refuse_shapes, refuse_wrong_c, refuse_wrong_out
from hybrid.arrays.product_type import ProductType, numpy_type, product_type
from hybrid.arrays.sources import DerivedMatrix, RootMatrix
from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.host.row_copy import copy_rows


@dataclass(frozen=True)
class RootOperands:
    """A, B, C and `out` as matrices, which are views of the user's arrays where they can be. `shape`: of the result that the
    user gets."""

    a: Any
    b: Any
    c: np.ndarray | None
    out: np.ndarray | None
    types: ProductType
    gemm: Gemm
    shape: tuple[int, ...]
    exact: Exact | None = None

    @classmethod
    def of(cls, a: Any, b: Any, c: Any, out: np.ndarray | None, gemm: Gemm, threads: Callable[[], int]) -> RootOperands:
        """The operands of a call. A and B stay on a GPU if both are there and C may be there, too; else they are in host memory.

        UsageError where they have no product, or where `out` cannot hold it. `threads`: gives the number of threads that look
        for the largest integers.
        """
        first, second = arrays_of(a, b, on_device=out is None and c is None)
        types = product_type(first.dtype, second.dtype, gemm.dtype)
        if types.exact and on_gpu(first):
            first, second = first.get(), second.get()
        gemm = gemm.of_type(types)
        first, second, shape = matrices_of(first, second, gemm)
        refuse_shapes(first.shape, second.shape)
        c = None if c is None or gemm.beta == 0 else as_array(c, "c")
        refuse_wrong_c(c, gemm, shape, types)
        if out is not None:
            refuse_wrong_out(out, (first, second), c, shape, types)
        wanted = first.shape[0], second.shape[1]
        c, out = (each.reshape(wanted) if each is not None else None for each in (c, out))  # views, of vectors, too
        given = cls(first, second, c, out, types, gemm, shape)
        return given.with_bounds(threads()) if types.exact else given

    def with_bounds(self, threads: int) -> RootOperands:
        """The same for a product of integers, with the way in which it becomes exact, given the largest of these integers."""
        largest_a, largest_b, largest_c = (
            largest_of(each, threads) if each is not None else 0 for each in (self.a, self.b, self.c)
        )
        gemm = self.gemm
        exact = Exact.of(self.a.shape[1], (largest_a, largest_b), alpha=gemm.alpha, beta=gemm.beta, largest_c=largest_c)
        return replace(self, exact=exact, types=replace(self.types, computed=exact.computed))

    @cached_property
    def problem(self) -> Problem:
        """The real product that gives C."""
        return self.types.problem(self.a.shape[0], *self.b.shape).with_operands(self.types.short_operands)

    def sources(self, threads: int = 1, prime: int = 0) -> tuple[RootMatrix, RootMatrix]:
        """A and B of the real product, from arrays in host memory. `threads`: those that make what is sent to other nodes.
        `prime`: A and B are remainders modulo this, where it is not 0."""
        types, a, b, problem, gemm = self.types, self.a, self.b, self.problem, self.gemm
        if prime:
            of_a, of_b = (partial(write_remainders, each, prime) for each in (a, b))
            return DerivedMatrix(a.shape, types.computed, of_a, threads), DerivedMatrix(b.shape, types.computed, of_b, threads)
        first = _real_source(a, types, threads) if types.complex_a else RootMatrix(a.shape, a)
        if types.complex_a:
            write = partial(write_expanded, b, gemm=gemm)
            return first, DerivedMatrix((problem.l, problem.m), types.computed, write, threads)
        if types.complex_b:
            return first, _real_source(b, types, threads, conjugate=gemm.conjugate_b)
        return first, RootMatrix(b.shape, b)

    @property
    def real_out(self) -> np.ndarray | None:
        """The memory of `out` as C of the real product; None where that cannot be computed there."""
        if self.out is None or self.types.converts or self.c is not None or not can_hold(self.out, self.types.result):
            return None
        return real_view(self.out) if self.types.complex_b else self.out

    @property
    def bytes_beside(self) -> int:
        """The bytes of the result, and of what it is made from, beside the real product's C."""
        elements = self.a.shape[0] * self.b.shape[1]
        if self.exact is not None:
            return self.exact.bytes_beside(elements, self.types.result)
        new = self.types.converts and self.out is None
        return elements * numpy_type(self.types.result).itemsize if new else 0

    @property
    def finishes(self) -> bool:
        """Whether the real product's C is not the result yet."""
        return self.types.converts or self.gemm.combines

    def exact_result(self) -> ExactResult:
        """What becomes the result of a product of integers, from the products modulo primes."""
        assert self.exact is not None
        gemm, shape = self.gemm, (self.a.shape[0], self.b.shape[1])
        return ExactResult(self.exact, self.types.result, shape, alpha=gemm.alpha, beta=gemm.beta, c=self.c)

    def finished(self, c: np.ndarray, threads: int) -> np.ndarray:
        """The result as a matrix, from the real product's C."""
        product = complex_view(c) if self.types.complex_b else c
        return finished(product, self.types, self.gemm, self.c, self.out, threads) if self.finishes else product

    def shaped(self, result: Any) -> Any:
        """The result as the user gets it: a vector where NumPy's `@` gives one, a number for two vectors."""
        if result.shape == self.shape:
            return result
        return result.reshape(self.shape) if self.shape else result[0, 0]


def _real_source(matrix: np.ndarray, types: ProductType, threads: int, *, conjugate: bool = False) -> RootMatrix:
    """A matrix of the real and imaginary parts of the elements, beside each other: without a copy, where they lie so."""
    shape = matrix.shape[0], 2 * matrix.shape[1]
    if not conjugate and RootMatrix(matrix.shape, matrix).in_place(types.promoted) is not None:
        return RootMatrix(shape, real_view(matrix))

    def write(rows: Span, into: np.ndarray, threads: int) -> None:
        copy_rows(complex_view(into), matrix[rows.slice], threads)
        if conjugate:
            np.negative(into[:, 1::2], out=into[:, 1::2])

    return DerivedMatrix(shape, types.computed, write, threads)


def arrays_of(a: Any, b: Any, *, on_device: bool) -> tuple[Any, Any]:
    """A and B as arrays of NumPy; or of CuPy where `on_device` and both lie on a GPU. Stacks are not multiplied there."""
    few = all(getattr(each, "ndim", 2) <= 2 for each in (a, b))
    converted = as_gpu_array if on_device and few and on_gpu(a) and on_gpu(b) else as_array
    return converted(a, "a"), converted(b, "b")


def matrices_of(a: Any, b: Any, gemm: Gemm) -> tuple[Any, Any, tuple[int, ...]]:
    """op(A) and op(B) as matrices, and the shape of their product. A vector is a row of A, or a column of B."""
    matrices = []
    for name, each, transposed in (("a", a, gemm.transpose_a), ("b", b, gemm.transpose_b)):
        if each.ndim not in (1, 2):
            raise UsageError(f"{name} must have one or two dimensions here, not {each.ndim}", code="dimensions")
        if each.ndim == 2:
            matrices.append(each.T if transposed else each)
        else:
            matrices.append(each[None, :] if name == "a" else each[:, None])
    first, second = matrices
    return first, second, (first.shape[0],) * (a.ndim - 1) + (second.shape[1],) * (b.ndim - 1)
