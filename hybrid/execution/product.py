"""A product, from operands wherever they are to C at the root: prepare, fill, place, run, gather, check, hand over."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from hybrid.arrays.interop import on_host
from hybrid.arrays.sources import MatrixSource, RootMatrix, SharedMatrix, copy_rows
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, Topology
from hybrid.core.timeline import Interval, Spread, Timeline, slowest
from hybrid.execution.rank_run import Progress, Runner
from hybrid.execution.scatter_gather import forwarder_of_b, gather, scatter
from hybrid.host.page_memory import result_pool
from hybrid.host.row_view import RowView
from hybrid.host.threads import limited_threads
from hybrid.plan.plan import Plan, make_plan
from hybrid.ranks.heartbeat import asked_to_end, busy, finish_when_asked
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team
from hybrid.selection.agreement import Agreement
from hybrid.transport.base import RankMatrices
from hybrid.verification.freivalds import Check, verify
from hybrid.verification.transfers import verify_transfer


@dataclass(frozen=True)
class Outcome:
    """What a product came to. `a`, `b` and `c` are this node's windows; C is whole on the root's node."""

    agreement: Agreement
    a: RowView
    b: RowView
    c: RowView
    phases: dict[str, Spread]
    total: Spread  # of one product, operands in host memory to C at the root: place to gather
    check: Check | None
    intervals: list[list[Interval]] = field(default_factory=list)  # of every rank, at the root
    repeats: int = 1  # products finished: fewer than asked for where a signal asked the job to end


def run_product(
    team: Team,
    agreement: Agreement,
    a: MatrixSource,
    b: MatrixSource,
    settings: Settings,
    *,
    repeat: int = 1,
    warmup: int = 0,
    out: np.ndarray | None = None,
    progress: Progress = lambda phase, done, of: None,
    measured: bool = True,
) -> Outcome:
    """Carry out the plan `repeat` times after `warmup` more. Every rank calls it.

    `out` may become C: the root's array, or with operands that are shared the same shared one on all ranks.
    `measured`: how long the phases took is wanted.
    """
    plan = agreement.plan
    threads = agreement.placements[team.rank].threads.count
    team.timeline = _fresh(team.timeline)
    with limited_threads(threads):
        views = _host_matrices(team, plan, a, b, out, threads)
        _fill(team, plan, views, a, b, threads, progress)
        matrices = _matrices(team, plan, views)
        forwarder = forwarder_of_b(team, plan, views["B"], isinstance(b, RootMatrix), settings)
        touched = _read_and_written(plan, team.rank, matrices, views["B"])
        runner = Runner(team, agreement, matrices, touched, settings, progress, forwarder)
        team.timeline.zero = time.perf_counter()  # the ranks have just come out of a phase together
        totals = []
        for index in range(-warmup, repeat):
            team.timeline.repeat = index
            with team.phase("scatter", timed=False), busy():
                # What is not computed shall show, also where the product before left what is right.
                if settings.poison or (not plan.at_root and repeat + warmup > 1):
                    own = views["C"].rows if plan.at_root else plan.c_rows_at_the_end(team.rank)
                    copy_rows(views["C"][own], np.nan, threads)
                runner.make_ready()
            began = time.perf_counter()
            if not plan.at_root:
                scatter(team, plan, views, a, b, settings, threads)
            runner.run()
            if not plan.at_root:
                gather(team, plan, views["C"], settings)
            ended = time.perf_counter()
            if measured:
                runner.note_work()
            if index >= 0:
                totals.append(ended - began)
            if 0 <= index < repeat - 1:  # there is a product to report: a request to end no longer ends the rank at once
                finish_when_asked()
                with team.phase("scatter", timed=False) as asking:
                    asking.mine = asked_to_end()
                if any(asking.all):
                    break
        team.timeline.repeat = None
        check = _check(team, agreement, views, {"A": a, "B": b}, threads) if settings.check else None
    if not measured:
        return Outcome(agreement, views["A"], views["B"], views["C"], {}, Spread.of(totals), check)
    with team.phase("report", timed=False) as reporting:
        reporting.mine = (team.timeline.seconds(), team.timeline.since_zero() if team.timeline.traced else [])
    gpus = [placement.gpu.uuid if placement.gpu else f"rank {placement.rank}" for placement in agreement.placements]
    phases = slowest([seconds for seconds, _ in reporting.all], gpus)
    intervals = [entries for _, entries in reporting.all]
    return Outcome(agreement, views["A"], views["B"], views["C"], phases, Spread.of(totals), check, intervals, len(totals))


def _fresh(old: Timeline) -> Timeline:
    new = Timeline()
    new.traced = old.traced
    return new


def _host_matrices(
    team: Team, plan: Plan, a: MatrixSource, b: MatrixSource, out: np.ndarray | None, threads: int
) -> dict[str, RowView]:
    """The node's windows; or the root's own arrays, as they lie where they can be read so."""
    problem, node = plan.problem, team.node
    rows = {"A": plan.a_rows_on(node), "B": plan.b_rows_on(node), "C": plan.c_rows_on(node)}
    columns = {"A": problem.l, "B": problem.m, "C": problem.m}
    if not plan.at_root:
        there = {key: operand.array for key, operand in (("A", a), ("B", b)) if isinstance(operand, SharedMatrix)}
        if there and out is not None:
            there["C"] = out
        made = {key: span for key, span in rows.items() if key not in there}
        views = {key: RowView(array, rows[key]) for key, array in there.items()}
        return views | (make_shared_matrices(team, made, columns, problem.dtype) if made else {})
    matrices = {}
    with team.phase("scatter", timed=False), busy():
        for key, array in (("A", a.in_place(problem.dtype)), ("B", b.in_place(problem.dtype)), ("C", out)):
            if team.rank != plan.root:
                rows[key], array = Span(0, 0), np.empty((0, columns[key]), problem.dtype)
            if array is None:
                array = result_pool.empty(len(rows[key]), columns[key], problem.dtype)
            matrices[key] = RowView(array, rows[key])
        for operand, key in ((a, "A"), (b, "B")):
            if team.rank == plan.root and isinstance(operand, RootMatrix) and operand.in_place(problem.dtype) is None:
                operand.rows(rows[key], matrices[key].array, threads, lambda done: team.enter("scatter"))
    return matrices


def _fill(
    team: Team, plan: Plan, views: dict[str, RowView], a: MatrixSource, b: MatrixSource, threads: int, progress: Progress
) -> None:
    """Every rank makes or reads its own rows of the operands that are not the root's."""
    share = plan.shares[team.rank]
    parts = [(operand, key, rows) for operand, key, rows in ((a, "A", share.rows), (b, "B", share.b_rows)) if not operand.at_root]
    if not parts:
        return
    with team.phase("fill"):
        for operand, key, rows in parts:

            def filled(done: int, rows: Span = rows) -> None:
                team.enter("fill")
                progress("fill", done, len(rows))

            operand.rows(rows, views[key][rows], threads, filled)


