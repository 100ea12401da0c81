"""One rank's part of a multiplication: set up once, run as often as wanted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from hybrid.core.settings import Settings
from hybrid.devices.base import Work
from hybrid.execution.pipeline import multiply_in_place, run_share
from hybrid.ranks.supervisor import busy
from hybrid.ranks.team import Team
from hybrid.selection.agreement import Agreement
from hybrid.transport.base import Ends
from hybrid.transport.build import make_deliveries, make_road, settled_workplace
from hybrid.transport.panel_stream import Passing

# Told what is being done, how much of it is done, and of how much; on every rank.
Progress = Callable[[str, int, int], None]


class Runner:
    """One rank's part of the multiplication, set up as far as can be done before the clock runs."""

    def __init__(
        self,
        team: Team,
        agreement: Agreement,
        ends: Ends | None,
        touched: Sequence[Any],
        settings: Settings,
        progress: Progress,
        passing: Passing | None = None,
    ) -> None:
        """`ends`: as for `make_road`. `touched`: the memory that this rank's copies read and write.

        `passing`: how panels of B go between the nodes; None if they all are there before.
        """
        plan, kernel = agreement.plan, agreement.kernel
        gpus = [station.gpu for station in agreement.stations]
        self._team, self._progress, self._share = team, progress, plan.shares[team.rank]
        self._poisoned, self._staged = settings.poison and plan.staged, plan.staged
        self._ends = ends
        self._strips, self._done = sum(len(arrival.releases) for arrival in self._share.order), 0
        self._work: Work = ()
        began = time.perf_counter()
        self._workplace = settled_workplace(team, plan, gpus, kernel)
        self._deliveries = make_deliveries(team, plan, self._workplace, passing) if passing else None
        if plan.staged:
            self._road, self._buffers = make_road(team, plan, self._workplace, self._ends, kernel, gpus, self._deliveries)
            team.timeline.add("prepare", began, time.perf_counter())
        self._to_lock = list(touched) if plan.staged else []

    def make_ready(self) -> None:
        """Before each repetition; the ranks come together between this and `run`."""
        if self._to_lock:
            began = time.perf_counter()
            while self._to_lock:
                self._workplace.lock(self._to_lock.pop())
            self._team.timeline.add("prepare", began, time.perf_counter())
        self._done = 0
        if self._workplace.board is not None:
            self._workplace.board.new_round()
        if self._deliveries is not None:
            self._deliveries.begin()
        if self._poisoned:
            self._workplace.device.poison(self._workplace.memory)

    def run(self) -> None:
        with self._team.phase("multiply", timed=False), busy():
            try:
                work = self._multiply()
                if self._deliveries is not None and self._share.panels:  # a rank without rows of its own may be a courier
                    self._deliveries.wait_for(len(self._share.panels) - 1)
            except BaseException:
                self._workplace.drain()
                raise
            self._work = work

    def note_work(self) -> None:
        """After the clock of a product has stopped: when each piece of its work ran. A phase must follow, which tells the
        other ranks if this fails."""
        for phase, begin, end in self._work:
            self._team.timeline.add(phase, begin, end)
        self._work = ()

    def _multiply(self) -> Work:
        device = self._workplace.device
        if self._staged:
            return run_share(self._share, self._buffers, self._road, device, self._entering)
        assert self._ends is not None
        return multiply_in_place(self._share, self._ends, device, self._entering, self._deliveries)

    def _entering(self, phase: str) -> None:
        self._team.enter(phase)
        if phase == "multiply":
            self._progress("multiply", self._done, self._strips)
            self._done += 1
