# SPDX-License-Identifier: MIT
"""RAPL: the energy that this machine's processors and their memory have taken, which Linux tells in files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from hybrid.core.energy import CPU, MEMORY
from hybrid.core.problem import record

POWERCAP = Path("/sys/class/powercap")
# Seconds. A counter goes round at its greatest value: the smallest ones, of some 65 kJ, after a minute at 1000 W. Read at least
# this often, none goes round twice unseen.
PERIOD = 30.0
_ZONES = "intel-rapl:*"  # AMD's processors have them by the same name


@record
class _Zone:
    """A counter of energy."""

    kind: str
    counter: Path
    range: int  # its greatest value, after which it begins at 0 again; in microjoules, as the counter


class Rapl:
    """The counters of all processors of this machine. They may be read from several threads."""

    def __init__(self, folder: Path | None = None) -> None:
        """OSError, with the file or folder, where there are no counters or this user may not read them."""
        self._zones = list(_zones(folder or POWERCAP))
        if not self._zones:
            raise FileNotFoundError(2, "it has no RAPL zones of processors", str(folder or POWERCAP))
        self._lock = Lock()
        self._last = [_number(zone.counter) for zone in self._zones]
        self._microjoules = dict.fromkeys((zone.kind for zone in self._zones), 0)

    @property
    def tells_memory(self) -> bool:
        """Whether there are counters for the memory, too."""
        return MEMORY in self._microjoules

    def joules(self) -> dict[str, float]:
        """The joules of each kind since this object was made. OSError where a counter cannot be read any more."""
        with self._lock:
            now = [_number(zone.counter) for zone in self._zones]
            for zone, before, after in zip(self._zones, self._last, now, strict=True):
                self._microjoules[zone.kind] += after - before + (zone.range if after < before else 0)
            self._last = now
            return {kind: count / 1e6 for kind, count in self._microjoules.items()}


def _zones(folder: Path) -> Iterator[_Zone]:
    """The counters of whole processors, and of their memory, which these do not count. Others are for parts of processors, or
    for the whole machine."""
    for zone in sorted(folder.glob(_ZONES)):
        name = (zone / "name").read_text().strip()
        kind = CPU if name.startswith("package-") else MEMORY if name == "dram" else None
        if kind:
            yield _Zone(kind, zone / "energy_uj", _number(zone / "max_energy_range_uj"))


def _number(path: Path) -> int:
    return int(path.read_text())
