"""`hybrid.multiply`: the product of two arrays by the ranks of a communicator."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybrid.agreement import agree, same_on_all_ranks, settle_threads
from hybrid.errors import CheckFailed, UsageError
from hybrid.operands import FromRoot, as_matrix, common_dtype, on_gpu
from hybrid.plan import Problem
from hybrid.product import make_product
from hybrid.ranks import team_of
from hybrid.settings import Settings


def multiply(
    a: Any,
    b: Any,
    *,
    comm: Any = None,
    root: int = 0,
    out: np.ndarray | None = None,
    kernel: str | None = None,
    device: str | None = None,
    check: bool | None = None,
    threads: int | None = None,
) -> Any:
    """Return a · b at the root, None elsewhere.

    a, b: matrices at `root` (NumPy, CuPy, or anything with the buffer, array or DLPack protocol), None on other ranks;
        float32 and float64 as they are, other types where NumPy's promotion lands on one of these.
    comm: the mpi4py communicator whose ranks work together; every one of them must call. None: this process alone,
        without MPI.
    out: at the root, a float32 or float64 array for the result; it must not overlap a or b.
    kernel, device, check, threads: as the command's options; None leaves them to HYBRID_* and the defaults.

    The result is a NumPy array, or a CuPy array where both a and b lie on a GPU. An error on one rank is raised on all.
    """
    settings = Settings.gather({"kernel": kernel, "device": device, "check": check, "threads": threads})
    team = team_of(comm, settings.ranks_per_node)
    same_on_all_ranks(team, {"root": root, **settings.as_dict()})
    if not 0 <= root < team.size:
        raise UsageError(f"root {root} is not a rank of a communicator of {team.size}")
    with team.phase("agree", timed=False) as looking:
        matrices = _look_at(a, b, out) if team.rank == root else None
        if matrices is not None:
            looking.mine = (matrices[0].shape, matrices[1].shape, common_dtype(matrices[0].dtype, matrices[1].dtype))
    shape_a, shape_b, dtype = looking.all[root]
    problem = Problem(shape_a[0], shape_a[1], shape_b[1], dtype)
    array_a, array_b = matrices if matrices is not None else (None, None)
    first, second = FromRoot(shape_a, array_a), FromRoot(shape_b, array_b)
    place = out if out is not None and _can_hold(out, problem) else None
    there = [first.in_place(dtype), second.in_place(dtype), place] if team.size == 1 else []
    agreement = agree(
        team,
        problem,
        settings,
        threads=settle_threads(team, settings),
        root=root,
        already_there=sum(array.nbytes for array in there if array is not None),
    )
    outcome = make_product(team, agreement, first, second, settings, out=place)
    if outcome.check is not None and not outcome.check.ok:
        raise CheckFailed(f"the product is wrong: error {outcome.check.error:.2e}, tolerance {outcome.check.tolerance:.2e}")
    return _hand_over(outcome.c.array, out, both_on_gpu=on_gpu(a) and on_gpu(b)) if team.rank == root else None


def _look_at(a: Any, b: Any, out: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    first, second = as_matrix(a, "a"), as_matrix(b, "b")
    if first.shape[1] != second.shape[0]:
        raise UsageError(f"a has {first.shape[1]} columns and b {second.shape[0]} rows: they must be the same")
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


def _can_hold(out: np.ndarray, problem: Problem) -> bool:
    """Whether C can be computed right in it."""
    return out.flags.c_contiguous and out.flags.aligned and out.dtype.isnative and out.dtype == problem.dtype


def _hand_over(c: np.ndarray, out: np.ndarray | None, both_on_gpu: bool) -> Any:
    if out is not None:
        if out is not c:
            np.copyto(out, c)
        return out
    if both_on_gpu:
        import cupy

        return cupy.asarray(c)
    return c
