# SPDX-License-Identifier: MIT
"""One call of `multiply` with RowBlocks: all ranks decide together, compute, and raise together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hybrid.arrays.combine import finished
from hybrid.arrays.complex_matrices import complex_view, real_operands
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.integers import Exact, ExactResult, write_remainders
from hybrid.arrays.interop import on_host, to_device_of
from hybrid.arrays.operand_checks import refuse_shapes, refuse_wrong_c
from hybrid.arrays.product_type import ProductType, numpy_type, product_type
from hybrid.arrays.root_operands import arrays_of, matrices_of
from hybrid.arrays.row_block import BlockShapes, RowBlock, problem_of_blocks
from hybrid.arrays.transposed_row_block import TransposedRowBlock
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.execution.calls import asked_for, exactly, settle, threads_until_decided
from hybrid.execution.redistribution import scattered
from hybrid.execution.row_block_product import run_row_block_product
from hybrid.plan.request import OperandLocation, RowBlocks
from hybrid.ranks.heartbeat import busy
from hybrid.selection.agreement import agree
from hybrid.selection.decision import Decision, ProductRequest
from hybrid.selection.inventory import same_on_all_ranks, take_inventory
from hybrid.selection.session import Session


def multiply_row_blocks(
    session: Session, operands: tuple[Any, Any, Any], root: int, out: Any, flags: dict[str, Any], asked_gemm: Mapping[str, Any]
) -> RowBlock:
    """This rank's rows of the product. `operands`: A, B and C, or None."""
    team = session.team
    with team.phase("agree", timed=False) as looking:
        settings, gemm = Settings.gather(flags), Gemm.of(asked_gemm)
        if out is not None or root != 0:
            raise UsageError("a product of RowBlocks has neither out nor root: every rank keeps its rows")
        transposed = _transposed(operands, gemm)
        threads = partial(threads_until_decided, team, settings)
        asked = asked_for(settings, kind="RowBlocks", root=root, **gemm.as_dict(), transposed=transposed)
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
    shapes: list[BlockShapes] = [said[2] for said in looking.all]
    types, gemm, exact = _types(shapes, gemm)
    problem, rows_a, rows_b = problem_of_blocks(shapes)
    m = shapes[0].b[1]
    beside = [each.copied_bytes + _bytes_beside(each.a[0] * m, types, exact) for each in shapes]
    row_blocks = RowBlocks(tuple(rows_a), tuple(rows_b))
    request = ProductRequest(
        replace(problem, dtype=types.computed).with_operands(types.short_operands),
        OperandLocation.ROW_BLOCKS,
        row_blocks=row_blocks,
        besides=tuple(beside),
        besides_on_gpu=_on_gpu(shapes),
    )
    settings = exactly(settings, types)
    decision = agree(session, request, settings, [said[1] for said in looking.all])
    product = _product(session, decision, settings, operands, (types, gemm, exact))
    return RowBlock(product, first_row=decision.plan.shares[team.rank].rows.lo)


def _transposed(operands: tuple[Any, Any, Any], gemm: Gemm) -> tuple[bool, ...]:
    """Which operands are transposed, as a view or by a flag. UsageError for what is no RowBlock."""
    for name, block in zip("abc", operands, strict=True):
        if not isinstance(block, (RowBlock, TransposedRowBlock)) and not (name == "c" and block is None):
            others = "a and b are RowBlocks" if name == "c" else "the other operand is one"
            raise UsageError(f"{name} is no RowBlock, but {others}: pass RowBlocks for both, on every rank")
    a, b, c = (isinstance(each, TransposedRowBlock) for each in operands)
    return a != gemm.transpose_a, b != gemm.transpose_b, c and gemm.beta != 0


