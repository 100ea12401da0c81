# SPDX-License-Identifier: MIT
"""Products of matrices of any type as products of real numbers: C whole at the root's node, or a part of it on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid.arrays.gemm import Gemm, ProductType, complex_view, finished, numpy_type, real_operands
from hybrid.arrays.integers import Exact, ExactResult, write_remainders
from hybrid.arrays.interop import await_callers_work, empty_beside, on_gpu, on_host, to_device_of, where_it_lies
from hybrid.arrays.sources import TypedProduct
from hybrid.core.problem import record
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.core.timeline import Interval, Spread, wall
from hybrid.execution.outcome import Outcome, RunOptions
from hybrid.execution.product import run_product
from hybrid.host.memory import RowView
from hybrid.plan.arithmetic import joined
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.verification.check import worse_of

# -------- typed product
# A product of matrices of any type: the real products from which it is computed, and C in its own type, whole on the root's
# node.


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
            from hybrid.arrays.integers import ExactResult, element_of_rows  # real products start sooner without it

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
                from hybrid.arrays.gemm import PRODUCT, finished

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


# -------- part of product
# A product of any type of which each rank keeps a part: the real products from which it is computed, and this rank's part of
# C.


@record
class WantedPart:
    """The type of C, and what is done with the product. `named`: names an element of this rank's part for messages, as for
    `ExactResult`. `stays`: integers that lie on a GPU stay there."""

    types: ProductType
    gemm: Gemm
    exact: Exact | None
    named: Callable[[int, int], str]
    stays: bool = False


def exact_product(terms: int, largest: Sequence[tuple[int, ...]], gemm: Gemm, most: int | None = None) -> Exact:
    """How a product of integers is computed exactly. `largest`: for each rank the largest magnitudes of its A, B and C; `most`:
    as of `Exact.of`."""
    a, b, c = map(max, zip(*largest, strict=True))
    return Exact.of(terms, (a, b), alpha=gemm.alpha, beta=gemm.beta, largest_c=c, most=most)


def bytes_of_result(elements: int, types: ProductType, exact: Exact | None) -> int:
    """The bytes that so many elements of C take, beside those of the real product's C."""
    if exact is not None:
        return exact.bytes_beside(elements, types.result)
    return elements * numpy_type(types.result).itemsize if types.converts else 0


def part_of_product(
    session: Session, decision: Decision, operands: Sequence[Any], wanted: WantedPart, multiply: Callable[[Any, Any], Any]
) -> Any:
    """This rank's part of C, where its part of A lies.

    `operands`: its parts of A, B and C; C may be None. `multiply`: gives this rank's part of the real product of two matrices,
    and raises where that product is wrong.
    """
    if wanted.exact is not None:
        return _exact_part(session, decision, operands, wanted, wanted.exact, multiply)
    team, types, gemm = session.team, wanted.types, wanted.gemm
    threads, (a, b, c) = decision.placements[team.rank].threads.count, operands
    real = a, b
    if types.complex_b:
        with team.phase("scatter", timed=False), busy():
            real = real_operands(a, b, types, gemm, device=decision.plan.device, threads=threads)
    product = multiply(*real)
    if not (types.complex_b or types.converts or gemm.combines):
        return product
    with team.phase("gather", timed=False), busy():
        product = complex_view(product) if types.complex_b else product
        return to_device_of(a, finished(product, types, gemm, c, None, threads))


def _exact_part(
    session: Session,
    decision: Decision,
    operands: Sequence[Any],
    wanted: WantedPart,
    exact: Exact,
    multiply: Callable[[Any, Any], Any],
) -> Any:
    """`part_of_product` of integers. Where what lies on a GPU stays there, the real products' operands are made beside A and B,
    and C is put together beside A."""
    team, types, gemm = session.team, wanted.types, wanted.gemm
    threads = decision.placements[team.rank].threads.count
    with team.phase("scatter", timed=False), busy():
        a, b = (where_it_lies(each) if wanted.stays else on_host(each) for each in operands[:2])
        beside, c = (a if on_gpu(a) else None), operands[2]
        if c is not None:
            c = to_device_of(a, c) if beside is not None else on_host(c)
        numbers = {"alpha": gemm.alpha, "beta": gemm.beta, "c": c}
        result = ExactResult(exact, types.result, (len(a), b.shape[1]), named=wanted.named, beside=beside, **numbers)
    for number, prime in enumerate(exact.products):
        with team.phase("scatter", timed=False), busy():
            real = [_of_prime(each, prime, types.computed, threads) for each in (a, b)]
        product = multiply(*real)
        del real  # before the next ones are made
        with team.phase("gather", timed=False), busy():
            result.add(number, product, threads)
        del product
    with team.phase("gather", timed=False), busy():
        c = to_device_of(operands[0], result.result(None, threads))
        await_callers_work(c)  # so that it is complete, as other products are
        return c


def _of_prime(matrix: Any, prime: int, dtype: str, threads: int) -> Any:
    """The matrix as an operand of the product modulo this prime, in memory beside it; with 0 it has the same elements."""
    made = empty_beside(matrix, matrix.shape, dtype)
    write_remainders(matrix, prime, Span(0, len(matrix)), made, threads)
    return made
