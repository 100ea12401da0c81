# SPDX-License-Identifier: MIT
"""Stacks of matrices at the root, as NumPy's `@` takes them: the last two of their dimensions are the matrices'."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybrid.arrays.gemm import Gemm
from hybrid.arrays.integers import Exact, largest_of
from hybrid.arrays.interop import as_array, on_gpu
from hybrid.arrays.operand_checks import can_hold, refuse_wrong_c, refuse_wrong_out
from hybrid.arrays.product_type import ProductType, numpy_type, product_type
from hybrid.arrays.root_operands import RootOperands
from hybrid.arrays.stack_share import StackOperand, StackShape
from hybrid.errors import UsageError


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
