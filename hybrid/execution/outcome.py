# SPDX-License-Identifier: MIT
"""What calls ask for beside their operands, what products give, and what calls of all forms of operands have in common."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace

import numpy as np

from hybrid.arrays.gemm import ProductType
from hybrid.core.problem import record
from hybrid.core.settings import Settings
from hybrid.core.text import warn
from hybrid.core.timeline import Interval, Spread
from hybrid.errors import CheckFailed, UsageError
from hybrid.host.memory import RowView
from hybrid.host.threads import usable_cores
from hybrid.planning.arithmetic import Computed, joined
from hybrid.planning.plan import Plan
from hybrid.ranks.team import Team
from hybrid.selection.decision import Decision
from hybrid.verification.check import Check, worse_of

# Told what is being done, how much of it is done, and of how much; on every rank.
Progress = Callable[[str, int, int], None]


@record
class RunOptions:
    """How often the product is computed, and what is told meanwhile.

    `out`: an array that may become C: the root's, or with shared operands the same shared one on all ranks. `measured`: the
    times of the phases are wanted. `after`: a product of other rows of A with the same B, by the same ranks, of which this one
    takes over the matrices; B is there already. `measuring`: a context that is entered before the first product that is timed,
    and left after the last one's check. `seed`: of the host's check of the first product; None: the ranks agree on one.
    `scattered`: A and B of the first product are in the session's workspace already.
    """

    repeat: int = 1
    warmup: int = 0
    out: np.ndarray | None = None
    progress: Progress = lambda phase, done, of: None
    measured: bool = True
    after: Outcome | None = None
    measuring: Callable[[], AbstractContextManager[None]] = nullcontext
    seed: int | None = None
    scattered: bool = False

    def kept(self, plan: Plan) -> dict[str, RowView]:
        """The matrices that this product's plan takes over: the same ones on every rank. Where B is among them, so are its
        elements."""
        if self.after is None:
            return {}
        before, nodes = self.after.decision.plan, range(len(plan.topology.nodes))
        found, shares = {"A": self.after.a, "B": self.after.b, "C": self.after.c}, zip(plan.shares, before.shares, strict=True)
        alike = {key for key in found if all(plan.rows_on(node)[key] == before.rows_on(node)[key] for node in nodes)}
        if any(one.b_rows != other.b_rows for one, other in shares):
            alike.discard("B")
        return {key: view for key, view in found.items() if key in alike}


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


@record
class Parts:
    """A product in parts, each of which is some rows of A and C. `there`: the rows of C that an earlier job had written
    already."""

    rows: int  # in a part; the last one may have fewer
    there: int
    plans: tuple[Plan, ...]  # those of the parts that this job has computed


def refuse_no_rank(team: Team, root: int) -> None:
    """UsageError unless `root` is the number of a rank."""
    if type(root) is not int or not 0 <= root < team.size:
        raise UsageError(f"root {root!r} is not a rank of a communicator of {team.size}", code="root")


def settle(check: Check | None, *, warns: bool) -> None:
    """CheckFailed where the product is wrong. Where `warns`, this rank warns of what was repaired."""
    if check is None:
        return
    if not check.ok:
        raise CheckFailed(check.refusal(), code=check.code)
    for line in check.repaired if warns else ():
        warn(f"repaired: {line}")


def exactly(settings: Settings, types: ProductType) -> Settings:
    """The settings for a product of these types. Of integers it is native: nothing may be rounded, also not where that would be
    as accurate as float64."""
    return replace(settings, precision="native") if types.exact is not None else settings


def threads_until_decided(team: Team, settings: Settings) -> int:
    """The number of threads with which a rank looks at its operands, before it is decided how many it has."""
    return settings.threads or max(1, len(usable_cores()) // len(team.node_ranks))
