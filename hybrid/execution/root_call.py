# SPDX-License-Identifier: MIT
"""One call of `multiply` with matrices of the root: all ranks learn what the root has, decide together, compute, and raise
together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from hybrid.arrays.complex_matrices import real_operands
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.interop import as_rows, await_callers_work, empty_like
from hybrid.arrays.operand_checks import refuse_unused_c
from hybrid.arrays.root_arrays import RootMatrices, lie_shared
from hybrid.arrays.root_operands import RootOperands
from hybrid.arrays.root_stack import RootStack, operands_at_root
from hybrid.arrays.sources import MatrixSource, RootMatrix, SharedMatrix
from hybrid.arrays.stack_share import StackShape
from hybrid.core.settings import Settings
from hybrid.errors import UsageError
from hybrid.execution.calls import asked_for, exactly, refuse_no_rank, settle, threads_until_decided
from hybrid.execution.host_matrices import element_types
from hybrid.execution.outcome import RunOptions
from hybrid.execution.product import run_product
from hybrid.execution.stack_call import multiply_stack_by_ranks
from hybrid.plan.capacity import shortage_of_matrix
from hybrid.plan.request import OperandLocation
from hybrid.ranks.heartbeat import busy
from hybrid.selection.agreement import agree
from hybrid.selection.decision import Decision, ProductRequest
from hybrid.selection.inventory import free_memory_of, same_on_all_ranks, take_inventory
from hybrid.selection.session import Session


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
