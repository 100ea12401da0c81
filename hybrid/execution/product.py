# SPDX-License-Identifier: MIT
"""A product, from its operands, wherever they are, to C at the root: fill, prepare, scatter, multiply, gather, check."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hybrid.arrays.sources import MatrixSource, RootMatrix
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.core.timeline import Spread, Timeline, slowest
from hybrid.core.wall import wall
from hybrid.execution.host_matrices import fill, host_matrices
from hybrid.execution.outcome import Outcome, RunOptions
from hybrid.execution.product_check import ProductCheck
from hybrid.execution.rank_run import RankRun
from hybrid.execution.scatter_gather import rows_from_root, scatter, transfers_of_b, transfers_of_c
from hybrid.host.row_copy import copy_rows
from hybrid.host.row_view import RowView
from hybrid.host.threads import limited_threads
from hybrid.plan.arithmetic import Computed, joined
from hybrid.plan.gather_layout import rows_written
from hybrid.ranks.heartbeat import asked_to_end, busy, finish_when_asked
from hybrid.ranks.team import Team
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.transport.base import RankMatrices
from hybrid.verification.check import Check

if TYPE_CHECKING:
    from hybrid.execution.grid_run import GridRun
    from hybrid.transport.row_exchange import RowExchange


def run_product(
    session: Session,
    decision: Decision,
    a: MatrixSource,
    b: MatrixSource,
    settings: Settings,
    options: RunOptions | None = None,
) -> Outcome:
    """Compute the product as often as the options say. Every rank calls it."""
    return _Product(session, decision, (a, b), settings, options or RunOptions()).run()


class _Product:
    """The data that the steps of one call of `run_product` have in common."""

    def __init__(
        self,
        session: Session,
        decision: Decision,
        operands: tuple[MatrixSource, MatrixSource],
        settings: Settings,
        options: RunOptions,
    ) -> None:
        self._session, self._team = session, session.team
        self._decision, self._plan = decision, decision.plan
        self._operands, self._settings, self._options = operands, settings, options
        self._threads = decision.placements[self._team.rank].threads.count
        self._views: dict[str, RowView] = {}
        self._rows: RowExchange | None = None
        self._check: Check | None = None  # of the last product, or of the first one that is wrong

    def run(self) -> Outcome:
        team, plan, (a, b) = self._team, self._plan, self._operands
        team.timeline = Timeline(traced=team.timeline.traced)
        with limited_threads(self._threads):
            wall.enter("allocate")
            kept = self._options.kept(plan)
            transposed = self._decision.reads_transposed
            self._views = host_matrices(team, plan, a, b, self._options.out, self._threads, kept, as_they_lie=transposed)
            wall.enter("fill")
            fill(team, plan, self._views, a, b, self._threads, self._options.progress, b_is_there="B" in kept)
            wall.enter("prepare")
            self._rows = rows_from_root(team, plan, self._views, a, b, self._settings)
            run = self._rank_run()
            of_run = self._settings, run, partial(self._once, run)
            check = ProductCheck(self._session, self._decision, self._operands, self._views, *of_run)
            try:
                with ExitStack() as measured:
                    totals = self._repeat(run, check, measured)
            except BaseException:
                run.abandon()
                raise
        seen, result = self._views, self._check
        outcome = Outcome(self._decision, seen["A"], seen["B"], seen["C"], {}, Spread.of(totals), result, repeats=len(totals))
        return _with_times(team, outcome, run.arithmetic) if self._options.measured else outcome

    def _once(self, run: RankRun | GridRun) -> None:
        """Compute the product once more, outside of the repeats."""
        self._make_ready(run)
        self._multiply(run)

    def _make_ready(self, run: RankRun | GridRun) -> None:
        with self._team.phase("scatter", timed=False), busy():
            self._poison_c()
            run.make_ready()
            if self._rows is not None:
                self._rows.begin()

    def _rank_run(self) -> RankRun | GridRun:
        plan, rank, (a, b, c) = self._plan, self._team.rank, (self._views[key] for key in "ABC")
        rows, progress = plan.shares[rank].rows, self._options.progress
        if plan.grid_layout is not None:
            from hybrid.execution.grid_run import GridRun  # few products have one: the others start sooner without its modules

            of_c = c.array if rank == plan.root else c.array[:0]
            kept = {"A": a[rows], "B": b[plan.shares[rank].b_rows], "C": of_c}
            return GridRun(self._session, self._decision, kept, self._settings, progress)
        matrices: RankMatrices | None = None  # this rank's rows; or all, at a root that owns them
        if not plan.at_root:
            of_c = rows if rows.lies_in(c.rows) else Span(0, 0)  # none where this node has none in host memory
            matrices = RankMatrices(a[rows], b, c[of_c])
        elif rank == plan.root:
            matrices = RankMatrices(a.array, b, c.array)
        read_and_written = []  # host memory, by this rank's copies
        if matrices is not None:
            whole_b = plan.at_root or plan.transport == "host"
            written = c[rows_written(plan, rank)] if plan.c_between_devices else matrices.c
            read_and_written = [matrices.a, b.array if whole_b else b[plan.b_rows_over_link(rank)], written]
        transfers = (
            transfers_of_b(self._team, plan, b, isinstance(self._operands[1], RootMatrix), self._settings),
            transfers_of_c(self._team, plan, c, self._settings),
        )
        return RankRun(self._session, self._decision, matrices, read_and_written, self._settings, progress, *transfers, c)

    def _repeat(self, run: RankRun | GridRun, checking: ProductCheck, measured: ExitStack) -> list[float]:
        """The seconds of each product after the warm-up; fewer than asked for where a signal has asked the job to end.

        `measured`: on it `options.measuring` is entered before the first of them.
        """
        team, options, totals = self._team, self._options, []
        team.timeline.zero = time.perf_counter()  # the ranks have just left a phase together
        for index in range(-options.warmup, options.repeat):
            team.timeline.repeat = index
            if index == 0:
                measured.enter_context(options.measuring())
            self._make_ready(run)
            with wall.within("product" if index >= 0 else "warm-up"):
                seconds = self._multiply(run)
            if index >= 0:
                totals.append(seconds)
            with wall.within("check"):
                check = checking.result()
            if check is not None:
                check = self._named(check, index)
                before = self._check.repaired if self._check is not None else ()  # is told, too
                self._check = replace(check, repaired=before + check.repaired)
            if self._check is not None and not self._check.ok:
                totals = totals or [seconds]  # those of a wrong warm-up, where it does not come to more
                break
            if 0 <= index < options.repeat - 1:  # a product can be reported now: a request to end waits for the current one
                finish_when_asked()
                with team.phase("scatter", timed=False) as asking:
                    asking.mine = asked_to_end()
                if any(asking.all):
                    break
        team.timeline.repeat = None
        return totals

    def _named(self, check: Check, index: int) -> Check:
        """The check, with the number of the product where there are several."""
        options = self._options
        if options.repeat + options.warmup == 1:
            return check
        if index < 0:
            return check.of(f"warm-up product {index + options.warmup + 1} of {options.warmup}")
        return check.of(f"product {index + 1} of {options.repeat}")

    def _poison_c(self) -> None:
        """Fill C with NaN, so that elements that nobody writes are found, also where an earlier product has left the right
        ones."""
        plan, c, options = self._plan, self._views["C"], self._options
        again = options.repeat + options.warmup > 1 or options.after is not None
        if self._settings.poison or (not plan.at_root and again):
            own = c.rows if plan.at_root else plan.c_rows_at_the_end(self._team.rank)
            copy_rows(c[own], np.nan, self._threads)

    def _multiply(self, run: RankRun | GridRun) -> float:
        """Compute one product. Returns its seconds, from the operands in host memory to C at the root."""
        team, plan = self._team, self._plan
        began = time.perf_counter()
        if not plan.at_root:
            scatter(team, plan, self._views, *self._operands, self._rows, self._threads)
        run.multiply()
        if not plan.at_root:
            run.gather()
        seconds = time.perf_counter() - began
        if self._options.measured:
            run.note_work()
        return seconds


def _with_times(team: Team, outcome: Outcome, arithmetic: Computed) -> Outcome:
    """The outcome with the times of the phases, of which each has that of the slowest rank, and with the arithmetic of all
    ranks' parts of C.

    `arithmetic`: that of this rank's.
    """
    with team.phase("report", timed=False) as reporting:
        reporting.mine = (team.timeline.seconds(), team.timeline.since_zero() if team.timeline.traced else [], arithmetic)
    devices = [each.gpu.uuid if each.gpu else f"rank {each.rank}" for each in outcome.decision.placements]
    phases = slowest([seconds for seconds, *_ in reporting.all], devices)
    intervals, of_ranks = ([said[index] for said in reporting.all] for index in (1, 2))
    return replace(outcome, phases=phases, intervals=intervals, arithmetic=joined(of_ranks))
