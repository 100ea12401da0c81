# SPDX-License-Identifier: MIT
"""The launcher (mpirun, srun): this process's rank by its variables, starting one, and ending the job so that one rank says why.
Also the handling of SIGINT and SIGTERM.

Every command loads this module first, so it imports little.
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
from collections.abc import Callable
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
    """The launcher's name, and this process's rank and the number of processes according to it."""

    name: str
    rank: int
    size: int
    variables: tuple[str, str] = ("", "")  # the environment variables for rank and size
    local_rank: int | None = None  # the rank within its node, if the launcher sets it
    local_size: int | None = None  # the number of ranks on its node, if the launcher sets it


OPEN_MPI = "mpirun (Open MPI)"
# mpirun may start its helpers with srun, so that ranks inherit srun's variables too: mpirun's take precedence.
_VARIABLES = (
    ("mpirun (MPICH or another PMI launcher)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    (OPEN_MPI, *(f"OMPI_COMM_WORLD_{what}" for what in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),  # has no single number of tasks on this node
)


def launched() -> Launch | None:
    """The launch that started this process; None without a launcher."""
    for name, *variables in _VARIABLES:
        rank, size, *local = (int(text) if (text := os.environ.get(each, "")).isdecimal() else None for each in variables)
        if rank is not None and size is not None:
            return Launch(name, rank, size, (variables[0], variables[1]), *local)
    return None


def rank_by_launcher() -> int:
    """This process's rank by the launcher's variables; 0 without a launcher."""
    launch = launched()
    return launch.rank if launch else 0


def mpirun(ranks: int) -> list[str]:
    """The beginning of a command that starts `ranks` processes: the mpirun beside this Python, else the first on the PATH.

    Open MPI gets options that allow oversubscription and running as root, and bind no rank to a core.
    """
    return [*_find_mpirun(), "-n", str(ranks)]


@cache
def _find_mpirun() -> tuple[str, ...]:
    """The path of mpirun and its fixed options. StartError if there is none."""
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
    """The MPI family of this mpirun: "Open MPI", "MPICH" (including derivatives), or "" for others."""
    import subprocess  # takes several milliseconds; no rank needs it

    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=30).stdout  # noqa: S603
    if any(name in version for name in ("Open MPI", "OpenRTE", "PRRTE")):
        return "Open MPI"
    return "MPICH" if any(name in version for name in ("HYDRA", "Intel", "MVAPICH", "MPICH")) else ""


def pmi_socket() -> int | None:
    """The launcher's socket from PMI_FD; None if there is no open one."""
    with suppress(OSError, OverflowError, ValueError):
        there = int(os.environ.get("PMI_FD", ""))
        return there if stat.S_ISSOCK(os.fstat(there).st_mode) else None
    return None


def abort(code: int) -> bool:
    """Make Hydra, MPICH's launcher, end the job with `code`, as MPI_Abort. False without it (Slurm sets PMI_FD, too)."""
    there = pmi_socket() if "PMI_HOSTNAME" in os.environ else None
    with suppress(OSError):  # Hydra has ended
        return there is not None and os.write(there, b"cmd=abort exitcode=%d\n" % code) > 0
    return False


# --- one rank says why the job ends

# At the first failure a launcher may discard output that it has not passed on. Times in seconds:
_READ = 2.0  # longest wait for the launcher to read the output
_DRAIN = 0.2  # for the launcher to pass on what it has read
_ENDING = 2.0  # for the launcher to end a job after one rank has said why
_CAUSE = 1.5  # for a rank whose end may have caused this one's to say so first

_voice: socket.socket | None = None  # bound to a name by the first rank of the node that says why the job ends
_voice_name = ""


def share_voice() -> None:
    """Prepare for `speak`, so that only one rank of this job and node says why the job ends. Call it in the process started by
    the launcher: a forked worker shares the socket, and the name lasts until both have ended."""
    global _voice, _voice_name
    launch = launched()
    if launch is None or launch.size == 1:
        return
    import socket  # takes milliseconds; a process alone needs none

    # Unique to this job and node: the job's name under Open MPI, else the launcher's process id and start time (containers).
    job = os.environ.get("PMIX_NAMESPACE") or launcher_above() or str(os.getppid())
    with suppress(OSError):
        _voice_name = f"\0hybrid-{os.getuid()}-{job[-80:]}"
        _voice = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def speak(*, shared: bool = False, follows: bool = False) -> bool:
    """Whether this rank should say why the job ends: True for the first rank of its node that calls, and for its later calls.

    `shared`: ranks of other nodes may say the same; rank 0 goes first. `follows`: another rank's end may have caused this one;
    that rank goes first. If another rank has spoken, waits so that the launcher can end the job with that rank's exit code.
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
    """Wait until the launcher has read the output, before an exit that makes it end the job."""
    deadline = time.monotonic() + _READ
    for stream in (1, 2):
        with suppress(OSError):  # closed, or the system cannot tell
            kind = os.fstat(stream).st_mode
            unread = termios.FIONREAD if stat.S_ISFIFO(kind) else termios.TIOCOUTQ if stat.S_ISSOCK(kind) else 0
            while unread and any(fcntl.ioctl(stream, unread, bytes(4))) and time.monotonic() < deadline:
                time.sleep(_DRAIN / 10)
    time.sleep(_DRAIN)


def exit_at_once(code: int) -> NoReturn:
    """Exit with this code without cleanup: for the parent of a fork, which owns nothing that needs it."""
    if code and launched() is not None:
        let_launcher_read()
    os._exit(code)


def end_job(code: int) -> NoReturn:
    """End this process and, if a launcher started it, the whole job, with this exit code if the launcher supports it.

    Open MPI's launcher ends the job at the first nonzero exit code, and returns it. MPICH's (Hydra) ignores them during MPI's
    start and on other nodes, but obeys PMI's abort command, which MPI_Abort sends too. For others, this rank dies of a signal.
    """
    launch = launched()
    if launch is None:
        os._exit(code)
    let_launcher_read()
    if launch.name == OPEN_MPI:
        os._exit(code)
    if abort(code):
        time.sleep(_ENDING)  # Hydra kills this process with the job; if not in time, the next line does
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive after SIGKILL")


# --- signals


def handle(signum: int, handler: Callable[[int, FrameType | None], object]) -> None:
    """Set a handler for a signal, unless this process was started to ignore it, such as by nohup or by `&` in scripts."""
    if signal.getsignal(signum) is not signal.SIG_IGN:
        signal.signal(signum, handler)


def end_when_interrupted(name: str) -> None:
    """End a starting command with one line on SIGINT. A worker forked meanwhile ends silently: its supervisor reports it."""
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
    """Record this signal for `has_come`. SIGINT still raises KeyboardInterrupt; SIGTERM no longer ends the process."""

    def remember(signum: int, frame: FrameType | None) -> None:
        _came.add(signum)
        if signum == signal.SIGINT:
            raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        handle(signum, remember)


def has_come(signum: int) -> bool:
    """Whether this signal has come since `heed`."""
    return signum in _came
