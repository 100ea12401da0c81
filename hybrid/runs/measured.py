# SPDX-License-Identifier: MIT
"""A product that is repeated and measured: its outcome, with the times of its phases."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from hybrid.arrays.gemm import complex_view
from hybrid.arrays.root_operands import MatrixSource
from hybrid.core.problem import Span, record
from hybrid.core.settings import Settings
from hybrid.core.text import tell_nobody
from hybrid.core.timeline import ON_DEVICE, PHASES, Interval, Spread, Timeline, wall
from hybrid.emulation.loaded_soon import wait_until_loaded
from hybrid.execution.product import RootProduct
from hybrid.execution.rank_run import Progress
from hybrid.execution.real_products import RealProducts, element_of_rows
from hybrid.execution.session import Session
from hybrid.host.memory import RowView
from hybrid.host.threads import limited_threads
from hybrid.planning.arithmetic import Computed, joined
from hybrid.planning.decision import Decision
from hybrid.planning.plan import Plan
from hybrid.ranks.launcher import has_come, heed
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.runs.operands import TypedProduct
from hybrid.verification.check import Check


@record
class RunOptions:
    """How often the product is computed, and what is told meanwhile.

    `after`: a product of other rows of A with the same B, by the same ranks, of which this one takes over the matrices; B is
    there already.
    """

    repeat: int = 1
    warmup: int = 0
    progress: Progress = tell_nobody
    after: Outcome | None = None


@record
class Outcome:
    """What a product has given. `a`, `b` and `c` are this node's rows; C is whole on the root's node."""

    decision: Decision
    a: RowView
    b: RowView
    c: RowView
    phases: dict[str, Spread]
    total: Spread  # the time of one product from scatter to gather: from operands in host memory to C at the root
    check: Check | None
    intervals: list[list[Interval]] = field(default_factory=list)  # every rank's, at the root
    arithmetic: Computed = field(default_factory=dict)  # empty where all is native
    repeats: int = 1  # products finished: fewer than asked for where a signal asked the job to end
    parts: Parts | None = None  # where C was computed part by part; then `a`, `b` and `c` are empty

    def followed_by(self, latest: Outcome) -> Outcome:
        """What both products have given, one after the other: the matrices of the latest, and the times of both."""
        phases = dict(self.phases)
        for phase, spread in latest.phases.items():
            phases[phase] = phases[phase].plus(spread) if phase in phases else spread
        end = max((each.end for of_rank in self.intervals for each in of_rank), default=0.0)  # each clock begins at 0
        later = [[replace(each, begin=end + each.begin, end=end + each.end) for each in of_rank] for of_rank in latest.intervals]
        return replace(
            latest,
            phases=phases,
            total=self.total.plus(latest.total),
            check=worse_of(self.check, latest.check) if latest.check is not None else self.check,
            intervals=[[*one, *other] for one, other in zip(self.intervals, later, strict=True)],
            arithmetic=joined([self.arithmetic, latest.arithmetic]),
            repeats=min(self.repeats, latest.repeats),
        )


def worse_of(before: Check | None, check: Check) -> Check:
    """The worse of two checks, with what was repaired by either."""
    if before is None:
        return check
    worse = min(before, check, key=lambda each: (each.ok, each.kind == "exact", -each.error))
    return replace(worse, repaired=before.repaired + check.repaired)


@record
class Parts:
    """A product in parts, each of which is some rows of A and C. `there`: the rows of C that an earlier job had written
    already."""

    rows: int  # in a part; the last one may have fewer
    there: int
    plans: tuple[Plan, ...]  # those of the parts that this job has computed


def run_product(
    session: Session, decision: Decision, a: MatrixSource, b: MatrixSource, settings: Settings, options: RunOptions | None = None
) -> Outcome:
    """Compute the product as often as the options say. Every rank calls it."""
    return _Repeated(session, decision, (a, b), settings, options or RunOptions()).outcome()


class _Repeated(RootProduct):
    """A product that is computed as often as the options say, in matrices that stay for the next."""

    may_use_workspace = False

    def __init__(
        self,
        session: Session,
        decision: Decision,
        operands: tuple[MatrixSource, MatrixSource],
        settings: Settings,
        options: RunOptions,
    ) -> None:
        super().__init__(session, decision, operands, settings, progress=options.progress)
        self._options = options
        self.comes_again = options.repeat + options.warmup > 1 or options.after is not None
        self._check: Check | None = None  # of the last product, or of the first one that is wrong

    def outcome(self) -> Outcome:
        team = self.team
        team.timeline = Timeline(traced=team.timeline.traced)
        with limited_threads(self.threads):
            self.prepare(self._kept())
            try:
                totals = self._repeat()
            except BaseException:
                self.run.abandon()
                raise
        with team.phase("report", timed=False) as reporting:
            traced = team.timeline.since_zero() if team.timeline.traced else []
            reporting.mine = team.timeline.seconds(), traced, self.run.arithmetic
        seconds, intervals, arithmetic = (list(of_ranks) for of_ranks in zip(*reporting.all, strict=True))
        devices = [each.gpu.uuid if each.gpu else f"rank {each.rank}" for each in self.decision.placements]
        return Outcome(
            self.decision,
            a=self.views["A"],
            b=self.views["B"],
            c=self.views["C"],
            phases=_slowest(seconds, devices),
            total=Spread.of(totals),
            check=self._check,
            intervals=intervals,
            arithmetic=joined(arithmetic),
            repeats=len(totals),
        )

    def _kept(self) -> dict[str, RowView]:
        """The matrices of the product before that this one's plan takes over."""
        before = self._options.after
        if before is None:
            return {}
        plan, earlier, nodes = self.plan, before.decision.plan, range(len(self.plan.topology.nodes))
        found, shares = {"A": before.a, "B": before.b, "C": before.c}, zip(plan.shares, earlier.shares, strict=True)
        alike = {key for key in found if all(plan.rows_on(node)[key] == earlier.rows_on(node)[key] for node in nodes)}
        if any(one.b_rows != other.b_rows for one, other in shares):
            alike.discard("B")
        return {key: view for key, view in found.items() if key in alike}

    def _repeat(self) -> list[float]:
        """The seconds of each product after the warm-up, from the operands in host memory to C at the root; fewer than asked for
        where a signal has asked the job to end."""
        team, options, totals = self.team, self._options, list[float]()
        team.timeline.zero = time.perf_counter()  # the ranks have just left a phase together
        for index in range(-options.warmup, options.repeat):
            team.timeline.repeat = index
            if index == 0:
                wait_until_loaded()  # what follows is timed, as are all products after the first ones on a machine
            self.make_ready()
            with wall.within("product" if index >= 0 else "warm-up"):
                began = time.perf_counter()
                self.multiply_now()
                seconds = time.perf_counter() - began
                self.run.note_work()
            if index >= 0:
                totals.append(seconds)
            with wall.within("check"):
                check = self.checked()
            if check is not None:
                check = self._named(check, index)
                before = self._check.repaired if self._check is not None else ()  # is told, too
                self._check = replace(check, repaired=before + check.repaired)
                if not check.ok:
                    totals = totals or [seconds]  # those of a wrong warm-up, where it does not come to more
                    break
            if 0 <= index < options.repeat - 1:  # a product can be reported now: a request to end waits for the current one
                heed(signal.SIGTERM)
                with team.phase("scatter", timed=False) as asking:
                    asking.mine = has_come(signal.SIGTERM)
                if any(asking.all):
                    break
        team.timeline.repeat = None
        return totals

    def _named(self, check: Check, index: int) -> Check:
        """The check, with the number of the product where there are several."""
        options = self._options
        if options.repeat + options.warmup == 1:
            return check
        if index < 0:
            return check.of(f"warm-up product {index + options.warmup + 1} of {options.warmup}")
        return check.of(f"product {index + 1} of {options.repeat}")


