# SPDX-License-Identifier: MIT
"""The check of a product whose C is at the root, by the devices or from host memory, and the repair of a wrong one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from hybrid.arrays.sources import MatrixSource
from hybrid.core.settings import Settings
from hybrid.execution.calls import no_wrong_parts
from hybrid.execution.rank_check import SumElsewhere
from hybrid.execution.rank_run import RankRun
from hybrid.host.row_view import RowView
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.verification.check import Check, settled

if TYPE_CHECKING:
    from hybrid.execution.grid_run import GridRun
    from hybrid.execution.host_check import HostCheck
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
        # A host that is to check loads what it needs before the clock runs; after a device's check it seldom has to.
        self._on_host = self._host_check() if self._plan.check == "host" else None

    def result(self) -> Check | None:
        """The check of the last product, after its repair; None where no check is asked for."""
        if self._plan.check == "off":
            return None
        wrong = no_wrong_parts(self._plan) if self._settings.on_fault == "repair" else None
        result = self._looked_at(wrong)
        if result.ok or wrong is None:
            return result
        from hybrid.execution.repair import Means, repaired

        by_host = self._by_host()
        means = Means(self._multiplied_again, by_host.compute_again, by_host.check)
        return repaired(self._session, self._decision, self._settings, self._run, result, wrong, means)

    def _looked_at(self, wrong: WrongParts | None) -> Check:
        """The check of the last product. `wrong`: gets the parts of C that are wrong, where these may be repaired."""
        plan, run, check = self._plan, self._run, None
        if plan.check == "device":
            check = run.check(self._elsewhere() if len(plan.topology.nodes) > 1 else None)
        by_host = self._by_host().check(wrong, run.suspects(check)) if run.needs_host(check, wrong) else None
        return settled(check, by_host)

    def _multiplied_again(self) -> tuple[Check, WrongParts]:
        timeline, wrong, began = self._team.timeline, no_wrong_parts(self._plan), time.perf_counter()
        repeat, timeline.repeat = timeline.repeat, -1  # its phases are no product's: all of it is repair
        self._multiply_again()
        check = self._looked_at(wrong)
        timeline.repeat = repeat
        timeline.add("repair", began, time.perf_counter())
        return check, wrong

    def _elsewhere(self) -> SumElsewhere:
        """What sums the pieces in this node's memory that ranks of other nodes copy."""
        from hybrid.verification.other_nodes import sums_of_other_nodes

        threads = self._decision.placements[self._team.rank].threads.count
        return partial(sums_of_other_nodes, self._team, self._plan, self._operands, self._views, threads)

    def _by_host(self) -> HostCheck:
        self._on_host = self._on_host or self._host_check()
        return self._on_host

    def _host_check(self) -> HostCheck:
        from hybrid.execution.host_check import HostCheck

        return HostCheck(self._team, self._decision, self._operands, self._views)
