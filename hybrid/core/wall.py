# SPDX-License-Identifier: MIT
"""How a command's wall time divides into parts, from the start of its launcher on: a clock that always runs for one of the
parts.

It is the clock of this process, and rank 0 shows its own: time in which rank 0 waits for others counts for the part in which it
waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# The names of launchers' processes, and of those that they start on each node: Hydra's (MPICH), Open MPI's and Slurm's.
_LAUNCHERS = (
    *("mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_pr"),
    *("orterun", "orted", "prterun", "prted", "prte"),
    *("srun", "slurmstepd"),
)
_PARENT, _BEGAN = 1, 19  # columns of /proc/PID/stat after the process's name


class WallTime:
    """The seconds of each part, in the order in which the parts were first entered. At any moment the clock runs for one
    part."""

    def __init__(self, part: str, began: float | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        """The clock runs for the first part since `began`, a time on it (None: since now)."""
        self._clock = clock
        self._part, self._since = part, clock() if began is None else began
        self._spent = {part: 0.0}

    def enter(self, part: str) -> str:
        """Have the clock run for this part from now on. Returns the part for which it ran until now."""
        now, before = self._clock(), self._part
        self._spent[before] += now - self._since
        self._spent.setdefault(part, 0.0)
        self._part, self._since = part, now
        return before

    @property
    def part(self) -> str:
        """The part for which the clock runs."""
        return self._part

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """A context in which the clock runs for this part; afterwards it runs again for the part before."""
        before = self.enter(part)
        try:
            yield
        finally:
            self.enter(before)

    def parts(self) -> dict[str, float]:
        """The parts' seconds until now: they add up to all the time since the first one began."""
        self.enter(self._part)
        return dict(self._spent)


def launch_began() -> float:
    """When the launcher was started, on the clock time.perf_counter; when this process was, where no launcher is seen above it.

    The system tells it to a hundredth of a second. Where it tells nothing, the time is now.
    """
    try:
        _, parent, ticks = _process(os.getpid())
        while parent > 1:
            name, above, its_ticks = _process(parent)
            if name not in _LAUNCHERS:
                break
            parent, ticks = above, its_ticks
        began = ticks / os.sysconf("SC_CLK_TCK")
        age, now = time.clock_gettime(time.CLOCK_BOOTTIME) - began, time.perf_counter()  # one moment on both clocks
    except (OSError, AttributeError, ValueError, IndexError):  # no Linux, or no /proc
        return time.perf_counter()
    return now - max(0.0, age)


def launcher_above() -> bool | None:
    """Whether a launcher that is known by its name is running above this process; None where the system does not tell."""
    try:
        _, parent, _ = _process(os.getpid())
        while parent > 1:
            name, parent, _ = _process(parent)
            if name in _LAUNCHERS:
                return True
    except (OSError, ValueError, IndexError):
        return None
    return False


def _process(number: int) -> tuple[str, int, int]:
    """The name of a process, the number of its parent, and its start in clock ticks since the system's own."""
    with open(f"/proc/{number}/stat") as status:
        name, _, others = status.read().partition(" (")[2].rpartition(") ")  # a name may hold spaces and parentheses
    columns = others.split()
    return name, int(columns[_PARENT]), int(columns[_BEGAN])


wall = WallTime("start", launch_began())
