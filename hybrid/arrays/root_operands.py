# SPDX-License-Identifier: MIT
"""The arrays of a call at the root, checked, as the matrices of one product; and what becomes of its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from hybrid.arrays.distributed import can_hold, refuse_shapes, refuse_wrong_c, refuse_wrong_out
from hybrid.arrays.gemm import (
    Gemm,
    ProductType,
    complex_view,
    finished,
    numpy_type,
    product_type,
    real_operands,
    real_view,
    write_expanded,
)
from hybrid.arrays.integers import Exact, ExactResult, largest_of, write_remainders
from hybrid.arrays.interop import SharedArrays, SharedLocation, as_array, as_gpu_array, on_gpu
from hybrid.arrays.sources import DerivedMatrix, RootMatrix
from hybrid.core.problem import Problem, record
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.host.memory import result_pool
from hybrid.host.row_sums import copy_rows
from hybrid.ranks.team import Team


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


# -------- root arrays
# What the other ranks must know of the arrays that a user passes at the root.


@dataclass(frozen=True)
class RootMatrices:
    """What the root tells the other ranks of its arrays a, b, c and out."""

    shape_a: tuple[int, int]
    shape_b: tuple[int, int]
    types: ProductType
    locations: list[SharedLocation | None]  # where A, B and C lie in node-shared memory; None for one that does not
    allocated_bytes: int  # what A, B and C take at the root already, or is kept for C
    bytes_beside: int = 0  # what the root takes for the result
    derived_bytes: int = 0  # what matrices take that the root computes from its arrays, where it sends them to other nodes
    on_gpu: bool = False  # A and B lie on a GPU, and C will
    primes: tuple[int, ...] = (0,)  # there is a product modulo each; see hybrid.arrays.integers
    finishes: bool = False  # the root has still to make the result of the product

    @classmethod
    def of(cls, team: Team, shared: SharedArrays, given: RootOperands) -> RootMatrices:
        a, b, types, problem = given.a, given.b, given.types, given.problem
        more: dict[str, Any] = {"bytes_beside": given.bytes_beside, "finishes": given.finishes}
        if on_gpu(a):  # B is, too
            return cls(a.shape, b.shape, types, [None] * 3, problem.bytes_of_matrices, on_gpu=True, **more)
        primes = given.exact.products if given.exact is not None else (0,)
        sources, c = given.sources(prime=primes[0]), given.real_out
        in_place = [source.in_place(problem.operand_dtype) for source in sources]
        lying = [source.as_it_lies(problem.operand_dtype) for source in sources]
        locations = [*(shared.location_of(array, transposed=True) for array in lying), shared.location_of(c)]
        allocated_bytes = sum(array.nbytes for array in in_place if array is not None)
        derived = sum(problem.bytes(*source.shape) for source in sources if isinstance(source, DerivedMatrix))
        of_c, all_shared = problem.bytes(problem.n, problem.m), lie_shared(team, locations)
        if (locations[2] is not None) if all_shared else (c is not None):
            allocated_bytes += of_c
        elif not all_shared:
            allocated_bytes += min(of_c, result_pool.make_room(of_c))
        return cls(a.shape, b.shape, types, locations, allocated_bytes, derived_bytes=derived, primes=primes, **more)

    @property
    def gpu_bytes(self) -> int:
        """The bytes of the expanded B, on the GPU where B lies."""
        return self.problem.bytes(self.problem.l, self.problem.m) if self.on_gpu and self.types.complex_a else 0

    @cached_property
    def problem(self) -> Problem:
        """The real product that gives C."""
        return self.types.problem(self.shape_a[0], *self.shape_b).with_operands(self.types.short_operands)


def lie_shared(team: Team, locations: Sequence[SharedLocation | None]) -> bool:
    """Whether A and B are in memory that all ranks share, which are on one node: then no rank sends matrices to another."""
    return len(team.topology.nodes) == 1 and team.size > 1 and None not in locations[:2]


# -------- stack share
# Stacks whose products are divided among ranks: each rank gets whole matrices, and makes of them the real ones that are
# multiplied.


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


# -------- root stack
# Stacks of matrices at the root, as NumPy's `@` takes them: the last two of their dimensions are the matrices'.


@dataclass(frozen=True)
class RootStack:
    """Operands of several products. `batch`: the dimensions of the stacks, broadcast. `shape`: of the result."""

    operands: tuple[np.ndarray, np.ndarray, np.ndarray | None]
    out: np.ndarray | None
    batch: tuple[int, ...]
    shape: tuple[int, ...]
    types: ProductType
    gemm: Gemm
    exact: Exact | None = None

    @classmethod
    def of(cls, a: Any, b: Any, c: Any, out: Any, gemm: Gemm, threads: Callable[[], int]) -> RootStack:
        """The operands of a call. UsageError where they have no products, or where `out` cannot hold these.

        `threads`: gives the number of threads that look for the largest integers.
        """
        first, second = as_array(a, "a"), as_array(b, "b")
        types = product_type(first.dtype, second.dtype, gemm.dtype)
        gemm = gemm.of_type(types)
        core = [_core(each, transposed) for each, transposed in ((first, gemm.transpose_a), (second, gemm.transpose_b))]
        depth = core[0][-1], core[1][0]
        if depth[0] != depth[1]:
            raise UsageError(f"a has {depth[0]} columns and b {depth[1]} rows: they must be the same", code="shapes")
        try:
            batch = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
        except ValueError:
            raise UsageError(
                f"stacks of shapes {first.shape[:-2]} and {second.shape[:-2]} do not fit together", code="shapes"
            ) from None
        shape = batch + core[0][:-1] + core[1][1:]
        third = None if c is None or gemm.beta == 0 else as_array(c, "c")
        refuse_wrong_c(third, gemm, shape, types)
        if out is not None:
            refuse_wrong_out(out, (first, second), third, shape, types)
        exact = None
        if types.exact:
            largest_a, largest_b, largest_c = (
                0 if each is None else largest_of(_as_stack(each), threads()) for each in (first, second, third)
            )
            exact = Exact.of(depth[0], (largest_a, largest_b), alpha=gemm.alpha, beta=gemm.beta, largest_c=largest_c)
            types = replace(types, computed=exact.computed)
        return cls((first, second, third), out, batch, shape, types, gemm, exact)

    @property
    def count(self) -> int:
        """The number of products."""
        return math.prod(self.batch)

    @property
    def described(self) -> StackShape:
        """What the other ranks must know of the stack."""
        a, _, c = self.operands
        rows, columns = self._core_of_result
        depth = a.shape[-2] if self.gemm.transpose_a and a.ndim > 1 else a.shape[-1]
        stored = self.stored
        first, second = (StackOperand(_shape_of(each), each.dtype, turned) for each, turned in stored[:2])
        copied = sum(each.nbytes for each, _ in stored if not each.flags.c_contiguous)
        dtype_c, at_root = None if c is None else c.dtype, self.bytes_of_result + copied
        return StackShape(self.count, (rows, depth, columns), first, second, dtype_c, self.types, self.exact, at_root)

    @property
    def stored(self) -> list[tuple[np.ndarray, bool]]:
        """A, B and, if there is one, C, each with whether its matrices are still to be transposed.

        Each has three dimensions; of a matrix that all products have in common there is one.
        """
        (a, b, c), gemm = self.operands, self.gemm
        found = [
            (self._all_of(a if a.ndim > 1 else a[None, :]), gemm.transpose_a and a.ndim > 1),
            (self._all_of(b if b.ndim > 1 else b[:, None]), gemm.transpose_b and b.ndim > 1),
        ]
        return found if c is None else [*found, (c.reshape(self.count, *self._core_of_result), False)]

    def _all_of(self, array: np.ndarray) -> np.ndarray:
        """The matrices of all products, as a stack of three dimensions; one, where it is the same for all."""
        core = array.shape[-2:]
        if math.prod(array.shape[:-2]) == 1:
            return array.reshape(1, *core)
        return np.broadcast_to(array, self.batch + core).reshape(self.count, *core)

    @property
    def _core_of_result(self) -> tuple[int, int]:
        """The rows and columns of each product."""
        a, b, _ = self.operands
        core = self.shape[len(self.batch) :]
        return (core[0] if a.ndim > 1 else 1), (core[-1] if b.ndim > 1 else 1)

    @property
    def bytes_of_result(self) -> int:
        """The bytes that the result takes, where it is not in `out`."""
        return 0 if self.out is not None else math.prod(self.shape) * numpy_type(self.types.result).itemsize

    def result(self) -> np.ndarray:
        """The array for the result."""
        return self.out if self.out is not None else np.empty(self.shape, numpy_type(self.types.result))

    def room(self) -> np.ndarray:
        """An array for the products, as a stack: the result's memory where it can be."""
        whole = self.out
        if whole is None or not can_hold(whole, self.types.result) or self.operands[2] is not None:
            whole = np.empty(self.shape, numpy_type(self.types.result))
        return whole.reshape(self.count, *self._core_of_result)

    def finished(self, products: np.ndarray) -> np.ndarray:
        """What the user gets of the products, in `out` where that is given."""
        if self.out is None:
            return products.reshape(self.shape)
        if not np.may_share_memory(self.out, products):
            np.copyto(self.out, products.reshape(self.shape))
        return self.out

    def of_product(self, number: int) -> tuple[Any, Any, Any]:
        """A, B and C of one of the products."""
        a, b, c = self.operands
        at = self.place(number)
        return _matrix(a, self.batch, at), _matrix(b, self.batch, at), None if c is None else c[at]

    def place(self, number: int) -> tuple[Any, ...]:
        """Where one of the products lies in the result. The ellipsis makes an array of a number, too."""
        return (*(int(each) for each in np.unravel_index(number, self.batch)), ...)


