# SPDX-License-Identifier: MIT
"""Energy and cost of products: NVML's counter of each GPU is read by one rank, RAPL's counters of each host by one rank."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from hybrid.core.problem import record
from hybrid.core.settings import Price
from hybrid.core.text import counted, rate_in_units
from hybrid.devices.cuda_gpus import GpuEnergy
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.ranks.team import Team
from hybrid.reporting.run_report import operations, plans_of

if TYPE_CHECKING:
    from hybrid.runs.measured import Outcome
    from hybrid.selection.decision import RankPlacement

GPU, CPU, MEMORY = "gpu", "cpu", "memory"
_NAMES = {GPU: "GPU", CPU: "CPU", MEMORY: "memory"}
# Seconds below which the difference of two readings tells nothing: NVML renews its counter every 20 to 100 ms, RAPL about every
# millisecond.
LEAST_SECONDS = {GPU: 1.0, CPU: 0.1, MEMORY: 0.1}
_PERIOD = 30.0  # seconds between two readings: the smallest counters, of some 65 kJ, go round after a minute at 1000 W
_PATIENCE = 5.0  # seconds that NVML gets to start


class Rapl:
    """RAPL's counters of all processors of this machine, which Linux tells in files. They may be read from several threads."""

    def __init__(self, folder: Path | None = None) -> None:
        """OSError, with the file or folder, where there are no counters or this user may not read them."""
        folder = folder or Path("/sys/class/powercap")
        self._zones: list[tuple[str, Path, int]] = []  # the kind, the counter, and its greatest value in microjoules
        for zone in sorted(folder.glob("intel-rapl:*")):  # AMD's processors have them by the same name
            name = (zone / "name").read_text().strip()
            # The memory's are not in the processors'. Others are for parts of processors, or for the whole machine.
            if kind := CPU if name.startswith("package-") else MEMORY if name == "dram" else None:
                self._zones.append((kind, zone / "energy_uj", int((zone / "max_energy_range_uj").read_text())))
        if not self._zones:
            raise FileNotFoundError(2, "it has no RAPL zones of processors", str(folder))
        self._lock = Lock()
        self._last = self._read()
        self._microjoules = {kind: 0 for kind, *_ in self._zones}

    def _read(self) -> list[int]:
        return [int(counter.read_text()) for _, counter, _ in self._zones]

    def joules(self) -> dict[str, float]:
        """The joules of each kind since this object was made. OSError where a counter cannot be read any more."""
        with self._lock:
            now = self._read()
            for (kind, _, most), before, after in zip(self._zones, self._last, now, strict=True):
                self._microjoules[kind] += after - before + (most if after < before else 0)
            self._last = now
            return {kind: count / 1e6 for kind, count in self._microjoules.items()}


