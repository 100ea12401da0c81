# SPDX-License-Identifier: MIT
"""MPI in this process: preconditions, start and end, and a description of the library.

MPI hangs, or ends its process with an obscure message, if a precondition fails: so they are checked first.
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
from hybrid.ranks.launcher import Launch, launched, pmi_socket

if TYPE_CHECKING:
    from mpi4py import MPI


# --- start and end


def start_mpi_of(launch: Launch) -> None:
    """Start MPI in this rank. StartError if it cannot start, or sees another number of processes than the launcher started."""
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
    """A context that restores signal handlers at its end, so that signals end a rank under any MPI. Signals that arrive meanwhile
    are handled then.

    MPICH installs a handler for SIGUSR1, which its launcher sends only if it keeps a job with a dead rank; UCX, below both MPIs,
    installs one for SIGHUP for debugging. Both hide the signal from the user.
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
            if handler is not None:  # Python's record of the handler, which these libraries do not change
                signal.signal(signum, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_mpi() -> ModuleType:
    """Start MPI in this process, with thread level FUNNELED. Returns the module mpi4py.MPI."""
    import mpi4py

    mpi4py.rc(thread_level="funneled")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "suspicious MPI execution environment")  # `refuse_foreign_launcher` checks it
        from mpi4py import MPI

    return MPI


def leave() -> NoReturn:
    """Finalize MPI if started, and end the process with code 0. Output must have been flushed, and no thread may compute.

    Faster than Python's own exit, which tears down every module. Uses C's `exit`, not `_exit`, which would skip MPICH's exit
    handlers: its launcher would count the job as failed.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and not mpi.Is_finalized():
        mpi.Finalize()
    ctypes.PyDLL(None).exit(0)  # PyDLL keeps the GIL, so that no other thread runs Python meanwhile
    raise AssertionError("exit has returned")


def unname_files() -> None:
    """Unlink MPICH's files in /dev/shm once all ranks of the node have opened them: the last process's end frees the memory."""
    with suppress(OSError):
        maps = Path("/proc/self/maps").read_text(errors="replace")
        for path in set(re.findall(rf"{SHARED}/mpich_shm_[0-9a-f]+_[0-9]+$", maps, re.MULTILINE)):
            os.unlink(path)


def all_processes() -> MPI.Comm:
    """COMM_WORLD: all processes that the launcher started."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def abort(code: int) -> None:
    """End all ranks of the job at once with this exit code."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(code)


def refuse_foreign_launcher(world: MPI.Comm) -> None:
    """StartError if MPI does not see all started processes: with another MPI's launcher each would be rank 0 of 1."""
    launch, size = launched(), world.Get_size()
    if launch is None or size == launch.size:
        return
    from mpi4py import MPI

    if launcher_above() == "":
        raise stale(launch, "no launcher runs above this process, and MPI sees it alone: they are left over from another job")
    raise StartError(
        f"{launch.name} started {launch.size} processes, but {library_name(MPI)} sees {size}: they belong to "
        "different MPIs; use the mpirun of the MPI that mpi4py uses, or srun with the --mpi= it was built for",
        code="wrong-mpirun",
    )


# --- the MPI library in use


@record
class Library:
    """An MPI library's version and what it provides."""

    name: str  # with version
    standard: tuple[int, int]
    abi: str  # the ABI that mpi4py was built for
    asked: str  # requested thread level, such as FUNNELED
    provided: str  # provided thread level
    threads_suffice: bool

    @property
    def family(self) -> str:
        """The family that the launcher must match: "Open MPI", or "MPICH" including derivatives."""
        return "Open MPI" if "Open MPI" in self.name else "MPICH"

    @property
    def large_counts(self) -> bool:
        """Whether a message can hold 2³¹ items or more."""
        return self.standard >= (4, 0)


def library_name(mpi: ModuleType) -> str:
    """Name and version of the library behind the module mpi4py.MPI; MPI need not be started."""
    first = mpi.Get_library_version().split("\n")[0].strip("\0").split(",")[0]
    return " ".join(first.replace(" Version:", " ").split())


def library_in_use() -> Library:
    """This process's library; MPI must be started."""
    import mpi4py
    from mpi4py import MPI

    provided = MPI.Query_thread()
    levels = {getattr(MPI, f"THREAD_{name}"): name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
    parts = Path(MPI.__file__).name.split(".")  # MPI.mpich.cpython-311-….so if mpi4py has a build for each ABI
    return Library(
        library_name(MPI),
        MPI.Get_version(),
        parts[1] if len(parts) > 3 else "this library's own",
        str(mpi4py.rc.thread_level).upper(),
        levels.get(provided, str(provided)),
        provided >= MPI.THREAD_FUNNELED,
    )


# --- MPI's preconditions

SHARED = Path("/dev/shm")  # noqa: S108 (no name in it is guessed)
_FILES = 1024  # open files that MPI may need; with 32, two ranks of MPICH hang
# MPICH 5.0.2 uses 1,057,344 bytes per rank and 4 KiB per node; with UCX another 4.3 MB per rank.
_SHARED_OF_A_RANK = 1_061_440
_UCX_OF_A_RANK, _LEAST_OF_UCX = 4_400_000, 16 << 20  # with less free space than the latter UCX creates no files


def refuse_too_little(launch: Launch) -> None:
    """StartError if MPI could not start. Raises the limit of open files if possible, and avoids UCX's files if space is short."""
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
        # UCX 1.20 checks for space before each of its files. If space runs out between two files, for example because other ranks
        # created theirs, it uses the missing one: SIGSEGV. It has other transports within a node.
        os.environ.setdefault("UCX_TLS", "^posix")


def stale(launch: Launch, why: str) -> StartError:
    """The error for launcher variables that another job left in the environment."""
    said = f"{launch.variables[0]}={launch.rank} and {launch.variables[1]}={launch.size}"
    error = StartError(
        f"{said} say that {launch.name} started {launch.size} ranks, but {why}",
        "unset them, or start with mpirun",
        code="stale-launcher",
    )
    error.on_all_ranks = True  # nobody waits for this process
    return error
