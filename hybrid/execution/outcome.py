# SPDX-License-Identifier: MIT
"""What is asked of a product beside its operands, and what the product gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field
from threading import Event, Thread

import numpy as np

from hybrid.core.energy import CPU, GPU, KINDS, MEMORY, Energy
from hybrid.core.problem import record
from hybrid.core.timeline import Interval, Spread
from hybrid.devices.cuda_gpus import Gpu, GpuEnergy
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.host.memory import RowView
from hybrid.host.rapl import PERIOD, Rapl
from hybrid.host.threads import limited_threads, threads_allowed
from hybrid.plan.arithmetic import Computed
from hybrid.plan.plan import Plan
from hybrid.plan.schedule import RankShare
from hybrid.ranks.team import Team
from hybrid.selection.decision import Decision, RankPlacement
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


# -------- energy meter
# Reads the counters of energy before and after products: each GPU's by one rank, each host's by one rank.

_PATIENCE = 5.0  # seconds that NVML gets to start


class EnergyMeter:
    """One rank's part of it; every rank makes one.

    It never fails a product: of what cannot be read it tells why.
    """

    def __init__(self, team: Team, placements: Sequence[RankPlacement]) -> None:
        """Start opening the counters, in the background: that takes NVML some hundredths of a second."""
        self._team, self._seconds, self._sums = team, 0.0, dict[str, float]()
        self._no_gpus = not any(placement.gpu for placement in placements)
        own = placements[team.rank]
        of_host = [placement.rank for placement in placements if placement.host == own.host]
        of_gpu = [placement.rank for placement in placements if own.gpu and placement.gpu and placement.gpu.uuid == own.gpu.uuid]
        self._counters = _Counters(own.gpu if team.rank in of_gpu[:1] else None, own.host if team.rank in of_host[:1] else "")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A context; what products take in it is added up. All ranks leave it together, or with an error."""
        before, began = self._counters.joules(), time.perf_counter()
        yield
        after = self._counters.joules()
        self._seconds += time.perf_counter() - began
        for kind in after:
            self._sums[kind] = self._sums.get(kind, 0.0) + after[kind] - before[kind]

    def total(self, products: int) -> Energy:
        """The energy of so many products by all ranks. Every rank calls it, and gets the same."""
        self._counters.close()
        read = {kind: joules for kind, joules in self._sums.items() if kind not in self._counters.why_not}
        with self._team.phase("report", timed=False) as reporting:
            reporting.mine = read, self._counters.why_not, self._seconds
        why_not: dict[str, str] = {GPU: "no GPU is used"} if self._no_gpus else {}
        for _, missing, _ in reporting.all:
            why_not = {**missing, **why_not}
        sums = [read for read, *_ in reporting.all]
        found = {kind: [each[kind] for each in sums if kind in each] for kind in KINDS if kind not in why_not}
        joules = {
            kind: sum(parts) for kind, parts in found.items() if parts
        }  # a kind that some rank could not read is left out: it would be no sum
        return Energy(joules, why_not, products, max(seconds for *_, seconds in reporting.all))


class _Counters(Thread):
    """The counters of a GPU, of a host, of both or of nothing.

    This thread opens them, and then reads the host's now and then, so that none of them goes round unseen.
    """

    def __init__(self, gpu: Gpu | None, host: str) -> None:
        """`gpu`: None where another rank reads it. `host`: the name; empty where another rank reads it."""
        super().__init__(daemon=True)
        self._gpu, self._host = gpu, host
        self._gpu_energy: GpuEnergy | None = None
        self._rapl: Rapl | None = None
        self._opened, self._closed = Event(), Event()
        self.why_not: dict[str, str] = {}
        if gpu is None and not host:
            self._opened.set()
            return
        try:
            self.start()
        except RuntimeError as no_thread:  # the limit of threads is reached
            self._give_up(one_line(no_thread))

    def run(self) -> None:
        try:
            self._open()
        finally:
            self._opened.set()
        while self._rapl is not None and not self._closed.wait(PERIOD):
            self._of_host()

    def close(self) -> None:
        """Read nothing any more. The thread has ended when this returns, unless NVML holds it: it calls nothing while the process
        ends."""
        self._closed.set()
        if self._opened.is_set() and self.is_alive():
            self.join(_PATIENCE)

    def joules(self) -> dict[str, float]:
        """The joules of each kind that can be read."""
        if not self._closed.is_set() and not self._opened.wait(_PATIENCE):
            self._give_up(f"it did not answer within {_PATIENCE:g} s")
        return {} if self._closed.is_set() else {**self._of_gpu(), **self._of_host()}

    def _give_up(self, why: str) -> None:
        self.why_not = dict.fromkeys(KINDS, why)
        self.close()

    def _open(self) -> None:
        if self._host:
            try:
                self._rapl = Rapl()
            except OSError as error:
                self._lose_host(error)
            else:
                self.why_not |= {} if self._rapl.tells_memory else {MEMORY: f"{self._host}: its processors have no counter of it"}
        if self._gpu is not None:
            try:
                self._gpu_energy = GpuEnergy(self._gpu.uuid)
            except DeviceUnavailable as missing:
                self.why_not[GPU] = str(missing)

    def _of_gpu(self) -> dict[str, float]:
        if self._gpu_energy is None:
            return {}
        try:
            return {GPU: self._gpu_energy.joules()}
        except DeviceUnavailable as lost:
            self._gpu_energy, self.why_not[GPU] = None, str(lost)
            return {}

    def _of_host(self) -> dict[str, float]:
        rapl = self._rapl  # which the other thread may lose meanwhile
        if rapl is None:
            return {}
        try:
            return rapl.joules()
        except OSError as error:
            self._lose_host(error)
            return {}

    def _lose_host(self, error: OSError) -> None:
        self._rapl = None
        self.why_not |= dict.fromkeys((CPU, MEMORY), f"{self._host}: {error.filename}: {error.strerror}")
