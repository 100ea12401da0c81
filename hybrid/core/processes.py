# SPDX-License-Identifier: MIT
"""Processes as reported by /proc: the launcher above this one, and stopped processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

# Process names of launchers and of their daemons on each node: Hydra's (MPICH), Open MPI's and Slurm's.
_LAUNCHERS = (
    *("mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_pr"),
    *("orterun", "orted", "prterun", "prted", "prte"),
    *("srun", "slurmstepd"),
)


class _Status(NamedTuple):
    number: int
    name: str
    state: str
    parent: int
    began: int  # in clock ticks since the system's start


def _status(process: int) -> _Status:
    with open(f"/proc/{process}/stat") as status:
        name, _, others = status.read().partition(" (")[2].rpartition(") ")  # a name may contain spaces and parentheses
    columns = others.split()
    return _Status(process, name, columns[0], int(columns[1]), int(columns[19]))


def _ancestors() -> Iterator[_Status]:
    """The processes above this one, the nearest first."""
    above = _status(os.getpid()).parent
    while above > 1:
        status = _status(above)
        yield status
        above = status.parent


def launcher_above() -> str | None:
    """The process number and start time of the nearest launcher above this process, known by its name; empty without one, None if
    the system does not tell."""
    try:
        return next((f"{each.number}-{each.began}" for each in _ancestors() if each.name in _LAUNCHERS), "")
    except (OSError, ValueError, IndexError):
        return None


def launch_began() -> float:
    """When the launcher started, or without one this process, on the clock time.perf_counter.

    Exact to a hundredth of a second. If the system does not tell, the present time.
    """
    try:
        ticks = _status(os.getpid()).began
        for each in _ancestors():
            if each.name not in _LAUNCHERS:
                break
            ticks = each.began
        began = ticks / os.sysconf("SC_CLK_TCK")
        age, now = time.clock_gettime(time.CLOCK_BOOTTIME) - began, time.perf_counter()  # one moment on both clocks
    except (OSError, AttributeError, ValueError, IndexError):  # no Linux, or no /proc
        return time.perf_counter()
    return now - max(0.0, age)


def is_stopped(process: int) -> bool:
    """Whether the process is stopped (SIGSTOP), or traced."""
    try:
        return _status(process).state in ("T", "t")
    except OSError:
        return False
