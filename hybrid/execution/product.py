# SPDX-License-Identifier: MIT
"""A product from operands anywhere to C at the root, in phases: fill, prepare, scatter, multiply, gather, check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybrid.arrays.interop import fill, on_host
from hybrid.arrays.root_operands import MatrixSource, RootMatrix, SharedMatrix
from hybrid.core.problem import Problem, Span
from hybrid.core.settings import Settings
from hybrid.core.text import tell_nobody
from hybrid.core.timeline import Timeline, wall
from hybrid.execution.between_nodes import ROWS, ROWS_AHEAD, OnGrid, gateways, panels_of, rows_from_root
from hybrid.execution.rank_run import Progress, RankCheck, RankRun
from hybrid.execution.session import MOST_SHARED, Session
from hybrid.host.memory import RowView, copy_rows, empty_result
from hybrid.host.threads import limited_threads
from hybrid.kernels.catalogue import numbers_of, storage
from hybrid.planning.decision import Decision
from hybrid.planning.plan import Plan
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.messages import Series
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.transport.base import RankMatrices
from hybrid.verification.check import Check, Suspect
from hybrid.verification.copies import verify_exchange
from hybrid.verification.freivalds import needs_no_sums_of_others, verify_alone

_ALIGNED = 64  # bytes: alignment of matrices in the workspace


def element_types(problem: Problem) -> dict[str, str]:
    """The dtypes of the arrays that hold A, B and C."""
    of_operands = storage(problem.operand_dtype).name
    return {"A": of_operands, "B": of_operands, "C": problem.dtype}


def views_in_workspace(session: Session, plan: Plan) -> dict[str, RowView] | None:
    """A, B and C in the workspace that the ranks of a single node keep between calls; None if they do not fit. Collective."""
    p = plan.problem
    shapes = {"A": (p.n, p.l), "B": (p.l, p.m), "C": (p.n, p.m)}
    if p.symmetric:
        del shapes["B"]
    found = room_in_workspace(session, plan, shapes)
    return _with_transpose(found, p) if found is not None and p.symmetric else found


def _with_transpose(views: dict[str, RowView], problem: Problem) -> dict[str, RowView]:
    """These matrices, and A's transpose as B."""
    return {**views, "B": RowView(views["A"].array.T, Span(0, problem.l))}


def room_in_workspace(session: Session, plan: Plan, shapes: Mapping[str, tuple[int, int]]) -> dict[str, RowView] | None:
    """Room for matrices of these shapes in the workspace, or None; also None for GPUs, which pin each matrix for their copies."""
    if plan.device != "cpu" or plan.staged or plan.at_root or not 1 < len(plan.topology.nodes[0]) == plan.topology.size:
        return None
    types, offsets, end = element_types(plan.problem), dict[str, int](), 0
    for key, (rows, columns) in shapes.items():
        offsets[key] = end
        end += rows * columns * np.dtype(types[key]).itemsize // _ALIGNED * _ALIGNED + _ALIGNED
    if end > MOST_SHARED:
        return None
    memory = session.workspace(end)
    return {key: RowView(np.ndarray(shape, types[key], memory, offsets[key]), Span(0, shape[0])) for key, shape in shapes.items()}


