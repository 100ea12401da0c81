# SPDX-License-Identifier: MIT
"""One rank's part of a multiplication: set up once, run as often as wanted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid.core.settings import Settings
from hybrid.devices.base import Timings
from hybrid.execution.in_place import multiply_in_place
from hybrid.execution.modular_product import modular_product
from hybrid.execution.pipeline import run_share
from hybrid.execution.progress import Progress, TileProgress
from hybrid.execution.rank_check import RankCheck, SumElsewhere
from hybrid.host.row_sums import NOT_INTEGRAL
from hybrid.host.row_view import RowView
from hybrid.plan.arithmetic import Computed
from hybrid.ranks.heartbeat import busy
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.transport.base import RankMatrices
from hybrid.transport.build import (
    make_device_gather,
    make_panel_gather,
    make_panel_stream,
    make_transport,
    operands_in_place,
)
from hybrid.verification.check import Check, Findings, Suspect, WrongCopy

if TYPE_CHECKING:
    from hybrid.devices.modular import ModularProduct
    from hybrid.transport.device_gather import DeviceGather
    from hybrid.transport.panel_stream import PanelStream, PanelTransfers
    from hybrid.verification.expected_sums import ExpectedSums
    from hybrid.verification.wrong_parts import WrongParts


class RankRun:
    """The multiplication, set up as far as can be done before the clock runs. Every rank makes one."""

    def __init__(
        self,
        session: Session,
        decision: Decision,
        matrices: RankMatrices | None,
        read_and_written: Sequence[Any],
        settings: Settings,
        progress: Progress,
        transfers_of_b: PanelTransfers | None = None,
        transfers_of_c: PanelTransfers | None = None,
        c_of_node: RowView | None = None,
    ) -> None:
        """`matrices`: as for `make_transport`. `read_and_written`: host memory to pin before the first copy.

        `transfers_of_b`: how column panels of B come from other nodes; None if all of B is there before the multiplication.
        `transfers_of_c`: how column panels of C go to the root's node by MPI; None if they do not. `c_of_node`: the rows of C in
        this node's memory, which is needed where C goes from device to device.
        """
        team, plan = session.team, decision.plan
        self._team, self._plan, self._share = team, plan, plan.shares[team.rank]
        self._poisoned, self._staged = settings.poison and plan.staged, plan.staged
        self._matrices = matrices
        self._tile_progress = TileProgress(team, self._share, progress)
        self._timings: Timings = ()
        self._modular: ModularProduct | None = None
        began = time.perf_counter()
        gpus = [placement.gpu for placement in decision.placements]
        self._rank_device = session.device(plan, gpus, decision.kernel)
        self._panel_gather = make_panel_gather(team, plan, self._rank_device, transfers_of_c) if transfers_of_c else None
        self._device_gather: DeviceGather | None = None
        if plan.c_between_devices:
            assert c_of_node is not None
            self._device_gather = make_device_gather(team, plan, self._rank_device, c_of_node)
        self._panel_stream: PanelStream | None = None
        if transfers_of_b is not None:
            self._panel_stream = make_panel_stream(team, plan, self._rank_device, transfers_of_b, self._panel_gather)
        in_place = operands_in_place(plan, team.rank, self._rank_device.device, matrices)
        self._check: RankCheck | None = None
        self._findings: Sequence[Findings] = ()  # of all ranks, of the last product
        if plan.check == "device":
            self._check = RankCheck(team, plan, self._rank_device, matrices, decision.placements, in_place)
        if plan.staged:
            observer = self._check.copies if self._check else None
            self._transport, self._buffers = make_transport(
                team,
                plan,
                self._rank_device,
                matrices,
                gpus,
                decision.kernel,
                observer,
                self._panel_stream,
                in_place,
                self._device_gather,
            )
            with team.phase("prepare", timed=False), busy():
                self._modular = modular_product(self._rank_device, decision, plan, self._share, settings)
                if self._check is not None:
                    self._check.check_in(self._buffers)
            team.timeline.add("prepare", began, time.perf_counter())
        self._to_pin: Sequence[Any] = read_and_written if plan.staged else ()

    def make_ready(self) -> None:
        """Make this rank ready for a product, in a phase that all ranks leave together before they multiply."""
        self._rank_device.pin(self._team, self._to_pin)
        self._to_pin = ()
        self._tile_progress.begin()
        if self._check is not None:
            self._check.begin()
        if self._rank_device.flags is not None:
            self._rank_device.flags.new_round()
        for moving in (self._panel_gather, self._device_gather, self._panel_stream):
            if moving is not None:
                moving.begin()
        kept = self._rank_device.used_for(self._plan, self._modular)
        if self._poisoned:
            self._rank_device.device.poison(self._rank_device.memory)
        if self._modular is not None and (self._poisoned or not kept):
            self._modular.forget()

    def multiply(self) -> None:
        """Multiply this rank's row block by B. Every rank calls it."""
        with self._team.phase("multiply", timed=False), busy(self._rank_device.device.progress):
            try:
                work = self._multiply()
                if self._panel_stream is not None and self._share.column_panels:
                    # Also a rank without rows of its own may have to forward panels to the other ranks of its node.
                    self._panel_stream.wait_for(len(self._share.column_panels) - 1)
            except BaseException:
                self._rank_device.drain()
                raise
            self._timings = work

    def gather(self) -> None:
        """Send what is left of C, when all is multiplied, to the root's node. Every rank calls it."""
        with self._team.phase("gather"):
            if self._panel_gather is not None:
                self._panel_gather.finish()

    def abandon(self) -> None:
        """Give up the product, which has failed on this rank or another. When this returns, no thread of the check reads the
        matrices."""
        if self._check is not None:
            self._check.abandon()

    def check(self, elsewhere: SumElsewhere | None = None) -> Check:
        """The check of the product, by the devices. Every rank calls it, when C is where it belongs. `elsewhere`: as for
        `RankCheck.findings`."""
        assert self._check is not None
        with self._team.phase("check") as checking, busy():
            checking.mine = self._check.findings(elsewhere)
        self._findings = checking.all
        judged = self._check.judge(checking.all)
        if not judged.ok and self._modular is not None:
            self._modular.forget()  # what it keeps may be what is wrong
        return judged

    def suspects(self, check: Check | None) -> tuple[Suspect, ...]:
        """All sums of C that look wrong by an undecided check, the same on every rank: of these the host may tell whether they
        are right without regard to rounding.

        There are none where other sums may be wrong, too, or where all elements are integers.
        """
        if check is None or not all(found.all_told for found in self._findings):
            return ()
        sums = [found.sums for found in self._findings if found.sums is not None]
        if any(of_rank.not_judged for of_rank in sums):
            return ()
        if all(max(of_rank.largest_a, of_rank.largest_b) < NOT_INTEGRAL for of_rank in sums):
            return ()
        return tuple(suspect for found in self._findings for suspect in found.suspects)

    def needs_host(self, check: Check | None, wrong: WrongParts | None) -> bool:
        """Whether the host has to check, too, because this check is undecided.

        `wrong`: where a product is to be repaired, it gets all that the devices know to be wrong; unless they left sums
        unjudged, for then the host has to look.
        """
        if check is None or check.ok or wrong is None:
            return check is None or check.undecided
        if any(found.sums is not None and found.sums.not_judged for found in self._findings):
            return True
        for found in self._findings:
            if found.wrong is not None:
                wrong.merge(*found.wrong)
        return False

    @property
    def arithmetic(self) -> Computed:
        """The arithmetic of this rank's part of C in the last product; empty where all of it is native."""
        return self._modular.done if self._modular is not None else {}

    def wrong_copies(self) -> list[tuple[WrongCopy, np.ndarray]]:
        """After a check that failed, the pieces that were copied wrong, and which of their rows. Every rank calls it."""
        return self._check.wrong_copies(self._findings) if self._check is not None else []

    def expected_sums(self, wrong: WrongParts) -> list[ExpectedSums]:
        """The sums that all ranks' devices expect of what is wrong, by which it can be checked when it has been computed again.
        Every rank calls it."""
        with self._team.phase("repair") as telling:
            telling.mine = self._check.expected_sums(wrong) if self._check is not None else []
        return [expected for of_rank in telling.all for expected in of_rank]

    def note_work(self) -> None:
        """Note, after the clock has stopped, when each copy and kernel of the product ran. A phase must follow, which tells the
        other ranks if this fails."""
        for phase, begin, end in self._timings:
            self._team.timeline.add(phase, begin, end)
        self._timings = ()

    def _multiply(self) -> Timings:
        device = self._rank_device.device
        if self._staged:
            check = self._check.device if self._check is not None else None
            parts = self._share, self._buffers, self._transport, device, self._tile_progress
            return run_share(*parts, check, self._panel_gather or self._device_gather, self._modular)
        assert self._matrices is not None
        return multiply_in_place(self._share, self._matrices, device, self._tile_progress, self._panel_stream, self._panel_gather)
