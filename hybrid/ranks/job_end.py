# SPDX-License-Identifier: MIT
"""How a rank ends its job: one rank says why, and the launcher is told; and what a command makes of SIGINT and SIGTERM.

Loaded first by every command, so it imports little.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from hybrid.core.processes import launcher_above
from hybrid.ranks.launcher import OPEN_MPI, abort, launched

if TYPE_CHECKING:
    import socket

# At the first failure a launcher may throw away what has been printed.
_READ = 2.0  # seconds, at most, that it gets to read it
_DRAIN = 0.2  # seconds that it gets to pass on what it has read
_ENDING = 2.0  # seconds that a launcher gets to end a job when one rank has said why
_CAUSE = 1.5  # seconds that a rank whose end may be the cause of this one's gets to say so first

_voice: socket.socket | None = None  # bound to a name by the first rank of the node that says why the job ends
_voice_name = ""


# --- one rank says why


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
