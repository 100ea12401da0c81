# SPDX-License-Identifier: MIT
"""`hybrid.multiply`: the product of two arrays by the ranks of a communicator."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from hybrid.arrays.interop import as_gpu_matrix, as_rows, await_callers_work, empty_like, on_gpu, to_device_of
from hybrid.arrays.root_arrays import RootMatrices, can_hold, checked_operands, lie_shared, refuse_shapes
from hybrid.arrays.row_block import BlockShapes, RowBlock, problem_of_blocks
from hybrid.arrays.sources import MatrixSource, RootMatrix, SharedMatrix
from hybrid.core.problem import ITEM_SIZES
from hybrid.core.settings import Settings, one_of
from hybrid.errors import CheckFailed, UsageError
from hybrid.execution.product import RunOptions, run_product
from hybrid.execution.row_block_product import run_row_block_product
from hybrid.host.page_memory import empty_matrix
from hybrid.plan.plan import Plan
from hybrid.plan.request import OperandLocation, RowBlocks
from hybrid.ranks.team import Team
from hybrid.ranks.world import team_of
from hybrid.selection.agreement import agree
from hybrid.selection.decision import ProductRequest
from hybrid.selection.inventory import same_on_all_ranks, take_inventory
from hybrid.selection.session import Session, session_of
from hybrid.verification.freivalds import Check

# The number of BLAS threads belongs to the whole process: calls from several Python threads take turns.
_ONE_AT_A_TIME = threading.RLock()


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
    """Multiply two matrices by all ranks of a communicator.

    Parameters
    ----------
    a, b
        Matrices at `root`, None on other ranks: NumPy or CuPy arrays, or anything with the buffer, array or DLPack protocol.
        float32 and float64 are taken as they are, other types where NumPy's promotion leads to one of these. Or a `RowBlock`
        each, on every rank.
    comm
        The mpi4py communicator whose ranks work together; every one of them must call. None: this process alone, without MPI.
    root
        The rank that has the operands and gets the result.
    out
        At the root, a float32 or float64 array for the result, which must not overlap a or b.
    kernel
        A name of the kernel catalogue, or "auto". This and the following are as the command's options: None leaves them to
        HYBRID_KERNEL, HYBRID_DEVICE, HYBRID_CHECK and HYBRID_THREADS, and to the defaults.
    device
        "auto", "cpu", "cuda" or "emulate".
    check
        Whether to verify the product.
    threads
        CPU threads of each rank.

    Returns
    -------
    ndarray or RowBlock or None
        a · b at the root, None elsewhere: `out` where it is given, a CuPy array where both a and b lie on a GPU, else a NumPy
        array. With several ranks on the root's node it may lie in shared memory, which processes forked later share. Of
        RowBlocks: this rank's RowBlock of the product, where its rows of a lie; then root and out are not used.

    Raises
    ------
    HybridError
        Any error on one rank is raised on all of them, and the next call works; see `hybrid.errors`.
    """
    session = session_of(team_of(comm))
    team = session.team
    flags = {"kernel": kernel, "device": device, "check": check, "threads": threads}
    with _ONE_AT_A_TIME if team.size == 1 else nullcontext():
        if isinstance(a, RowBlock) or isinstance(b, RowBlock):
            with team.together():
                return _multiply_blocks(session, a, b, root, out, flags)
        both_on_gpu = on_gpu(a) and on_gpu(b)
        if team.size == 1 and out is None and both_on_gpu:
            return _multiply_on_gpu(session, a, b, root, flags)
        with team.together():
            c = _multiply(session, a, b, root, out, flags)
        if team.rank != root:
            return None
        if out is None:
            return to_device_of(a, c) if both_on_gpu else c
        if not np.may_share_memory(out, c):
            np.copyto(out.view(np.ndarray), c)
        return out


def empty(shape: tuple[int, int], dtype: Any = "float64", *, comm: Any = None, root: int = 0) -> np.ndarray | None:
    """Make a matrix, its contents undefined, in memory that the ranks of the root's node share.

    Every rank of `comm` calls, and may fill rows. Where `multiply` finds all of its matrices in such memory, the ranks work on
    them where they lie: nothing is copied on a CPU, and each rank uses its own GPU's link. The memory is given back when nothing
    at the root refers to it any more.

    Parameters
    ----------
    shape
        Rows and columns.
    dtype
        float32 or float64.
    comm
        The mpi4py communicator. None: this process alone.
    root
        The rank on whose node the memory lies.

    Returns
    -------
    ndarray or None
        The same matrix on all ranks of the root's node, None on other nodes.
    """
    session = session_of(team_of(comm))
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = str(dtype)  # refused below, on all ranks
    with session.team.together():
        return _empty(session, shape, name, root)


def _empty(session: Session, shape: tuple[int, int], dtype: str, root: int) -> np.ndarray | None:
    team, shared = session.team, session.shared_arrays
    with team.phase("agree", timed=False) as looking:
        settings = Settings.gather({})
        if not (isinstance(shape, tuple) and len(shape) == 2 and all(isinstance(n, (int, np.integer)) and n >= 0 for n in shape)):
            raise UsageError(f"shape {shape!r} is not that of a matrix")
        _refuse_no_rank(team, root)
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


def _refuse_no_rank(team: Team, root: int) -> None:
    if not isinstance(root, int) or not 0 <= root < team.size:
        raise UsageError(f"root {root!r} is not a rank of a communicator of {team.size}")


def _refuse_wrong(check: Check | None) -> None:
    if check is not None and not check.ok:
        raise CheckFailed(f"the product is wrong: error {check.error:.2e}, tolerance {check.tolerance:.2e}")


def _multiply_blocks(session: Session, a: Any, b: Any, root: int, out: Any, flags: dict[str, Any]) -> RowBlock:
    team = session.team
    with team.phase("agree", timed=False) as looking:
        settings = Settings.gather(flags)
        if out is not None or root != 0:
            raise UsageError("a product of RowBlocks has neither out nor root: every rank keeps its rows")
        asked = _asked(settings, kind="RowBlocks", root=root)
        looking.mine = (asked, take_inventory(session, settings), BlockShapes.of(a, b, check=settings.check))
    same_on_all_ranks([said[0] for said in looking.all])
    team.pretend_nodes(settings.ranks_per_node)
    shapes: list[BlockShapes] = [said[2] for said in looking.all]
    problem, rows_a, rows_b = problem_of_blocks(shapes)
    request = ProductRequest(
        problem,
        OperandLocation.ROW_BLOCKS,
        row_blocks=RowBlocks(tuple(rows_a), tuple(rows_b)),
        besides=tuple(each.copied_bytes for each in shapes),
    )
    decision = agree(session, request, settings, [said[1] for said in looking.all])
    c, check = run_row_block_product(session, decision, a.array, b.array, settings)
    _refuse_wrong(check)
    return RowBlock(c)


def _multiply_on_gpu(session: Session, a: Any, b: Any, root: int, flags: dict[str, Any]) -> Any:
    """From GPU to GPU: the arrays are the only rank's row blocks."""
    first, second = as_gpu_matrix(a, "a"), as_gpu_matrix(b, "b")
    refuse_shapes(first.shape, second.shape)
    return _multiply_blocks(session, RowBlock(first), RowBlock(second), root, None, flags).array


