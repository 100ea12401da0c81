# SPDX-License-Identifier: MIT
"""One call of `multiply` with Block2Ds: all ranks decide together, compute, and raise together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid.arrays.block_2d import Block2D, Blocks, problem_of_2d
from hybrid.arrays.complex_matrices import complex_view
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.row_block import RowBlock
from hybrid.core.settings import Settings
from hybrid.errors import UsageError
from hybrid.execution.block_2d_product import run_block_2d_product
from hybrid.execution.calls import asked_for, settle
from hybrid.execution.row_block_call import multiply_row_blocks, real_operands_of_rank
from hybrid.plan.request import OperandLocation
from hybrid.selection.agreement import agree
from hybrid.selection.decision import ProductRequest
from hybrid.selection.inventory import same_on_all_ranks, take_inventory
from hybrid.selection.session import Session


def multiply_blocks_2d(
    session: Session, operands: tuple[Any, Any, Any], root: int, out: Any, flags: dict[str, Any], asked_gemm: Mapping[str, Any]
) -> Block2D:
    """This rank's part of the product."""
    team, (a, b, c) = session.team, operands
    with team.phase("agree", timed=False) as looking:
        settings, gemm = Settings.gather(flags), Gemm.of(asked_gemm)
        if out is not None or root != 0:
            raise UsageError("a product of Block2Ds has neither out nor root: every rank keeps its part")
        if c is not None or gemm != Gemm():
            raise UsageError("a product of Block2Ds is of a and b alone: for alpha, beta, c, dtype and op use RowBlocks")
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
        whole = multiply_row_blocks(session, (RowBlock(a.in_order()), RowBlock(b.in_order()), None), root, None, flags, {}).array
        return Block2D(whole[np.ix_(a.indices[0], b.indices[1])], shape, a.rows, b.columns)
    besides = tuple(each.copied_bytes for each in blocks)
    request = ProductRequest(problem, OperandLocation.BLOCKS_2D, blocks_2d=placement, besides=besides)
    decision = agree(session, request, settings, [said[1] for said in looking.all])
    types = blocks[0].types
    real = real_operands_of_rank(session, decision, a.array, b.array, types, gemm)
    product, check = run_block_2d_product(session, decision, *real, settings)
    settle(check, warns=False)
    return Block2D(complex_view(product) if types.complex_b else product, shape, a.rows, b.columns)
