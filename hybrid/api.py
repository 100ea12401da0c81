"""`hybrid.multiply`: the product of two arrays by the ranks of a communicator."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from hybrid.arrays.interop import as_gpu_matrix, as_rows, await_callers_work, empty_like, on_gpu
from hybrid.arrays.root_arrays import RootMatrices, can_hold, checked_operands, lie_shared, refuse_shapes
from hybrid.arrays.row_block import BlockShapes, RowBlock, problem_of_blocks
from hybrid.arrays.shared_arrays import shared_arrays
from hybrid.arrays.sources import MatrixSource, RootMatrix, SharedMatrix
from hybrid.core.problem import ITEM_SIZES
from hybrid.core.settings import Settings, one_of
from hybrid.errors import CheckFailed, UsageError
from hybrid.execution.product import run_product
from hybrid.execution.row_block_product import run_row_block_product
from hybrid.host.page_memory import empty_matrix
from hybrid.plan.plan import Plan
from hybrid.ranks.team import Team
from hybrid.ranks.world import team_of
from hybrid.selection.agreement import agree
from hybrid.selection.inventory import same_on_all_ranks, take_inventory
from hybrid.verification.freivalds import Check

# The number of BLAS threads belongs to the whole process: calls from several Python threads take turns.
_ALONE = threading.RLock()


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

    With RowBlocks on every rank instead, the result is this rank's RowBlock of C, where its rows of A lie: neither root nor
    out, and nothing passes any one rank.

    The result is a NumPy array, or a CuPy array where both a and b lie on a GPU. With several ranks on the root's node it
    may lie in memory mapped as shared, which processes forked later share. An error on one rank is raised on all.
    """
    team = team_of(comm)
    flags = {"kernel": kernel, "device": device, "check": check, "threads": threads}
    with _ALONE if team.size == 1 else nullcontext():
        if isinstance(a, RowBlock) or isinstance(b, RowBlock):
            with team.together():
                return _multiply_blocks(team, a, b, root, out, flags)
        if team.size == 1 and out is None and on_gpu(a) and on_gpu(b):
            return _multiply_on_gpu(team, a, b, root, flags)
        with team.together():
            c = _multiply(team, a, b, root, out, flags)
        return _hand_over(c, out, both_on_gpu=on_gpu(a) and on_gpu(b)) if team.rank == root else None


def empty(shape: tuple[int, int], dtype: Any = "float64", *, comm: Any = None, root: int = 0) -> np.ndarray | None:
    """A matrix, its contents undefined, in memory that the ranks of the root's node share; None on other nodes.

    Every rank of `comm` calls, and may fill rows. Where `multiply` finds all its matrices in such memory, the ranks work on
    them where they lie: nothing is copied on a CPU, and each rank drives its own GPU's link. The memory is given back when
    nothing at the root refers to it any more.
    """
    team = team_of(comm)
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = str(dtype)  # refused below, on all ranks
    with team.together():
        return _empty(team, shape, name, root)


def _empty(team: Team, shape: tuple[int, int], dtype: str, root: int) -> np.ndarray | None:
    shared = shared_arrays(team)
    with team.phase("agree", timed=False) as looking:
        settings = Settings.gather({})
        if not (isinstance(shape, tuple) and len(shape) == 2 and all(isinstance(n, (int, np.integer)) and n >= 0 for n in shape)):
            raise UsageError(f"shape {shape!r} is not that of a matrix")
        if not isinstance(root, int) or not 0 <= root < team.size:
            raise UsageError(f"root {root!r} is not a rank of a communicator of {team.size}")
        one_of("dtype", dtype, ITEM_SIZES)
        looking.mine = (_asked(settings, kind="an empty matrix", shape=shape, dtype=dtype, root=root), shared.gone)
    same_on_all_ranks([said[0] for said in looking.all])
    team.pretend_nodes(settings.ranks_per_node)
    shared.drop(said[1] for said in looking.all)
    if team.size == 1:
        return empty_matrix(int(shape[0]), int(shape[1]), dtype)
    return shared.make(team, (int(shape[0]), int(shape[1])), dtype, root)


def _asked(settings: Settings, **more: Any) -> dict[str, Any]:
    return more | settings.as_dict()


def _refuse_wrong(check: Check | None) -> None:
    if check is not None and not check.ok:
        raise CheckFailed(f"the product is wrong: error {check.error:.2e}, tolerance {check.tolerance:.2e}")


