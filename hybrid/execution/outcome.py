# SPDX-License-Identifier: MIT
"""What is asked of a product beside its operands, and what the product gives."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field

import numpy as np

from hybrid.core.problem import record
from hybrid.core.timeline import Interval, Spread
from hybrid.host.memory import RowView
from hybrid.host.threads import limited_threads, threads_allowed
from hybrid.plan.arithmetic import Computed
from hybrid.plan.plan import Plan
from hybrid.plan.schedule import RankShare
from hybrid.ranks.team import Team
from hybrid.selection.decision import Decision
from hybrid.verification.check import Check

# -------- progress
# How far a product has come: what its caller and the rank's supervisor are told while it is computed.

# Told what is being done, how much of it is done, and of how much; on every rank.
Progress = Callable[[str, int, int], None]
Entering = Callable[[str], None]  # told the phase of each copy and multiplication before that is submitted


class TileProgress:
    """What a rank tells of its share while it submits it: the phase, and how many of the tiles have been submitted."""

    def __init__(self, team: Team, share: RankShare, progress: Progress) -> None:
        self._team, self._progress = team, progress
        self._tiles = sum(len(arrival.releases) for arrival in share.order)
        self._submitted = 0

    def begin(self) -> None:
        """A product begins: no tile is submitted."""
        self._submitted = 0

    def __call__(self, phase: str) -> None:
        """Tell the phase of the next copy or multiplication: see `Entering`."""
        self._team.enter(phase)
        if phase == "multiply":
            self._progress("multiply", self._submitted, self._tiles)
            self._submitted += 1


# -------- worker
# A thread that multiplies while the caller moves data: MPI goes on only while it is called.

_PAUSE = 1e-3  # seconds, at most, between two looks of the thread that moves data while another one multiplies


class Worker:
    """Does work in the order in which it is given: at once, or `beside` the caller, in another thread."""

    def __init__(self, *, beside: bool) -> None:
        self._thread = ThreadPoolExecutor(1) if beside else None
        self._asked: list[Future[None]] = []

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def do(self, work: Callable[[], None]) -> None:
        """Do the work now, or in its turn."""
        if self._thread is None:
            work()
        else:
            self._asked.append(self._thread.submit(_by_threads, threads_allowed(), work))

    def computes(self) -> bool:
        """Whether the other thread still has something to do."""
        return bool(self._asked) and not self._asked[-1].done()

    def wait(self, meanwhile: Callable[[], None]) -> None:
        """Wait until all work is done, and call `meanwhile` again and again. Raises what any of the work has raised."""
        for each in self._asked:
            while not wait([each], _PAUSE).done:
                meanwhile()
            each.result()


def _by_threads(count: int, work: Callable[[], None]) -> None:
    """Do the work with as many threads as the caller of `do` may use: how many is told to each thread by itself."""
    with limited_threads(count):
        work()


@record
class RunOptions:
    """How often the product is computed, and what is told meanwhile.

    `out`: an array that may become C: the root's, or with shared operands the same shared one on all ranks. `measured`: the
    times of the phases are wanted. `after`: a product of other rows of A with the same B, by the same ranks, of which this one
    takes over the matrices; B is there already. `measuring`: a context that is entered before the first product that is timed,
    and left after the last one's check.
    """

    repeat: int = 1
    warmup: int = 0
    out: np.ndarray | None = None
    progress: Progress = lambda phase, done, of: None
    measured: bool = True
    after: Outcome | None = None
    measuring: Callable[[], AbstractContextManager[None]] = nullcontext

    def kept(self, plan: Plan) -> dict[str, RowView]:
        """The matrices that this product's plan takes over: the same ones on every rank. Where B is among them, so are its
        elements."""
        if self.after is None:
            return {}
        before, nodes = self.after.decision.plan, range(len(plan.topology.nodes))
        rows = {"A": (plan.a_rows_on, before.a_rows_on), "C": (plan.c_rows_on, before.c_rows_on)}
        found = {"A": self.after.a, "C": self.after.c}
        kept = {key: found[key] for key, (now, then) in rows.items() if all(now(node) == then(node) for node in nodes)}
        same_owners = all(one.b_rows == other.b_rows for one, other in zip(plan.shares, before.shares, strict=True))
        if same_owners and all(plan.b_rows_on(node) == before.b_rows_on(node) for node in nodes):
            kept["B"] = self.after.b
        return kept


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


@record
class Parts:
    """A product in parts, each of which is some rows of A and C. `there`: the rows of C that an earlier job had written
    already."""

    rows: int  # in a part; the last one may have fewer
    there: int
    plans: tuple[Plan, ...]  # those of the parts that this job has computed
