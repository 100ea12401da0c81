"""Launcher and MPI library: do they fit, and what do they provide?"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hybrid.core.text import ranges
from hybrid.diagnostics.finding import Finding, Unknown, alike, attempt
from hybrid.diagnostics.probe_process import ask
from hybrid.errors import StartError
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.launcher import family_of, launched
from hybrid.ranks.mpi_library import Library, library_in_use

_LIMIT = 30  # seconds for MPI to start alone


@dataclass(frozen=True)
class MpiSeen:
    """By one rank. `mpirun`: one to start ranks with and its family, looked for where none has done so: that on the path, or
    this environment's where another has failed."""

    launcher: str
    mpi: Library | Unknown
    mpirun: tuple[str, str] | Unknown | None = None


def look(*, started: bool) -> MpiSeen:
    """Where MPI has not been started together with a launcher's others, it is tried in a process of its own."""
    launch = launched()
    if launch is None:
        return MpiSeen("", attempt(_library_alone), attempt(_mpirun_on_path))
    if started:
        return MpiSeen(launch.name, attempt(library_in_use))
    return MpiSeen(launch.name, attempt(_library_alone), attempt(_mpirun_beside))


def _library_alone() -> Library | Unknown:
    told = ask("mpi", limit=_LIMIT)
    if "library" not in told.said:
        return Unknown(f"MPI does not start in a process alone, which {told.ended or 'said nothing'}")
    known = told.said["library"]
    return Library(**{**known, "standard": tuple(known["standard"])})


def _mpirun_on_path() -> tuple[str, str] | None:
    path = shutil.which("mpirun") or shutil.which("mpiexec")
    with busy():
        return (path, family_of(path)) if path else None


def _mpirun_beside() -> tuple[str, str] | None:
    with busy():
        return (str(_beside()), family_of(str(_beside()))) if _beside().exists() else None


def judge(seen: Sequence[MpiSeen], unstarted: StartError | None) -> list[Finding]:
    """`unstarted`: why the launcher's processes are no ranks of one job."""
    first = seen[0]
    return [_launcher(first, len(seen), unstarted), *_libraries([rank.mpi for rank in seen])]


def _launcher(seen: MpiSeen, size: int, unstarted: StartError | None) -> Finding:
    if unstarted is not None:
        text = str(unstarted)
        if isinstance(seen.mpi, Library) and seen.mpi.name not in text:
            text += f"; mpi4py uses {seen.mpi.name}"
        return Finding("launcher", "wrong", text, _what_fits(seen))
    if seen.launcher:
        return Finding("launcher", "ok", f"{seen.launcher} started {size}, and MPI sees as many")
    if isinstance(seen.mpirun, Unknown):
        return Finding("launcher", "unknown", f"the mpirun on the path: {seen.mpirun.reason}")
    if seen.mpirun is None:
        here = str(_beside()) if _beside().exists() else "pip install mpich brings one"
        return Finding("launcher", "note", f"started alone; no mpirun on the path: {here}")
    path, family = seen.mpirun
    if isinstance(seen.mpi, Library) and family and family != seen.mpi.family:
        return Finding(
            "launcher",
            "wrong",
            f"{path} is {family}'s, but mpi4py uses {seen.mpi.name}: every rank would be 0 of 1",
            "put the mpirun of mpi4py's MPI first on PATH (that of a pip-installed MPI is in the environment's bin folder)",
        )
    return Finding("launcher", "ok", f"started alone; {path}{f' ({family})' if family else ''} starts several")


def _beside() -> Path:
    """Where this environment would have its own mpirun."""
    return Path(sys.executable).with_name("mpirun")


def _what_fits(seen: MpiSeen) -> str:
    """What to start ranks with, as far as that is known here."""
    if not isinstance(seen.mpi, Library):
        return "then use its mpirun"
    if seen.launcher == "srun":
        kind = "pmix" if seen.mpi.family == "Open MPI" else "pmi2"
        return f"try srun --mpi={kind} (srun --mpi=list shows which there are)"
    if isinstance(seen.mpirun, tuple) and seen.mpirun[1] in ("", seen.mpi.family):
        return f"try {seen.mpirun[0]}"
    return f"try the mpirun that came with {seen.mpi.name}"


def _libraries(libraries: Sequence[Library | Unknown]) -> list[Finding]:
    groups = alike(libraries)
    if len({library.name for library in libraries if isinstance(library, Library)}) > 1:
        different = "; ".join(
            f"rank {ranges(ranks)}: {library.name if isinstance(library, Library) else library.reason}"
            for library, ranks in groups.items()
        )
        return [Finding("mpi", "wrong", f"not the same on all ranks: {different}", "use one environment on all hosts")]
    return [_library(library) for library in groups]


def _library(library: Library | Unknown) -> Finding:
    if isinstance(library, Unknown):
        return Finding("mpi", "unknown", library.reason)
    text = (
        f"{library.name}, standard {library.standard[0]}.{library.standard[1]}, mpi4py for {library.abi}, "
        f"threads {library.provided} ({library.asked} asked for), large counts {'yes' if library.large_counts else 'no'}"
    )
    if not library.threads_suffice:
        return Finding("mpi", "wrong", text, "install an MPI built with thread support, for example with pip install mpich")
    return Finding("mpi", "ok", text)
