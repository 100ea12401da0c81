# SPDX-License-Identifier: MIT
"""What every product of a `RankRun` goes through, wherever its matrices lie: multiply, check, and repair what is wrong."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from hybrid.core.settings import Settings
from hybrid.execution.rank_run import RankRun
from hybrid.host.memory import NumbersView, RowView
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.verification.check import Check, Suspect, WrongParts, settled

if TYPE_CHECKING:
    from hybrid.execution.repair import Recomputed


class CheckedRun:
    """One rank's part of a product. Every rank makes one, and calls its methods; subclasses know where the matrices are."""

    def __init__(self, session: Session, decision: Decision, settings: Settings) -> None:
        self.session, self.team, self.decision, self.settings = session, session.team, decision, settings
        self.plan, self.share = decision.plan, decision.plan.shares[session.team.rank]
        self.threads = decision.placements[session.team.rank].threads.count

    @cached_property
    def run(self) -> RankRun:
        """The multiplication, set up."""
        return self.set_up()

    def set_up(self) -> RankRun:
        """Set up the multiplication."""
        raise NotImplementedError

    def multiply(self) -> None:
        """Compute the product, or compute it once more."""
        raise NotImplementedError

    def check_on_devices(self) -> Check:
        """The check by the devices, and of what was copied to them."""
        raise NotImplementedError

    def check_on_host(self, wrong: WrongParts | None, suspects: Sequence[Suspect] = ()) -> Check:
        """The check from host memory. `wrong`: gets the parts of C that are wrong, where these may be repaired."""
        raise NotImplementedError

    def compute_again(self, wrong: WrongParts) -> list[Recomputed]:
        """Compute the wrong parts of C on CPUs."""
        raise NotImplementedError

    def checked(self) -> Check | None:
        """The check of the last product, after its repair; None where no check is asked for."""
        if self.plan.check == "off":
            return None
        wrong = self._no_wrong_parts() if self.settings.on_fault == "repair" else None
        result = self._looked_at(wrong)
        if result.ok or wrong is None:
            return result
        from hybrid.execution.repair import repaired  # which most products need not load

        return repaired(self, result, wrong)

    def multiplied_again(self) -> tuple[Check, WrongParts]:
        """Compute the whole product once more: its check, and the parts that this finds wrong."""
        timeline, wrong, began = self.team.timeline, self._no_wrong_parts(), time.perf_counter()
        repeat, timeline.repeat = timeline.repeat, -1  # its phases are no product's: all of it is repair
        self.multiply()
        check = self._looked_at(wrong)
        timeline.repeat = repeat
        timeline.add("repair", began, time.perf_counter())
        return check, wrong

    def in_numbers(self, views: Sequence[RowView]) -> list[RowView]:
        """A, B and C in host memory, with elements with which the host computes: those of 16 bits as float32."""
        short = self.plan.problem.short_operands
        return [NumbersView(view) if short and view.array.itemsize == 2 else view for view in views]

    def _looked_at(self, wrong: WrongParts | None) -> Check:
        check = self.check_on_devices() if self.plan.check == "device" else None
        needs_host = self.run.needs_host(check, wrong)
        return settled(check, self.check_on_host(wrong, self.run.suspects(check)) if needs_host else None)

    def _no_wrong_parts(self) -> WrongParts:
        return WrongParts(self.plan.problem.n, self.plan.problem.m)
