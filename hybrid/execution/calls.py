# SPDX-License-Identifier: MIT
"""One call of `multiply` on every rank: all ask for the same, decide together, compute, and raise together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hybrid.arrays.block_2d import Block2D, Blocks, problem_of_2d
from hybrid.arrays.complex_matrices import complex_view, real_operands
from hybrid.arrays.interop import as_gpu_matrix, to_device_of
from hybrid.arrays.product_type import ProductType
from hybrid.arrays.root_arrays import refuse_shapes
from hybrid.arrays.row_block import BlockShapes, RowBlock, problem_of_blocks
from hybrid.core.caller import warn
from hybrid.core.settings import Settings
from hybrid.errors import CheckFailed, UsageError
from hybrid.execution.block_2d_product import run_block_2d_product
from hybrid.execution.row_block_product import run_row_block_product
from hybrid.plan.request import OperandLocation, RowBlocks
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team
from hybrid.selection.agreement import agree
from hybrid.selection.decision import Decision, ProductRequest
from hybrid.selection.inventory import same_on_all_ranks, take_inventory
from hybrid.selection.session import Session
from hybrid.verification.check import Check


def asked_for(settings: Settings, **more: Any) -> dict[str, Any]:
    return more | settings.as_dict()


def refuse_no_rank(team: Team, root: int) -> None:
    if type(root) is not int or not 0 <= root < team.size:
        raise UsageError(f"root {root!r} is not a rank of a communicator of {team.size}")


def settle(check: Check | None, *, warns: bool) -> None:
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
    types = shapes[0].types
    first, second = _real_operands(session, decision, a.array, b.array, types)
    c, check = run_row_block_product(session, decision, first, second, settings)
    settle(check, warns=team.rank == 0)
    if types.complex_b:
        with team.phase("scatter", timed=False):
            c = to_device_of(a.array, complex_view(c))
    return RowBlock(c)


def _real_operands(session: Session, decision: Decision, a: Any, b: Any, types: ProductType) -> tuple[Any, Any]:
    """This rank's parts of A and B of the real product."""
    if not types.complex_b:
        return a, b
    with session.team.phase("scatter", timed=False), busy():
        threads = decision.placements[session.team.rank].threads.count
        return real_operands(a, b, types, device=decision.plan.device, threads=threads)


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
    shape = blocks[0].shape_a[0], blocks[0].shape_b[1]
    if team.size == 1:
        whole = multiply_row_blocks(session, RowBlock(a.in_order()), RowBlock(b.in_order()), root, None, flags).array
        return Block2D(whole[np.ix_(a.indices[0], b.indices[1])], shape, a.rows, b.columns)
    besides = tuple(each.copied_bytes for each in blocks)
    request = ProductRequest(problem, OperandLocation.BLOCKS_2D, blocks_2d=placement, besides=besides)
    decision = agree(session, request, settings, [said[1] for said in looking.all])
    types = blocks[0].types
    c, check = run_block_2d_product(session, decision, *_real_operands(session, decision, a.array, b.array, types))
    settle(check, warns=False)
    return Block2D(complex_view(c) if types.complex_b else c, shape, a.rows, b.columns)


def multiply_on_gpu(session: Session, a: Any, b: Any, root: int, flags: dict[str, Any]) -> Any:
    """From GPU to GPU: the arrays are the only rank's row blocks."""
    first, second = as_gpu_matrix(a, "a"), as_gpu_matrix(b, "b")
    refuse_shapes(first.shape, second.shape)
    return multiply_row_blocks(session, RowBlock(first), RowBlock(second), root, None, flags).array
