# SPDX-License-Identifier: MIT
"""The check of a product whose C is at the root, by the devices or from host memory, and the repair of a wrong one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hybrid.arrays.sources import MatrixSource, RootMatrix
from hybrid.core.settings import Settings
from hybrid.execution.calls import no_wrong_parts
from hybrid.execution.grid_run import GridRun
from hybrid.execution.host_matrices import in_numbers
from hybrid.execution.rank_run import RankRun
from hybrid.execution.root_alone import recompute_at_root, verify_at_root
from hybrid.host.row_view import RowView
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.verification.check import Check, Suspect, settled
from hybrid.verification.freivalds import verify
from hybrid.verification.other_nodes import sums_of_other_nodes
from hybrid.verification.transfers import verify_transfer

if TYPE_CHECKING:
    from hybrid.verification.expected_sums import ExpectedSums
    from hybrid.verification.recompute import Recomputed
    from hybrid.verification.wrong_parts import WrongParts


class ProductCheck:
    """Checks each product of `run`. Every rank makes one, and calls `result`."""

    def __init__(
        self,
        session: Session,
        decision: Decision,
        operands: tuple[MatrixSource, MatrixSource],
        views: Mapping[str, RowView],
        settings: Settings,
        run: RankRun | GridRun,
        multiply_again: Callable[[], None],
    ) -> None:
        """`views`: A, B and C in host memory, or at the root where they lie. `multiply_again`: computes the same product once
        more."""
        self._session, self._team = session, session.team
        self._decision, self._plan = decision, decision.plan
        self._operands, self._views, self._settings = operands, views, settings
        self._run, self._multiply_again = run, multiply_again
        self._threads = decision.placements[self._team.rank].threads.count

    def result(self) -> Check | None:
        """The check of the last product, after its repair; None where no check is asked for."""
        if self._plan.check == "off":
            return None
        wrong = no_wrong_parts(self._plan) if self._settings.on_fault == "repair" else None
        result = self._looked_at(wrong)
        if result.ok or wrong is None:
            return result
        from hybrid.execution.repair import Means, repaired

        means = Means(self._multiplied_again, self._compute_again, self._checked_by_host)
        return repaired(self._session, self._decision, self._settings, self._run, result, wrong, means)

    def _looked_at(self, wrong: WrongParts | None) -> Check:
        """The check of the last product. `wrong`: gets the parts of C that are wrong, where these may be repaired."""
        plan, run, check = self._plan, self._run, None
        if plan.check == "device":
            elsewhere = partial(sums_of_other_nodes, self._team, plan, self._operands, self._views, self._threads)
            check = run.check(elsewhere if len(plan.topology.nodes) > 1 else None)
        by_host = self._checked_by_host(wrong, run.suspects(check)) if run.needs_host(check, wrong) else None
        return settled(check, by_host)

    def _multiplied_again(self) -> tuple[Check, WrongParts]:
        timeline, wrong, began = self._team.timeline, no_wrong_parts(self._plan), time.perf_counter()
        repeat, timeline.repeat = timeline.repeat, -1  # its phases are no product's: all of it is repair
        self._multiply_again()
        check = self._looked_at(wrong)
        timeline.repeat = repeat
        timeline.add("repair", began, time.perf_counter())
        return check, wrong

    def _checked_by_host(self, wrong: WrongParts | None, suspects: Sequence[Suspect] = ()) -> Check:
        team, plan, by = self._team, self._plan, self._decision.multiplied_by
        if plan.at_root:
            return verify_at_root(team, plan, self._views, self._threads_of_all, wrong, suspects, by)
        if len(plan.topology.nodes) > 1:
            for key, source in zip("AB", self._operands, strict=True):
                if isinstance(source, RootMatrix):
                    verify_transfer(team, plan, key, source, self._views[key], self._threads)
        a, b, c = self._numbers()
        return verify(team, plan, a, b, c, self._threads, wrong, suspects, by)

    def _compute_again(self, wrong: WrongParts, expected: Sequence[ExpectedSums]) -> list[Recomputed]:
        from hybrid.verification.recompute import recompute

        if self._plan.at_root:
            return recompute_at_root(self._team, self._plan, self._views, self._threads_of_all, wrong, expected)
        return recompute(self._team, self._plan, self._numbers(), wrong, expected, self._threads)

    def _numbers(self) -> list[RowView]:
        return in_numbers((self._views[key] for key in "ABC"), self._plan.problem)

    @property
    def _threads_of_all(self) -> int:
        return sum(placement.threads.count for placement in self._decision.placements)
