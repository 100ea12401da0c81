# SPDX-License-Identifier: MIT
"""Repeats and measures a product: its outcome, with the times of its phases."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from hybrid.arrays.gemm import complex_view
from hybrid.arrays.root_operands import MatrixSource
from hybrid.core.problem import Span, record
from hybrid.core.settings import Settings
from hybrid.core.text import tell_nobody
from hybrid.core.timeline import ON_DEVICE, PHASES, Interval, Spread, Timeline, wall
from hybrid.emulation.loaded_soon import wait_until_loaded
from hybrid.execution.product import RootProduct, element_types
from hybrid.execution.rank_run import Progress
from hybrid.execution.real_products import RealProducts, element_namer
from hybrid.execution.session import Session
from hybrid.host.memory import RowView
from hybrid.host.threads import limited_threads
from hybrid.planning.arithmetic import Computed, joined
from hybrid.planning.decision import Decision
from hybrid.planning.plan import Plan
from hybrid.ranks.launcher import has_come, heed
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team
from hybrid.runs.operands import TypedProduct
from hybrid.verification.check import Check

NOTHING = RowView(np.empty((0, 0)), Span(0, 0))


class Room:
    """Memory for the matrices of successive products, each no larger than `plan`'s. Every rank makes it. `beside`: a room whose B
    and C this one shares."""

    def __init__(self, team: Team, plan: Plan, beside: Room | None = None) -> None:
        self._plan = plan
        rows = {key: rows for key, rows in plan.rows_on(team.node).items() if beside is None or key == "A"}
        widths = {key: width for key, (_, width) in _shapes_on(plan, team.node).items()}
        made = make_shared_matrices(team, rows, widths, element_types(plan.problem))
        self._memory: dict[str, RowView] = made if beside is None else {**beside._memory, **made}

    def matrices(self, plan: Plan, node: int) -> dict[str, RowView]:
        """A, B and C of this plan, except matrices for which some node's memory is too small."""
        views: dict[str, RowView] = {}
        nodes = range(len(plan.topology.nodes))
        for key, rows in plan.rows_on(node).items():
            if all(math.prod(_shapes_on(plan, each)[key]) <= math.prod(_shapes_on(self._plan, each)[key]) for each in nodes):
                shape = _shapes_on(plan, node)[key]
                memory = self._memory[key].array.reshape(-1)
                views[key] = RowView(memory[: math.prod(shape)].reshape(shape), rows)
        return views


def _shapes_on(plan: Plan, node: int) -> dict[str, tuple[int, int]]:
    widths = {"A": plan.problem.l, "B": plan.problem.m, "C": plan.problem.m}
    return {key: (len(rows), widths[key]) for key, rows in plan.rows_on(node).items()}


@record
class Outcome:
    """The result of a product. `c`: this node's rows, all on the root's node."""

    decision: Decision
    c: RowView
    phases: dict[str, Spread]
    total: Spread  # the time of one product from scatter to gather: from operands in host memory to C at the root
    check: Check | None
    intervals: list[list[Interval]] = field(default_factory=list)  # every rank's, at the root
    arithmetic: Computed = field(default_factory=dict)  # empty if all is native
    repeats: int = 1  # products finished: fewer than asked for if a signal asked the job to end
    parts: Parts | None = None  # if C was computed part by part; then `c` is empty

    @property
    def is_right(self) -> bool:
        """Whether no check has failed."""
        return self.check is None or self.check.ok

    def followed_by(self, latest: Outcome) -> Outcome:
        """The outcome of both products, one after the other: the latest's matrices, and the times of both."""
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
    """The worse of two checks, with the repairs of both."""
    if before is None:
        return check
    worse = min(before, check, key=lambda each: (each.ok, each.kind == "exact", -each.error))
    return replace(worse, repaired=before.repaired + check.repaired)


@record
class Parts:
    """A product in parts of some rows of A and some columns of B. `there`: how many parts an earlier job had written."""

    rows: int  # of a part; the last ones may have fewer
    columns: int
    there: int
    count: int
    plans: tuple[Plan, ...] = ()  # of the parts that this job has computed
    spared: int = 0  # bytes of A and B already in memory: from the part before, or read while that was multiplied