class RootProduct(RankRun):
    """A product with C in the root's memory, or in memory shared by the root's node."""

    comes_again = False  # the same matrices will be multiplied again
    may_use_workspace = True

    def __init__(
        self,
        session: Session,
        decision: Decision,
        operands: tuple[MatrixSource, MatrixSource],
        settings: Settings,
        out: np.ndarray | None = None,
        *,
        seed: int | None = None,
        progress: Progress = tell_nobody,
    ) -> None:
        """`out`: an array for C: the root's, or with shared operands the same shared array on all ranks."""
        super().__init__(session, decision, settings, seed, progress)
        self._operands, self._out = operands, out
        self._result: np.ndarray | None = None  # at the root, receives C from the workspace
        # The root's operands whose rows go to other nodes before the product: A, and B if each node loads only its own rows of
        # B. Otherwise panels of B are broadcast during the multiplication.
        self._sent: list[tuple[str, RootMatrix]] = []
        self._sending: Series | None = None

    def result(self) -> tuple[np.ndarray, Check | None]:
        """C, complete on the root's node, and its check. Collective."""
        self.team.timeline = Timeline()
        with limited_threads(self.threads):
            self.prepare({})
            check = self.computed()
            c = self.views["C"].array
            if self._result is None:
                return c, check
            copy_rows(self._result, c, self.threads)
            return self._result, check

    def prepare(self, kept: dict[str, RowView], there: str = "") -> None:
        """Allocate the matrices, fill A and B, and set up the multiplication. `kept`: matrices to reuse, the same operands on all
        ranks. `there`: operands that need no filling if they are in `kept`."""
        wall.enter("allocate")
        self.views = self._host_matrices(kept)
        wall.enter("fill")
        self._fill([key for key in there if key in kept])
        wall.enter("prepare")
        if len(self.plan.topology.nodes) > 1 and not self.plan.at_root:
            keys = "AB" if self.plan.b_stays_parted else "A"
            self._sent = [(key, each) for key, each in zip(keys, self._operands, strict=False) if isinstance(each, RootMatrix)]
        if self._sent:
            self.team.connect(ROWS, gateways(self.plan))
        self._set_up_matrices()

    def check_on_devices(self, check: RankCheck) -> Check:
        return check.result((self._operands, self.views)) if len(self.plan.topology.nodes) > 1 else check.result()

    def check_on_host(self, suspects: Sequence[Suspect] = ()) -> Check:
        team, plan, by = self.team, self.plan, self.decision.multiplied_by
        if not plan.at_root:
            for key, source in zip("AB", self._operands, strict=True):
                if len(plan.topology.nodes) > 1 and isinstance(source, RootMatrix):
                    rows = [share.rows if key == "A" else share.b_rows for share in plan.shares]
                    at_root = team.rank == plan.root
                    sent = {rank: [source.array[each.slice]] for rank, each in enumerate(rows)} if at_root else {}
                    received = {plan.root: [self.views[key][rows[team.rank]]]}
                    verify_exchange(team, key, sent, received, self.threads, plan.problem.dtype)
            return super().check_on_host(suspects)
        with team.phase("check") as checking:  # the root alone has the matrices, and uses the cores of all ranks
            if team.rank == plan.root:
                a, b, c = (numbers_of(on_host(self.views[key].array)) for key in "ABC")
                a, b = (each.astype(c.dtype, copy=False) for each in (a, b))  # 16-bit types as float32
                threads = sum(placement.threads.count for placement in self.decision.placements)
                checking.mine = verify_alone(a, b, c, threads, suspects, by, problem=plan.problem)
        check: Check = checking.all[plan.root]
        return check

    def _host_matrices(self, kept: dict[str, RowView]) -> dict[str, RowView]:
        """A, B and C by operand: the node's shared matrices, or the root's own arrays, in place if possible."""
        team, plan, problem, node = self.team, self.plan, self.plan.problem, self.team.node
        rows = plan.rows_on(node)
        columns, types = {"A": problem.l, "B": problem.m, "C": problem.m}, element_types(problem)
        if plan.at_root:
            return self._arrays_of_root({"A": problem.n, "B": problem.l, "C": problem.n}, columns, types)
        shared = {key: each for key, each in zip("AB", self._operands, strict=True) if isinstance(each, SharedMatrix)}
        there = {key: each.array for key, each in shared.items() if each.at_root}
        if shared and self._out is not None:
            there["C"] = self._out
        views = {**kept, **{key: RowView(array, rows[key]) for key, array in there.items()}}
        made = {key: span for key, span in rows.items() if key not in views and not (problem.symmetric and key == "B")}
        if not views and self.may_use_workspace and (found := views_in_workspace(self.session, plan)):
            self.in_workspace, c = True, found["C"].array
            if team.rank == plan.root:
                self._result = empty_result(len(c), c.shape[1], c.dtype.name) if self._out is None else self._out
            return found
        if made:
            self.session.drop_workspace()  # to free its memory for these
            views |= make_shared_matrices(team, made, columns, types)
        return _with_transpose(views, problem) if problem.symmetric else views

    def _arrays_of_root(self, rows: dict[str, int], columns: dict[str, int], types: dict[str, str]) -> dict[str, RowView]:
        """The whole matrices at the root, copied only if not contiguous or of another dtype; empty ones elsewhere."""
        team, plan, operand_dtype = self.team, self.plan, self.plan.problem.operand_dtype
        views: dict[str, RowView] = {}
        with team.phase("scatter", timed=False), busy():
            for key, source in zip("ABC", (*self._operands, None), strict=True):
                height, array = rows[key], self._out
                if key == "B" and plan.problem.symmetric:
                    array = views["A"].array.T
                elif source is not None:
                    array = source.in_place(operand_dtype, transposed=self.decision.reads_transposed)
                if team.rank != plan.root:
                    height, array = 0, np.empty((0, columns[key]), types[key])
                into = empty_result(height, columns[key], types[key]) if array is None else array
                views[key] = RowView(into, Span(0, height))
                if array is None and isinstance(source, RootMatrix):
                    source.rows(views[key].rows, into, self.threads, lambda done: team.enter("scatter"))
        return views

    def _fill(self, there: Sequence[str]) -> None:
        """Fill this rank's rows of the operands that are neither the root's arrays nor in `there`."""
        team, share, (a, b) = self.team, self.share, self._operands
        wanted = ((a, "A", share.rows), (b, "B", share.b_rows))[: 1 if self.plan.problem.symmetric else 2]
        parts = [(source, key, rows) for source, key, rows in wanted if not source.at_root and key not in there]
        if not parts:
            return
        before, all_rows = 0, sum(len(rows) for *_, rows in parts)
        with team.phase("fill"):
            for source, key, rows in parts:

                def filled(done: int, before: int = before) -> None:
                    team.enter("fill")
                    self.progress("fill", before + done, all_rows)

                source.rows(rows, self.views[key][rows], self.threads, filled)
                before += len(rows)

    def multiply(self) -> None:
        if not self.in_workspace:
            self.make_ready()
            self.multiply_now()
            return
        # Phase ends separate conflicting accesses to the workspace. Ranks write C after the phase `scatter`, which the root
        # enters once it has copied the previous C out. The root writes A and B after the previous product's last phase, which
        # other ranks end once they have read their operands.
        self.begin()
        self._scatter()
        self._poison_c()
        if self.plan.problem.symmetric:
            with self.team.phase("multiply", timed=False):
                self.multiply_in_phase()
        self.multiply_and_compare()

    def b_to_compare_with(self) -> RowView | None:
        return self.views["B"] if needs_no_sums_of_others(self.plan) else None

    def _scatter(self) -> None:
        """Copy the root's arrays to its node's shared matrices, and send rows to the other nodes."""
        team, plan = self.team, self.plan
        if plan.at_root:
            return
        with team.phase("scatter"):
            for key, operand in zip("A" if plan.problem.symmetric else "AB", self._operands, strict=False):
                if isinstance(operand, RootMatrix) and team.rank == plan.root:
                    view = self.views[key]
                    operand.rows(view.rows, view.array, self.threads, lambda done: team.enter("scatter"))
            if self._sending is not None:
                self._sending.wait_until_complete(ROWS_AHEAD)

    def make_ready(self) -> None:
        """Prepare copies, flags and sends, which the product's time excludes."""
        with self.team.phase("scatter", timed=False), busy():
            self._poison_c()
            self.begin(again=self.comes_again)
            if self._sent:
                rows = rows_from_root(self.team, self.plan, self._sent, self.views, self.settings.message_bytes)
                self._sending = self.team.messages.series(ROWS, gateways(self.plan), rows)

    def multiply_now(self) -> None:
        """Compute the product: operands in host memory, C at the root."""
        self._scatter()
        self.multiply_rows()
        if not self.plan.at_root:
            self.gather()

    def _set_up_matrices(self) -> None:
        plan, rank, (a, b, c) = self.plan, self.team.rank, (self.views[key] for key in "ABC")
        rows = plan.shares[rank].rows
        if plan.grid_layout is not None:
            of_c = c.array if rank == plan.root else c.array[:0]
            grid = OnGrid(self.team, plan, {"A": a[rows], "B": b[plan.shares[rank].b_rows], "C": of_c})
            self.set_up(grid.matrices, grid.panels())
            return
        matrices: RankMatrices | None = None  # this rank's rows; or all, at a root that owns them
        if not plan.at_root:
            of_c = rows if rows.lies_in(c.rows) else Span(0, 0)  # empty if this node keeps no C in host memory
            matrices = RankMatrices(a[rows], b, c[of_c])
        elif rank == plan.root:
            matrices = RankMatrices(a.array, b, c.array)
        from_root = isinstance(self._operands[1], RootMatrix)
        self.set_up(matrices, panels_of(self.team, plan, b, c, from_root=from_root, settings=self.settings))

    def _poison_c(self) -> None:
        """Fill C with NaN, so that the check finds elements that nobody wrote, even if a previous product left correct values."""
        plan, c = self.plan, self.views["C"]
        if self.settings.poison or (not plan.at_root and (self.comes_again or self.in_workspace)):
            rank = self.team.rank
            for rows in [c.rows] if plan.at_root else {plan.c_rows_at_the_end(rank), plan.shares[rank].rows}:
                fill(c[rows if rows.lies_in(c.rows) else Span(0, 0)], np.nan, self.threads)
