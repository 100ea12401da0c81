# SPDX-License-Identifier: MIT
"""One call of `multiply` on every rank: all ask for the same, decide together, compute, and raise together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid.arrays.block_2d import Block2D, Blocks, problem_of_2d
from hybrid.arrays.interop import as_gpu_matrix, as_rows, await_callers_work, empty_like
from hybrid.arrays.root_arrays import RootMatrices, can_hold, checked_operands, lie_shared, refuse_shapes
from hybrid.arrays.row_block import BlockShapes, RowBlock, problem_of_blocks
from hybrid.arrays.sources import MatrixSource, RootMatrix, SharedMatrix
from hybrid.core.caller import warn
from hybrid.core.settings import Settings
from hybrid.errors import CheckFailed, UsageError
from hybrid.execution.block_2d_product import run_block_2d_product
from hybrid.execution.outcome import RunOptions
from hybrid.execution.product import run_product
from hybrid.execution.row_block_product import run_row_block_product
from hybrid.plan.plan import Plan
from hybrid.plan.request import OperandLocation, RowBlocks
from hybrid.ranks.team import Team
from hybrid.selection.agreement import agree
from hybrid.selection.decision import ProductRequest
from hybrid.selection.inventory import same_on_all_ranks, take_inventory
from hybrid.selection.session import Session
from hybrid.verification.check import Check


def asked_for(settings: Settings, **more: Any) -> dict[str, Any]:
    return more | settings.as_dict()


def refuse_no_rank(team: Team, root: int) -> None:
    if type(root) is not int or not 0 <= root < team.size:
        raise UsageError(f"root {root!r} is not a rank of a communicator of {team.size}")


def _settle(check: Check | None, *, warns: bool) -> None:
    """Refuse a product that is wrong; `warns`: this rank says what was repaired."""
    if check is None:
        return
    if not check.ok:
        raise CheckFailed(check.refusal())
    for line in check.repaired if warns else ():
        warn(f"repaired: {line}")


def multiply_row_blocks(session: Session, a: Any, b: Any, root: int, out: Any, flags: dict[str, Any]) -> RowBlock:
    team = session.team
    with team.phase("agree", timed=False) as looking:
        settings = Settings.gather(flags)
        if out is not None or root != 0:
            raise UsageError("a product of RowBlocks has neither out nor root: every rank keeps its rows")
        asked = asked_for(settings, kind="RowBlocks", root=root)
        looking.mine = (asked, take_inventory(session, settings), BlockShapes.of(a, b, check=settings.check == "host"))
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
    _settle(check, warns=team.rank == 0)
    return RowBlock(c)


def multiply_blocks_2d(session: Session, a: Any, b: Any, root: int, out: Any, flags: dict[str, Any]) -> Block2D:
    team = session.team
    with team.phase("agree", timed=False) as looking:
        settings = Settings.gather(flags)
        if out is not None or root != 0:
            raise UsageError("a product of Block2Ds has neither out nor root: every rank keeps its part")
        if settings.on_fault == "repair":
            raise UsageError("a product of Block2Ds cannot be repaired: use RowBlocks, or on_fault 'raise'")
        if settings.device == "auto":
            settings = replace(settings, device="cpu")
        looking.mine = (asked_for(settings, kind="Block2Ds", root=root), take_inventory(session, settings), Blocks.of(a, b))
    same_on_all_ranks([said[0] for said in looking.all])
    team.pretend_nodes(settings.ranks_per_node)
    blocks: list[Blocks] = [said[2] for said in looking.all]
    problem, placement = problem_of_2d(blocks)
    if team.size == 1:
        whole = multiply_row_blocks(session, RowBlock(a.in_order()), RowBlock(b.in_order()), root, None, flags).array
        return Block2D(whole[np.ix_(a.indices[0], b.indices[1])], (problem.n, problem.m), a.rows, b.columns)
    besides = tuple(each.copied_bytes for each in blocks)
    request = ProductRequest(problem, OperandLocation.BLOCKS_2D, blocks_2d=placement, besides=besides)
    decision = agree(session, request, settings, [said[1] for said in looking.all])
    c, check = run_block_2d_product(session, decision, a.array, b.array)
    _settle(check, warns=False)
    return Block2D(c, (problem.n, problem.m), a.rows, b.columns)


def multiply_on_gpu(session: Session, a: Any, b: Any, root: int, flags: dict[str, Any]) -> Any:
    """From GPU to GPU: the arrays are the only rank's row blocks."""
    first, second = as_gpu_matrix(a, "a"), as_gpu_matrix(b, "b")
    refuse_shapes(first.shape, second.shape)
    return multiply_row_blocks(session, RowBlock(first), RowBlock(second), root, None, flags).array


def multiply_root_arrays(session: Session, a: Any, b: Any, root: int, out: np.ndarray | None, flags: dict[str, Any]) -> Any:
    """C; whole at the root only, where it may lie in `out`."""
    team, shared = session.team, session.shared_arrays
    if type(root) is not int or not 0 <= root < team.size:
        with team.phase("agree", timed=False):
            refuse_no_rank(team, root)
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
        asked = asked_for(settings, kind="matrices of the root", root=root)
        looking.mine = (asked, take_inventory(session, settings), described, shared.gone)
    same_on_all_ranks([said[0] for said in looking.all])
    matrices: RootMatrices | UsageError = looking.all[root][2]
    if isinstance(matrices, UsageError):
        raise matrices
    shared.drop([looking.all[root][3]])
    all_shared = lie_shared(team, matrices.locations)
    request = _request_of(session, matrices, root, all_shared=all_shared)
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
    _settle(outcome.check, warns=team.rank == root)
    return outcome.c.array


def _request_of(session: Session, matrices: RootMatrices, root: int, *, all_shared: bool) -> ProductRequest:
    team, problem, left_out = session.team, matrices.problem, session.left_out
    # Matrices on a GPU need room in host memory: to be copied through it, and for the check.
    besides = [problem.bytes_of_matrices if matrices.on_gpu and rank == root else 0 for rank in range(team.size)]
    location = OperandLocation.NODE_SHARED if all_shared else OperandLocation.ROOT_ARRAYS
    return ProductRequest(
        problem, location, root, bytes_there=matrices.allocated_bytes, besides=tuple(besides), left_out=left_out
    )


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