def _slowest(of_ranks: Sequence[dict[tuple[str, int | None], float]], devices: Sequence[str]) -> dict[str, Spread]:
    """For each of PHASES the time of the slowest rank or device in each repeat, as the spread over the repeats.

    `of_ranks[rank]`: what the rank's `Timeline.seconds` gave. `devices[rank]`: its device. Ranks that share a device take turns
    on it, so their times in the phases ON_DEVICE add up.
    """
    sums: dict[tuple[str, int | None, str], float] = {}
    for rank, (spent, device) in enumerate(zip(of_ranks, devices, strict=True)):
        for (phase, repeat), seconds in spent.items():
            key = (phase, repeat, device if phase in ON_DEVICE else f"rank {rank}")
            sums[key] = sums.get(key, 0.0) + seconds
    slowest_of: dict[str, dict[int | None, float]] = {}
    for (phase, repeat, _), seconds in sums.items():
        by_repeat = slowest_of.setdefault(phase, {})
        by_repeat[repeat] = max(by_repeat.get(repeat, 0.0), seconds)
    return {phase: Spread.of(list(slowest_of[phase].values())) for phase in PHASES if phase in slowest_of}


def run_typed_product(
    session: Session, decision: Decision, product: TypedProduct, settings: Settings, options: RunOptions
) -> Outcome:
    """Compute the product. Every rank calls it; each rank of the root's node converts its rows of C.

    `c` of the outcome has C's type, unless the check has failed, and lies in memory that the node's ranks share. Overflow where
    its type does not hold C. The times of several real products are added up; the conversion of C is in none of them.
    """
    team, plan, types, (n, _, m) = session.team, decision.plan, product.types, product.sizes
    rows, threads = plan.c_rows_at_the_end(team.rank), decision.placements[team.rank].threads.count
    products = RealProducts(team, types, threads, (len(rows), m), named=element_of_rows(rows.lo))
    outcome: Outcome | None = None
    for prime in types.primes:
        latest = run_product(session, decision, *product.sources(prime), settings, options)
        outcome = latest if outcome is None else outcome.followed_by(latest)
        if outcome.check is not None and not outcome.check.ok:
            return outcome
        if types.converts:
            with team.phase("gather", timed=False):
                products.add(latest.c[rows])
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