def _matrices(team: Team, plan: Plan, views: dict[str, RowView]) -> RankMatrices | None:
    """This rank's rows; or all, at a root that owns them."""
    a, b, c = views["A"], views["B"], views["C"]
    if plan.at_root:
        return RankMatrices(a.array, b, c.array) if team.rank == plan.root else None
    rows = plan.shares[team.rank].rows
    return RankMatrices(a[rows], b, c[rows])


def _read_and_written(plan: Plan, rank: int, matrices: RankMatrices | None, b: RowView) -> list[np.ndarray]:
    """The host memory that this rank's copies touch."""
    if matrices is None:
        return []
    if plan.at_root or plan.transport == "host":
        return [matrices.a, matrices.b.array, matrices.c]
    return [matrices.a, b[plan.b_rows_over_link(rank)], matrices.c]


def _check(team: Team, agreement: Agreement, views: dict[str, RowView], operands: dict[str, MatrixSource], threads: int) -> Check:
    plan, (a, b, c) = agreement.plan, (views[key] for key in "ABC")
    if plan.at_root and team.size > 1:
        with team.phase("check") as checking:
            if team.rank == plan.root:
                alone = make_plan(plan.problem, Topology(((0,),)), check=True)
                a, b, c = (RowView(on_host(window.array), window.rows) for window in (a, b, c))
                free = sum(placement.threads.count for placement in agreement.placements)  # the other ranks wait
                checking.mine = verify(Team(), alone, a, b, c, free)
        return checking.all[plan.root]
    if len(plan.topology.nodes) > 1:
        for key, operand in operands.items():
            if isinstance(operand, RootMatrix):
                verify_transfer(team, plan, key, operand, views[key], threads)
    return verify(team, plan, a, b, c, threads)
