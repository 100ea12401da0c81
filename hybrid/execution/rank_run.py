"""One rank's part of a multiplication: set up once, run as often as wanted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from hybrid.core.settings import Settings
from hybrid.devices.base import Timings
from hybrid.execution.pipeline import multiply_in_place, run_share
from hybrid.ranks.supervisor import busy
from hybrid.ranks.team import Team
from hybrid.selection.agreement import Agreement
from hybrid.transport.base import RankMatrices
from hybrid.transport.build import make_panel_stream, make_rank_device, make_transport
from hybrid.transport.panel_stream import PanelForwarder

# Told what is being done, how much of it is done, and of how much; on every rank.
Progress = Callable[[str, int, int], None]


class Runner:
    """One rank's part of the multiplication, set up as far as can be done before the clock runs."""

    def __init__(
        self,
        team: Team,
        agreement: Agreement,
        matrices: RankMatrices | None,
        touched: Sequence[Any],
        settings: Settings,
        progress: Progress,
        forwarder: PanelForwarder | None = None,
    ) -> None:
        """`ends`: as for `make_road`. `touched`: the memory that this rank's copies read and write.

        `passing`: how panels of B go between the nodes; None if they all are there before.
        """
        plan, kernel = agreement.plan, agreement.kernel
        gpus = [placement.gpu for placement in agreement.placements]
        self._team, self._progress, self._share = team, progress, plan.shares[team.rank]
        self._poisoned, self._staged = settings.poison and plan.staged, plan.staged
        self._matrices = matrices
        self._tiles_of, self._done = sum(len(arrival.releases) for arrival in self._share.order), 0
        self._work: Timings = ()
        began = time.perf_counter()
        self._rank_device = make_rank_device(team, plan, gpus, kernel)
        self._panel_stream = make_panel_stream(team, plan, self._rank_device, forwarder) if forwarder else None
        if plan.staged:
            self._transport, self._buffers = make_transport(
                team, plan, self._rank_device, self._matrices, kernel, gpus, self._panel_stream
            )
            team.timeline.add("prepare", began, time.perf_counter())
        self._to_pin = list(touched) if plan.staged else []

    def make_ready(self) -> None:
        """Before each repetition; the ranks come together between this and `run`."""
        if self._to_pin:
            began = time.perf_counter()
            while self._to_pin:
                self._rank_device.pin(self._to_pin.pop())
            self._team.timeline.add("prepare", began, time.perf_counter())
        self._done = 0
        if self._rank_device.flags is not None:
            self._rank_device.flags.new_round()
        if self._panel_stream is not None:
            self._panel_stream.begin()
        if self._poisoned:
            self._rank_device.device.poison(self._rank_device.memory)

    def run(self) -> None:
        with self._team.phase("multiply", timed=False), busy():
            try:
                work = self._multiply()
                if (
                    self._panel_stream is not None and self._share.column_panels
                ):  # a rank without rows of its own may be a courier
                    self._panel_stream.wait_for(len(self._share.column_panels) - 1)
            except BaseException:
                self._rank_device.drain()
                raise
            self._work = work

    def note_work(self) -> None:
        """After the clock of a product has stopped: when each piece of its work ran. A phase must follow, which tells the
        other ranks if this fails."""
        for phase, begin, end in self._work:
            self._team.timeline.add(phase, begin, end)
        self._work = ()

    def _multiply(self) -> Timings:
        device = self._rank_device.device
        if self._staged:
            return run_share(self._share, self._buffers, self._transport, device, self._entering)
        assert self._matrices is not None
        return multiply_in_place(self._share, self._matrices, device, self._entering, self._panel_stream)

    def _entering(self, phase: str) -> None:
        self._team.enter(phase)
        if phase == "multiply":
            self._progress("multiply", self._done, self._tiles_of)
            self._done += 1
