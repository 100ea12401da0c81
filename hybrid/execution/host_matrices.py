# SPDX-License-Identifier: MIT
"""A, B and C in host memory before a product: made or reused, and filled by the ranks that own their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from hybrid.arrays.sources import MatrixSource, RootMatrix, SharedMatrix
from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.execution.progress import Progress
from hybrid.host.numbers_view import NumbersView
from hybrid.host.page_memory import result_pool
from hybrid.host.row_view import RowView
from hybrid.kernels.elements import storage
from hybrid.plan.plan import Plan
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team


def host_matrices(
    team: Team,
    plan: Plan,
    a: MatrixSource,
    b: MatrixSource,
    out: np.ndarray | None,
    threads: int,
    kept: Mapping[str, RowView],
    *,
    as_they_lie: bool,
) -> dict[str, RowView]:
    """A, B and C by operand: the node's shared matrices, or the root's own arrays, as they lie if they can be read so. Every
    rank calls it.

    `kept`: matrices of an earlier product that this one takes over, the same ones on all ranks. `as_they_lie`: transposed ones
    can be read as they lie, by BLAS's flag, or by copies to a GPU, which transpose them.
    """
    problem, node = plan.problem, team.node
    rows = {"A": plan.a_rows_on(node), "B": plan.b_rows_on(node), "C": plan.c_rows_on(node)}
    columns = {"A": problem.l, "B": problem.m, "C": problem.m}
    if plan.at_root:
        return _arrays_of_root(team, plan, a, b, out, threads, as_they_lie=as_they_lie)
    types = element_types(problem)
    shared = {key: source for key, source in (("A", a), ("B", b)) if isinstance(source, SharedMatrix)}
    there = {key: source.array for key, source in shared.items() if source.at_root}
    if shared and out is not None:
        there["C"] = out
    views = {**kept, **{key: RowView(array, rows[key]) for key, array in there.items()}}
    made = {key: span for key, span in rows.items() if key not in views}
    return views | (make_shared_matrices(team, made, columns, types) if made else {})


def _arrays_of_root(
    team: Team, plan: Plan, a: MatrixSource, b: MatrixSource, out: np.ndarray | None, threads: int, *, as_they_lie: bool
) -> dict[str, RowView]:
    """At the root the whole matrices, which are copied only where they are not contiguous or have another type; elsewhere
    matrices without rows."""
    problem = plan.problem
    shapes = {"A": (problem.n, problem.l), "B": (problem.l, problem.m), "C": (problem.n, problem.m)}
    views, types = {}, element_types(problem)
    with team.phase("scatter", timed=False), busy():
        in_place = [_in_place(source, problem.operand_dtype, as_they_lie) for source in (a, b)]
        for key, array in zip("ABC", (*in_place, out), strict=True):
            height, width = shapes[key]
            if team.rank != plan.root:
                height, array = 0, np.empty((0, width), types[key])
            if array is None:
                array = result_pool.empty(height, width, types[key])
            views[key] = RowView(array, Span(0, height))
        for source, key, array in zip((a, b), "AB", in_place, strict=True):
            if team.rank == plan.root and isinstance(source, RootMatrix) and array is None:
                source.rows(views[key].rows, views[key].array, threads, lambda done: team.enter("scatter"))
    return views


def element_types(problem: Problem) -> dict[str, str]:
    """The types of the arrays that hold A, B and C."""
    of_operands = storage(problem.operand_dtype).name
    return {"A": of_operands, "B": of_operands, "C": problem.dtype}


def in_numbers(views: Iterable[RowView], problem: Problem) -> list[RowView]:
    """A, B and C in host memory, with elements with which the host computes: those of 16 bits as float32."""
    return [NumbersView(view) if problem.short_operands and view.array.itemsize == 2 else view for view in views]


def _in_place(source: MatrixSource, dtype: str, as_they_lie: bool) -> np.ndarray | None:
    """The array of the source, where it can be multiplied as it is; else None."""
    return source.as_it_lies(dtype) if as_they_lie and isinstance(source, RootMatrix) else source.in_place(dtype)


def fill(
    team: Team,
    plan: Plan,
    views: dict[str, RowView],
    a: MatrixSource,
    b: MatrixSource,
    threads: int,
    progress: Progress,
    *,
    b_is_there: bool = False,
) -> None:
    """Have every rank make or read its own rows of the operands that are not the root's arrays. With `b_is_there`, those of B
    are there already."""
    share = plan.shares[team.rank]
    wanted = ((a, "A", share.rows), (b, "B", share.b_rows))
    parts = [(source, key, rows) for source, key, rows in wanted if not (source.at_root or (key == "B" and b_is_there))]
    if not parts:
        return
    work = {key: len(rows) * views[key].array.shape[1] for _, key, rows in parts}  # elements
    before = 0
    with team.phase("fill"):
        for source, key, rows in parts:

            def filled(done: int, key: str = key, rows: Span = rows, before: int = before) -> None:
                team.enter("fill")
                progress("fill", before + work[key] * done // max(1, len(rows)), sum(work.values()))

            source.rows(rows, views[key][rows], threads, filled)
            before += work[key]
