# SPDX-License-Identifier: MIT
"""One call of `multiply` with RowBlocks: all ranks decide together, compute, and raise together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from hybrid.arrays.gemm import Gemm
from hybrid.arrays.interop import to_device_of
from hybrid.arrays.operand_checks import refuse_shapes, refuse_unused_c, refuse_wrong_c
from hybrid.arrays.product_type import product_type
from hybrid.arrays.root_operands import arrays_of, matrices_of
from hybrid.arrays.row_block import BlockShapes, RowBlock
from hybrid.arrays.transposed_row_block import TransposedRowBlock
from hybrid.core.settings import Settings
from hybrid.errors import UsageError
from hybrid.execution.calls import asked_for, refuse_no_rank, settle, threads_until_decided
from hybrid.execution.part_of_product import part_of_product
from hybrid.execution.redistribution import scattered
from hybrid.execution.row_block_decision import decide_on_row_blocks
from hybrid.execution.row_block_product import run_row_block_product
from hybrid.selection.inventory import same_on_all_ranks, take_inventory
from hybrid.selection.session import Session


def multiply_row_blocks(
    session: Session, operands: tuple[Any, Any, Any], root: int, out: Any, flags: dict[str, Any], asked_gemm: Mapping[str, Any]
) -> RowBlock:
    """This rank's rows of the product. `operands`: its rows of A and B, and of C or None. `flags`: the settings that the call
    names; `asked_gemm`: what it asks for beside A and B. Every rank calls it."""
    team = session.team
    with team.phase("agree", timed=False) as looking:
        settings, gemm = Settings.gather(flags), Gemm.of(asked_gemm)
        if out is not None or root != 0:
            raise UsageError("a product of RowBlocks has neither out nor root: every rank keeps its rows", code="out")
        transposed = _transposed(operands, gemm)
        refuse_unused_c(operands[2], asked_gemm)
        threads = partial(threads_until_decided, team, settings)
        asked = asked_for(settings, kind="a product of RowBlocks", root=root, **gemm.as_dict(), transposed=transposed)
        operands = _without_views(operands)
        if not any(transposed):
            shapes_here = BlockShapes.of(*operands, gemm, check=settings.check == "host", threads=threads)
            looking.mine = (asked, take_inventory(session, settings), shapes_here)
        else:
            looking.mine = (asked, None, None)
    same_on_all_ranks([said[0] for said in looking.all])
    if any(transposed):
        operands = _rows_of_operands(session, operands, transposed)
        asked_gemm = {**asked_gemm, "transpose_a": False, "transpose_b": False}
        return multiply_row_blocks(session, operands, root, out, flags, asked_gemm)
    team.pretend_nodes(settings.ranks_per_node)
    _, inventories, shapes = zip(*looking.all, strict=True)
    wanted, settings, decision = decide_on_row_blocks(session, shapes, inventories, settings, gemm)

    def multiply(a: Any, b: Any) -> Any:
        product, check = run_row_block_product(session, decision, a, b, settings)
        settle(check, warns=team.rank == 0)
        return product

    arrays = tuple(None if each is None else each.array for each in operands)
    part = part_of_product(session, decision, arrays, wanted, multiply)
    return RowBlock(part, first_row=decision.plan.shares[team.rank].rows.lo)


def _transposed(operands: tuple[Any, Any, Any], gemm: Gemm) -> tuple[bool, ...]:
    """For A, B and C whether the transpose is multiplied: a view `.T` and a flag each ask for it, both together for the matrix.
    UsageError for what is no RowBlock."""
    for name, block in zip("abc", operands, strict=True):
        if not isinstance(block, (RowBlock, TransposedRowBlock)) and not (name == "c" and block is None):
            others = "a and b are RowBlocks" if name == "c" else "the other operand is one"
            raise UsageError(f"{name} is no RowBlock, but {others}: pass RowBlocks for both, on every rank", code="mixed-kinds")
    a, b, c = (isinstance(each, TransposedRowBlock) for each in operands)
    return a != gemm.transpose_a, b != gemm.transpose_b, c and gemm.beta != 0


def _without_views(operands: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """The RowBlocks themselves, of which some operands are the transposes."""
    a, b, c = (each.rows if isinstance(each, TransposedRowBlock) else each for each in operands)
    return a, b, c


def _rows_of_operands(session: Session, operands: tuple[Any, Any, Any], transposed: tuple[bool, ...]) -> tuple[Any, Any, Any]:
    """The operands, with RowBlocks of the transpose in place of those that are `transposed`. Their rows are in equal shares, and
    lie where the elements did: on each rank's GPU, or in host memory."""

    def rows_of(block: RowBlock) -> RowBlock:
        if session.team.size == 1:
            return RowBlock(block.T.array)
        rows = scattered(session, block.T, None, 0).array
        with session.team.phase("scatter", timed=False):
            return RowBlock(to_device_of(block.array, rows))

    a, b, c = (rows_of(each) if is_transposed else each for each, is_transposed in zip(operands, transposed, strict=True))
    return a, b, c


def multiply_on_gpu(
    session: Session, operands: tuple[Any, Any, Any], root: int, flags: dict[str, Any], asked_gemm: Mapping[str, Any]
) -> Any:
    """The product of two arrays on this process's GPU, which are the row blocks of its only rank: it stays on the GPU."""
    refuse_no_rank(session.team, root)
    a, b, c = operands
    refuse_unused_c(c, asked_gemm)
    gemm = Gemm.of(asked_gemm)
    first, second, shape = matrices_of(*arrays_of(a, b, on_device=True), gemm)
    refuse_shapes(first.shape, second.shape)
    asked_gemm = {**asked_gemm, "transpose_a": False, "transpose_b": False}
    c = None if gemm.beta == 0 or c is None else arrays_of(a, c, on_device=True)[1]
    if c is not None:
        refuse_wrong_c(c, gemm, shape, product_type(first.dtype, second.dtype, gemm.dtype))
        c = RowBlock(c.reshape(first.shape[0], second.shape[1]))
    product = multiply_row_blocks(session, (RowBlock(first), RowBlock(second), c), root, None, flags, asked_gemm).array
    return product.reshape(shape)
