# SPDX-License-Identifier: MIT
"""How one process makes its launcher end all ranks of the job, without MPI, and with an exit code of its choice."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import stat
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from hybrid.ranks import hydra
from hybrid.ranks.launcher import OPEN_MPI, launched

# At the first failure a launcher may throw away what has been printed.
_READ = 2.0  # seconds, at most, that it gets to read it
_DRAIN = 0.2  # seconds that it gets to pass on what it has read
_OPEN_MPI_RUNS = ("mpirun", "prterun", "orterun")  # the processes that end with a job; prte itself may have others
_END_TIME, _TERM_TIME = 5.0, 1.0  # seconds that such a one gets for it, alone and after SIGTERM
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
    if hydra.abort(code):
        time.sleep(_ABORT_TIME)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive after SIGKILL")


def open_mpi_on_nodes() -> bool:
    """Whether Open MPI's launcher has started ranks of this job on other nodes, too."""
    return os.environ.get("OMPI_COMM_WORLD_SIZE") != os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")


def outlive_launcher(process: int) -> None:
    """Leave a process behind that ends the launcher `process`, if that does not end with the job. To be called in a supervisor
    whose rank has failed.

    Open MPI's launcher waits for ever for its daemon on a node that is gone. So this is done only where it has started ranks on
    other nodes.
    """
    with suppress(OSError, AttributeError):  # AttributeError: elsewhere than on Linux
        if not open_mpi_on_nodes() or Path(f"/proc/{process}/comm").read_text().strip() not in _OPEN_MPI_RUNS:
            return
        mpirun = os.pidfd_open(process)  # unlike its number, never another process's
        if os.fork() == 0:
            _end(mpirun, process)


def _end(mpirun: int, process: int) -> NoReturn:
    """In the process that is left behind: end mpirun when it has had its time, and its connections to other nodes."""
    os.setsid()  # out of the group of processes that it ends with the rank
    os.closerange(0, mpirun)  # it reads what the rank prints until nobody can print any more
    os.closerange(mpirun + 1, os.sysconf("SC_OPEN_MAX"))
    to_nodes: list[int] = []
    for seconds, signum in ((_END_TIME, signal.SIGTERM), (_TERM_TIME, signal.SIGKILL)):
        if select.select([mpirun], [], [], seconds)[0]:  # it has ended
            break
        with suppress(OSError):
            # Its ssh to each node, which would stay, and hold open what mpirun prints to.
            to_nodes = [os.pidfd_open(child) for child in children(process)]
            signal.pidfd_send_signal(mpirun, signum)
    for ssh in to_nodes:
        with suppress(OSError):
            signal.pidfd_send_signal(ssh, signal.SIGTERM)
    os._exit(0)


def children(process: int) -> list[int]:
    """The child processes of a process that run, or have not been waited for yet; none where there is no /proc."""
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for of_thread in Path(f"/proc/{process}/task").glob("*/children"):
            found += map(int, of_thread.read_text().split())
    return found