def _multiply(session: Session, a: Any, b: Any, root: int, out: np.ndarray | None, flags: dict[str, Any]) -> Any:
    """C; whole at the root only, where it may lie in `out`."""
    team, shared = session.team, session.shared_arrays
    if not isinstance(root, int) or not 0 <= root < team.size:
        with team.phase("agree", timed=False):
            _refuse_no_rank(team, root)
    arrays: Sequence[Any] = (None, None)
    plain_out = out.view(np.ndarray) if isinstance(out, np.ndarray) else out
    with team.phase("agree", timed=False) as looking:
        settings = Settings.gather(flags)
        team.pretend_nodes(settings.ranks_per_node)
        described: RootMatrices | UsageError | None = None
        if team.rank == root:
            try:
                arrays = checked_operands(a, b, plain_out)
                described = RootMatrices.of(team, shared, *arrays, plain_out)
            except UsageError as wrong:  # raised only once it is clear that all ranks mean the same root
                described = wrong
        asked = _asked(settings, kind="matrices of the root", root=root)
        looking.mine = (asked, take_inventory(session, settings), described, shared.gone)
    same_on_all_ranks([said[0] for said in looking.all])
    matrices: RootMatrices | UsageError = looking.all[root][2]
    if isinstance(matrices, UsageError):
        raise matrices
    shared.drop([looking.all[root][3]])
    all_shared = lie_shared(team, matrices.locations)
    request = _request_of(team, matrices, root, all_shared=all_shared)
    decision = agree(session, request, settings, [said[1] for said in looking.all])
    c_array = plain_out if team.rank == root and plain_out is not None and can_hold(plain_out, matrices.dtype) else None
    if all_shared:
        first, second, c_array = _shared_operands(session, matrices)
    else:
        if matrices.on_gpu:
            with team.phase("scatter"):
                if team.rank == root:
                    *arrays, c_array = _from_gpu(decision.plan, *arrays)
        first, second = RootMatrix(matrices.shape_a, arrays[0]), RootMatrix(matrices.shape_b, arrays[1])
    outcome = run_product(session, decision, first, second, settings, RunOptions(out=c_array, measured=False))
    _refuse_wrong(outcome.check)
    return outcome.c.array


def _request_of(team: Team, matrices: RootMatrices, root: int, *, all_shared: bool) -> ProductRequest:
    problem = matrices.problem
    # Matrices on a GPU need room in host memory: to be copied through it, and for the check.
    besides = [problem.bytes_of_matrices if matrices.on_gpu and rank == root else 0 for rank in range(team.size)]
    location = OperandLocation.NODE_SHARED if all_shared else OperandLocation.ROOT_ARRAYS
    return ProductRequest(problem, location, root, bytes_there=matrices.allocated_bytes, besides=tuple(besides))


def _shared_operands(session: Session, matrices: RootMatrices) -> tuple[MatrixSource, MatrixSource, np.ndarray | None]:
    """A, B and, where it is shared as well, C as this rank sees them."""
    shapes = matrices.shape_a, matrices.shape_b, (matrices.problem.n, matrices.problem.m)
    a, b, c = (
        session.shared_arrays.array_at(location, shape) if location is not None else None
        for location, shape in zip(matrices.locations, shapes, strict=True)
    )
    assert a is not None
    assert b is not None
    return SharedMatrix(a), SharedMatrix(b), c


def _from_gpu(plan: Plan, a: Any, b: Any) -> tuple[Any, Any, Any]:
    """A and B on their GPU, and room for C beside them, where the plan copies them from there; else A and B in host memory."""
    stay = plan.at_root and plan.device == "cuda"
    first, second = (as_rows(array, plan.problem.dtype, device="cuda" if stay else "cpu") for array in (a, b))
    c = empty_like(first, plan.problem.n, plan.problem.m) if stay else None
    await_callers_work(first, second)
    return first, second, c
