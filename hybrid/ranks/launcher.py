# SPDX-License-Identifier: MIT
"""The launcher (mpirun, srun) and the MPI library: what is known and needed before MPI starts, and how to start a job."""

from __future__ import annotations

import os
import resource
import select
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

from hybrid.core.problem import record
from hybrid.core.text import readable
from hybrid.errors import StartError
from hybrid.host.memory import free_bytes_in


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


def children(process: int) -> list[int]:
    """The child processes of a process that run, or have not been waited for yet; none where there is no /proc."""
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for of_thread in Path(f"/proc/{process}/task").glob("*/children"):
            found += map(int, of_thread.read_text().split())
    return found


# --- what a rank says to Hydra, MPICH's launcher, in the protocol PMI 1: lines of text through a descriptor that it inherits

_ANSWER = 0.2  # seconds


def _hydra() -> int | None:
    """The descriptor at which Hydra listens; None under another launcher. Slurm's PMI-2 sets PMI_FD as well, but has another
    protocol."""
    return int(os.environ["PMI_FD"]) if "PMI_HOSTNAME" in os.environ and _is_open(os.environ.get("PMI_FD", "")) else None


def _is_open(number: str) -> bool:
    """Whether this descriptor is a socket. If not, the launcher that set PMI_FD is not this process's, or it was closed."""
    with suppress(OSError, OverflowError):
        return number.isdecimal() and stat.S_ISSOCK(os.fstat(int(number)).st_mode)
    return False


def abort(code: int) -> bool:
    """Have Hydra end all processes of the job and exit with `code`, as MPI_Abort does. False where there is no Hydra to tell."""
    with suppress(OSError):  # it is gone
        return (there := _hydra()) is not None and os.write(there, b"cmd=abort exitcode=%d\n" % code) > 0
    return False


def topology_file() -> str | None:
    """The file in which Hydra's part on this node describes the node's cores; None where it does not say.

    To be called only while no call of MPI is under way.
    """
    there = _hydra()
    with suppress(OSError):
        if there is not None and (space := _asked(there, "get_my_kvsname", "kvsname")):
            return _asked(there, f"get kvsname={space} key=PMI_hwloc_xmlfile", "value")
    return None


def _asked(there: int, question: str, wanted: str) -> str | None:
    """The value that Hydra's answer gives for `wanted`; None without an answer. An answer to a process that has died may come
    first."""
    os.write(there, f"cmd={question}\n".encode())
    while select.select([there], [], [], _ANSWER)[0] and (words := os.read(there, 4096).decode(errors="replace").split()):
        found = [word.partition("=")[2] for word in words if word.startswith(f"{wanted}=")]
        if found:
            return found[-1]
    return None


# --- the MPI library in use, as it describes itself


@record
class Library:
    """An MPI library's version and what it provides."""

    name: str  # and version
    standard: tuple[int, int]
    abi: str  # for which mpi4py was built
    asked: str  # the thread level that was asked for, such as FUNNELED
    provided: str  # the thread level that the library has given
    threads_suffice: bool

    @property
    def family(self) -> str:
        """The family of MPIs to which the launcher must belong, too: "Open MPI" or "MPICH", which stands for those derived from
        it as well."""
        return "Open MPI" if "Open MPI" in self.name else "MPICH"

    @property
    def large_counts(self) -> bool:
        """Whether messages of 2³¹ items and more can be sent."""
        return self.standard >= (4, 0)


def library_name(mpi: ModuleType) -> str:
    """Name and version of the library behind mpi4py's MPI module `mpi`; MPI need not be started."""
    first = mpi.Get_library_version().split("\n")[0].strip("\0").split(",")[0]
    return " ".join(first.replace(" Version:", " ").split())


