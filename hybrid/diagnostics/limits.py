"""What the system sets limits to: locked pages and shared memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hybrid.core.text import readable
from hybrid.diagnostics.finding import Finding, Unknown, attempt
from hybrid.host.memory import shared_bytes
from hybrid.ranks.shared_memory import shared_memory_folder

_LITTLE_SHARED = 1 << 30
_TOO_LITTLE_SHARED = 16 << 20  # MPI itself keeps some MiB of it


@dataclass(frozen=True)
class Limits:
    """Of one rank's process. `lockable`: bytes, None without a limit."""

    host: str
    lockable: int | Unknown | None
    folder: str | Unknown
    shared: tuple[int, int] | Unknown  # free and all bytes of the folder


def look(host: str) -> Limits:
    folder = attempt(shared_memory_folder)
    return Limits(
        host, attempt(_lockable), _text(folder), folder if isinstance(folder, Unknown) else attempt(lambda: _room(folder))
    )


def _text(folder: Path | Unknown) -> str | Unknown:
    return folder if isinstance(folder, Unknown) else str(folder)


def _lockable() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _room(folder: Path) -> tuple[int, int]:
    status = os.statvfs(folder)
    return shared_bytes(folder), status.f_blocks * status.f_frsize


def judge_shared(seen: Sequence[Limits]) -> Finding:
    """The host with the least of it."""
    measured = []
    for limits in seen:
        if isinstance(limits.shared, Unknown):
            return Finding("shared memory", "unknown", f"{limits.host}: {limits.shared.reason}")
        measured.append((limits.shared, limits.host, str(limits.folder)))
    (free, whole), host, folder = min(measured)
    text = f"{folder}: {readable(free)} of {readable(whole)} free" + (
        f" on {host}" if len({at for _, at, _ in measured}) > 1 else ""
    )
    remedy = "enlarge it (mount -o remount,size=…; in a container --shm-size=…), or delete what ended programs left there"
    if free < _TOO_LITTLE_SHARED:
        return Finding("shared memory", "wrong", f"{text}: too little for ranks that share matrices", remedy)
    if free < _LITTLE_SHARED:
        return Finding("shared memory", "note", f"{text}, which bounds the matrices of ranks on one host: {remedy}")
    return Finding("shared memory", "ok", text)


def judge_locked(seen: Sequence[Limits], trials: Sequence[tuple[int, str] | None]) -> Finding:
    """`trials[rank]`: bytes locked for the rank's GPU, and why not more; None where none was tried."""
    for rank, trial in enumerate(trials):
        if trial is not None and trial[1]:
            much = readable(trial[0]) if trial[0] else "none at all"
            return Finding(
                "page-lock",
                "wrong",
                f"rank {rank} on {seen[rank].host} cannot lock enough memory for its GPU ({trial[1]}), but {much}: copies run "
                f"at a third of the link's speed or less; ulimit -l: {_words(seen[rank].lockable)}",
                "raise the limit: ulimit -l unlimited (Slurm: LimitMEMLOCK=infinity for slurmd; container: --ulimit memlock=-1)",
            )
    least = min(seen, key=lambda limits: limits.lockable if isinstance(limits.lockable, int) else 1 << 62)
    text = f"ulimit -l: {_words(least.lockable)}"
    tried = [trial[0] for trial in trials if trial is not None]
    if tried:
        return Finding("page-lock", "ok", f"{readable(min(tried))} locked for every rank's GPU; {text}")
    if isinstance(least.lockable, Unknown):
        return Finding("page-lock", "unknown", least.lockable.reason)
    return Finding("page-lock", "ok", f"{text} (nothing here locks memory without a GPU)")


def _words(lockable: int | Unknown | None) -> str:
    if isinstance(lockable, Unknown):
        return f"unknown ({lockable.reason})"
    return "unlimited" if lockable is None else readable(lockable)
