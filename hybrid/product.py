"""A product, from operands wherever they are to C at the root: prepare, fill, place, run, gather, check, hand over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hybrid.agreement import Agreement
from hybrid.exchange import Ends, Work
from hybrid.guard import busy
from hybrid.operands import FromRoot, Operand
from hybrid.partition import Span, Topology, block
from hybrid.pipeline import multiply_in_place, run_share
from hybrid.placed import verify_placed
from hybrid.placing import gather, place
from hybrid.plan import Plan, make_plan
from hybrid.recycled import recycled
from hybrid.roads import make_road, workplace_of
from hybrid.settings import Settings
from hybrid.team import Team
from hybrid.threads import limited_threads
from hybrid.timeline import Interval, Spread, Timeline, slowest
from hybrid.verify import Check, verify
from hybrid.window import Window, make_windows

# Told what is being done, how much of it is done, and of how much; on every rank.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Outcome:
    """What a product came to. `a`, `b` and `c` are this node's windows; C is whole on the root's node."""

    agreement: Agreement
    a: Window
    b: Window
    c: Window
    phases: dict[str, Spread]
    total: Spread  # of one product, operands in host memory to C at the root: place to gather
    check: Check | None
    intervals: list[list[Interval]] = field(default_factory=list)  # of every rank, at the root


def make_product(
    team: Team,
    agreement: Agreement,
    a: Operand,
    b: Operand,
    settings: Settings,
    *,
    repeat: int = 1,
    warmup: int = 0,
    out: np.ndarray | None = None,
    progress: Progress = lambda phase, done, of: None,
) -> Outcome:
    """Carry out the plan `repeat` times after `warmup` more. Every rank calls it; `out`, at the root, may become C."""
    plan = agreement.plan
    threads = agreement.stations[team.rank].threads.count
    team.timeline = _fresh(team.timeline)
    with limited_threads(threads):
        windows = _host_matrices(team, plan, a, b, out, threads)
        _fill(team, plan, windows, a, b, threads, progress)
        runner = _Runner(team, agreement, windows, settings, progress)
        team.timeline.zero = time.perf_counter()  # the ranks have just come out of a phase together
        totals = []
        for index in range(-warmup, repeat):
            team.timeline.repeat = index
            with team.phase("place", timed=False), busy():
                if settings.poison or not plan.at_root:
                    windows["C"][plan.c_rows_at_the_end(team.rank)][...] = np.nan  # what is not computed shall show
                runner.make_ready()
            began = time.perf_counter()
            if not plan.at_root:
                place(team, plan, windows, a, b, settings, threads)
            runner.run()
            if not plan.at_root:
                gather(team, plan, windows["C"], settings)
            if index >= 0:
                totals.append(time.perf_counter() - began)
        team.timeline.repeat = None
        check = _check(team, agreement, windows, {"A": a, "B": b}, threads) if settings.check else None
    with team.phase("report", timed=False) as reporting:
        reporting.mine = (team.timeline.seconds(), team.timeline.since_zero() if team.timeline.kept else [])
    gpus = [station.gpu.uuid if station.gpu else f"rank {station.rank}" for station in agreement.stations]
    phases = slowest([seconds for seconds, _ in reporting.all], gpus)
    intervals = [entries for _, entries in reporting.all]
    return Outcome(agreement, windows["A"], windows["B"], windows["C"], phases, Spread.of(totals), check, intervals)


def _fresh(old: Timeline) -> Timeline:
    new = Timeline()
    new.kept = old.kept
    return new


def _host_matrices(team: Team, plan: Plan, a: Operand, b: Operand, out: np.ndarray | None, threads: int) -> dict[str, Window]:
    """The node's windows; or the root's own arrays, as they lie where they can be read so."""
    problem, node = plan.problem, team.node
    rows = {"A": plan.a_rows_on(node), "B": Span(0, problem.l), "C": plan.c_rows_on(node)}
    columns = {"A": problem.l, "B": problem.m, "C": problem.m}
    if not plan.at_root:
        return make_windows(team, rows, columns, problem.dtype)
    matrices = {}
    with team.phase("place", timed=False), busy():
        for key, array in (("A", a.in_place(problem.dtype)), ("B", b.in_place(problem.dtype)), ("C", out)):
            if team.rank != plan.root:
                rows[key], array = Span(0, 0), np.empty((0, columns[key]), problem.dtype)
            if array is None:
                array = recycled.empty(len(rows[key]), columns[key], problem.dtype)
            matrices[key] = Window(array, rows[key])
        for operand, key in ((a, "A"), (b, "B")):
            if team.rank == plan.root and isinstance(operand, FromRoot) and operand.in_place(problem.dtype) is None:
                operand.rows(rows[key], matrices[key].array, threads, lambda done: team.enter("place"))
    return matrices


def _fill(team: Team, plan: Plan, windows: dict[str, Window], a: Operand, b: Operand, threads: int, progress: Progress) -> None:
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

            operand.rows(rows, windows[key][rows], threads, filled)


class _Runner:
    """One rank's part of the multiplication, set up as far as can be done before the clock runs."""

    def __init__(
        self, team: Team, agreement: Agreement, windows: dict[str, Window], settings: Settings, progress: Progress
    ) -> None:
        plan, kernel = agreement.plan, agreement.kernel
        gpus = [station.gpu for station in agreement.stations]
        self._team, self._progress, self._share = team, progress, plan.shares[team.rank]
        self._poisoned, self._staged = settings.poison and plan.staged, plan.staged
        self._ends = _ends(team, plan, windows)
        self._strips, self._done = sum(1 for _ in self._share.strips()), 0
        began = time.perf_counter()
        with team.phase("prepare", timed=False), busy():
            self._workplace = workplace_of(team, plan, gpus[team.rank], kernel)
        if plan.staged:
            self._road, self._buffers = make_road(team, plan, self._workplace, self._ends, kernel, gpus)
            with team.phase("prepare", timed=False), busy():
                for array in _read_and_written(team, plan, self._ends):
                    self._workplace.device.lock(array)
            team.timeline.add("prepare", began, time.perf_counter())

    def make_ready(self) -> None:
        """Before each repetition; the ranks come together between this and `run`."""
        self._done = 0
        if self._workplace.board is not None:
            self._workplace.board.new_round()
        if self._poisoned:
            self._workplace.device.poison(self._workplace.memory)

    def run(self) -> None:
        with self._team.phase("multiply", timed=False), busy():
            try:
                work = self._multiply()
            except BaseException:
                self._workplace.drain()
                raise
            for phase, begin, end in work:
                self._team.timeline.add(phase, begin, end)

    def _multiply(self) -> Work:
        device = self._workplace.device
        if self._staged:
            return run_share(self._share, self._buffers, self._road, device, self._entering)
        assert self._ends is not None
        return multiply_in_place(self._share, self._ends, device, self._entering)

    def _entering(self, phase: str) -> None:
        self._team.enter(phase)
        if phase == "multiply":
            self._progress("multiply", self._done, self._strips)
            self._done += 1


