# SPDX-License-Identifier: MIT
"""Limits that the system sets: how much memory may be pinned, and how much node-shared memory there is."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path

from hybrid.core.problem import record
from hybrid.core.text import readable
from hybrid.diagnostics.finding import Finding, Unknown, attempt
from hybrid.host.memory import free_bytes_in
from hybrid.ranks.mpi import SHARED
from hybrid.ranks.shared_memory import shared_memory_folder

_LITTLE_SHARED = 1 << 30
_TOO_LITTLE_SHARED = 16 << 20  # MPI itself uses some MiB of it


@record
class Limits:
    """The limits of one rank's process."""

    host: str
    lockable: int | Unknown | None  # bytes of memory that it may page-lock; None: without a limit
    folder: str | Unknown  # of node-shared memory
    shared: tuple[int, int] | Unknown  # free and all bytes of the folder


def inspect(host: str) -> Limits:
    folder = attempt(shared_memory_folder)
    if isinstance(folder, Unknown):
        return Limits(host, attempt(_lockable), folder, folder)
    return Limits(host, attempt(_lockable), str(folder), attempt(lambda: _free_and_all(folder)))


def _lockable() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _free_and_all(folder: Path) -> tuple[int, int]:
    status = os.statvfs(folder)
    return free_bytes_in(folder), status.f_blocks * status.f_frsize


def judge_shared(limits_of_ranks: Sequence[Limits]) -> Finding:
    """Judges the host with the least free node-shared memory."""
    measured = []
    for limits in limits_of_ranks:
        if isinstance(limits.shared, Unknown):
            return Finding("shared memory", "unknown", f"{limits.host}: {limits.shared.reason}")
        measured.append((limits.shared, limits.host, str(limits.folder)))
    (free, whole), host, folder = min(measured)
    where = f" on {host}" if len({host for _, host, _ in measured}) > 1 else ""
    text = f"{folder}: {readable(free)} of {readable(whole)} free{where}"
    remedy = "enlarge it (mount -o remount,size=…; in a container --shm-size=…), or delete what ended programs left there"
    if free < _TOO_LITTLE_SHARED:
        return Finding(
            "shared memory", "wrong", f"{text}: too little for ranks that share matrices", remedy, code="shared-memory"
        )
    if folder != str(SHARED):
        text += f"; {SHARED} cannot be written to, so that ranks of one host share matrices there, on a disk perhaps"
        return Finding("shared memory", "note", f"{text}: mount a tmpfs at {SHARED} that you may write to", code="shared-memory")
    if free < _LITTLE_SHARED:
        return Finding(
            "shared memory", "note", f"{text}, which bounds the matrices of ranks on one host: {remedy}", code="shared-memory"
        )
    return Finding("shared memory", "ok", text)


def judge_pinned(limits_of_ranks: Sequence[Limits], pinned: Sequence[tuple[int, str] | None]) -> Finding:
    """`pinned[rank]`: how many bytes could be pinned for the rank's GPU, and why not more; None where it was not tried."""
    for rank, trial in enumerate(pinned):
        if trial is not None and trial[1]:
            limits = limits_of_ranks[rank]
            much = readable(trial[0]) if trial[0] else "none at all"
            return Finding(
                "pinned memory",
                "wrong",
                f"rank {rank} on {limits.host} cannot pin enough memory for its GPU ({trial[1]}), but {much}: copies run at a "
                f"third of the link's speed or less; ulimit -l: {_as_text(limits.lockable)}",
                "raise the limit: ulimit -l unlimited (Slurm: LimitMEMLOCK=infinity for slurmd; container: --ulimit memlock=-1)",
                code="pinned-limit",
            )
    least = min(limits_of_ranks, key=lambda limits: limits.lockable if isinstance(limits.lockable, int) else 1 << 62)
    text = f"ulimit -l: {_as_text(least.lockable)}"
    sizes = [trial[0] for trial in pinned if trial is not None]
    if sizes:
        return Finding("pinned memory", "ok", f"{readable(min(sizes))} pinned for every rank's GPU; {text}")
    if isinstance(least.lockable, Unknown):
        return Finding("pinned memory", "unknown", least.lockable.reason)
    return Finding("pinned memory", "ok", f"{text} (without a GPU no memory is pinned)")


def _as_text(lockable: int | Unknown | None) -> str:
    if isinstance(lockable, Unknown):
        return f"unknown ({lockable.reason})"
    return "unlimited" if lockable is None else readable(lockable)
