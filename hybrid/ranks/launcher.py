# SPDX-License-Identifier: MIT
"""The launcher (mpirun, srun): what it says of this process, how one is started, and how it is told to end a job."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from hybrid.core.problem import record
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


def pmi_socket() -> int | None:
    """The descriptor at which the launcher listens, as PMI_FD says; None where there is none that is open."""
    with suppress(OSError, OverflowError, ValueError):
        there = int(os.environ.get("PMI_FD", ""))
        return there if stat.S_ISSOCK(os.fstat(there).st_mode) else None
    return None


def abort(code: int) -> bool:
    """Have Hydra, MPICH's launcher, end all processes of the job and exit with `code`, as MPI_Abort does. False where there is no
    Hydra to tell: Slurm's PMI-2 sets PMI_FD as well, but has another protocol than PMI 1 with its lines of text."""
    there = pmi_socket() if "PMI_HOSTNAME" in os.environ else None
    with suppress(OSError):  # it is gone
        return there is not None and os.write(there, b"cmd=abort exitcode=%d\n" % code) > 0
    return False
