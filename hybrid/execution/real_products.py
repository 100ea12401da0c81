# SPDX-License-Identifier: MIT
"""Products of matrices of any type as products of real numbers: C whole at the root's node, or a part of it on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid.arrays.gemm import PRODUCT, Gemm, ProductType, complex_view, finished, real_operands
from hybrid.arrays.integers import ExactResult, element_of_rows
from hybrid.arrays.interop import await_callers_work, on_gpu, on_host, to_device_of, where_it_lies
from hybrid.arrays.sources import TypedProduct
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.core.timeline import Interval, Spread, wall
from hybrid.execution.outcome import Outcome, RunOptions
from hybrid.execution.product import run_product
from hybrid.host.memory import RowView
from hybrid.plan.arithmetic import joined
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.verification.check import worse_of


class RealProducts:
    """The real products of which one product of any type consists, and one rank's part of C, which is made of its parts of
    theirs:

        for number, prime in enumerate(types.primes):
            products.add(number, the product of A and B modulo the prime)
        c = products.finish()
    """

    def __init__(
        self,
        team: Team,
        types: ProductType,
        gemm: Gemm,
        threads: int,
        shape: tuple[int, int] | None,
        *,
        c: Any = None,
        named: Callable[[int, int], str] | None = None,
        beside: Any = None,
    ) -> None:
        """`shape`: of this rank's part; None where it has none. `c`, `named` and `beside`: as of `ExactResult`."""
        self._team, self._types, self._gemm, self._threads, self._c = team, types, gemm, threads, c
        self._has_part, self._product = shape is not None, None
        self._exact: ExactResult | None = None
        if types.exact is not None and shape is not None:
            numbers: dict[str, Any] = {"alpha": gemm.alpha, "beta": gemm.beta, "c": c}
            self._exact = ExactResult(types.exact, types.result, shape, named=named, beside=beside, **numbers)

    def add(self, number: int, product: Any) -> None:
        """Add the real product `number`: where there are several, its memory may be used for others afterwards."""
        if self._exact is None:
            self._product = product
        else:
            with busy():
                self._exact.add(number, product, self._threads)

    def finish(self, into: Any = None) -> Any:
        """This rank's part of C, in `into` where that is given, or None where it has none. Every rank calls it.

        Without conversion, alpha and C it is the real product's memory.
        """
        types, product = self._types, self._product
        if types.complex_b and product is not None:
            product = complex_view(product)
        if not (types.converts or self._gemm.combines):
            return product
        with self._team.phase("gather", timed=False), busy():
            if not self._has_part:
                return None
            if self._exact is not None:
                return self._exact.result(into, self._threads)
            return finished(product, types, self._gemm, self._c, into, self._threads)


def run_typed_product(
    session: Session, decision: Decision, product: TypedProduct, settings: Settings, options: RunOptions
) -> Outcome:
    """Compute the product. Every rank calls it; each rank of the root's node converts its rows of C.

    `c` of the outcome has C's type, unless the check has failed, and lies in memory that the node's ranks share. Overflow where
    its type does not hold C. The times of several real products are added up; the conversion of C is in none of them.
    """
    team, plan, types, (n, _, m) = session.team, decision.plan, product.types, product.sizes
    rows, threads = plan.c_rows_at_the_end(team.rank), decision.placements[team.rank].threads.count
    products = RealProducts(team, types, PRODUCT, threads, (len(rows), m), named=element_of_rows(rows.lo))
    outcome: Outcome | None = None
    for number, prime in enumerate(types.primes):
        latest = run_product(session, decision, *product.sources(prime), settings, options)
        outcome = latest if outcome is None else _both(outcome, latest)
        if outcome.check is not None and not outcome.check.ok:
            return outcome
        if types.converts:
            with team.phase("gather", timed=False):
                products.add(number, latest.c[rows])
        if types.primes[1:]:
            del latest
            outcome = replace(outcome, a=_NOTHING, b=_NOTHING, c=_NOTHING)
    assert outcome is not None
    c = outcome.c
    if types.converts:
        wall.enter("convert")
        whole = Span(0, n if team.node == plan.root_node else 0)
        c = make_shared_matrices(team, {"C": whole}, {"C": m}, {"C": product.result})["C"]
        products.finish(c.array[rows.slice])
    elif types.complex_b:
        c = RowView(complex_view(c.array), c.rows)
    return replace(outcome, c=c)


_NOTHING = RowView(np.empty((0, 0)), Span(0, 0))


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


def part_of_product(
    session: Session,
    decision: Decision,
    operands: Sequence[Any],
    types: ProductType,
    gemm: Gemm,
    multiply: Callable[[Any, Any], Any],
    *,
    named: Callable[[int, int], str],
    stays: bool = False,
) -> Any:
    """This rank's part of a product of which each rank keeps a part; it lies where the rank's part of A does.

    `operands`: its parts of A, B and C; C may be None. `multiply`: gives this rank's part of the real product of two matrices,
    and raises where that product is wrong. `named`: as of `ExactResult`. `stays`: integers that lie on a GPU stay there: the
    real products' operands are made beside A and B, and C is put together beside A.
    """
    team, threads = session.team, decision.placements[session.team.rank].threads.count
    a, b, c = operands
    beside = None
    if types.exact is not None:
        with team.phase("scatter"), busy():
            a, b = (where_it_lies(each) if stays else on_host(each) for each in (a, b))
            beside = a if on_gpu(a) else None
            if c is not None:
                c = to_device_of(a, c) if beside is not None else on_host(c)
    products = RealProducts(team, types, gemm, threads, (len(a), b.shape[1]), c=c, named=named, beside=beside)
    for number, prime in enumerate(types.primes):
        real = a, b
        if prime or types.complex_b:
            with team.phase("scatter", timed=False), busy():
                real = real_operands(a, b, types, gemm, prime, device=decision.plan.device, threads=threads)
        product = multiply(*real)
        del real  # before the next ones are made
        products.add(number, product)
        del product
    result = products.finish()
    if types.converts or gemm.combines:
        result = to_device_of(operands[0], result)
    if types.exact is not None:
        await_callers_work(result)  # so that it is complete, as other products are
    return result
