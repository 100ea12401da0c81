# SPDX-License-Identifier: MIT
"""The launcher (mpirun, srun): what its environment variables say, which is known before MPI starts, and how to start one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from hybrid.core.record import record
from hybrid.errors import StartError


@record
class Launch:
    """This process's rank and the number of processes as the launcher numbers them, and the launcher's name."""

    name: str
    rank: int
    size: int
    variables: tuple[str, str] = ("", "")  # the names of the environment variables that say so
    local_rank: int | None = None  # the number among the ranks of its node, where the launcher says it
    local_size: int | None = None  # how many ranks its node has, likewise

    @property
    def on_other_nodes(self) -> bool:
        """Whether the launcher says that it has started ranks on other nodes, too."""
        return self.local_size is not None and self.local_size != self.size


OPEN_MPI = "mpirun (Open MPI)"
# mpirun may start its helpers by srun, whose variables the ranks then inherit: so mpirun's own come first.
_VARIABLES = (
    ("mpirun (MPICH or another PMI launcher)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    (OPEN_MPI, *(f"OMPI_COMM_WORLD_{what}" for what in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),  # of the tasks of a node it has a list
)


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """The launch this process belongs to, or None when it was started without a launcher."""
    for name, rank, size, *of_node in _VARIABLES:
        if environment.get(rank, "").isdecimal() and environment.get(size, "").isdecimal():
            local = [int(number) if (number := environment.get(variable, "")).isdecimal() else None for variable in of_node]
            return Launch(name, int(environment[rank]), int(environment[size]), (rank, size), *local)
    return None


def variable_of_rank() -> str:
    """The environment variable in which the processes that `mpirun` starts find their rank."""
    return next(rank for name, rank, *_ in _VARIABLES if (name == OPEN_MPI) == (family_of(_find_mpirun()[0]) == "Open MPI"))


def compiler_flags() -> list[str]:
    """The compiler flags for a C++ program that calls MPI, by the mpicc beside mpirun.

    StartError where there is no mpicc.
    """
    import shlex
    import subprocess

    mpicc = Path(_find_mpirun()[0]).with_name("mpicc")
    if not mpicc.exists():
        raise StartError(f"no mpicc beside {_find_mpirun()[0]}", "install your MPI's files for developers", code="mpi-missing")
    shown = subprocess.run([str(mpicc), "-show"], capture_output=True, text=True, check=True, timeout=30).stdout  # noqa: S603
    return shlex.split(shown)[1:]


def rank_by_launcher() -> int:
    """This process's rank by the launcher's variables; 0 when started without a launcher."""
    launch = launched()
    return launch.rank if launch else 0


def mpirun(ranks: int) -> list[str]:
    """The beginning of a command that starts `ranks` processes: the mpirun beside this Python, else the first on the PATH.

    Open MPI's gets options that allow more ranks than cores and running as root, and that bind no rank to a core.
    """
    return [*_find_mpirun(), "-n", str(ranks)]


@cache
def _find_mpirun() -> tuple[str, ...]:
    """The path of mpirun, with the options that it always gets. StartError where there is none."""
    import shutil

    beside = Path(sys.executable).with_name("mpirun")
    path = str(beside) if beside.exists() else shutil.which("mpirun") or shutil.which("mpiexec")
    if path is None:
        raise StartError(
            "no mpirun beside this Python or on the PATH", "pip install mpich, or load your site's MPI module", code="mpi-missing"
        )
    if family_of(path) != "Open MPI":
        return (path,)
    as_root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    return (path, *as_root, "--oversubscribe", "--bind-to", "none")


def family_of(path: str) -> str:
    """The MPI this mpirun belongs to: "Open MPI", "MPICH" (or one derived from it), or "" for any other."""
    import subprocess  # takes several milliseconds to import, and no rank starts a launcher

    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=30).stdout  # noqa: S603
    if any(name in version for name in ("Open MPI", "OpenRTE", "PRRTE")):
        return "Open MPI"
    return "MPICH" if any(name in version for name in ("HYDRA", "Intel", "MVAPICH", "MPICH")) else ""