class EnergyMeter:
    """One rank's part; every rank makes one. It never fails a product: of what cannot be read it tells why."""

    def __init__(self, team: Team, placements: Sequence[RankPlacement]) -> None:
        """Open this rank's counters in a thread, since NVML takes hundredths of a second. The thread then reads the host's now
        and then, so that none of them goes round unseen."""
        self._team, self._seconds, self._sums, self._why_not = team, 0.0, dict[str, float](), dict[str, str]()
        self._no_gpus = not any(placement.gpu for placement in placements)
        own = placements[team.rank]
        first_of_host = next(placement.rank for placement in placements if placement.host == own.host)
        users = [each.rank for each in placements if own.gpu and each.gpu and each.gpu.uuid == own.gpu.uuid]
        self._uuid = own.gpu.uuid if own.gpu and team.rank == users[0] else ""
        self._host = own.host if team.rank == first_of_host else ""
        self._gpu: GpuEnergy | None = None
        self._rapl: Rapl | None = None
        self._opened, self._closed = Event(), Event()
        self._thread = Thread(target=self._open_and_watch, daemon=True)
        try:
            self._thread.start() if self._uuid or self._host else self._opened.set()
        except RuntimeError as no_thread:  # the limit of threads is reached
            self._give_up(one_line(no_thread))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A context; what products take in it is added up. All ranks leave it together, or with an error."""
        before, began = self._joules(), time.perf_counter()
        yield
        after = self._joules()
        self._seconds += time.perf_counter() - began
        for kind in after:
            self._sums[kind] = self._sums.get(kind, 0.0) + after[kind] - before[kind]

    def total(self, products: int) -> Energy:
        """The energy that all ranks take for this number of products. Every rank calls it, and gets the same."""
        self._closed.set()
        if self._opened.is_set() and self._thread.is_alive():
            self._thread.join(_PATIENCE)  # it calls nothing while the process ends, unless NVML holds it
        with self._team.phase("report", timed=False) as reporting:
            reporting.mine = self._sums, self._why_not, self._seconds
        why_not: dict[str, str] = {GPU: "no GPU is used"} if self._no_gpus else {}
        joules: dict[str, float] = {}
        for sums, missing, _ in reporting.all:
            why_not = {**missing, **why_not}
            joules = {kind: joules.get(kind, 0.0) + sums.get(kind, 0.0) for kind in _NAMES if kind in {**joules, **sums}}
        # A kind that some rank could not read is left out: it would be no sum.
        joules = {kind: joules[kind] for kind in joules if kind not in why_not}
        return Energy(joules, why_not, products, max(seconds for *_, seconds in reporting.all))

    def _open_and_watch(self) -> None:
        try:
            if self._host:
                self._rapl = Rapl()
                if MEMORY not in self._rapl.joules():
                    self._why_not[MEMORY] = f"{self._host}: its processors have no counter of it"
        except OSError as error:
            self._lose_host(error)
        try:
            self._gpu = GpuEnergy(self._uuid) if self._uuid else None
        except DeviceUnavailable as missing:
            self._why_not[GPU] = str(missing)
        finally:
            self._opened.set()
        while self._rapl and not self._closed.wait(_PERIOD):
            self._of_host()

    def _joules(self) -> dict[str, float]:
        """The joules of each kind that can be read."""
        if not self._closed.is_set() and not self._opened.wait(_PATIENCE):
            self._give_up(f"it did not answer within {_PATIENCE:g} s")
        if self._closed.is_set():
            return {}
        found = self._of_host()
        try:
            return {GPU: self._gpu.joules(), **found} if self._gpu else found
        except DeviceUnavailable as lost:
            self._gpu, self._why_not[GPU] = None, str(lost)
            return found

    def _of_host(self) -> dict[str, float]:
        rapl = self._rapl  # which the other thread may lose meanwhile
        try:
            return rapl.joules() if rapl else {}
        except OSError as error:
            self._lose_host(error)
            return {}

    def _lose_host(self, error: OSError) -> None:
        self._rapl = None
        self._why_not |= dict.fromkeys((CPU, MEMORY), f"{self._host}: {error.filename}: {error.strerror}")

    def _give_up(self, why: str) -> None:
        self._why_not = dict.fromkeys(_NAMES, why)
        self._closed.set()


@record
class Energy:
    """What the counters said of one or several products. `joules`: for each kind that was read, the sum over all GPUs, or hosts.
    `why_not`: why other kinds were not read. `seconds`: of all products together, from reading to reading."""

    joules: Mapping[str, float]
    why_not: Mapping[str, str]
    products: int
    seconds: float

    def too_short(self, kind: str) -> bool:
        """Whether this kind was read, but the products took so little time that the difference of two readings means nothing."""
        return kind in self.joules and self.seconds < LEAST_SECONDS[kind]

    def unknown(self, kind: str) -> str:
        """Why it is not known what a product took of this kind; empty where it is known."""
        if kind not in self.joules:
            return self.why_not.get(kind, "nothing was multiplied")
        if self.too_short(kind):
            return f"{self.seconds:.3g} s are too short for its counter, which needs {LEAST_SECONDS[kind]:g} s"
        return "" if self.joules[kind] > 0 else "its counter stood still"

    @property
    def of_a_product(self) -> dict[str, float]:
        """The joules that one product took, of each kind for which they are known."""
        return {kind: self.joules[kind] / self.products for kind in _NAMES if not self.unknown(kind)}

    def as_record(self) -> dict[str, object]:
        """These numbers as an object of a JSON line."""
        return {
            "joules_per_product": {kind: self.of_a_product.get(kind) for kind in _NAMES},
            "why_not": {kind: why for kind in _NAMES if (why := self.unknown(kind))},
            "products": self.products,
            "seconds": self.seconds,
        }


def told(outcome: Outcome, energy: Energy, price: Price | None) -> tuple[list[str], dict[str, Any]]:
    """The lines about energy and cost of a run's products, and their entries in its record."""
    placements, seconds, known = outcome.decision.placements, outcome.total.median, energy.of_a_product
    gpus, nodes = (len(set(each)) for each in ([p.gpu.uuid for p in placements if p.gpu], [p.host for p in placements]))
    # As far as it is known; of no use without that of what multiplies, the GPUs or else the CPUs.
    joules = sum(known.values()) if (GPU if gpus else CPU) in known else None
    per_joule = operations(plans_of(outcome)) / joules if joules else None
    parts = []
    if known:
        took = ", ".join(f"{_NAMES[kind]} {joules_in_units(each)}" for kind, each in known.items())
        speed = f", {rate_in_units(per_joule, 'F')} per W" if per_joule else ""
        with_checks = " with checks" if outcome.check is not None else ""
        parts.append(f"{took} a product{speed} ({counted(energy.products, 'product')} in {energy.seconds:.2f} s{with_checks})")
    for kind, least in LEAST_SECONDS.items():
        if energy.too_short(kind) and not (kind == MEMORY and energy.too_short(CPU)):  # one remark for CPU and memory
            enough = math.ceil(1.1 * least * energy.products / max(energy.seconds, 1e-3))
            advice = f": --repeat {enough}" if outcome.parts is None else ""
            least_time = f"{energy.seconds:.2g} s are too short for its counter ({least:g} s at least{advice})"
            parts.append(f"{_NAMES[kind]} not told, {least_time}")
    lines = [f"energy: {'; '.join(parts)}"] if parts else []
    entries: dict[str, Any] = {"energy": {**energy.as_record(), "operations_per_joule": per_joule}}
    if price:
        lines.append(cost_line(price, seconds, gpus, nodes, joules))
        entries["cost_per_product"] = price.cost(seconds, gpus, nodes, joules)
    return lines, entries


def cost_line(price: Price, seconds: float, gpus: int, nodes: int, joules: float | None) -> str:
    """The line about the cost of a product, from its seconds and, where they are known, its joules."""
    cost = price.cost(seconds, gpus, nodes, joules)
    return f"cost: not known at {price}, {price.missing}" if cost is None else f"cost: {_figure(cost)} a product at {price}"


def joules_in_units(joules: float) -> str:
    """This energy with three digits, in J, kJ or MJ."""
    size, unit = next((each for each in ((1e6, "MJ"), (1e3, "kJ")) if joules >= each[0]), (1.0, "J"))
    return f"{_figure(joules / size)} {unit}"


def _figure(number: float) -> str:
    """The number with three digits, or with all before the point."""
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"
