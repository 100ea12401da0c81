# SPDX-License-Identifier: MIT
"""One call of `multiply` with Block2Ds: all ranks decide together, compute, and raise together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hybrid.arrays.block_2d import Block2D
from hybrid.arrays.blocks_of_product import Blocks, problem_of_2d
from hybrid.arrays.gemm import PRODUCT, Gemm
from hybrid.arrays.row_block import RowBlock
from hybrid.core.settings import Settings
from hybrid.errors import UsageError
from hybrid.execution.block_2d_product import run_block_2d_product
from hybrid.execution.calls import asked_for, settle, threads_until_decided
from hybrid.execution.part_of_product import WantedPart, bytes_of_result, exact_product, part_of_product
from hybrid.execution.row_block_call import multiply_row_blocks
from hybrid.plan.request import OperandLocation
from hybrid.selection.agreement import agree
from hybrid.selection.decision import ProductRequest
from hybrid.selection.inventory import same_on_all_ranks, take_inventory
from hybrid.selection.session import Session


def multiply_blocks_2d(
    session: Session, operands: tuple[Any, Any, Any], root: int, out: Any, flags: dict[str, Any], asked_gemm: Mapping[str, Any]
) -> Block2D:
    """This rank's part of the product of Block2Ds. Every rank calls it.

    `operands`: its parts of A and B; C is refused. `flags`: the settings that the call names; `asked_gemm`: what it asks for
    beside A and B.
    """
    team, (a, b, c) = session.team, operands
    with team.phase("agree", timed=False) as looking:
        settings, gemm = Settings.gather(flags), Gemm.of(asked_gemm)
        if out is not None or root != 0:
            raise UsageError("a product of Block2Ds has neither out nor root: every rank keeps its part", code="out")
        if c is not None or replace(gemm, dtype="") != PRODUCT:
            raise UsageError(
                "a product of Block2Ds is of a and b alone: for alpha, beta, c and op use RowBlocks", code="option-combination"
            )
        if settings.on_fault == "repair":
            raise UsageError(
                "a product of Block2Ds cannot be repaired: use RowBlocks, or on_fault 'raise'", code="option-combination"
            )
        if settings.device == "auto":
            settings = replace(settings, device="cpu")
        asked = asked_for(settings, kind="a product of Block2Ds", root=root, dtype=gemm.dtype)
        blocks_here = Blocks.of(a, b, gemm.dtype, partial(threads_until_decided, team, settings))
        looking.mine = (asked, take_inventory(session, settings), blocks_here)
    same_on_all_ranks([said[0] for said in looking.all])
    team.pretend_nodes(settings.ranks_per_node)
    blocks: list[Blocks] = [said[2] for said in looking.all]
    problem, placement = problem_of_2d(blocks)
    shape = blocks[0].shape_a[0], blocks[0].shape_b[1]
    if team.size == 1:
        rows = RowBlock(a.in_order()), RowBlock(b.in_order()), None
        whole = multiply_row_blocks(session, rows, root, None, flags, {"dtype": gemm.dtype or None}).array
        return Block2D(whole[np.ix_(a.indices[0], b.indices[1])], shape, a.rows, b.columns)
    types, exact = blocks[0].types, None
    if types.exact:
        exact = exact_product(blocks[0].shape_a[1], [each.largest for each in blocks], gemm)
        types, problem = replace(types, computed=exact.computed), replace(problem, dtype=exact.computed)
    besides = tuple(each.copied_bytes + bytes_of_result(each.elements_of_c, types, exact) for each in blocks)
    request = ProductRequest(problem, OperandLocation.BLOCKS_2D, blocks_2d=placement, besides=besides)
    decision = agree(session, request, settings, [said[1] for said in looking.all])

    def multiply(real_a: Any, real_b: Any) -> Any:
        product, check = run_block_2d_product(session, decision, real_a, real_b, settings)
        settle(check, warns=False)
        return product

    def named(row: int, column: int) -> str:
        return f"element [{a.indices[0][row]}, {b.indices[1][column]}] of the product"

    part = part_of_product(session, decision, (a.array, b.array, None), WantedPart(types, gemm, exact, named), multiply)
    return Block2D(part, shape, a.rows, b.columns)
