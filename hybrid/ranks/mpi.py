# SPDX-License-Identifier: MIT
"""MPI in this process: what it needs before it starts, its start and end, and the library as it describes itself.

Where something is missing, MPI ends its process, or hangs, and says why in its own terms: so it is looked for before.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from hybrid.core.problem import record
from hybrid.core.processes import launcher_above
from hybrid.core.text import readable
from hybrid.errors import StartError, one_line
from hybrid.host.memory import free_bytes_in
from hybrid.ranks.heartbeat import wake_supervisor
from hybrid.ranks.launcher import Launch, launched, pmi_socket

if TYPE_CHECKING:
    from mpi4py import MPI


# --- start and end


def start_mpi_of(launch: Launch) -> None:
    """Start MPI in this rank. StartError if that cannot be, or if MPI sees another number of processes than the launcher has
    started."""
    refuse_too_little(launch)
    try:
        with _signals_kept():
            MPI = start_mpi()
    except (ImportError, RuntimeError) as error:
        raise StartError(
            f"started by {launch.name}, but mpi4py cannot start MPI ({one_line(error)}): install an MPI, "
            "for example with pip install mpich",
            code="mpi-missing",
        ) from error
    refuse_foreign_launcher(MPI.COMM_WORLD)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """A context after which signals mean what they did before, so that they end a rank under every MPI, or under none. Signals
    that come meanwhile are handled then.

    MPICH sets a handler for SIGUSR1, which its launcher sends only where it leaves a job with a dead rank alone; and UCX, below
    both MPIs, sets one for SIGHUP, for debugging. Neither lets a user see that the signal came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGHUP, signal.SIGUSR1)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            if handler is not None:  # Python's own record of it, which these libraries do not change
                signal.signal(signum, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_mpi() -> ModuleType:
    """Start MPI in this process, with the thread level that hybrid-runner needs; mpi4py's module."""
    import mpi4py

    mpi4py.rc(thread_level="funneled")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "suspicious MPI execution environment")  # is looked at, and said in one line
        from mpi4py import MPI

    return MPI


def leave() -> NoReturn:
    """Finalize MPI where it has started, and end the process with code 0. Output must have been flushed, and no thread may
    compute.

    Python's own end would take longer, since it tears down every module. It is C's `exit` and not `_exit`, which would leave out
    what MPICH does at the very end: its launcher then ends the job as one that failed.
    """
    wake_supervisor()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and not mpi.Is_finalized():
        mpi.Finalize()
        wake_supervisor()  # if it was stopped meanwhile: nobody else would
    ctypes.PyDLL(None).exit(0)  # holds the interpreter's lock, so that no other thread runs Python meanwhile
    raise AssertionError("exit has returned")


def unname_files() -> None:
    """Remove the names of the files that MPICH has made in shared memory for the ranks of this node, when all of them have opened
    these. The memory goes with the last process."""
    with suppress(OSError):
        maps = Path("/proc/self/maps").read_text(errors="replace")
        for path in set(re.findall(rf"{SHARED}/mpich_shm_[0-9a-f]+_[0-9]+$", maps, re.MULTILINE)):
            os.unlink(path)


def all_processes() -> MPI.Comm:
    """The communicator of everything that the launcher has started, for programs that watch over themselves."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def abort(code: int) -> None:
    """End all ranks of the job with this exit code, whatever they are doing."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(code)


def refuse_foreign_launcher(world: MPI.Comm) -> None:
    """StartError if MPI does not see all processes that the launcher started.

    With the launcher of another MPI every process takes itself for rank 0 of 1, and would do all the work again.
    """
    launch, size = launched(), world.Get_size()
    if launch is None or size == launch.size:
        return
    from mpi4py import MPI

    if launcher_above() == "":
        raise stale(
            launch, "no launcher is running above this process, and MPI sees it alone: they are left over from another job"
        )
    raise StartError(
        f"{launch.name} started {launch.size} processes, but {library_name(MPI)} sees {size}: they belong to "
        "different MPIs; use the mpirun of the MPI that mpi4py uses, or srun with the --mpi= it was built for",
        code="wrong-mpirun",
    )


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
_FILES = 1024  # open files: what MPI may want; with 32 two ranks of MPICH hang
# Of MPICH 5.0.2 on a node: 1,057,344 bytes for each rank and 4 KiB; UCX, on which it may be built, has files of 4.3 MB besides.
_SHARED_OF_A_RANK = 1_061_440
_UCX_OF_A_RANK, _LEAST_OF_UCX = 4_400_000, 16 << 20  # UCX's files; and with less room than this it makes none


def refuse_too_little(launch: Launch) -> None:
    """StartError where MPI could not start."""
    if "PMI_FD" in os.environ and pmi_socket() is None:
        connection = f"its connection to this process, PMI_FD={os.environ['PMI_FD']}, is not open"
        raise stale(launch, f"{connection}: the variables are left over from another job, or something in between has closed it")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _FILES and soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES if hard < 0 else min(_FILES, hard), hard))
    where, ranks = f"on {os.uname().nodename}", int(os.environ.get("MPI_LOCALNRANKS", "0"))  # set by MPICH's launcher only
    if ranks < 2:
        return
    if not os.access(SHARED, os.W_OK):
        why = "is read-only, or not writable for you" if SHARED.is_dir() else "is missing"
        raise StartError(
            f"{SHARED} {why}, {where}: MPI needs it for {ranks} ranks on one node",
            "mount -t tmpfs tmpfs /dev/shm (in a container: start it without --read-only, or with --tmpfs /dev/shm)",
            code="shared-memory",
        )
    need, free = ranks * _SHARED_OF_A_RANK, free_bytes_in(SHARED)
    if free < need:
        raise StartError(
            f"MPI needs {readable(need)} of {SHARED} for {ranks} ranks {where}, {readable(free)} are free: "
            f"{readable(need - free)} are missing",
            "delete what ended programs left there, or enlarge it (mount -o remount,size=…; in a container --shm-size=…)",
            code="shared-memory",
        )
    if free < need + ranks * _UCX_OF_A_RANK + _LEAST_OF_UCX:
        # UCX 1.20 looks at the room before each of its files. Where a rank finds enough for the first but not for the next, as
        # when other ranks have made theirs meanwhile, it uses one that it has not: SIGSEGV. It has other ways within a node.
        os.environ.setdefault("UCX_TLS", "^posix")


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
