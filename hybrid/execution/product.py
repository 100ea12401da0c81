"""A product, from operands wherever they are to C at the root: fill, prepare, scatter, multiply, gather, check."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from hybrid.arrays.interop import on_host
from hybrid.arrays.sources import MatrixSource, RootMatrix, copy_rows
from hybrid.core.settings import Settings
from hybrid.core.spans import Topology
from hybrid.core.timeline import Interval, Spread, Timeline, slowest
from hybrid.execution.host_matrices import Progress, fill, host_matrices
from hybrid.execution.rank_run import RankRun
from hybrid.execution.scatter_gather import forwarder_of_b, gather, scatter
from hybrid.host.row_view import RowView
from hybrid.host.threads import limited_threads
from hybrid.plan.plan import Plan, make_plan
from hybrid.plan.request import PlanRequest
from hybrid.ranks.supervisor import asked_to_end, busy, finish_when_asked
from hybrid.ranks.team import Team
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.transport.base import RankMatrices
from hybrid.verification.freivalds import Check, verify
from hybrid.verification.transfers import verify_transfer


@dataclass(frozen=True)
class RunOptions:
    """How often, and what is told meanwhile.

    `out` may become C: the root's array, or with shared operands the same shared array on all ranks. `measured`: how long
    the phases took is wanted.
    """

    repeat: int = 1
    warmup: int = 0
    out: np.ndarray | None = None
    progress: Progress = lambda phase, done, of: None
    measured: bool = True


@dataclass(frozen=True)
class Outcome:
    """What a product came to. `a`, `b` and `c` are this node's rows; C is whole on the root's node."""

    decision: Decision
    a: RowView
    b: RowView
    c: RowView
    phases: dict[str, Spread]
    total: Spread  # of one product, operands in host memory to C at the root: scatter to gather
    check: Check | None
    intervals: list[list[Interval]] = field(default_factory=list)  # of every rank, at the root
    repeats: int = 1  # products finished: fewer than asked for where a signal asked the job to end


def run_product(
    session: Session,
    decision: Decision,
    a: MatrixSource,
    b: MatrixSource,
    settings: Settings,
    options: RunOptions | None = None,
) -> Outcome:
    """Carry out the plan as often as the options say. Every rank calls it."""
    options = options or RunOptions()
    team, plan = session.team, decision.plan
    threads = decision.placements[team.rank].threads.count
    team.timeline = Timeline(keep_intervals=team.timeline.keep_intervals)
    with limited_threads(threads):
        views = host_matrices(team, plan, a, b, options.out, threads)
        fill(team, plan, views, a, b, threads, options.progress)
        matrices = _rank_matrices(team, plan, views)
        forwarder = forwarder_of_b(team, plan, views["B"], isinstance(b, RootMatrix), settings)
        pinned = _read_and_written(plan, team.rank, matrices, views["B"])
        run = RankRun(session, decision, matrices, pinned, settings, options.progress, forwarder)
        totals = _repeat(team, plan, run, views, (a, b), settings, options, threads)
        check = _check(team, decision, views, {"A": a, "B": b}, threads) if settings.check else None
    outcome = Outcome(decision, views["A"], views["B"], views["C"], {}, Spread.of(totals), check, repeats=len(totals))
    return _with_times(team, outcome) if options.measured else outcome


def _repeat(
    team: Team,
    plan: Plan,
    run: RankRun,
    views: dict[str, RowView],
    operands: tuple[MatrixSource, MatrixSource],
    settings: Settings,
    options: RunOptions,
    threads: int,
) -> list[float]:
    """The seconds of each product after the warm-up; fewer than asked for where a signal asked the job to end."""
    totals = []
    team.timeline.zero = time.perf_counter()  # the ranks have just left a phase together
    for index in range(-options.warmup, options.repeat):
        team.timeline.repeat = index
        with team.phase("scatter", timed=False), busy():
            # C is filled with NaN so that elements nobody writes are found, also where an earlier product left the right ones.
            if settings.poison or (not plan.at_root and options.repeat + options.warmup > 1):
                own = views["C"].rows if plan.at_root else plan.c_rows_at_the_end(team.rank)
                copy_rows(views["C"][own], np.nan, threads)
            run.make_ready()
        began = time.perf_counter()
        if not plan.at_root:
            scatter(team, plan, views, *operands, settings, threads)
        run.multiply()
        if not plan.at_root:
            gather(team, plan, views["C"], settings)
        ended = time.perf_counter()
        if options.measured:
            run.note_work()
        if index >= 0:
            totals.append(ended - began)
        if 0 <= index < options.repeat - 1:  # a product can be reported now: a request to end waits for the current one
            finish_when_asked()
            with team.phase("scatter", timed=False) as asking:
                asking.mine = asked_to_end()
            if any(asking.all):
                break
    team.timeline.repeat = None
    return totals


def _with_times(team: Team, outcome: Outcome) -> Outcome:
    """With the phases of all ranks: of each phase the slowest rank counts."""
    with team.phase("report", timed=False) as reporting:
        reporting.mine = (team.timeline.seconds(), team.timeline.since_zero() if team.timeline.keep_intervals else [])
    devices = [each.gpu.uuid if each.gpu else f"rank {each.rank}" for each in outcome.decision.placements]
    phases = slowest([seconds for seconds, _ in reporting.all], devices)
    return Outcome(**{**vars(outcome), "phases": phases, "intervals": [entries for _, entries in reporting.all]})


def _rank_matrices(team: Team, plan: Plan, views: dict[str, RowView]) -> RankMatrices | None:
    """This rank's rows; or all, at a root that owns them."""
    a, b, c = views["A"], views["B"], views["C"]
    if plan.at_root:
        return RankMatrices(a.array, b, c.array) if team.rank == plan.root else None
    rows = plan.shares[team.rank].rows
    return RankMatrices(a[rows], b, c[rows])


def _read_and_written(plan: Plan, rank: int, matrices: RankMatrices | None, b: RowView) -> list[np.ndarray]:
    """The host memory that this rank's copies read and write."""
    if matrices is None:
        return []
    if plan.at_root or plan.transport == "host":
        return [matrices.a, matrices.b.array, matrices.c]
    return [matrices.a, b[plan.b_rows_over_link(rank)], matrices.c]


def _check(team: Team, decision: Decision, views: dict[str, RowView], operands: dict[str, MatrixSource], threads: int) -> Check:
    plan, (a, b, c) = decision.plan, (views[key] for key in "ABC")
    if plan.at_root and team.size > 1:
        with team.phase("check") as checking:
            if team.rank == plan.root:
                alone = make_plan(PlanRequest(plan.problem, Topology(((0,),)), check=True))
                a, b, c = (RowView(on_host(view.array), view.rows) for view in (a, b, c))
                free = sum(placement.threads.count for placement in decision.placements)  # the other ranks wait
                checking.mine = verify(Team(), alone, a, b, c, free)
        return checking.all[plan.root]
    if len(plan.topology.nodes) > 1:
        for key, source in operands.items():
            if isinstance(source, RootMatrix):
                verify_transfer(team, plan, key, source, views[key], threads)
    return verify(team, plan, a, b, c, threads)
