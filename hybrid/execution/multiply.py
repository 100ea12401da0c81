# SPDX-License-Identifier: MIT
"""The calls of `multiply` and `empty`: all ranks decide together, compute, and raise together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import index
from typing import Any

import numpy as np

from hybrid.arrays.block_2d import Block2D, Blocks, problem_of_2d
from hybrid.arrays.distributed import BlockShapes, RowBlock, TransposedRowBlock, refuse_shapes, refuse_unused_c, refuse_wrong_c
from hybrid.arrays.gemm import PRODUCT, Gemm, numpy_type, product_type, real_operands, type_name
from hybrid.arrays.interop import as_rows, await_callers_work, empty_like, to_device_of
from hybrid.arrays.root_operands import (
    RootMatrices,
    RootOperands,
    RootStack,
    StackShape,
    arrays_of,
    lie_shared,
    matrices_of,
    operands_at_root,
)
from hybrid.arrays.sources import MatrixSource, RootMatrix, SharedMatrix
from hybrid.core.problem import LARGEST_SIZE
from hybrid.core.settings import Settings
from hybrid.errors import UsageError
from hybrid.execution.calls import asked_for, exactly, refuse_no_rank, settle, threads_until_decided
from hybrid.execution.distributed_product import decide_on_row_blocks, run_distributed_product
from hybrid.execution.outcome import RunOptions
from hybrid.execution.product import element_types, run_product
from hybrid.execution.real_products import WantedPart, bytes_of_result, exact_product, part_of_product
from hybrid.execution.redistribution import scattered
from hybrid.execution.stack_call import multiply_stack_by_ranks
from hybrid.host.memory import empty_matrix
from hybrid.plan.plan import shortage_of_matrix
from hybrid.plan.tiling import OperandLocation
from hybrid.ranks.heartbeat import busy
from hybrid.selection.decision import Decision, ProductRequest
from hybrid.selection.machine import free_memory_of, same_on_all_ranks, take_inventory
from hybrid.selection.session import Session, agree

# -------- empty call
# One call of `empty`: a matrix in memory that the ranks of the root's node share.


def empty_shared(session: Session, shape: tuple[int, int], dtype: Any, root: int, stall: float | None) -> np.ndarray | None:
    """A matrix of undefined contents: the same on all ranks of the root's node, None on other nodes. Every rank calls it."""
    team, shared = session.team, session.shared_arrays
    with team.phase("agree", timed=False) as looking:
        settings = Settings.gather({"stall": stall})
        shape = _of_matrix(shape)
        refuse_no_rank(team, root)
        element = numpy_type(type_name(np.float64 if dtype is None else dtype))  # None means float64, as for NumPy
        asked = asked_for(settings, kind="an empty matrix", shape=shape, dtype=element.name, root=root)
        looking.mine = (asked, shared.gone, free_memory_of(session, settings, None, now=True))
    same_on_all_ranks([said[0] for said in looking.all])
    team.pretend_nodes(settings.ranks_per_node)
    shared.drop(said[1] for said in looking.all)
    rows, columns = shape
    free = [looking.all[rank][2] for rank in team.topology.nodes[team.topology.node_of(root)]]
    missing = shortage_of_matrix(rows * columns * element.itemsize, free, shared=len(free) > 1)
    if missing:
        with team.phase("allocate", timed=False):
            raise missing.error()
    if team.size == 1:
        return empty_matrix(rows, columns, element)
    return shared.make(team, (rows, columns), element, root)


def _of_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """The shape, as NumPy takes it. UsageError for any other but that of a matrix."""
    try:
        rows, columns = (index(each) for each in shape if not isinstance(each, bool))
    except (TypeError, ValueError):
        raise UsageError(f"shape {shape!r} is not that of a matrix: two whole numbers are", code="shapes") from None
    if not (0 <= rows <= LARGEST_SIZE and 0 <= columns <= LARGEST_SIZE):
        raise UsageError(f"shape {shape!r} is not that of a matrix: its sizes are 0 to {LARGEST_SIZE}", code="shapes")
    return rows, columns


# -------- row block call
# One call of `multiply` with RowBlocks: all ranks decide together, compute, and raise together.


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
        product, check = run_distributed_product(session, decision, a, b, settings)
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


