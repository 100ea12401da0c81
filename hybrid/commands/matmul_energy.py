# SPDX-License-Identifier: MIT
"""Reads the counters of energy before and after products: NVML's of each GPU by one rank, RAPL's of each host by one rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread

from hybrid.devices.cuda_gpus import GpuEnergy
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.ranks.team import Team
from hybrid.reporting.energy_lines import CPU, GPU, KINDS, MEMORY, Energy
from hybrid.selection.decision import RankPlacement

_POWERCAP = Path("/sys/class/powercap")
# Seconds. A counter goes round at its greatest value: the smallest ones, of some 65 kJ, after a minute at 1000 W. Read at least
# this often, none goes round twice unseen.
_PERIOD = 30.0
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
        gpu = own.gpu.uuid if own.gpu and team.rank == of_gpu[0] else ""
        self._counters = _Counters(gpu, own.host if team.rank == of_host[0] else "")

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
        with self._team.phase("report", timed=False) as reporting:
            reporting.mine = self._sums, self._counters.why_not, self._seconds
        why_not: dict[str, str] = {GPU: "no GPU is used"} if self._no_gpus else {}
        joules: dict[str, float] = {}
        for sums, missing, _ in reporting.all:
            why_not = {**missing, **why_not}
            joules = {kind: joules.get(kind, 0.0) + sums.get(kind, 0.0) for kind in KINDS if kind in {**joules, **sums}}
        # A kind that some rank could not read is left out: it would be no sum.
        joules = {kind: joules[kind] for kind in joules if kind not in why_not}
        return Energy(joules, why_not, products, max(seconds for *_, seconds in reporting.all))


class _Counters(Thread):
    """The counters of a GPU, of a host, of both or of nothing.

    This thread opens them, and then reads the host's now and then, so that none of them goes round unseen.
    """

    def __init__(self, gpu: str, host: str) -> None:
        """`gpu`: its uuid; empty where another rank reads it. `host`: the name; empty where another rank reads it."""
        super().__init__(daemon=True)
        self._gpu, self._host = gpu, host
        self._of_gpu: Callable[[], float] | None = None
        self._of_host: Callable[[], dict[str, float]] | None = None
        self._opened, self._closed = Event(), Event()
        self.why_not: dict[str, str] = {}
        try:
            self.start() if gpu or host else self._opened.set()
        except RuntimeError as no_thread:  # the limit of threads is reached
            self._give_up(one_line(no_thread))

    def run(self) -> None:
        try:
            if self._host:
                self._open_host()
            if self._gpu:
                self._of_gpu = GpuEnergy(self._gpu).joules
        except DeviceUnavailable as missing:
            self.why_not[GPU] = str(missing)
        finally:
            self._opened.set()
        while self._of_host and not self._closed.wait(_PERIOD):
            self._read_host()

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
        if self._closed.is_set():
            return {}
        found = self._read_host()
        try:
            return {GPU: self._of_gpu(), **found} if self._of_gpu else found
        except DeviceUnavailable as lost:
            self._of_gpu, self.why_not[GPU] = None, str(lost)
            return found

    def _give_up(self, why: str) -> None:
        self.why_not = dict.fromkeys(KINDS, why)
        self.close()

    def _open_host(self) -> None:
        try:
            rapl = Rapl()
        except OSError as error:
            self._lose_host(error)
            return
        self._of_host = rapl.joules
        if MEMORY not in rapl.joules():
            self.why_not[MEMORY] = f"{self._host}: its processors have no counter of it"

    def _read_host(self) -> dict[str, float]:
        read = self._of_host  # which the other thread may lose meanwhile
        try:
            return read() if read else {}
        except OSError as error:
            self._lose_host(error)
            return {}

    def _lose_host(self, error: OSError) -> None:
        self._of_host = None
        self.why_not |= dict.fromkeys((CPU, MEMORY), f"{self._host}: {error.filename}: {error.strerror}")


class Rapl:
    """RAPL's counters of all processors of this machine, which Linux tells in files. They may be read from several threads."""

    def __init__(self, folder: Path | None = None) -> None:
        """OSError, with the file or folder, where there are no counters or this user may not read them."""
        folder = folder or _POWERCAP
        self._zones: list[tuple[str, Path, int]] = []  # the kind, the counter, and its greatest value in microjoules
        for zone in sorted(folder.glob("intel-rapl:*")):  # AMD's processors have them by the same name
            name = (zone / "name").read_text().strip()
            # The memory's are not in the processors'. Others are for parts of processors, or for the whole machine.
            if kind := CPU if name.startswith("package-") else MEMORY if name == "dram" else None:
                self._zones.append((kind, zone / "energy_uj", _number(zone / "max_energy_range_uj")))
        if not self._zones:
            raise FileNotFoundError(2, "it has no RAPL zones of processors", str(folder))
        self._lock = Lock()
        self._last = [_number(counter) for _, counter, _ in self._zones]
        self._microjoules = {kind: 0 for kind, *_ in self._zones}

    def joules(self) -> dict[str, float]:
        """The joules of each kind since this object was made. OSError where a counter cannot be read any more."""
        with self._lock:
            now = [_number(counter) for _, counter, _ in self._zones]
            for (kind, _, most), before, after in zip(self._zones, self._last, now, strict=True):
                self._microjoules[kind] += after - before + (most if after < before else 0)
            self._last = now
            return {kind: count / 1e6 for kind, count in self._microjoules.items()}


def _number(path: Path) -> int:
    return int(path.read_text())
