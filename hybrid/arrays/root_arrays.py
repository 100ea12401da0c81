# SPDX-License-Identifier: MIT
"""Arrays that a user passes at the root: whether they can be multiplied, and what the other ranks must know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid.arrays.interop import as_gpu_matrix, as_matrix, common_dtype, on_gpu
from hybrid.arrays.shared_arrays import SharedArrays, SharedLocation
from hybrid.arrays.sources import RootMatrix
from hybrid.core.problem import ITEM_SIZES, Problem
from hybrid.errors import UsageError
from hybrid.host.page_memory import result_pool
from hybrid.ranks.team import Team


@dataclass(frozen=True)
class RootMatrices:
    """What the root tells the other ranks of its arrays a, b and out."""

    shape_a: tuple[int, int]
    shape_b: tuple[int, int]
    dtype: str
    locations: list[SharedLocation | None]  # of A, B and C in node-shared memory; None for one that is not there
    allocated_bytes: int  # that A, B and C take at the root already, or that are kept for C
    on_gpu: bool = False  # A and B are, and C will be

    @classmethod
    def of(cls, team: Team, shared: SharedArrays, a: Any, b: Any, out: np.ndarray | None) -> RootMatrices:
        dtype = common_dtype(a.dtype, b.dtype)
        if on_gpu(a):  # B is, too: see checked_operands
            problem = Problem(a.shape[0], a.shape[1], b.shape[1], dtype)
            return cls(a.shape, b.shape, dtype, [None] * 3, problem.bytes_of_matrices, on_gpu=True)
        locations = [shared.location_of(array) if array is not None and array.dtype == dtype else None for array in (a, b, out)]
        allocated_bytes = sum(array.nbytes for array in (a, b) if RootMatrix(array.shape, array).in_place(dtype) is not None)
        of_c, all_shared = len(a) * b.shape[1] * ITEM_SIZES[dtype], lie_shared(team, locations)
        if (locations[2] is not None) if all_shared else (out is not None and can_hold(out, dtype)):
            allocated_bytes += of_c
        elif not all_shared:
            allocated_bytes += min(of_c, result_pool.make_room(of_c))
        return cls(a.shape, b.shape, dtype, locations, allocated_bytes)

    @property
    def problem(self) -> Problem:
        return Problem(self.shape_a[0], self.shape_a[1], self.shape_b[1], self.dtype)


def lie_shared(team: Team, locations: Sequence[SharedLocation | None]) -> bool:
    """Whether all ranks are on one node and A and B are in memory they share: then no rank sends matrices to another."""
    return len(team.topology.nodes) == 1 and team.size > 1 and None not in locations[:2]


def can_hold(out: np.ndarray, dtype: str) -> bool:
    """Whether C can be computed in `out` itself, without a copy at the end."""
    return out.flags.c_contiguous and out.flags.aligned and out.dtype.isnative and out.dtype == dtype


def checked_operands(a: Any, b: Any, out: np.ndarray | None) -> tuple[Any, Any]:
    """A and B as matrices: on a GPU if both are there and C may be, too, else on the host.

    UsageError if they have no product, or if `out` cannot take it.
    """
    converted = as_gpu_matrix if out is None and on_gpu(a) and on_gpu(b) else as_matrix
    first, second = converted(a, "a"), converted(b, "b")
    refuse_shapes(first.shape, second.shape)
    if out is not None:
        if not isinstance(out, np.ndarray):
            raise UsageError(f"out must be a NumPy array, not {type(out).__name__}")
        wanted = (first.shape[0], second.shape[1])
        if out.shape != wanted:
            raise UsageError(f"out has shape {out.shape}, the product {wanted}")
        if out.dtype != common_dtype(first.dtype, second.dtype) or not out.flags.writeable:
            raise UsageError(f"out must be a writable {common_dtype(first.dtype, second.dtype)} array")
        if _overlaps_itself(out):
            raise UsageError(f"out has strides {out.strides}, with which several of its elements share memory")
        if np.may_share_memory(out, first) or np.may_share_memory(out, second):
            raise UsageError("out overlaps a or b, which are still read while it is written")
    return first, second


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
