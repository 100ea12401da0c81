# SPDX-License-Identifier: MIT
"""A product of matrices of any type: the real products from which it is computed, and C in its own type, whole on the root's
node."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hybrid.arrays.complex_view import complex_view
from hybrid.arrays.typed_product import TypedProduct
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.core.timeline import Interval, Spread
from hybrid.core.wall import wall
from hybrid.execution.outcome import Outcome, RunOptions
from hybrid.execution.product import run_product
from hybrid.host.row_view import RowView
from hybrid.plan.arithmetic import joined
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.verification.check import worse_of

if TYPE_CHECKING:
    from hybrid.arrays.exact_result import ExactResult


def run_typed_product(
    session: Session, decision: Decision, product: TypedProduct, settings: Settings, options: RunOptions
) -> Outcome:
    """Compute the product. Every rank calls it.

    `c` of the outcome has C's type, unless the check has failed. Overflow where that type does not hold C. The times of several
    real products are added up; the conversion of C is in none of them.
    """
    made = _Conversion(session, decision, product)
    outcome: Outcome | None = None
    for number, prime in enumerate(product.primes):
        latest = run_product(session, decision, *product.sources(prime), settings, options)
        outcome = latest if outcome is None else _both(outcome, latest)
        if outcome.check is not None and not outcome.check.ok:
            return outcome
        made.add(number, latest.c)
        if product.primes[1:]:
            del latest
            outcome = replace(outcome, a=_NOTHING, b=_NOTHING, c=_NOTHING)
    assert outcome is not None
    return replace(outcome, c=made.finished(outcome.c))


_NOTHING = RowView(np.empty((0, 0)), Span(0, 0))


class _Conversion:
    """Makes C of the real products' C: each rank of the root's node converts its rows of it."""

    def __init__(self, session: Session, decision: Decision, product: TypedProduct) -> None:
        self._team, self._plan, self._product = session.team, decision.plan, product
        self._threads = decision.placements[session.team.rank].threads.count
        self._rows = decision.plan.c_rows_at_the_end(session.team.rank)
        self._exact: ExactResult | None = None
        if product.exact is not None:
            from hybrid.arrays.exact_result import ExactResult, element_of_rows  # real products start sooner without it

            shape = len(self._rows), product.sizes[2]
            self._exact = ExactResult(product.exact, product.types.result, shape, named=element_of_rows(self._rows.lo))

    def add(self, number: int, c: RowView) -> None:
        """Add the real product `number`."""
        if self._exact is not None:
            with self._team.phase("gather", timed=False), busy():
                self._exact.add(number, c[self._rows], self._threads)

    def finished(self, c: RowView) -> RowView:
        """C, on the root's node, in memory that its ranks share."""
        types, (n, _, m) = self._product.types, self._product.sizes
        if not types.converts:
            return RowView(complex_view(c.array), c.rows) if types.complex_b else c
        wall.enter("convert")
        whole = Span(0, n if self._team.node == self._plan.root_node else 0)
        result = make_shared_matrices(self._team, {"C": whole}, {"C": m}, {"C": self._product.result})["C"]
        with self._team.phase("gather", timed=False), busy():
            into = result.array[self._rows.slice]
            if self._exact is not None:
                self._exact.result(into, self._threads)
            elif len(self._rows):
                from hybrid.arrays.combine import finished
                from hybrid.arrays.gemm import PRODUCT

                own = c[self._rows]
                finished(complex_view(own) if types.complex_b else own, types, PRODUCT, None, into, self._threads)
        return result


def _both(before: Outcome, latest: Outcome) -> Outcome:
    """The outcome of two products, one after the other."""
    phases = {phase: _sum(spread, latest.phases.get(phase)) for phase, spread in before.phases.items()}
    check = worse_of(before.check, latest.check) if latest.check is not None else before.check
    return replace(
        latest,
        phases=phases,
        total=_sum(before.total, latest.total),
        check=check,
        intervals=_one_after_the_other(before.intervals, latest.intervals),
        arithmetic=joined([before.arithmetic, latest.arithmetic]),
        repeats=min(before.repeats, latest.repeats),
    )


def _one_after_the_other(before: list[list[Interval]], latest: list[list[Interval]]) -> list[list[Interval]]:
    """The intervals of every rank. Each product's clock begins at 0, so those of the latest follow the end of those before."""
    end = max((each.end for of_rank in before for each in of_rank), default=0.0)
    later = ([replace(each, begin=end + each.begin, end=end + each.end) for each in of_rank] for of_rank in latest)
    return [[*one, *other] for one, other in zip(before, later, strict=True)]


def _sum(one: Spread, other: Spread | None) -> Spread:
    return Spread(one.median + other.median, one.min + other.min, one.max + other.max) if other is not None else one