# -------- block 2d call
# One call of `multiply` with Block2Ds: all ranks decide together, compute, and raise together.


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
        product, check = run_distributed_product(session, decision, real_a, real_b, settings)
        settle(check, warns=False)
        return product

    def named(row: int, column: int) -> str:
        return f"element [{a.indices[0][row]}, {b.indices[1][column]}] of the product"

    part = part_of_product(session, decision, (a.array, b.array, None), WantedPart(types, gemm, exact, named), multiply)
    return Block2D(part, shape, a.rows, b.columns)


# -------- root call
# One call of `multiply` with matrices of the root: all ranks learn what the root has, decide together, compute, and raise
# together.


def multiply_root_arrays(
    session: Session, operands: tuple[Any, Any, Any], root: int, out: Any, flags: dict[str, Any], asked_gemm: Mapping[str, Any]
) -> Any:
    """At the root the result, in `out` where that is given; None elsewhere. Every rank calls it.

    `operands`: A, B and C; C may be None, and elsewhere all are. `flags`: the settings that the call names; `asked_gemm`: what
    it asks for beside A and B.
    """
    team, shared = session.team, session.shared_arrays
    with team.phase("agree", timed=False) as looking:
        refuse_no_rank(team, root)
        settings, gemm = Settings.gather(flags), Gemm.of(asked_gemm)
        team.pretend_nodes(settings.ranks_per_node)
        given, described = _looked_at(session, operands, out, settings, gemm, asked_gemm) if team.rank == root else (None, None)
        asked = asked_for(settings, kind="a product of matrices of the root", root=root, **gemm.as_dict())
        looking.mine = (asked, take_inventory(session, settings), described, shared.gone)
    same_on_all_ranks([said[0] for said in looking.all])
    matrices: RootMatrices | StackShape | UsageError = looking.all[root][2]
    if isinstance(matrices, UsageError):
        raise matrices
    shared.drop([looking.all[root][3]])
    if isinstance(matrices, StackShape):
        assert given is None or isinstance(given, RootStack)
        done, result = multiply_stack_by_ranks(session, matrices, given, root, settings, gemm, [said[1] for said in looking.all])
        if not done:
            result = _one_after_the_other(session, matrices.count, given, root, flags, asked_gemm)
        return result if out is None or given is None else out
    assert given is None or isinstance(given, RootOperands)
    all_shared = lie_shared(team, matrices.locations)
    request = _request_of(session, matrices, root, all_shared=all_shared)
    settings = exactly(settings, matrices.types)
    decision = agree(session, request, settings, [said[1] for said in looking.all])
    c = _product(session, decision, settings, matrices, given, all_shared=all_shared)
    if given is None:
        return None
    if out is None:
        return given.shaped(c)
    assert given.out is not None
    if not np.may_share_memory(given.out, c):
        np.copyto(given.out, c)
    return out


def _looked_at(
    session: Session, operands: tuple[Any, Any, Any], out: Any, settings: Settings, gemm: Gemm, asked_gemm: Mapping[str, Any]
) -> tuple[RootOperands | RootStack | None, RootMatrices | StackShape | UsageError]:
    """The root's arrays, and what the other ranks must know of them.

    A UsageError is returned and not raised: all ranks raise it when it is clear that they mean the same root.
    """
    plain_out = out.view(np.ndarray) if isinstance(out, np.ndarray) and not isinstance(out, np.ma.MaskedArray) else out
    try:
        refuse_unused_c(operands[2], asked_gemm)
        given = operands_at_root(*operands, plain_out, gemm, partial(threads_until_decided, session.team, settings))
        if isinstance(given, RootOperands):
            return given, RootMatrices.of(session.team, session.shared_arrays, given)
    except UsageError as wrong:
        return None, wrong
    free = free_memory_of(session, settings, None, now=True)
    if missing := shortage_of_matrix(given.bytes_of_result, [free], shared=False):
        raise missing.error()
    return given, given.described


def _one_after_the_other(
    session: Session, count: int, stack: RootStack | None, root: int, flags: dict[str, Any], asked_gemm: Mapping[str, Any]
) -> Any:
    """The result of a stack at the root, of which each product is computed by all ranks."""
    result = stack.result() if stack is not None else None
    for number in range(count):
        operands, out = (None, None, None), None
        if stack is not None and result is not None:
            operands, out = stack.of_product(number), result[stack.place(number)]
        multiply_root_arrays(session, operands, root, out, flags, asked_gemm)
    return result