def operands_at_root(a: Any, b: Any, c: Any, out: Any, gemm: Gemm, threads: Callable[[], int]) -> RootOperands | RootStack:
    """The root's arrays as operands of one product, if they can be that, or of several. UsageError where they have none."""
    a, b = (each if on_gpu(each) else as_array(each, name) for each, name in ((a, "a"), (b, "b")))
    if not is_stack(a, b):
        return RootOperands.of(a, b, c, out, gemm, threads)
    shape = _shape_of_one(a, b, gemm)
    stacks = a, *(each for each in (c, out) if each is not None)
    if shape is None or not all(isinstance(each, np.ndarray) and each.flags.c_contiguous for each in stacks):
        return RootStack.of(a, b, c, out, gemm, threads)
    if any(each.shape != shape for each in stacks[1:]):
        return RootStack.of(a, b, c, out, gemm, threads)  # where they are refused
    height = math.prod(a.shape[:-1])
    c, out = (None if each is None else each.reshape(height, *shape[a.ndim - 1 :]) for each in (c, out))
    one = RootOperands.of(a.reshape(height, a.shape[-1]), b, c, out, gemm, threads)
    return replace(one, shape=shape)


def _shape_of_one(a: Any, b: Any, gemm: Gemm) -> tuple[int, ...] | None:
    """The shape of the result where all products have the same B, so that A's matrices are the rows of a single one; else
    None."""
    if is_stack(b) or gemm.transpose_a or not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return None
    return a.shape[:-1] + (b.T if gemm.transpose_b else b).shape[1:]


