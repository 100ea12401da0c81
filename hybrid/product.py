"""A product, from operands wherever they are to C at the root: agree, plan, place, run, gather, check, hand over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hybrid.agreement import Agreement
from hybrid.devices import Device
from hybrid.devices.cpu import CpuDevice
from hybrid.devices.cuda import CudaDevice
from hybrid.devices.emulated import EmulatedDevice
from hybrid.exchange.host import pass_along
from hybrid.guard import busy
from hybrid.operands import FromRoot, Operand
from hybrid.partition import Span
from hybrid.pipeline import HostRows, run_share
from hybrid.placed import verify_placed
from hybrid.plan import Plan
from hybrid.settings import Settings
from hybrid.team import Team
from hybrid.threads import limited_threads
from hybrid.timeline import Interval, Spread, slowest
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
    with limited_threads(threads):
        windows = _prepare(team, plan, a, b, out)
        _fill(team, plan, windows, a, b, threads, progress)
        device = _make_device(team, agreement)
        team.timeline.zero = time.perf_counter()  # the ranks have just come out of a phase together
        totals = []
        for index in range(-warmup, repeat):
            team.timeline.repeat = index
            with team.phase("place", timed=False), busy():
                windows["C"][plan.shares[team.rank].rows][...] = np.nan  # what is not computed shall show
            began = time.perf_counter()
            _place(team, plan, windows, a, b, settings, threads)
            _run(team, plan, windows, device, progress)
            _gather(team, plan, windows["C"], settings)
            if index >= 0:
                totals.append(time.perf_counter() - began)
        team.timeline.repeat = None
        check = _check(team, plan, windows, {"A": a, "B": b}, threads) if settings.check else None
    with team.phase("report", timed=False) as reporting:
        reporting.mine = (team.timeline.seconds(), team.timeline.since_zero() if team.timeline.kept else [])
    gpus = [station.gpu.uuid if station.gpu else f"rank {station.rank}" for station in agreement.stations]
    phases = slowest([seconds for seconds, _ in reporting.all], gpus)
    intervals = [entries for _, entries in reporting.all]
    return Outcome(agreement, windows["A"], windows["B"], windows["C"], phases, Spread.of(totals), check, intervals)


def _prepare(team: Team, plan: Plan, a: Operand, b: Operand, out: np.ndarray | None) -> dict[str, Window]:
    """The node's windows; a rank alone on its node takes the root's arrays as they lie."""
    problem, node = plan.problem, team.node
    rows = {"A": plan.a_rows_on(node), "B": Span(0, problem.l), "C": plan.c_rows_on(node)}
    columns = {"A": problem.l, "B": problem.m, "C": problem.m}
    windows = {}
    if team.size == 1:
        for key, array in (("A", a.in_place(problem.dtype)), ("B", b.in_place(problem.dtype)), ("C", out)):
            if array is not None:
                windows[key] = Window(array, rows.pop(key))
    return windows | make_windows(team, rows, columns, problem.dtype)


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


def _place(team: Team, plan: Plan, windows: dict[str, Window], a: Operand, b: Operand, settings: Settings, threads: int) -> None:
    """Bring the operands' rows to the nodes that need them: the root's arrays from the root, others between the nodes."""
    with team.phase("place"):
        for operand, key in ((a, "A"), (b, "B")):
            if isinstance(operand, FromRoot):
                _place_from_root(team, plan, windows[key], operand, key, settings, threads)
            elif key == "B":
                _place_from_nodes(team, plan, windows[key], settings)


def _place_from_root(
    team: Team, plan: Plan, window: Window, operand: FromRoot, key: str, settings: Settings, threads: int
) -> None:
    dtype = plan.problem.dtype
    if team.rank == plan.root and operand.in_place(dtype) is not window.array:
        operand.rows(window.rows, window.array, threads, lambda done: team.enter("place"))
    others = [index for index in range(len(plan.topology.nodes)) if index != plan.root_node]
    leaders = [plan.topology.leader(index) for index in others]
    row_bytes = operand.shape[1] * plan.problem.item_size

    def send(rows: Span, to: list[int]) -> None:
        chain = [plan.root, *to]
        pass_along(
            team, chain, rows, lambda part: operand.contiguous(part, dtype), window.__getitem__, row_bytes, settings.message_bytes
        )

    if key == "B":
        send(Span(0, plan.problem.l), leaders)
    else:
        for index, leader in zip(others, leaders, strict=True):
            send(plan.a_rows_on(index), [leader])


def _place_from_nodes(team: Team, plan: Plan, window: Window, settings: Settings) -> None:
    leaders = [ranks[0] for ranks in plan.topology.nodes]
    row_bytes = plan.problem.bytes(1, plan.problem.m)
    for index in range(len(leaders)):
        chain = leaders[index:] + leaders[:index]
        take = put = window.__getitem__
        if len(chain) > 1:
            pass_along(team, chain, plan.b_rows_from(index), take, put, row_bytes, settings.message_bytes)


def _make_device(team: Team, agreement: Agreement) -> Device:
    plan, kernel = agreement.plan, agreement.kernel
    with team.phase("prepare", timed=False) as preparing:
        preparing.mine = None
        gpu = agreement.stations[team.rank].gpu
        if gpu:
            return CudaDevice(gpu, kernel, plan.problem.dtype)
        if plan.device == "emulate":
            return EmulatedDevice(kernel, plan.problem.dtype)
        return CpuDevice(staged=plan.staged)


def _run(team: Team, plan: Plan, windows: dict[str, Window], device: Device, progress: Progress) -> None:
    share = plan.shares[team.rank]
    strips = sum(arrival.releases is not None for arrival in share.arrivals())
    done = 0

    def entering(phase: str) -> None:
        nonlocal done
        team.enter(phase)
        if phase == "multiply":
            progress("multiply", done, strips)
            done += 1

    with team.phase("multiply", timed=False), busy():
        host = HostRows(windows["A"][share.rows], windows["B"].array, windows["C"][share.rows])
        for phase, begin, end in run_share(share, plan.problem, host, device, entering):
            team.timeline.add(phase, begin, end)


def _check(team: Team, plan: Plan, windows: dict[str, Window], operands: dict[str, Operand], threads: int) -> Check:
    if len(plan.topology.nodes) > 1:
        for key, operand in operands.items():
            if isinstance(operand, FromRoot):
                verify_placed(team, plan, key, operand, windows[key], threads)
    return verify(team, plan, windows["A"], windows["B"], windows["C"], threads)


def _gather(team: Team, plan: Plan, c: Window, settings: Settings) -> None:
    """The rows of C from the other nodes' leaders to the root; on the root's node they lie where they belong."""
    with team.phase("gather"):
        for index in range(len(plan.topology.nodes)):
            if index != plan.root_node:
                chain = [plan.topology.leader(index), plan.root]
                row_bytes = plan.problem.bytes(1, plan.problem.m)
                take = put = c.__getitem__
                pass_along(team, chain, plan.a_rows_on(index), take, put, row_bytes, settings.message_bytes)
