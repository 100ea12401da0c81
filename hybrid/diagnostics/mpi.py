# SPDX-License-Identifier: MIT
"""The launcher and the MPI library: do they belong together, and what do they provide?"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hybrid.core.problem import record
from hybrid.core.text import ranges
from hybrid.diagnostics.finding import Finding, Unknown, attempt, ranks_by_value
from hybrid.diagnostics.probe_process import run_probe
from hybrid.errors import StartError
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.launcher import family_of, launched
from hybrid.ranks.mpi import Library, library_in_use

_LIMIT = 30  # seconds for MPI to start alone


@record
class MpiOfRank:
    """What one rank finds."""

    launcher: str  # "" for a process started alone
    mpi: Library | Unknown
    # An mpirun to propose, with its family, where no launcher has started the ranks together: the one on PATH for a process
    # started alone, the one of this Python environment where another launcher has failed.
    mpirun: tuple[str, str] | Unknown | None = None


def inspect(*, started: bool) -> MpiOfRank:
    """`started`: MPI was started in this process, or is not needed. If it could not be, a child process tries whether MPI starts
    at all."""
    launch = launched()
    if launch is None:
        return MpiOfRank("", attempt(_library_of_child), attempt(_mpirun_on_path))
    if started:
        return MpiOfRank(launch.name, attempt(library_in_use))
    return MpiOfRank(launch.name, attempt(_library_of_child), attempt(_mpirun_of_environment))


def _library_of_child() -> Library | Unknown:
    result = run_probe("mpi", limit=_LIMIT)
    if "library" not in result.report:
        return Unknown(f"MPI does not start in a process alone, which {result.ended or 'reported nothing'}")
    library = result.report["library"]
    return Library(**{**library, "standard": tuple(library["standard"])})


def _mpirun_on_path() -> tuple[str, str] | None:
    path = shutil.which("mpirun") or shutil.which("mpiexec")
    with busy():
        return (path, family_of(path)) if path else None


def _mpirun_of_environment() -> tuple[str, str] | None:
    path = _environments_mpirun()
    with busy():
        return (str(path), family_of(str(path))) if path.exists() else None


def judge(mpi_of_ranks: Sequence[MpiOfRank], unstarted: StartError | None) -> list[Finding]:
    """`unstarted`: why the processes that a launcher started are not the ranks of one job."""
    return [_launcher(mpi_of_ranks[0], len(mpi_of_ranks), unstarted), *_libraries([rank.mpi for rank in mpi_of_ranks])]


def _launcher(first: MpiOfRank, size: int, unstarted: StartError | None) -> Finding:
    if unstarted is not None:
        text = unstarted.what
        if isinstance(first.mpi, Library) and first.mpi.name not in text:
            text += f"; mpi4py uses {first.mpi.name}"
        return Finding("launcher", "wrong", text, unstarted.remedy or _fitting_launcher(first), unstarted.code)
    if first.launcher:
        return Finding("launcher", "ok", f"{first.launcher} started {size}, and MPI sees as many")
    if isinstance(first.mpirun, Unknown):
        return Finding("launcher", "unknown", f"the mpirun on PATH: {first.mpirun.reason}")
    if first.mpirun is None:
        own = str(_environments_mpirun()) if _environments_mpirun().exists() else "pip install mpich brings one"
        return Finding("launcher", "note", f"started alone; no mpirun on PATH: {own}", code="mpi-missing")
    path, family = first.mpirun
    if isinstance(first.mpi, Library) and family and family != first.mpi.family:
        return Finding(
            "launcher",
            "wrong",
            f"{path} is {family}'s, but mpi4py uses {first.mpi.name}: every rank would be 0 of 1",
            "put the mpirun of mpi4py's MPI first on PATH (that of a pip-installed MPI is in the environment's bin folder)",
            code="wrong-mpirun",
        )
    return Finding("launcher", "ok", f"started alone; {path}{f' ({family})' if family else ''} starts several")


def _environments_mpirun() -> Path:
    """Where an MPI that pip installs puts its mpirun."""
    return Path(sys.executable).with_name("mpirun")


def _fitting_launcher(first: MpiOfRank) -> str:
    """The remedy that names a launcher for the MPI library, as far as one is known."""
    if not isinstance(first.mpi, Library):
        return "then use its mpirun"
    if first.launcher == "srun":
        kind = "pmix" if first.mpi.family == "Open MPI" else "pmi2"
        return f"try srun --mpi={kind} (srun --mpi=list shows which there are)"
    if isinstance(first.mpirun, tuple) and first.mpirun[1] in ("", first.mpi.family):
        return f"try {first.mpirun[0]}"
    return f"try the mpirun that came with {first.mpi.name}"


def _libraries(libraries: Sequence[Library | Unknown]) -> list[Finding]:
    groups = ranks_by_value(libraries)
    if len({library.name for library in libraries if isinstance(library, Library)}) > 1:
        different = "; ".join(
            f"rank {ranges(ranks)}: {library.name if isinstance(library, Library) else library.reason}"
            for library, ranks in groups.items()
        )
        return [
            Finding(
                "mpi", "wrong", f"not the same on all ranks: {different}", "use one environment on all hosts", code="mpi-differs"
            )
        ]
    return [_library(library) for library in groups]


def _library(library: Library | Unknown) -> Finding:
    if isinstance(library, Unknown):
        return Finding("mpi", "unknown", library.reason)
    text = (
        f"{library.name}, standard {library.standard[0]}.{library.standard[1]}, mpi4py for {library.abi}, "
        f"threads {library.provided} ({library.asked} asked for), large counts {'yes' if library.large_counts else 'no'}"
    )
    if not library.threads_suffice:
        return Finding(
            "mpi",
            "wrong",
            text,
            "install an MPI built with thread support, for example with pip install mpich",
            code="mpi-threads",
        )
    return Finding("mpi", "ok", text)
