# SPDX-License-Identifier: MIT
"""A launcher that does not end with its job: on its node it is ended.

Where a link between nodes is cut, or a node is gone, Open MPI's launcher waits for ever for its daemon there, and MPICH's (Hydra)
does if it has read a part of a message of its own from there. So the supervisor of a rank that fails leaves a process behind.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import stat
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from hybrid.errors import with_code
from hybrid.ranks.job_end import children
from hybrid.ranks.launcher import OPEN_MPI, launched, rank_by_launcher
from hybrid.ranks.leftovers import remove_of_launcher

_OPEN_MPI_RUNS = ("mpirun", "prterun", "orterun")  # the processes that end with a job; prte itself may have others
_HYDRA_RUNS, _HYDRA_ON_NODE = ("mpiexec", "mpirun", "mpiexec.hydra"), "hydra_pmi_proxy"
_END_TIME = 5.0  # seconds that a launcher gets to end when the rank has
# Open MPI's gives up its daemons at the third SIGTERM within some seconds: it ends with 1 then, and removes its files.
_TERMS, _TERM_TIME = 3, 0.4
_LAST_TIME = 2.0  # seconds after the last one, in which it removes its files
_POLL = 0.1  # seconds
_PIDFD_GETFD = 438  # Linux' number of this call, for which Python has no function


class LauncherEnd:
    """What a supervisor does for the end of its launcher. `parent`: the process that has started this one; 0: no launcher has."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._told: int | None = None  # to the process that is left behind, if it is

    def see_to_it(self) -> None:
        """Leave a process behind that ends the launcher if it has not ended some seconds after this process. To be called when
        the job is to end."""
        with suppress(OSError, AttributeError):  # AttributeError: elsewhere than on Linux
            process = _launcher_here(self._parent)
            if not process or self._told is not None:
                return
            launcher = os.pidfd_open(process)  # unlike its number, never another process's
            if os.getppid() != self._parent or _launcher_here(self._parent) != process:
                os.close(launcher)  # the number may have become another process's before
                return
            reading, writing = os.pipe()
            if os.fork() == 0:
                os.close(writing)
                _end(launcher, process, reading)
            os.close(reading)
            self._told = writing

    def say(self, line: str) -> None:
        """Print it on standard error, and keep it for a launcher that does not pass it on any more."""
        text = line.encode(errors="surrogateescape")
        for to in (2, self._told):
            with suppress(OSError):  # nobody can read it: the disk of a log is full, or a pipe was closed
                if to is not None:
                    os.write(to, text)  # at once, so that the lines of several ranks are not mixed


def _launcher_here(parent: int) -> int:
    """The launcher, where it runs on this node and has started a rank itself, which this `parent` has; else 0."""
    launch = launched()
    if launch is None or not launch.on_other_nodes:
        return 0
    if launch.name == OPEN_MPI:
        return parent if _name(parent) in _OPEN_MPI_RUNS else 0
    above = _parent_of(parent) if _name(parent) == _HYDRA_ON_NODE else 0
    return above if above and _name(above) in _HYDRA_RUNS else 0


def _name(process: int) -> str:
    return Path(f"/proc/{process}/comm").read_text().strip()


def _parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def _end(launcher: int, process: int, reading: int) -> NoReturn:
    """In the process that is left behind: end the launcher when it has had its time, and its connections to other nodes.

    `launcher`: a descriptor of it; `reading`: where the supervisor tells what it prints, until it has ended.
    """
    launch = launched()
    os.setsid()  # out of the group of processes that the launcher ends with the rank
    _close_all_but(launcher, reading)  # it reads what the rank prints until nobody can print any more
    printed = b"".join(iter(lambda: os.read(reading, 65536), b""))
    ended = _ends_in_time(launcher, process, printed if launch is not None and launch.name != OPEN_MPI else b"")
    to_nodes = [] if ended else _connections(launcher, process)
    for seconds in (*[_TERM_TIME] * (_TERMS - 1), _LAST_TIME):
        ended = ended or _send(launcher, signal.SIGTERM) or _ends(launcher, seconds)
    if not ended:
        if launch is not None and launch.name != OPEN_MPI:  # Hydra heeds signals where it reads anything: so not what was printed
            _print_where(launcher, process, printed or _of_itself())
        _send(launcher, signal.SIGKILL)
        _ends(launcher, _TERM_TIME)
        remove_of_launcher(process)
    for ssh in to_nodes:
        _send(ssh, signal.SIGTERM)
    os._exit(0)


def _ends(launcher: int, seconds: float) -> bool:
    """Whether it ends within so many seconds."""
    return bool(select.select([launcher], [], [], seconds)[0])


def _ends_in_time(launcher: int, process: int, text: bytes) -> bool:
    """Whether it ends within its time, which begins when what it has printed is read: by a pager, say, that shows the first page
    until somebody goes on. `text`: is printed if that takes as long, for it may throw it away then."""
    left, to_wait = _END_TIME, _END_TIME
    while left > 0:
        if _ends(launcher, _POLL):
            return True
        if not _waits_for_reader(process):
            left -= _POLL
            continue
        left, to_wait = _END_TIME, to_wait - _POLL
        if text and to_wait <= 0:
            _print_where(launcher, process, text)
            text = b""
    return False


def _waits_for_reader(process: int) -> bool:
    """Whether it can print no more for now: a pipe is full, or a terminal is stopped."""
    for stream in (1, 2):
        with suppress(OSError):
            path = f"/proc/{process}/fd/{stream}"
            if not (stat.S_ISFIFO(mode := os.stat(path).st_mode) or stat.S_ISCHR(mode)):
                continue
            its = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
            is_full = not select.select([], [its], [], 0)[1]
            os.close(its)
            if is_full:
                return True
    return False


def _connections(launcher: int, process: int) -> list[int]:
    """Descriptors of the launcher's ssh to each node, which would stay, and hold open what it prints to."""
    found: list[int] = []
    for child in children(process):
        with suppress(OSError):  # it has ended
            descriptor = os.pidfd_open(child)
            if _parent_of(child) == process:
                found.append(descriptor)
    return [] if _ends(launcher, 0) else found  # those numbers may be other processes' by now


def _send(process: int, signum: int) -> bool:
    """Send a signal; whether the process has ended before."""
    try:
        signal.pidfd_send_signal(process, signum)
    except OSError:
        return True
    return False


def _of_itself() -> bytes:
    """What to print where the rank's worker has printed why the job ends, and nobody knows it any more."""
    where = f"rank {rank_by_launcher()} on {os.uname().nodename}"
    text = f"hybrid: {where}: mpirun had not ended {_END_TIME:g} s after this rank had failed, and was ended"
    return f"{with_code(text, 'launcher-waits')}\n".encode()


def _print_where(launcher: int, process: int, text: bytes) -> None:
    """Print on the standard error of the launcher."""
    with suppress(OSError):
        its = ctypes.CDLL(None).syscall(_PIDFD_GETFD, launcher, 2, 0)
        if its < 0:  # this process may not, or Linux is older than that; so a socket cannot be had
            its = os.open(f"/proc/{process}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK)
        if not _ends(launcher, 0) and select.select([], [its], [], _TERM_TIME)[1]:
            os.write(its, text)


def _close_all_but(*kept: int) -> None:
    begin = 0
    for descriptor in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
        os.closerange(begin, descriptor)
        begin = descriptor + 1