def _multiply_blocks(team: Team, a: Any, b: Any, root: int, out: Any, flags: dict[str, Any]) -> RowBlock:
    with team.phase("agree", timed=False) as looking:
        settings = Settings.gather(flags)
        if out is not None or root != 0:
            raise UsageError("a product of RowBlocks has neither out nor root: every rank keeps its rows")
        asked = _asked(settings, kind="RowBlocks", root=root)
        looking.mine = (asked, take_inventory(team, settings), BlockShapes.of(a, b, check=settings.check))
    same_on_all_ranks([said[0] for said in looking.all])
    team.pretend_nodes(settings.ranks_per_node)
    shapes: list[BlockShapes] = [said[2] for said in looking.all]
    problem, rows_a, rows_b = problem_of_blocks(shapes)
    facts = [said[1] for said in looking.all]
    rows, besides = (tuple(rows_a), tuple(rows_b)), [each.copied_bytes for each in shapes]
    agreement = agree(team, problem, settings, facts, resident_rows=rows, besides=besides)
    c, check = run_row_block_product(team, agreement, a.array, b.array, settings)
    _refuse_wrong(check)
    return RowBlock(c)


def _multiply_on_gpu(team: Team, a: Any, b: Any, root: int, flags: dict[str, Any]) -> Any:
    """GPU to GPU: the arrays are the only rank's row-blocks."""
    first, second = as_gpu_matrix(a, "a"), as_gpu_matrix(b, "b")
    refuse_shapes(first.shape, second.shape)
    return _multiply_blocks(team, RowBlock(first), RowBlock(second), root, None, flags).array


def _multiply(team: Team, a: Any, b: Any, root: int, out: np.ndarray | None, flags: dict[str, Any]) -> Any:
    """C; whole at the root only, where it may lie in `out`."""
    if not isinstance(root, int) or not 0 <= root < team.size:
        with team.phase("agree", timed=False):
            raise UsageError(f"root {root!r} is not a rank of a communicator of {team.size}")
    arrays: Sequence[Any] = (None, None)
    plain_out = out.view(np.ndarray) if isinstance(out, np.ndarray) else out
    with team.phase("agree", timed=False) as looking:
        settings = Settings.gather(flags)
        team.pretend_nodes(settings.ranks_per_node)
        shared = shared_arrays(team)
        told: RootMatrices | UsageError | None = None
        if team.rank == root:
            try:
                arrays = checked_operands(a, b, plain_out)
                told = RootMatrices.of(team, shared, *arrays, plain_out)
            except UsageError as wrong:  # said when it is clear that the ranks mean the same root
                told = wrong
        asked = _asked(settings, kind="matrices of the root", root=root)
        looking.mine = (asked, take_inventory(team, settings), told, shared.gone)
    same_on_all_ranks([said[0] for said in looking.all])
    matrices: RootMatrices | UsageError = looking.all[root][2]
    if isinstance(matrices, UsageError):
        raise matrices
    shared.drop([looking.all[root][3]])
    problem = matrices.problem
    c_array = plain_out if team.rank == root and plain_out is not None and can_hold(plain_out, problem.dtype) else None
    all_shared = lie_shared(team, matrices.locations)
    agreement = agree(
        team,
        problem,
        settings,
        [said[1] for said in looking.all],
        root=root,
        already_there=matrices.allocated_bytes,
        at_root=not all_shared,
        shared=all_shared,
        # of matrices on a GPU: where they go through the host, and for the check
        besides=[problem.bytes_of_matrices if matrices.on_gpu and rank == root else 0 for rank in range(team.size)],
    )
    if matrices.on_gpu:
        with team.phase("scatter"):
            if team.rank == root:
                *arrays, c_array = _from_gpu(agreement.plan, *arrays)
    first: MatrixSource = RootMatrix(matrices.shape_a, arrays[0])
    second: MatrixSource = RootMatrix(matrices.shape_b, arrays[1])
    if all_shared:
        array_a, array_b, c_array = (
            shared.array_at(at, shape) if at is not None else None
            for at, shape in zip(matrices.locations, (matrices.shape_a, matrices.shape_b, (problem.n, problem.m)), strict=True)
        )
        assert array_a is not None
        assert array_b is not None
        first, second = SharedMatrix(array_a), SharedMatrix(array_b)
    outcome = run_product(team, agreement, first, second, settings, out=c_array, measured=False)
    _refuse_wrong(outcome.check)
    return outcome.c.array


def _from_gpu(plan: Plan, a: Any, b: Any) -> tuple[Any, Any, Any]:
    """A and B where the root's links bring them from, and a place for C beside them: on their GPU. Else both in host memory."""
    stay = plan.at_root and plan.device == "cuda"
    first, second = (as_rows(array, plan.problem.dtype, device="cuda" if stay else "cpu") for array in (a, b))
    c = empty_like(first, plan.problem.n, plan.problem.m) if stay else None
    await_callers_work(first, second)
    return first, second, c


def _hand_over(c: Any, out: np.ndarray | None, *, both_on_gpu: bool) -> Any:
    if out is not None:
        if not np.may_share_memory(out, c):
            np.copyto(out.view(np.ndarray), c)
        return out
    if both_on_gpu:
        import cupy

        return cupy.asarray(c)
    return c
