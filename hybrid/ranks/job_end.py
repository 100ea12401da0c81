# SPDX-License-Identifier: MIT
"""How one process makes its launcher end all ranks of the job, without MPI, and with an exit code of its choice."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from hybrid.ranks import launcher
from hybrid.ranks.launcher import OPEN_MPI, launched

# At the first failure a launcher may throw away what has been printed.
_READ = 2.0  # seconds, at most, that it gets to read it
_DRAIN = 0.2  # seconds that it gets to pass on what it has read
_ABORT_TIME = 2.0  # seconds that Hydra gets to kill this process, as every other of the job


def let_launcher_read() -> None:
    """Wait before an exit that makes the launcher end the job, until it has read what was printed."""
    deadline = time.monotonic() + _READ
    while any(map(_is_unread, (1, 2))) and time.monotonic() < deadline:
        time.sleep(_DRAIN / 10)
    time.sleep(_DRAIN)


def _is_unread(stream: int) -> bool:
    """Whether a pipe or a socket has something that nobody has read yet."""
    with suppress(OSError):  # it is closed, or no system tells
        kind = os.fstat(stream).st_mode
        waits = termios.FIONREAD if stat.S_ISFIFO(kind) else termios.TIOCOUTQ if stat.S_ISSOCK(kind) else 0
        return bool(waits) and any(fcntl.ioctl(stream, waits, bytes(4)))
    return False


def exit_at_once(code: int) -> NoReturn:
    """Exit with this code, without any cleaning up: for the parent of a fork, which owns nothing that needs it."""
    if code and launched() is not None:
        let_launcher_read()
    os._exit(code)


def end_job(code: int, last: Callable[[], None]) -> NoReturn:
    """End this process and, where a launcher started it, the whole job, with this exit code if the launcher can have it.

    `last`: is called before the end of a job, as late as possible.

    What the launchers make of a rank's end differs. Open MPI's ends the job at the first exit code that is not 0, and takes it
    over. MPICH's (Hydra) ignores exit codes while MPI starts and on other nodes, but obeys an abort in the words of PMI, as
    MPI_Abort sends it. Others are told by a signal that this rank has died.
    """
    launch = launched()
    if launch is None:
        os._exit(code)
    let_launcher_read()
    last()
    if launch.name == OPEN_MPI:
        os._exit(code)
    if launcher.abort(code):
        time.sleep(_ABORT_TIME)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive after SIGKILL")


def children(process: int) -> list[int]:
    """The child processes of a process that run, or have not been waited for yet; none where there is no /proc."""
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for of_thread in Path(f"/proc/{process}/task").glob("*/children"):
            found += map(int, of_thread.read_text().split())
    return found
