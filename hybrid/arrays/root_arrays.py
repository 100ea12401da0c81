"""The root's own arrays: whether they can be multiplied, and what the other ranks must know of them."""

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
from hybrid.host.result_pool import result_pool
from hybrid.ranks.team import Team


@dataclass(frozen=True)
class RootMatrices:
    """What the root tells the other ranks."""

    shape_a: tuple[int, int]
    shape_b: tuple[int, int]
    dtype: str
    locations: list[SharedLocation | None]  # in shared memory: A, B and C
    bytes_there: int  # of them, and kept for C
    on_gpu: bool = False  # A and B, and C shall be

    @classmethod
    def of(cls, team: Team, shared: SharedArrays, a: Any, b: Any, out: np.ndarray | None) -> RootMatrices:
        dtype = common_dtype(a.dtype, b.dtype)
        if on_gpu(a):  # and so are B and, in the end, C
            problem = Problem(a.shape[0], a.shape[1], b.shape[1], dtype)
            return cls(a.shape, b.shape, dtype, [None] * 3, problem.bytes_of_matrices, on_gpu=True)
        locations = [shared.location_of(array) if array is not None and array.dtype == dtype else None for array in (a, b, out)]
        bytes_there = sum(array.nbytes for array in (a, b) if RootMatrix(array.shape, array).in_place(dtype) is not None)
        of_c, all_shared = len(a) * b.shape[1] * ITEM_SIZES[dtype], lie_shared(team, locations)
        if (locations[2] is not None) if all_shared else (out is not None and can_hold(out, dtype)):
            bytes_there += of_c
        elif not all_shared:
            bytes_there += min(of_c, result_pool.make_room(of_c))
        return cls(a.shape, b.shape, dtype, locations, bytes_there)

    @property
    def problem(self) -> Problem:
        return Problem(self.shape_a[0], self.shape_a[1], self.shape_b[1], self.dtype)


def lie_shared(team: Team, locations: Sequence[SharedLocation | None]) -> bool:
    """On one node, matrices that all its ranks see are neither sent nor driven by the root."""
    return len(team.topology.nodes) == 1 and team.size > 1 and None not in locations[:2]


def can_hold(out: np.ndarray, dtype: str) -> bool:
    """Whether C can be computed right in it."""
    return out.flags.c_contiguous and out.flags.aligned and out.dtype.isnative and out.dtype == dtype


def looked_at(a: Any, b: Any, out: np.ndarray | None) -> tuple[Any, Any]:
    """A and B: both on a GPU where all matrices may stay there, else both in host memory. UsageError for what has no product."""
    as_it_lies = as_gpu_matrix if out is None and on_gpu(a) and on_gpu(b) else as_matrix
    first, second = as_it_lies(a, "a"), as_it_lies(b, "b")
    refuse_shapes(first.shape, second.shape)
    if out is not None:
        if not isinstance(out, np.ndarray):
            raise UsageError(f"out must be a NumPy array, not {type(out).__name__}")
        wanted = (first.shape[0], second.shape[1])
        if out.shape != wanted:
            raise UsageError(f"out has shape {out.shape}, the product {wanted}")
        if out.dtype != common_dtype(first.dtype, second.dtype) or not out.flags.writeable:
            raise UsageError(f"out must be a writable {common_dtype(first.dtype, second.dtype)} array")
        if np.may_share_memory(out, first) or np.may_share_memory(out, second):
            raise UsageError("out overlaps a or b, which are still read while it is written")
    return first, second


def refuse_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    if a[1] != b[0]:
        raise UsageError(f"a has {a[1]} columns and b {b[0]} rows: they must be the same")
