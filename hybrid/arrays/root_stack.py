# SPDX-License-Identifier: MIT
"""Stacks of matrices at the root, as NumPy's `@` takes them: of more than two dimensions the last two are a matrix's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybrid.arrays.gemm import Gemm
from hybrid.arrays.interop import as_array
from hybrid.arrays.operand_checks import is_same, overlap, refuse_out, refuse_wrong_c
from hybrid.arrays.product_type import numpy_type, product_type
from hybrid.arrays.root_operands import RootOperands
from hybrid.errors import UsageError


@dataclass(frozen=True)
class RootStack:
    """Products one after the other. `batch`: the stacks' dimensions, broadcast; `shape` and `dtype`: of the result."""

    operands: tuple[np.ndarray, np.ndarray, np.ndarray | None]
    out: np.ndarray | None
    batch: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, a: Any, b: Any, c: Any, out: Any, gemm: Gemm) -> RootStack:
        """UsageError if they have no products, or if `out` cannot take them."""
        first, second = as_array(a, "a"), as_array(b, "b")
        types = product_type(first.dtype, second.dtype, gemm.dtype)
        gemm = gemm.of_type(types)
        core = [_core(each, transposed) for each, transposed in ((first, gemm.transpose_a), (second, gemm.transpose_b))]
        depth = core[0][-1], core[1][0]
        if depth[0] != depth[1]:
            raise UsageError(f"a has {depth[0]} columns and b {depth[1]} rows: they must be the same")
        try:
            batch = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
        except ValueError:
            raise UsageError(f"stacks of shapes {first.shape[:-2]} and {second.shape[:-2]} do not fit together") from None
        shape = batch + core[0][:-1] + core[1][1:]
        third = None if c is None or gemm.beta == 0 else as_array(c, "c")
        refuse_wrong_c(third, gemm, shape, types)
        if out is not None:
            refuse_out(out, shape, types.result)
            if any(overlap(out, each) for each in (first, second)):
                raise UsageError("out overlaps a or b, which are still read while it is written")
            if third is not None and overlap(out, third) and not is_same(out, third):
                raise UsageError("out overlaps c without being the same array")
        return cls((first, second, third), out, batch, shape, types.result)

    @property
    def count(self) -> int:
        return math.prod(self.batch)

    @property
    def bytes_of_result(self) -> int:
        return 0 if self.out is not None else math.prod(self.shape) * numpy_type(self.dtype).itemsize

    def result(self) -> np.ndarray:
        return self.out if self.out is not None else np.empty(self.shape, numpy_type(self.dtype))

    def of_product(self, number: int) -> tuple[Any, Any, Any]:
        """A, B and C of one of the products."""
        a, b, c = self.operands
        at = self.place(number)
        return _matrix(a, self.batch, at), _matrix(b, self.batch, at), None if c is None else c[at]

    def place(self, number: int) -> tuple[Any, ...]:
        """In the result, of one product; also a number is an array there."""
        return (*(int(each) for each in np.unravel_index(number, self.batch)), ...)


def operands_at_root(a: Any, b: Any, c: Any, out: Any, gemm: Gemm, threads: Callable[[], int]) -> RootOperands | RootStack:
    """What the root's arrays are: one product, if that can be, or several. UsageError where they have none."""
    if not is_stack(a, b):
        return RootOperands.of(a, b, c, out, gemm, threads)
    shape = _shape_of_one(a, b, gemm)
    stacks = a, *(each for each in (c, out) if each is not None)
    if shape is None or not all(isinstance(each, np.ndarray) and each.flags.c_contiguous for each in stacks):
        return RootStack.of(a, b, c, out, gemm)
    if any(each.shape != shape for each in stacks[1:]):
        return RootStack.of(a, b, c, out, gemm)  # which refuses them
    height = math.prod(a.shape[:-1])
    c, out = (None if each is None else each.reshape(height, *shape[a.ndim - 1 :]) for each in (c, out))
    one = RootOperands.of(a.reshape(height, a.shape[-1]), b, c, out, gemm, threads)
    return replace(one, shape=shape)


def _shape_of_one(a: Any, b: Any, gemm: Gemm) -> tuple[int, ...] | None:
    """Of the result, where all products have the same B: then A's matrices are the rows of a single one."""
    if is_stack(b) or gemm.transpose_a or not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return None
    return a.shape[:-1] + (b.T if gemm.transpose_b else b).shape[1:]


def is_stack(*operands: Any) -> bool:
    """Whether one of them has more dimensions than a matrix."""
    return any(getattr(each, "ndim", 2) > 2 or (isinstance(each, (list, tuple)) and _depth(each) > 2) for each in operands)


def _depth(nested: Any) -> int:
    """Of lists in lists, by the first of each; whether all are alike is found when an array is made of them."""
    depth = 0
    while isinstance(nested, (list, tuple)):
        depth += 1
        nested = nested[0] if nested else None
    return depth + getattr(nested, "ndim", 0)


def _core(array: np.ndarray, transposed: bool) -> tuple[int, ...]:
    if array.ndim == 0:
        raise UsageError("a number is no matrix: * multiplies by it")
    core = array.shape[-2:]
    return core[::-1] if transposed else core


def _matrix(array: np.ndarray, batch: tuple[int, ...], at: tuple[Any, ...]) -> np.ndarray:
    """Of the stack, or the vector that all products have."""
    if array.ndim == 1:
        return array
    return np.broadcast_to(array, batch + array.shape[-2:])[at]
