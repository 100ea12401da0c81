# SPDX-License-Identifier: MIT
"""Reads the counters of energy before and after products: each GPU's by one rank, each host's by one rank."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from hybrid.core.energy import CPU, GPU, KINDS, MEMORY, Energy
from hybrid.devices.cuda_gpus import Gpu
from hybrid.devices.nvml import GpuEnergy
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.host.rapl import PERIOD, Rapl
from hybrid.ranks.team import Team
from hybrid.selection.placement import RankPlacement

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
