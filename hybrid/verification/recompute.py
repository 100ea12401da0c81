# SPDX-License-Identifier: MIT
"""Computing again the parts of C that are wrong, by BLAS on the CPU from the operands in host memory. Each part is then checked:
by the sums that the device's check expects, if there are such, else from the operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from hybrid.core.spans import Span, pieces
from hybrid.host.blas import blas_of_long_sums
from hybrid.host.memory import RowView
from hybrid.host.threads import limited_threads
from hybrid.plan.plan import Plan
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team
from hybrid.verification.check import Check
from hybrid.verification.freivalds import ExpectedSums, joined_by_rows, verify_alone
from hybrid.verification.second_look import WrongParts, element_is_wrong

_BYTES_AT_ONCE = 32 << 20  # of C
_COLUMNS_AT_ONCE = 512  # at most, where columns of B, or what was computed, are sent to other ranks


@dataclass(frozen=True)
class Recomputed:
    """A part of C that a rank computed again."""

    rows: Span
    columns: Span
    by: int  # the rank
    change: float  # the largest of any element
    was_wrong: bool  # False where rounding errors explain the change
    check: Check  # of the part as it is now


def recompute(
    team: Team,
    plan: Plan,
    matrices: Sequence[RowView],
    wrong: WrongParts,
    expected: Sequence[ExpectedSums],
    threads: int,
    row_blocks: Sequence[Span] = (),
) -> list[Recomputed]:
    """Compute again the parts of C that are wrong, and write them to it. Every rank calls this and gets the same result.

    `matrices`: A, B and C as `verify` takes them. `wrong`: the same on all ranks. Where ranks of a node share the matrices,
    another rank computes a part than the one that multiplied it. `expected`: a part that lies in one of these is checked by it.
    `row_blocks`: of the ranks that multiplied, where they are not the plan's; no part reaches over two of them.
    """
    recomputing = _Recomputing(team, plan, matrices, expected, threads)
    return recomputing.run(wrong, row_blocks or [share.rows for share in plan.shares])


@dataclass(frozen=True)
class _Task:
    """A part of C to be computed again, and the rank that does it."""

    columns: Span
    rows: Span
    by: int


class _Recomputing:
    def __init__(
        self,
        team: Team,
        plan: Plan,
        matrices: Sequence[RowView],
        expected: Sequence[ExpectedSums],
        threads: int,
    ) -> None:
        self._team, self._plan, self._expected, self._threads = team, plan, expected, threads
        self._a, self._b, self._c = matrices
        several_nodes = len(plan.topology.nodes) > 1
        self._sends = several_nodes and not plan.has_row_blocks  # to the ranks that have C
        self._b_is_parted = plan.has_row_blocks or (several_nodes and plan.b_stays_parted)

    def run(self, wrong: WrongParts, row_blocks: Sequence[Span]) -> list[Recomputed]:
        tasks = sorted(self._tasks(wrong, row_blocks), key=lambda task: (task.columns, task.rows))
        if not (self._sends or self._b_is_parted):
            return self._together(tasks, None)
        done = []
        for columns, of_columns in groupby(tasks, key=lambda task: task.columns):
            done += self._together(list(of_columns), self._columns_of_b(columns) if self._b_is_parted else None)
        return done

    def _tasks(self, wrong: WrongParts, row_blocks: Sequence[Span]) -> Iterator[_Task]:
        """The wrong parts of C, divided among ranks that have the operands; where there is one, not the rank that multiplied."""
        plan = self._plan
        widest = _COLUMNS_AT_ONCE if self._sends or self._b_is_parted else plan.problem.m
        turn = 0
        for share in plan.shares:
            members = [share.rank] if plan.has_row_blocks else plan.topology.nodes[share.node]
            others = [rank for rank in members if rank != share.rank] or [share.rank]
            found = [part for block in row_blocks for part in wrong.blocks(share.rows.common(block))]
            for rows, columns in found:
                for some_columns in pieces(columns, widest):
                    for some_rows in pieces(rows, max(1, _BYTES_AT_ONCE // plan.problem.bytes(1, len(some_columns)))):
                        yield _Task(some_columns, some_rows, others[turn % len(others)])
                        turn += 1

    def _columns_of_b(self, columns: Span) -> np.ndarray:
        """These columns of B, from all ranks, each of which has some of their rows."""
        with self._team.phase("repair") as gathering:
            gathering.mine = np.ascontiguousarray(self._b[self._plan.shares[self._team.rank].b_rows][:, columns.slice])
        return joined_by_rows(self._plan, gathering.all, "b_rows")

    def _together(self, tasks: list[_Task], b: np.ndarray | None) -> list[Recomputed]:
        """Each rank computes its tasks; returns all ranks'. `b`: the tasks' columns of B, where they were gathered."""
        before = self._before(tasks)
        with self._team.phase("repair") as computing, busy(), limited_threads(self._threads):
            computing.mine = [
                self._compute(task, b if b is not None else self._b[Span(0, self._plan.problem.l)][:, task.columns.slice], c)
                for task, c in zip(tasks, before, strict=True)
                if task.by == self._team.rank
            ]
        done = [entry for of_rank in computing.all for entry in of_rank]
        if self._sends:
            with self._team.phase("repair"):
                for recomputed, product in done:
                    self._write(recomputed.rows, recomputed.columns, product)
        return [recomputed for recomputed, _ in done]

    def _before(self, tasks: list[_Task]) -> list[np.ndarray]:
        """The elements of C that each task replaces, for this rank's tasks; of others' tasks anything. Where only the root's node
        has the gathered C, the root sends the others what is in it."""
        if not self._sends or not self._plan.c_only_at_root:
            mine = self._team.rank
            return [self._c[each.rows][:, each.columns.slice] if each.by == mine else self._c.array for each in tasks]
        with self._team.phase("repair") as telling:
            if self._team.rank == self._plan.root:
                telling.mine = [np.array(self._c[task.rows][:, task.columns.slice]) for task in tasks]
        told: list[np.ndarray] = telling.all[self._plan.root]
        return told

    def _compute(self, task: _Task, b: np.ndarray, c: np.ndarray) -> tuple[Recomputed, np.ndarray | None]:
        """Compute a part of C and write it to `c`. Also returns the elements, where they are to be sent to other ranks."""
        a = self._a[task.rows]
        with np.errstate(all="ignore"):  # A and B may hold NaN or infinities
            product = np.empty(c.shape, np.result_type(a, b))
            blas_of_long_sums(a, b, product)
            changes = np.abs(np.subtract(product, c))
        of_task = (expected.part(task.rows, task.columns) for expected in self._expected)
        expected = next((part for part in of_task if part is not None), None)
        change, was_wrong = float(changes.max(initial=0.0)), self._is_wrong(a, b, c, changes, expected)
        c[...] = product
        check = expected.check(c) if expected is not None else None
        if check is None or not check.ok:
            check = verify_alone(a, b, c, self._threads)
        recomputed = Recomputed(task.rows, task.columns, self._team.rank, change, was_wrong, check)
        return recomputed, product if self._sends else None

    def _is_wrong(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, changes: np.ndarray, expected: ExpectedSums | None) -> bool:
        """Whether C is wrong, given the changes to each element that make it right. Mostly the largest change tells; else the
        largest in the sum that differs most from the expected one."""
        if not changes.any():
            return False
        row, column = divmod(int(changes.argmax()), changes.shape[1])
        problem = self._plan.problem
        if element_is_wrong(problem, a, b, c, row, column):
            return True
        if expected is not None:
            if expected.exact:
                return not expected.check(c).ok
            row, columns = expected.most_wrong(c)
            column = columns.lo + int(changes[row, columns.slice].argmax())
        return element_is_wrong(self._plan.problem, a, b, c, row, column) or (
            expected is None and not verify_alone(a, b, c, self._threads).ok
        )

    def _write(self, rows: Span, columns: Span, product: np.ndarray) -> None:
        own = rows.common(self._plan.c_rows_at_the_end(self._team.rank))
        if len(own):
            self._c[own][:, columns.slice] = product[own.within(rows).slice]
