# SPDX-License-Identifier: MIT
"""What python -m hybrid.matmul tells its user: rank 0 speaks for all."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from hybrid.commands.streams import text_stream
from hybrid.core.problem import AskedProduct, Problem
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.core.timeline import wall
from hybrid.errors import with_code
from hybrid.ranks.team import Team

if TYPE_CHECKING:
    from hybrid.planning.plan import Plan
    from hybrid.reporting.energy_lines import Energy
    from hybrid.runs.measured import Outcome
    from hybrid.runs.operands import Elements, TypedProduct
    from hybrid.selection.decision import Decision

_MOST_FAULTS = 3  # of a wrong product that are printed; --json writes all


class Speaker:
    """Tells the user about the product, on rank 0; on other ranks its methods do nothing."""

    def __init__(self, team: Team, options: argparse.Namespace, product: TypedProduct) -> None:
        self._silent, self._product = team.rank != 0, product
        self._options = options
        self._stream = text_stream(options.json)

    def begin(self, decision: Decision, more: str = "") -> None:
        """Say what is going to be computed, and how. `more`: one more line."""
        from hybrid.reporting.run_report import heading

        if self._silent:
            return
        if self._options.out and not self._options.resume:
            from hybrid.commands.matmul_resume import hint_at_left_parts

            if hint := hint_at_left_parts(self._options.out):
                print(f"hybrid: {hint}", file=sys.stderr, flush=True)
        lines = heading(decision, asked_of(self._product)), how_computed(self._product, decision.plan.problem), more
        print(*filter(None, lines), sep="\n", file=self._stream, flush=True)

    def progress(
        self, plan: Plan, products: int, note: Callable[[], str] = lambda: ""
    ) -> AbstractContextManager[Callable[[str, int, int], None]]:
        """A context in which it is shown how far the products are. `products`: how many there are; `note`: more to be shown."""
        if self._silent:
            return nullcontext(lambda *told: None)
        from hybrid.reporting.phase_table import rate
        from hybrid.reporting.progress import Progress

        return Progress(repeats=products, rate=partial(rate, plan), part=lambda: wall.part, note=note)

    def end(self, outcome: Outcome, extra: dict[str, Any], settings: Settings, energy: Energy) -> None:
        """Say what came of the product, and write the files that the options name. `extra`: more for the JSON line."""
        if self._silent:
            return
        from hybrid.core.settings import Price
        from hybrid.reporting.energy_lines import cost_line, energy_line, energy_record, paid_for
        from hybrid.reporting.phase_table import table
        from hybrid.reporting.run_report import arithmetic_line, last_line, plans_of, wall_line

        options, plan = self._options, plans_of(outcome)
        if options.printed:
            self._print_corners(outcome)
        if outcome.repeats < options.repeat:
            print(
                f"hybrid: asked to end: {outcome.repeats} of {options.repeat} products were finished [terminated]",
                file=sys.stderr,
            )
        print(table(plan, outcome.phases, outcome.total), file=self._stream)
        if outcome.arithmetic:
            print(arithmetic_line(outcome.arithmetic), file=self._stream)
        price, paid = Price.parse(settings.price) if settings.price else None, paid_for(outcome, energy)
        if line := energy_line(paid, checked=outcome.check is not None, may_repeat=outcome.parts is None):
            print(line, file=self._stream)
        if price:
            print(cost_line(price, paid.seconds, paid.gpus, paid.nodes, paid.joules), file=self._stream)
        if options.json:
            self._write_record(outcome, {**extra, **energy_record(price, paid)}, settings)
        if options.trace:
            from hybrid.reporting.chrome_trace import write_trace

            names = [f"rank {placement.rank} on {placement.host}" for placement in outcome.decision.placements]
            write_trace(options.trace, outcome.intervals, names)
        print(wall_line(wall.parts()), file=self._stream)
        for line in outcome.check.repaired if outcome.check else ():
            print(f"repaired: {line}", file=self._stream)
        for fault in outcome.check.faults[:_MOST_FAULTS] if outcome.check else ():
            print(f"wrong: {with_code(fault, fault.code)}", file=self._stream)
        print(last_line(plan, outcome.total, outcome.check), file=self._stream, flush=True)

    def _write_record(self, outcome: Outcome, extra: dict[str, Any], settings: Settings) -> None:
        from hybrid.reporting import jsonl
        from hybrid.reporting.run_report import as_record

        options, product = self._options, self._product
        of_product = {**vars(asked_of(product)), "operands": outcome.decision.plan.problem.operand_dtype}
        of_product |= {"computed": product.types.computed, "products": len(product.types.primes)}
        asked = {name: getattr(options, name) for name in ("fill", "seed", "a", "b")} | {"repeat": outcome.repeats}
        jsonl.write(as_record(outcome, {**of_product, **asked, **extra}, settings.as_dict(), wall.parts()), options.json)

    def _print_corners(self, outcome: Outcome) -> None:
        from hybrid.reporting.run_report import labelled_corner
        from hybrid.runs.operands import FileElements

        count, product = self._options.printed, self._product
        n, _, m = product.sizes
        self._print_corner("A", product.a)
        self._print_corner("B", product.b)  # made again: on several nodes the rows may lie elsewhere
        if outcome.parts is None:
            if outcome.check is None or outcome.check.ok or product.is_plain:
                self._stream.write(labelled_corner("C", outcome.c.array[:count, :count], (n, m)))
        elif outcome.check is None or outcome.check.ok:
            c = FileElements(self._options.out)
            c.become(product.result)
            self._print_corner("C", c)  # memory has some rows only

    def _print_corner(self, label: str, matrix: Elements) -> None:
        from hybrid.reporting.run_report import labelled_corner

        corner = matrix.some(Span(0, min(self._options.printed, matrix.shape[0])))
        self._stream.write(labelled_corner(label, corner[:, : self._options.printed], matrix.shape))


def how_computed(product: TypedProduct, decided: Problem | None = None) -> str:
    """A line about the real products that are computed, where these are not the product that was asked for; else "".

    `decided`: the problem that each of them is, when that has been decided.
    """
    if product.is_plain:
        return ""
    problem, primes = decided or product.problem, len(product.types.primes)
    if problem.short_operands:
        return f"  computed with sums in {problem.dtype}"
    how = ", exactly" * (product.types.exact is not None) + f", modulo each of {primes} primes" * (primes > 1)
    return f"  computed as {problem}{how}"


def asked_of(product: TypedProduct) -> AskedProduct:
    return AskedProduct(*product.sizes, product.types.result)
