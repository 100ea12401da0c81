# SPDX-License-Identifier: MIT
"""What python -m hybrid.matmul tells its user: rank 0 speaks for all."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from hybrid.core.settings import Settings
from hybrid.core.wall import wall
from hybrid.ranks.team import Team

if TYPE_CHECKING:
    from hybrid.arrays.sources import MatrixSource
    from hybrid.core.energy import Energy
    from hybrid.execution.outcome import Outcome
    from hybrid.plan.plan import Plan
    from hybrid.selection.decision import Decision

_MOST_FAULTS = 3  # of a wrong product that are printed; --json writes all


class Speaker:
    """Rank 0's word to the user; silent elsewhere."""

    def __init__(self, team: Team, options: argparse.Namespace) -> None:
        self._silent = team.rank != 0
        self._options = options
        self._stream = sys.stderr if options.json == "-" else sys.stdout

    def begin(self, decision: Decision, more: str = "") -> None:
        from hybrid.reporting.run_report import heading

        if self._silent:
            return
        if self._options.out and not self._options.resume:
            from hybrid.commands.matmul_resume import hint_at_left_parts

            if hint := hint_at_left_parts(self._options.out):
                print(f"hybrid: {hint}", file=sys.stderr, flush=True)
        print(*filter(None, (heading(decision), more)), sep="\n", file=self._stream, flush=True)

    def progress(
        self, plan: Plan, products: int, note: Callable[[], str] = lambda: ""
    ) -> AbstractContextManager[Callable[[str, int, int], None]]:
        """Within this context it is shown how far the products are."""
        if self._silent:
            return nullcontext(lambda *told: None)
        from hybrid.reporting.progress import Progress
        from hybrid.reporting.run_report import rate

        return Progress(repeats=products, rate=partial(rate, plan), part=lambda: wall.part, note=note)

    def end(
        self, outcome: Outcome, a: MatrixSource, b: MatrixSource, extra: dict[str, Any], settings: Settings, energy: Energy
    ) -> None:
        if self._silent:
            return
        from hybrid.core.price import Price
        from hybrid.reporting.energy_lines import cost_line, energy_line, energy_record, paid_for
        from hybrid.reporting.run_report import arithmetic_line, as_record, last_line, plans_of, table, wall_line

        options, plan = self._options, plans_of(outcome)
        if options.printed:
            self._print_corners(outcome, a, b)
        if outcome.repeats < options.repeat:
            print(f"hybrid: asked to end: {outcome.repeats} of {options.repeat} products were finished", file=sys.stderr)
        print(table(plan, outcome.phases, outcome.total), file=self._stream)
        if outcome.arithmetic:
            print(arithmetic_line(outcome.arithmetic), file=self._stream)
        price, paid = Price.parse(settings.price) if settings.price else None, paid_for(outcome, energy)
        if line := energy_line(paid, checked=outcome.check is not None, may_repeat=outcome.parts is None):
            print(line, file=self._stream)
        if price:
            print(cost_line(price, paid.seconds, paid.gpus, paid.nodes, paid.joules), file=self._stream)
        if options.json:
            from hybrid.reporting import jsonl

            asked = {name: getattr(options, name) for name in ("fill", "seed", "a", "b")} | {"repeat": outcome.repeats}
            record = as_record(outcome, {**asked, **extra, **energy_record(price, paid)}, settings.as_dict(), wall.parts())
            jsonl.write(record, options.json)
        if options.trace:
            from hybrid.reporting.chrome_trace import write_trace

            names = [f"rank {placement.rank} on {placement.host}" for placement in outcome.decision.placements]
            write_trace(options.trace, outcome.intervals, names)
        print(wall_line(wall.parts()), file=self._stream)
        for line in outcome.check.repaired if outcome.check else ():
            print(f"repaired: {line}", file=self._stream)
        for fault in outcome.check.faults[:_MOST_FAULTS] if outcome.check else ():
            print(f"wrong: {fault}", file=self._stream)
        print(last_line(plan, outcome.total, outcome.check), file=self._stream, flush=True)

    def _print_corners(self, outcome: Outcome, a: MatrixSource, b: MatrixSource) -> None:
        import numpy as np

        from hybrid.arrays.sources import FileMatrix
        from hybrid.core.spans import Span
        from hybrid.reporting.run_report import labelled_corner

        count, problem = self._options.printed, outcome.decision.plan.problem
        matrices = {"A": a, "B": b}
        if outcome.parts is not None and (outcome.check is None or outcome.check.ok):
            matrices["C"] = FileMatrix(self._options.out)  # of which memory has some rows only
        for label, operand in matrices.items():  # made again: on several nodes the rows may lie elsewhere
            rows = Span(0, min(count, operand.shape[0]))
            corner = np.empty((len(rows), operand.shape[1]), problem.dtype)
            operand.rows(rows, corner, 1, lambda done: None)
            self._stream.write(labelled_corner(label, corner[:, :count], operand.shape))
        if outcome.parts is None:
            self._stream.write(labelled_corner("C", outcome.c.array[:count, :count], (problem.n, problem.m)))
