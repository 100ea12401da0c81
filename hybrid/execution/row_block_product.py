# SPDX-License-Identifier: MIT
"""A product of row blocks: every rank's rows of A and B stay where they are, and so do its rows of C."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hybrid.arrays.interop import as_rows, await_callers_work, copy_back, empty_like, on_host, to_device_of
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.core.timeline import Timeline
from hybrid.execution.calls import no_wrong_parts
from hybrid.execution.grid_run import GridRun
from hybrid.execution.host_matrices import element_types, in_numbers
from hybrid.execution.rank_run import RankRun
from hybrid.execution.scatter_gather import gather_b
from hybrid.host.row_view import RowView
from hybrid.host.threads import limited_threads
from hybrid.kernels.elements import elements_of
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.transport.base import RankMatrices
from hybrid.verification.check import Check, Suspect, settled
from hybrid.verification.freivalds import verify
from hybrid.verification.transfers import verify_gathered

if TYPE_CHECKING:
    from hybrid.verification.expected_sums import ExpectedSums
    from hybrid.verification.recompute import Recomputed
    from hybrid.verification.wrong_parts import WrongParts


def run_row_block_product(session: Session, decision: Decision, a: Any, b: Any, settings: Settings) -> tuple[Any, Check | None]:
    """This rank's rows of C, on the device where its rows of A lie, and what the check found. Every rank calls it."""
    team, plan = session.team, decision.plan
    team.timeline = Timeline()
    with limited_threads(decision.placements[team.rank].threads.count):
        c, check = _RowBlockProduct(session, decision, a, b, settings).run()
        if plan.device != "cuda" or plan.grid_layout is not None:
            with team.phase("scatter"):
                c = to_device_of(a, c)
        return c, check


class _RowBlockProduct:
    """The data that the steps of one call of `run_row_block_product` have in common."""

    def __init__(self, session: Session, decision: Decision, a: Any, b: Any, settings: Settings) -> None:
        self._session, self._team = session, session.team
        self._decision, self._plan, self._settings = decision, decision.plan, settings
        self._share = share = decision.plan.shares[session.team.rank]
        self._threads = decision.placements[session.team.rank].threads.count
        plan = self._plan
        device = plan.device if plan.grid_layout is None else "cpu"  # a grid's parts travel from host to host
        with self._team.phase("scatter"), busy():
            self._a, self._b = (
                elements_of(as_rows(array, plan.problem.operand_dtype, device=device, threads=self._threads)) for array in (a, b)
            )
            self._c = empty_like(self._a, len(share.rows), plan.problem.m, plan.problem.dtype)
            await_callers_work(self._a, self._b, self._c)
        self._all_of_b = RowView(self._b, share.b_rows) if plan.own_rows_suffice else self._gathered_b()

    def run(self) -> tuple[Any, Check | None]:
        run = self._rank_run()
        wrong = no_wrong_parts(self._plan) if self._settings.on_fault == "repair" and self._plan.check != "off" else None
        try:
            result = self._multiplied(run, wrong)
            if result is None or result.ok or wrong is None:
                return self._c, result
            from hybrid.execution.repair import Means, repaired

            means = Means(partial(self._multiplied_again, run), self._compute_again, self._checked_by_host)
            return self._c, repaired(self._session, self._decision, self._settings, run, result, wrong, means)
        except BaseException:
            run.abandon()
            raise

    def _rank_run(self) -> RankRun | GridRun:
        def nobody(phase: str, done: int, of: int) -> None:
            """Is told of the progress."""

        if self._plan.grid_layout is not None:
            kept = {"A": self._a, "B": self._b, "C": self._c}
            return GridRun(self._session, self._decision, kept, self._settings, nobody)
        matrices = RankMatrices(self._a, self._all_of_b, self._c)
        read_and_written = [self._a, self._all_of_b.array, self._c]
        return RankRun(self._session, self._decision, matrices, read_and_written, self._settings, nobody)

    def _multiplied(self, run: RankRun | GridRun, wrong: WrongParts | None) -> Check | None:
        """Multiply, and check the product. Returns the check; None where there is none. `wrong`: gets the parts of C that are
        wrong, where these may be repaired."""
        plan = self._plan
        with self._team.phase("scatter", timed=False):
            run.make_ready()
        run.multiply()
        if plan.grid_layout is not None:
            run.gather()
        if plan.check == "off":
            return None
        check = run.check() if plan.check == "device" else None
        if check is not None and not plan.own_rows_suffice:
            verify_gathered(self._team, self._share.b_rows, on_host(self._b), self._all_of_b, self._threads)
        return settled(check, self._checked_by_host(wrong, run.suspects(check)) if run.needs_host(check, wrong) else None)

    def _multiplied_again(self, run: RankRun | GridRun) -> tuple[Check, WrongParts]:
        wrong = no_wrong_parts(self._plan)
        check = self._multiplied(run, wrong)
        assert check is not None
        return check, wrong

    def _checked_by_host(self, wrong: WrongParts | None, suspects: Sequence[Suspect] = ()) -> Check:
        a, b, c = self._views()
        return verify(self._team, self._plan, a, b, c, self._threads, wrong, suspects, self._decision.multiplied_by)

    def _compute_again(self, wrong: WrongParts, expected: Sequence[ExpectedSums]) -> list[Recomputed]:
        from hybrid.verification.recompute import recompute

        a, b, c = self._views()
        done = recompute(self._team, self._plan, (a, b, c), wrong, expected, self._threads)
        with self._team.phase("repair"):
            copy_back(c.array, self._c)
        return done

    def _views(self) -> list[RowView]:
        """This rank's rows in host memory."""
        share = self._share
        with self._team.phase("check", timed=False), busy():
            placed = ((self._a, share.rows), (self._b, share.b_rows), (self._c, share.rows))
            return in_numbers((RowView(on_host(array), rows) for array, rows in placed), self._plan.problem)

    def _gathered_b(self) -> RowView:
        """All of B, in memory that the node's ranks share."""
        team, plan = self._team, self._plan
        rows, columns = {"B": Span(0, plan.problem.l)}, {"B": plan.problem.m}
        b = make_shared_matrices(team, rows, columns, element_types(plan.problem))["B"]
        with team.phase("scatter"), busy():
            b[self._share.b_rows][...] = on_host(self._b)
        gather_b(team, plan, b, self._settings)
        return b
