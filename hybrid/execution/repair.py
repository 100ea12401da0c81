# SPDX-License-Identifier: MIT
"""The repair of a product that has failed its check, where `on_fault` asks for it.

After a wrong copy the product is computed once more; else the part of C that is wrong is computed again by BLAS on the CPU,
from the operands in host memory, and checked. Whose device was wrong is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from hybrid.core.problem import record
from hybrid.core.spans import Span, pieces
from hybrid.execution.rank_run import CheckedRun
from hybrid.host.blas import blas
from hybrid.host.memory import RowView
from hybrid.host.threads import limited_threads
from hybrid.planning.plan import Plan
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team
from hybrid.selection.decision import Decision
from hybrid.verification.check import Check, Fault, WrongParts
from hybrid.verification.copies import WrongCopy
from hybrid.verification.freivalds import element_is_wrong, joined_by_rows, verify_alone

_NOTE = "repaired"


def repaired(product: CheckedRun, failed: Check, wrong: WrongParts) -> Check:
    """What is to be said of the product when it is right; `failed` where it cannot be made so. Every rank calls it.

    `wrong`: the parts that the check has found wrong.
    """
    decision, on_devices = product.decision, product.run.device_check
    plan, checked = decision.plan, failed
    copies = on_devices.wrong_copies() if on_devices is not None else []
    blamed: dict[int, str] = {}
    done: list[Recomputed] = []
    again: frozenset[int] = frozenset()  # the ranks for which the product was computed once more
    if copies:
        if not _blame(copies, blamed):
            return failed
        again = frozenset(blamed)
        checked, wrong = product.multiplied_again()  # a device does that sooner than a CPU
        copies = [] if checked.ok or on_devices is None else on_devices.wrong_copies()
    if not checked.ok:
        if not _blame(copies, blamed):
            return failed
        _add_what_copies_spoilt(wrong, plan, copies)
        done, checked = _computed_again(wrong, product, whole=bool(copies))
    if not checked.ok:
        return replace(failed, faults=(*failed.faults, Fault(f"C is still wrong: {checked.refusal()}")), undecided=False)
    cause = "multiplied wrong" if plan.check == "device" else "its rows of C are wrong"
    for share in plan.shares:
        if any(each.was_wrong and each.rows.meets(share.rows) for each in done):
            blamed.setdefault(share.rank, cause)
    if not blamed:
        return failed.settled(checked)
    lines = [_line(decision, rank, cause, done, once_more=rank in again) for rank, cause in sorted(blamed.items())]
    return replace(checked, note=f"{_NOTE}; {checked.note}" if checked.note else _NOTE, repaired=tuple(lines))


def _blame(copies: Sequence[WrongCopy], blamed: dict[int, str]) -> bool:
    """Note the ranks whose copies were wrong. False where rows differ between nodes, or were written meanwhile: then nobody can
    tell which values are right."""
    for copy in copies:
        if copy.rank is None:
            return False
        blamed.setdefault(copy.rank, copy.text)
    return True


def _add_what_copies_spoilt(wrong: WrongParts, plan: Plan, copies: Sequence[WrongCopy]) -> None:
    """Add to `wrong` the parts of C that were computed from what these copies brought, or copied wrong themselves."""
    for copy in copies:
        operand, rows, columns = copy.place
        assert copy.rank is not None
        if operand == "B":
            # All that was computed with it. No sample of rows tells how much that has changed in which column of C, for A may be
            # sparse, or its rows may have different scales.
            rows = plan.shares[copy.rank].rows
        elif operand == "A":
            columns = Span(0, plan.problem.m)
        wrong.add(np.arange(rows.lo, rows.hi), columns)


def _computed_again(wrong: WrongParts, product: CheckedRun, *, whole: bool) -> tuple[list[Recomputed], Check]:
    """Compute the wrong parts until they are right, but not for ever: the last time in all columns. Returns what was computed,
    and its check.

    `whole`: all of C is to be checked in any case, since for a wrong copy the checksums do not tell every row that is wrong.
    """
    done = product.compute_again(wrong)
    checked = _of_parts(done)
    if whole or not checked.ok:
        checked = product.check_on_host(wrong)  # more may be wrong than was found
    for last in (False, True):
        if checked.ok:
            break
        if last:
            wrong.in_all_columns()
        done += product.compute_again(wrong)
        checked = product.check_on_host(wrong)
    return done, checked


def _of_parts(parts: Sequence[Recomputed]) -> Check:
    """The check of parts that were computed again. All others have passed it before."""
    if not parts:
        return Check("none", 0.0, 0.0, False)
    worst = max((each.check for each in parts), key=lambda check: (check.kind, check.error))  # exact before freivalds
    return replace(worst, ok=all(each.check.ok and each.check.kind != "none" for each in parts))


def _line(decision: Decision, rank: int, cause: str, done: Sequence[Recomputed], *, once_more: bool) -> str:
    """What is said of a rank whose device was wrong."""
    who = f"{decision.device_of(rank)}: {cause}"
    if once_more:
        who += "; the product was computed once more"
    own = [each for each in done if each.rows.meets(decision.plan.shares[rank].rows)]
    if not own:
        return who if once_more else f"{who}; no element of C was changed by more than rounding errors"
    rows, columns = (
        Span(min(each.lo for each in spans), max(each.hi for each in spans))
        for spans in ([each.rows for each in own], [each.columns for each in own])
    )
    by, change = ", ".join(map(str, sorted({each.by for each in own}))), max(each.change for each in own)
    return f"{who}; rows {rows}, columns {columns} of C were computed again on the CPU of rank {by}, largest change {change:.2e}"


_BYTES_AT_ONCE = 32 << 20  # of C
_COLUMNS_AT_ONCE = 512  # at most, where columns of B, or what was computed, are sent to other ranks


@record
class Recomputed:
    """A part of C that a rank computed again."""

    rows: Span
    columns: Span
    by: int  # the rank
    change: float  # the largest of any element
    was_wrong: bool  # False where rounding errors explain the change
    check: Check  # of the part as it is now


@record
class _Task:
    """A part of C to be computed again, and the rank that does it."""

    columns: Span
    rows: Span
    by: int


class Recomputing:
    """Computes parts of C again and writes them to it. Every rank makes one. Where ranks of a node share the matrices, another
    rank computes a part than the one that multiplied it."""

    def __init__(self, team: Team, plan: Plan, matrices: Sequence[RowView], threads: int) -> None:
        """`matrices`: A, B and C as `verify` takes them."""
        self._team, self._plan, self._threads = team, plan, threads
        self._a, self._b, self._c = matrices
        several_nodes = len(plan.topology.nodes) > 1
        self._sends = several_nodes and not plan.has_row_blocks  # to the ranks that have C
        self._b_is_parted = plan.has_row_blocks or (several_nodes and plan.b_stays_parted)

    def run(self, wrong: WrongParts, row_blocks: Sequence[Span] = ()) -> list[Recomputed]:
        """Compute the parts that are wrong. Every rank calls it, with the same ones, and gets the same result. `row_blocks`: of
        the ranks that multiplied, where they are not the plan's; no part reaches over two of them."""
        row_blocks = row_blocks or [share.rows for share in self._plan.shares]
        tasks = sorted(self._tasks(wrong, row_blocks), key=lambda task: (task.columns, task.rows))
        if not (self._sends or self._b_is_parted):
            return self._together(tasks, None)
        done = []
        for columns, of_columns in groupby(tasks, key=lambda task: task.columns):
            b: np.ndarray | None = None
            if self._b_is_parted:
                with self._team.phase("repair") as gathering:
                    own_rows = self._b[self._plan.shares[self._team.rank].b_rows]
                    gathering.mine = np.ascontiguousarray(own_rows[:, columns.slice])
                b = joined_by_rows(self._plan, gathering.all, "b_rows")
            done += self._together(list(of_columns), b)
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
            blas(a, b, product)
            changes = np.abs(np.subtract(product, c))
        change, was_wrong = float(changes.max(initial=0.0)), False
        if changes.any():  # mostly the largest change tells whether it is more than rounding errors
            row, column = divmod(int(changes.argmax()), changes.shape[1])
            was_wrong = element_is_wrong(self._plan.problem, a, b, c, row, column)
            was_wrong = was_wrong or not verify_alone(a, b, c, self._threads).ok
        c[...] = product
        recomputed = Recomputed(task.rows, task.columns, self._team.rank, change, was_wrong, verify_alone(a, b, c, self._threads))
        return recomputed, product if self._sends else None

    def _write(self, rows: Span, columns: Span, product: np.ndarray) -> None:
        own = rows.common(self._plan.c_rows_at_the_end(self._team.rank))
        if len(own):
            self._c[own][:, columns.slice] = product[own.within(rows).slice]
