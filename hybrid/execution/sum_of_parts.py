# SPDX-License-Identifier: MIT
"""The times, checks and arithmetic of a product in parts, from those of its parts."""

from __future__ import annotations

import numpy as np

from hybrid.core.spans import Span
from hybrid.core.timeline import Spread
from hybrid.execution.outcome import Outcome, Parts
from hybrid.host.row_view import RowView
from hybrid.plan.arithmetic import Computed, joined
from hybrid.plan.plan import Plan
from hybrid.selection.decision import Decision
from hybrid.verification.check import Check, worse_of

NOTHING_LEFT = Check("checksums", 0.0, 0.0, ok=True, note="all rows were there")


class SumOfParts:
    """Grows by the outcome of each part."""

    def __init__(self) -> None:
        self.last: Outcome | None = None  # whose matrices the next part takes over
        self.check: Check | None = None
        self._phases: dict[str, float] = {}
        self._total = 0.0
        self._arithmetic: Computed = {}
        self._plans: list[Plan] = []

    def add(self, outcome: Outcome, part: Span) -> None:
        self.last = outcome
        self._plans.append(outcome.decision.plan)
        for phase, spread in outcome.phases.items():
            self._phases[phase] = self._phases.get(phase, 0.0) + spread.median
        self._total += outcome.total.median
        self._arithmetic = joined([self._arithmetic, outcome.arithmetic])
        if outcome.check is not None:
            named = outcome.check.of(f"in the part of rows {part}, counted from {part.lo}", part.lo)
            self.check = worse_of(self.check, named)

    @property
    def failed(self) -> bool:
        """Whether a part has failed its check."""
        return self.check is not None and not self.check.ok

    def outcome(self, decision: Decision, rows: int, there: int) -> Outcome:
        """The outcome of the whole product. `decision`: for the whole problem. `rows`: of a part. `there`: the rows that were
        there before."""
        nothing = RowView(np.empty((0, 0)), Span(0, 0))
        phases = {phase: Spread(seconds, seconds, seconds) for phase, seconds in self._phases.items()}
        total, check = Spread(self._total, self._total, self._total), self.check if self._plans else NOTHING_LEFT
        parts = Parts(rows, there, tuple(self._plans))
        return Outcome(decision, nothing, nothing, nothing, phases, total, check, arithmetic=self._arithmetic, parts=parts)
