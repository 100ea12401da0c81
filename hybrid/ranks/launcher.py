"""What the program that started this process says, read from the environment: known before MPI starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Launch:
    """A launcher's word on this process: its number, how many there are, and the launcher's name."""

    name: str
    rank: int
    size: int


# A step of srun may itself hold MPICH's or Open MPI's helpers, so theirs come first.
_VARIABLES = (
    ("mpirun (MPICH or another PMI launcher)", "PMI_RANK", "PMI_SIZE"),
    ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """The launch this process belongs to, or None when it was started alone."""
    for name, rank, size in _VARIABLES:
        if environment.get(rank, "").isdecimal() and environment.get(size, "").isdecimal():
            return Launch(name, int(environment[rank]), int(environment[size]))
    return None


def rank_by_launcher() -> int:
    """This process's rank as the launcher counts; 0 when started alone."""
    launch = launched()
    return launch.rank if launch else 0


def mpirun(ranks: int) -> list[str]:
    """The beginning of a command that starts `ranks` processes: this environment's mpirun, else the one on the path.

    More ranks than cores, running as root and ranks free to use all cores are allowed where the launcher has to be told.
    """
    command = _find_mpirun()
    return [*command, "-n", str(ranks)]


@cache
def _find_mpirun() -> tuple[str, ...]:
    beside = Path(sys.executable).with_name("mpirun")
    path = str(beside) if beside.exists() else shutil.which("mpirun") or shutil.which("mpiexec")
    if path is None:
        raise FileNotFoundError("no mpirun in this environment or on the path: pip install mpich")
    if family_of(path) != "Open MPI":
        return (path,)
    as_root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    return (path, *as_root, "--oversubscribe", "--bind-to", "none")


def family_of(path: str) -> str:
    """Whose launcher this mpirun is: "Open MPI", "MPICH" (with those that descend from it), or "" for any other."""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=30).stdout  # noqa: S603
    if any(name in said for name in ("Open MPI", "OpenRTE", "PRRTE")):
        return "Open MPI"
    return "MPICH" if any(name in said for name in ("HYDRA", "Intel", "MVAPICH", "MPICH")) else ""