def _without_views(operands: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    a, b, c = (each.rows if isinstance(each, TransposedRowBlock) else each for each in operands)
    return a, b, c


def _rows_of_operands(session: Session, operands: tuple[Any, Any, Any], transposed: tuple[bool, ...]) -> tuple[Any, Any, Any]:
    """With the rows of the transpose for what is transposed, in equal shares, where its elements lie: on each rank's GPU, or on
    the host."""

    def rows_of(block: RowBlock) -> RowBlock:
        if session.team.size == 1:
            return RowBlock(block.T.array)
        rows = scattered(session, block.T, None, 0).array
        with session.team.phase("scatter", timed=False):
            return RowBlock(to_device_of(block.array, rows))

    a, b, c = (rows_of(each) if is_transposed else each for each, is_transposed in zip(operands, transposed, strict=True))
    return a, b, c


def _types(shapes: Sequence[BlockShapes], gemm: Gemm) -> tuple[ProductType, Gemm, Exact | None]:
    """What is computed, for the largest integers of all ranks."""
    types = shapes[0].types
    gemm = gemm.of_type(types)
    if not types.exact or any(each.types != types for each in shapes):  # which is refused later
        return types, gemm, None
    a, b, c = map(max, zip(*(each.largest for each in shapes), strict=True))
    exact = Exact.of(shapes[0].a[1], (a, b), alpha=gemm.alpha, beta=gemm.beta, largest_c=c)
    return replace(types, computed=exact.computed), gemm, exact


def _on_gpu(shapes: Sequence[BlockShapes]) -> tuple[int, ...]:
    """Of all ranks' GPUs; nothing where none takes anything, as for most products."""
    taken = tuple(each.gpu_bytes for each in shapes)
    return taken if any(taken) else ()


def _bytes_beside(elements: int, types: ProductType, exact: Exact | None) -> int:
    """Of so many elements of C, beside those of the real product's C."""
    if exact is not None:
        return exact.bytes_beside(elements, types.result)
    return elements * numpy_type(types.result).itemsize if types.converts else 0


def _product(
    session: Session,
    decision: Decision,
    settings: Settings,
    operands: tuple[Any, Any, Any],
    what: tuple[ProductType, Gemm, Exact | None],
) -> Any:
    """This rank's rows of C, where its rows of A lie."""
    team, (types, gemm, exact) = session.team, what
    threads = decision.placements[team.rank].threads.count
    a, b = (each.array for each in operands[:2])
    c = operands[2].array if operands[2] is not None else None
    result = None
    if exact is not None:
        first_row = decision.plan.shares[team.rank].rows.lo
        numbers = {"alpha": gemm.alpha, "beta": gemm.beta, "c": None if c is None else on_host(c), "first_row": first_row}
        result = ExactResult(exact, types.result, (len(a), b.shape[1]), **numbers)
    for number, prime in enumerate(exact.products if exact is not None else (0,)):
        first, second = real_operands_of_rank(session, decision, a, b, types, gemm, prime)
        product, check = run_row_block_product(session, decision, first, second, settings)
        settle(check, warns=team.rank == 0)
        if result is not None:
            with busy():
                result.add(number, product, threads)
    if not (types.complex_b or types.converts or gemm.combines):
        return product
    with team.phase("gather", timed=False), busy():
        if result is not None:
            return to_device_of(a, result.result(None, threads))
        product = complex_view(product) if types.complex_b else product
        return to_device_of(a, finished(product, types, gemm, c, None, threads))


def real_operands_of_rank(
    session: Session, decision: Decision, a: Any, b: Any, types: ProductType, gemm: Gemm, prime: int = 0
) -> tuple[Any, Any]:
    """This rank's parts of A and B of the real product; modulo the prime, where it is not 0."""
    if not types.complex_b and not types.exact:
        return a, b
    with session.team.phase("scatter", timed=False), busy():
        threads = decision.placements[session.team.rank].threads.count
        if not types.exact:
            conjugate = {"conjugate_a": gemm.conjugate_a, "conjugate_b": gemm.conjugate_b}
            return real_operands(a, b, types, device=decision.plan.device, threads=threads, **conjugate)
        real = []
        for each in (a, b):
            array = on_host(each)
            real.append(np.empty(array.shape, types.computed))
            write_remainders(array, prime, Span(0, len(array)), real[-1], threads)
        return real[0], real[1]


def multiply_on_gpu(
    session: Session, operands: tuple[Any, Any, Any], root: int, flags: dict[str, Any], asked_gemm: Mapping[str, Any]
) -> Any:
    """From GPU to GPU: the arrays are the only rank's row blocks."""
    a, b, c = operands
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