def is_stack(*operands: Any) -> bool:
    """Whether one of these arrays or nested lists has more dimensions than a matrix."""
    return any(getattr(each, "ndim", 2) > 2 or (isinstance(each, (list, tuple)) and _depth(each) > 2) for each in operands)


def _depth(nested: Any) -> int:
    """The number of dimensions of lists in lists, by the first of each. Whether all are alike is found when an array is made of
    them."""
    depth = 0
    while isinstance(nested, (list, tuple)):
        depth += 1
        nested = nested[0] if nested else None
    return depth + getattr(nested, "ndim", 0)


def _shape_of(stack: np.ndarray) -> tuple[int, int, int]:
    count, rows, columns = stack.shape
    return count, rows, columns


def _as_stack(array: np.ndarray) -> np.ndarray:
    """The array with at least two dimensions."""
    return array if array.ndim > 1 else array[None]


def _core(array: np.ndarray, transposed: bool) -> tuple[int, ...]:
    """The rows and columns of the matrices of a stack, after their transposition."""
    if array.ndim == 0:
        raise UsageError("a number is no matrix: * multiplies by it", code="dimensions")
    core = array.shape[-2:]
    return core[::-1] if transposed else core


def _matrix(array: np.ndarray, batch: tuple[int, ...], at: tuple[Any, ...]) -> np.ndarray:
    """The matrix at this place of the stack, or the vector that all products have."""
    if array.ndim == 1:
        return array
    return np.broadcast_to(array, batch + array.shape[-2:])[at]