class RepeatedProduct(RootProduct):
    """A product computed `warmup` and then `repeat` times, each time in the same matrices. Every rank makes it, and calls
    `outcome`. `room`: memory for the matrices, which earlier products used. `there`: which of A and B are filled already."""

    may_use_workspace = False

    def __init__(
        self,
        session: Session,
        decision: Decision,
        operands: tuple[MatrixSource, MatrixSource],
        settings: Settings,
        *,
        repeat: int = 1,
        warmup: int = 0,
        progress: Progress = tell_nobody,
        room: Room | None = None,
        there: str = "",
    ) -> None:
        super().__init__(session, decision, operands, settings, progress=progress)
        self._repeats, self._warmups, self._room, self._there = repeat, warmup, room, there
        self.comes_again = repeat + warmup > 1 or room is not None
        self._check: Check | None = None  # of the last product, or of the first wrong one

    def outcome(self) -> Outcome:
        team = self.team
        team.timeline = Timeline(traced=team.timeline.traced)
        with limited_threads(self.threads):
            self.prepare(self._room.matrices(self.plan, team.node) if self._room is not None else {}, self._there)
            try:
                totals = self._repeat()
            except BaseException:
                self.abandon()
                raise
        with team.phase("report", timed=False) as reporting:
            traced = team.timeline.since_zero() if team.timeline.traced else []
            reporting.mine = team.timeline.seconds(), traced, self.arithmetic
        seconds, intervals, arithmetic = (list(of_ranks) for of_ranks in zip(*reporting.all, strict=True))
        devices = [each.gpu.uuid if each.gpu else f"rank {each.rank}" for each in self.decision.placements]
        return Outcome(
            self.decision,
            c=self.views["C"],
            phases=_slowest(seconds, devices),
            total=Spread.of(totals),
            check=self._check,
            intervals=intervals,
            arithmetic=joined(arithmetic),
            repeats=len(totals),
        )

    def _repeat(self) -> list[float]:
        """The seconds of each product after the warm-up, from operands in host memory to C at the root; fewer than asked for if a
        signal has asked the job to end."""
        team, totals = self.team, list[float]()
        team.timeline.zero = time.perf_counter()  # the ranks have just left a phase together
        for index in range(-self._warmups, self._repeats):
            team.timeline.repeat = index
            if index == 0:
                wait_until_loaded()  # time products as they are once the machine's caches are filled
            self.make_ready()
            with wall.within("product" if index >= 0 else "warm-up"):
                began = time.perf_counter()
                self.multiply_now()
                seconds = time.perf_counter() - began
                self.note_work()
            if index >= 0:
                totals.append(seconds)
            with wall.within("check"):
                check = self.checked()
            if check is not None:
                check = self._named(check, index)
                before = self._check.repaired if self._check is not None else ()  # is reported, too
                self._check = replace(check, repaired=before + check.repaired)
                if not check.ok:
                    totals = totals or [seconds]  # of a wrong warm-up, if there is nothing else
                    break
            if 0 <= index < self._repeats - 1:  # there is a product to report: from now on SIGTERM waits for the current one
                heed(signal.SIGTERM)
                with team.phase("scatter", timed=False) as asking:
                    asking.mine = has_come(signal.SIGTERM)
                if any(asking.all):
                    break
        team.timeline.repeat = None
        return totals

    def _named(self, check: Check, index: int) -> Check:
        """The check, with the number of the product if there are several."""
        if self._repeats + self._warmups == 1:
            return check
        if index < 0:
            return check.of(f"warm-up product {index + self._warmups + 1} of {self._warmups}")
        return check.of(f"product {index + 1} of {self._repeats}")


def _slowest(of_ranks: Sequence[dict[tuple[str, int | None], float]], devices: Sequence[str]) -> dict[str, Spread]:
    """For each of PHASES, the spread over the repeats of the slowest rank's or device's time.

    `of_ranks[rank]`: the rank's `Timeline.seconds`. `devices[rank]`: its device. Ranks that share a device take turns on it, so
    their times in the phases ON_DEVICE add up.
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


def run_typed_product(session: Session, decision: Decision, product: TypedProduct, settings: Settings, **how: Any) -> Outcome:
    """Compute the product. Every rank calls it. Unless the check has failed, `c` of the outcome has C's type; Overflow if that
    cannot hold C. The times of several real products are added up, without the conversion of C. `how`: keywords of
    `RepeatedProduct`."""
    team, plan, types, (n, _, m) = session.team, decision.plan, product.types, product.sizes
    rows, threads = plan.c_rows_at_the_end(team.rank), decision.placements[team.rank].threads.count
    products = RealProducts(team, types, threads, (len(rows), m), name_of=element_namer(rows.lo))
    outcome: Outcome | None = None
    for prime in types.primes:
        latest = RepeatedProduct(session, decision, product.sources(prime), settings, **how).outcome()
        outcome = latest if outcome is None else outcome.followed_by(latest)
        if not outcome.is_right:
            return outcome
        if types.converts:
            with team.phase("gather", timed=False):
                products.add(latest.c[rows])
        if types.primes[1:]:
            del latest
            outcome = replace(outcome, c=NOTHING)
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
