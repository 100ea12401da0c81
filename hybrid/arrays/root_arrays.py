# SPDX-License-Identifier: MIT
"""Arrays that a user passes at the root: whether they can be multiplied, and what the other ranks must know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hybrid.arrays.complex_matrices import complex_view, real_view, write_expanded
from hybrid.arrays.interop import as_gpu_matrix, as_matrix, on_gpu
from hybrid.arrays.product_type import ProductType, product_type
from hybrid.arrays.shared_arrays import SharedArrays, SharedLocation
from hybrid.arrays.sources import DerivedMatrix, RootMatrix, copy_rows
from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.host.page_memory import result_pool
from hybrid.ranks.team import Team


@dataclass(frozen=True)
class RootOperands:
    """The root's matrices, checked."""

    a: Any
    b: Any
    out: np.ndarray | None
    types: ProductType

    @classmethod
    def of(cls, a: Any, b: Any, out: np.ndarray | None) -> RootOperands:
        """A and B on a GPU if both are there and C may be, too, else on the host.

        UsageError if they have no product, or if `out` cannot take it.
        """
        converted = as_gpu_matrix if out is None and on_gpu(a) and on_gpu(b) else as_matrix
        first, second = converted(a, "a"), converted(b, "b")
        refuse_shapes(first.shape, second.shape)
        types = product_type(first.dtype, second.dtype)
        if out is not None:
            _refuse_out(out, (first.shape[0], second.shape[1]), types.result)
            if np.may_share_memory(out, first) or np.may_share_memory(out, second):
                raise UsageError("out overlaps a or b, which are still read while it is written")
        return cls(first, second, out, types)

    @property
    def problem(self) -> Problem:
        """The real product that gives C."""
        return self.types.problem(self.a.shape[0], *self.b.shape)

    def sources(self, threads: int = 1) -> tuple[RootMatrix, RootMatrix]:
        """A and B of the real product, from arrays in host memory; several threads make what other nodes get of them."""
        types, a, b, problem = self.types, self.a, self.b, self.problem
        first = _real_source(a, types, threads) if types.complex_a else RootMatrix(a.shape, a)
        if types.complex_a:
            shape = problem.l, problem.m
            return first, DerivedMatrix(shape, types.computed, partial(write_expanded, b), threads)
        return first, _real_source(b, types, threads) if types.complex_b else RootMatrix(b.shape, b)

    @property
    def real_out(self) -> np.ndarray | None:
        """The memory of `out` as C of the real product; None where that cannot be computed there."""
        if self.out is None or not can_hold(self.out, self.types.result):
            return None
        return real_view(self.out) if self.types.complex_b else self.out

    def result(self, c: Any) -> Any:
        """What the real product's C is in the user's terms."""
        return complex_view(c) if self.types.complex_b else c


def _real_source(matrix: np.ndarray, types: ProductType, threads: int) -> RootMatrix:
    """The parts of the elements beside each other: where they lie if they lie so."""
    shape = matrix.shape[0], 2 * matrix.shape[1]
    if RootMatrix(matrix.shape, matrix).in_place(types.promoted) is not None:
        return RootMatrix(shape, real_view(matrix))

    def write(rows: Span, into: np.ndarray, threads: int) -> None:
        copy_rows(complex_view(into), matrix[rows.slice], threads)

    return DerivedMatrix(shape, types.computed, write, threads)


@dataclass(frozen=True)
class RootMatrices:
    """What the root tells the other ranks of its arrays a, b and out."""

    shape_a: tuple[int, int]
    shape_b: tuple[int, int]
    types: ProductType
    locations: list[SharedLocation | None]  # of A, B and C in node-shared memory; None for one that is not there
    allocated_bytes: int  # that A, B and C take at the root already, or that are kept for C
    derived_bytes: int = 0  # of matrices that the root makes of its own, where it sends them to other nodes
    on_gpu: bool = False  # A and B are, and C will be

    @classmethod
    def of(cls, team: Team, shared: SharedArrays, given: RootOperands) -> RootMatrices:
        a, b, types, problem = given.a, given.b, given.types, given.problem
        if on_gpu(a):  # B is, too
            return cls(a.shape, b.shape, types, [None] * 3, problem.bytes_of_matrices, on_gpu=True)
        sources, c = given.sources(), given.real_out
        in_place = [source.in_place(types.computed) for source in sources]
        locations = [shared.location_of(array) for array in (*in_place, c)]
        allocated_bytes = sum(array.nbytes for array in in_place if array is not None)
        derived = sum(problem.bytes(*source.shape) for source in sources if isinstance(source, DerivedMatrix))
        of_c, all_shared = problem.bytes(problem.n, problem.m), lie_shared(team, locations)
        if (locations[2] is not None) if all_shared else (c is not None):
            allocated_bytes += of_c
        elif not all_shared:
            allocated_bytes += min(of_c, result_pool.make_room(of_c))
        return cls(a.shape, b.shape, types, locations, allocated_bytes, derived)

    @property
    def problem(self) -> Problem:
        """The real product that gives C."""
        return self.types.problem(*self.shape_a, self.shape_b[1])


def lie_shared(team: Team, locations: Sequence[SharedLocation | None]) -> bool:
    """Whether all ranks are on one node and A and B are in memory they share: then no rank sends matrices to another."""
    return len(team.topology.nodes) == 1 and team.size > 1 and None not in locations[:2]


def can_hold(out: np.ndarray, dtype: str) -> bool:
    """Whether C can be computed in `out` itself, without a copy at the end."""
    return out.flags.c_contiguous and out.flags.aligned and out.dtype.isnative and out.dtype == dtype


def _refuse_out(out: Any, shape: tuple[int, ...], dtype: str) -> None:
    """UsageError unless a product of this shape and type can be written to it."""
    if not isinstance(out, np.ndarray):
        raise UsageError(f"out must be a NumPy array, not {type(out).__name__}")
    if out.shape != shape:
        raise UsageError(f"out has shape {out.shape}, the product {shape}")
    if out.dtype != dtype or not out.flags.writeable:
        raise UsageError(f"out must be a writable {dtype} array")
    if _overlaps_itself(out):
        raise UsageError(f"out has strides {out.strides}, with which several of its elements share memory")


def _overlaps_itself(matrix: np.ndarray) -> bool:
    """Unless the elements of one dimension lie within one step of the other."""
    reach = matrix.itemsize
    for step, extent in sorted((abs(step), extent) for step, extent in zip(matrix.strides, matrix.shape, strict=True)):
        if extent > 1:
            if step < reach:
                return matrix.size > 0
            reach += step * (extent - 1)
    return False


def refuse_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    if a[1] != b[0]:
        raise UsageError(f"a has {a[1]} columns and b {b[0]} rows: they must be the same")