def _ends(team: Team, plan: Plan, windows: dict[str, Window]) -> Ends | None:
    """This rank's rows; or all, at a root that owns them."""
    a, b, c = windows["A"], windows["B"], windows["C"]
    if plan.at_root:
        return Ends(a.array, b.array, c.array) if team.rank == plan.root else None
    rows = plan.shares[team.rank].rows
    return Ends(a[rows], b.array, c[rows])


def _read_and_written(team: Team, plan: Plan, ends: Ends | None) -> list[np.ndarray]:
    """The host memory that this rank's copies touch."""
    if ends is None:
        return []
    if plan.at_root or plan.road == "host":
        return [ends.a, ends.b, ends.c]
    own = block(plan.problem.l, len(team.node_ranks), team.node_ranks.index(team.rank))
    return [ends.a, ends.b[own.slice], ends.c]


def _check(team: Team, agreement: Agreement, windows: dict[str, Window], operands: dict[str, Operand], threads: int) -> Check:
    plan, (a, b, c) = agreement.plan, (windows[key] for key in "ABC")
    if plan.at_root and team.size > 1:
        with team.phase("check") as checking:
            if team.rank == plan.root:
                alone = make_plan(plan.problem, Topology(((0,),)), check=True)
                free = sum(station.threads.count for station in agreement.stations)  # the other ranks wait
                checking.mine = verify(Team(), alone, a, b, c, free)
        return checking.all[plan.root]
    if len(plan.topology.nodes) > 1:
        for key, operand in operands.items():
            if isinstance(operand, FromRoot):
                verify_placed(team, plan, key, operand, windows[key], threads)
    return verify(team, plan, a, b, c, threads)
