# SPDX-License-Identifier: MIT
"""The launcher (mpirun, srun): what it says of this process, how one is started, and how a rank ends its job: one rank says why,
and the launcher is told. And what a command makes of SIGINT and SIGTERM.

Loaded first by every command, so it imports little.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from hybrid.core.problem import record
from hybrid.core.processes import launcher_above
from hybrid.errors import StartError

if TYPE_CHECKING:
    import socket


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


# --- one rank says why the job ends

# At the first failure a launcher may throw away what has been printed.
_READ = 2.0  # seconds, at most, that it gets to read it
_DRAIN = 0.2  # seconds that it gets to pass on what it has read
_ENDING = 2.0  # seconds that a launcher gets to end a job when one rank has said why
_CAUSE = 1.5  # seconds that a rank whose end may be the cause of this one's gets to say so first

_voice: socket.socket | None = None  # bound to a name by the first rank of the node that says why the job ends
_voice_name = ""


def share_voice() -> None:
    """From now on one rank of this job and node says why the job ends. Called in the process that the launcher has started: a
    forked worker shares the socket, and the name lasts until both have ended."""
    global _voice, _voice_name
    launch = launched()
    if launch is None or launch.size == 1:
        return
    import socket  # takes milliseconds, and one process alone needs none

    # What the ranks of this job and node have in common, and others have not: the job's name under Open MPI, else the launcher's
    # process on this node and its start, since another container may count its processes alike.
    job = os.environ.get("PMIX_NAMESPACE") or launcher_above() or str(os.getppid())
    with suppress(OSError):
        _voice_name = f"\0hybrid-{os.getuid()}-{job[-80:]}"
        _voice = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def speak(*, shared: bool = False, follows: bool = False) -> bool:
    """Whether this rank is to say why the job ends: the first of its node that asks is, and again whenever it asks.

    `shared`: ranks of other nodes have the same to say, and rank 0 goes first. `follows`: this end may follow from another
    rank's, which goes first. Where another rank has spoken, the launcher gets the time to end the job with that one's exit code.
    """
    launch = launched()
    if launch is None or launch.size == 1:
        return True
    apart = _voice is None or launch.local_size != launch.size
    time.sleep(_CAUSE * follows + _ENDING * (shared and apart and launch.rank > 0))
    if _voice is not None:
        try:
            _voice.bind(_voice_name)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                time.sleep(_ENDING)
                return False
    return True


# --- the end


def let_launcher_read() -> None:
    """Wait before an exit that makes the launcher end the job, until it has read what was printed."""
    deadline = time.monotonic() + _READ
    for stream in (1, 2):
        with suppress(OSError):  # it is closed, or no system tells
            kind = os.fstat(stream).st_mode
            unread = termios.FIONREAD if stat.S_ISFIFO(kind) else termios.TIOCOUTQ if stat.S_ISSOCK(kind) else 0
            while unread and any(fcntl.ioctl(stream, unread, bytes(4))) and time.monotonic() < deadline:
                time.sleep(_DRAIN / 10)
    time.sleep(_DRAIN)


def exit_at_once(code: int) -> NoReturn:
    """Exit with this code, without any cleaning up: for the parent of a fork, which owns nothing that needs it."""
    if code and launched() is not None:
        let_launcher_read()
    os._exit(code)


def end_job(code: int) -> NoReturn:
    """End this process and, where a launcher started it, the whole job, with this exit code if the launcher can have it.

    What the launchers make of a rank's end differs. Open MPI's ends the job at the first exit code that is not 0, and takes it
    over. MPICH's (Hydra) ignores exit codes while MPI starts and on other nodes, but obeys an abort in the words of PMI, as
    MPI_Abort sends it. Others are told by a signal that this rank has died.
    """
    launch = launched()
    if launch is None:
        os._exit(code)
    let_launcher_read()
    if launch.name == OPEN_MPI:
        os._exit(code)
    if abort(code):
        time.sleep(_ENDING)  # Hydra kills this process, as every other of the job
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive after SIGKILL")


# --- signals


def handle(signum: int, handler: Callable[[int, FrameType | None], object]) -> None:
    """Set a handler for a signal, unless this process was started to ignore it, as by nohup, or by `&` in scripts."""
    if signal.getsignal(signum) is not signal.SIG_IGN:
        signal.signal(signum, handler)


def end_when_interrupted(name: str) -> None:
    """From now on an interrupt ends this process with one line: a command that is starting and has not told anybody of itself.

    Of a worker that it has just forked, the supervisor tells.
    """
    starting = os.getpid()

    def end(signum: int, frame: FrameType | None) -> NoReturn:
        if os.getpid() == starting:
            if speak(shared=True):
                os.write(2, f"{name}: interrupted [interrupted]\n".encode())
            end_job(1)
        os._exit(1)

    handle(signal.SIGINT, end)


_came: set[int] = set()


def heed(signum: int) -> None:
    """From now on `has_come` tells of this signal. SIGINT still raises KeyboardInterrupt, which C code may turn into other
    errors; SIGTERM does not end this command: the caller ends in an orderly way."""

    def remember(signum: int, frame: FrameType | None) -> None:
        _came.add(signum)
        if signum == signal.SIGINT:
            raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        handle(signum, remember)


def has_come(signum: int) -> bool:
    """Whether this signal has come since `heed`."""
    return signum in _came