def _product(
    session: Session,
    decision: Decision,
    settings: Settings,
    matrices: RootMatrices,
    given: RootOperands | None,
    *,
    all_shared: bool,
) -> Any:
    """The result as a matrix at the root, and None elsewhere."""
    team, threads = session.team, decision.placements[session.team.rank].threads.count
    result = given.exact_result() if given is not None and given.exact is not None else None
    for number, prime in enumerate(matrices.primes):
        c_array = given.real_out if given is not None else None
        if all_shared:
            first, second, c_array = _shared_operands(session, matrices, decision)
        elif matrices.on_gpu:
            first, second, c_array = _from_gpu(session, decision, matrices, given)
        elif given is not None:
            first, second = given.sources(threads, prime)
        else:
            first, second = _elsewhere(matrices)
        outcome = run_product(session, decision, first, second, settings, RunOptions(out=c_array, measured=False))
        settle(outcome.check, warns=given is not None)
        c = outcome.c.array
        if result is not None:
            with busy():
                result.add(number, c, threads)
    if not matrices.finishes:
        return given.finished(c, threads) if given is not None else None
    with team.phase("gather", timed=False), busy():
        if result is not None and given is not None:
            return result.result(given.out, threads)
        return given.finished(c, threads) if given is not None else None


def _elsewhere(matrices: RootMatrices) -> tuple[RootMatrix, RootMatrix]:
    """A and B on ranks that are not the root."""
    problem = matrices.problem
    return RootMatrix((problem.n, problem.l), None), RootMatrix((problem.l, problem.m), None)


def _request_of(session: Session, matrices: RootMatrices, root: int, *, all_shared: bool) -> ProductRequest:
    """What is to be decided on."""
    team, problem, left_out = session.team, matrices.problem, session.left_out
    # Matrices on a GPU need room in host memory: to be copied through it, and for the check.
    at_root = problem.bytes_of_matrices if matrices.on_gpu else matrices.derived_bytes if len(team.topology.nodes) > 1 else 0
    at_root += matrices.bytes_beside
    besides, on_gpu = (tuple(each if rank == root else 0 for rank in range(team.size)) for each in (at_root, matrices.gpu_bytes))
    location = OperandLocation.NODE_SHARED if all_shared else OperandLocation.ROOT_ARRAYS
    return ProductRequest(
        problem,
        location,
        root,
        bytes_there=matrices.allocated_bytes,
        besides=besides,
        besides_on_gpu=on_gpu if any(on_gpu) else (),
        left_out=left_out,
    )


def _shared_operands(
    session: Session, matrices: RootMatrices, decision: Decision
) -> tuple[MatrixSource, MatrixSource, np.ndarray | None]:
    """A, B and, where it is shared as well, C as this rank sees them."""
    problem, types = matrices.problem, element_types(matrices.problem)
    shapes = {"A": (problem.n, problem.l), "B": (problem.l, problem.m), "C": (problem.n, problem.m)}
    a, b, c = (
        session.shared_arrays.array_at(location, shapes[key], types[key]) if location is not None else None
        for key, location in zip("ABC", matrices.locations, strict=True)
    )
    assert a is not None
    assert b is not None
    first, second = (
        SharedMatrix(each, decision.plan.problem.operand_dtype, as_it_lies=decision.reads_transposed) for each in (a, b)
    )
    return first, second, c


def _from_gpu(
    session: Session, decision: Decision, matrices: RootMatrices, given: RootOperands | None
) -> tuple[RootMatrix, RootMatrix, Any]:
    """A and B on their GPU, and room for C beside them, where the plan copies them from there; else A and B in host memory."""
    plan, team = decision.plan, session.team
    with team.phase("scatter"):
        if given is None:
            return *_elsewhere(matrices), None
        stay, types = plan.at_root and plan.device == "cuda", matrices.types
        device, threads = "cuda" if stay else "cpu", decision.placements[team.rank].threads.count
        first, second = given.a, given.b
        if types.complex_b:
            first, second = real_operands(first, second, types, given.gemm, device=device, threads=threads)
        first, second = (as_rows(array, plan.problem.operand_dtype, device=device) for array in (first, second))
        c = empty_like(first, plan.problem.n, plan.problem.m, plan.problem.dtype) if stay else None
        await_callers_work(first, second)
        return RootMatrix(first.shape, first), RootMatrix(second.shape, second), c