def library_in_use() -> Library:
    """The library of this process, in which MPI has been started."""
    import mpi4py
    from mpi4py import MPI

    provided = MPI.Query_thread()
    levels = {getattr(MPI, f"THREAD_{name}"): name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
    parts = Path(MPI.__file__).name.split(".")  # MPI.mpich.cpython-311-….so where mpi4py has a build for each ABI
    return Library(
        library_name(MPI),
        MPI.Get_version(),
        parts[1] if len(parts) > 3 else "this library's own",
        str(mpi4py.rc.thread_level).upper(),
        levels.get(provided, str(provided)),
        provided >= MPI.THREAD_FUNNELED,
    )


# --- what MPI needs before it starts: where that is missing, MPI ends its process, or hangs, and says why in its own terms

SHARED = Path("/dev/shm")  # noqa: S108 (no name in it is guessed)
_LEAST_FILES, _FILES = 48, 1024  # open files: with 32 two ranks of MPICH hang; what is asked for where the limit allows it
# Of MPICH 5.0.2 on a node: 1,057,344 bytes for each rank and 4 KiB; UCX, on which it may be built, has files of 4.3 MB besides.
_SHARED_OF_A_RANK = 1_061_440
_UCX_OF_A_RANK, _LEAST_OF_UCX = 4_400_000, 16 << 20  # UCX's files; and with less room than this it makes none
_LEAST_FILE_SIZE = 6 << 20


def refuse_too_little(launch: Launch) -> None:
    """StartError where MPI could not start."""
    if "PMI_FD" in os.environ and not _is_open(os.environ["PMI_FD"]):
        connection = f"its connection to this process, PMI_FD={os.environ['PMI_FD']}, is not open"
        raise stale(launch, f"{connection}: the variables are left over from another job, or something in between has closed it")
    _allow_files()
    where, ranks = f"on {os.uname().nodename}", int(os.environ.get("MPI_LOCALNRANKS", "0"))  # set by MPICH's launcher only
    if ranks < 2:
        return
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if 0 <= size < _LEAST_FILE_SIZE:
        raise StartError(
            f"files may have {readable(size)} only {where} (ulimit -f): MPI's memory that ranks share needs "
            f"{readable(_LEAST_FILE_SIZE)}, matrices need more",
            "ulimit -f unlimited",
            code="file-limit",
        )
    if not os.access(SHARED, os.W_OK):
        why = "is read-only, or not writable for you" if SHARED.is_dir() else "is missing"
        raise StartError(
            f"{SHARED} {why}, {where}: MPI needs it for {ranks} ranks on one node",
            "mount -t tmpfs tmpfs /dev/shm (in a container: start it without --read-only, or with --tmpfs /dev/shm)",
            code="shared-memory",
        )
    need, free = ranks * _SHARED_OF_A_RANK, free_shared_bytes()
    if free is not None and free < need:
        raise StartError(
            f"MPI needs {readable(need)} of {SHARED} for {ranks} ranks {where}, {readable(free)} are free: "
            f"{readable(need - free)} are missing",
            "delete what ended programs left there, or enlarge it (mount -o remount,size=…; in a container --shm-size=…)",
            code="shared-memory",
        )
    if free is not None and free < need + ranks * _UCX_OF_A_RANK + _LEAST_OF_UCX:
        # UCX 1.20 looks at the room before each of its files. Where a rank finds enough for the first but not for the next, as
        # when other ranks have made theirs meanwhile, it uses one that it has not: SIGSEGV. It has other ways within a node.
        os.environ.setdefault("UCX_TLS", "^posix")


def _allow_files() -> None:
    """Raise the limit of open files to what MPI may want, as far as the hard limit allows. StartError where that is too
    little."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _FILES and soft != hard:
        soft = _FILES if hard < 0 else min(_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if 0 <= soft < _LEAST_FILES:
        raise StartError(
            f"a process may open {soft} files only on {os.uname().nodename} (ulimit -n): MPI needs {_LEAST_FILES} or more",
            f"ulimit -n {_FILES}",
            code="open-files",
        )


def free_shared_bytes() -> int | None:
    """The free bytes of /dev/shm; None where there is none."""
    try:
        return free_bytes_in(SHARED)
    except OSError:
        return None


def stale(launch: Launch, why: str) -> StartError:
    """The error of a process in whose environment another job's launcher has left its variables."""
    said = f"{launch.variables[0]}={launch.rank} and {launch.variables[1]}={launch.size}"
    error = StartError(
        f"{said} say that {launch.name} started {launch.size} ranks, but {why}",
        "unset them, or start with mpirun",
        code="stale-launcher",
    )
    error.on_all_ranks = True  # nobody waits for this process
    return error
