# SPDX-License-Identifier: MIT
"""Which rank says why a job ends, where several would say the same or something that follows from it: one of them, once.

The ranks wait for their turns, and the first one that prints usually ends the job before the next one's. How long a launcher
takes for that nobody knows, on a machine with much to do. So who prints tells all ranks of its node by a datagram, and whose turn
comes later says nothing. The sockets have abstract names, which go with their processes: nothing is left of them.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid.core.problem import record
from hybrid.ranks.launcher import launched, rank_by_launcher

if TYPE_CHECKING:
    import socket

_FIRST_TURN, _NEXT_TURN = 2.0, 0.5  # seconds that rank 0, and each of the ranks 1 to 3, gets to print an error and end the job
_SOON = 0.02  # of these, where the launcher has announced that it kills all ranks: Open MPI's does so after 0.25 s
_POLL = 0.02  # seconds
_CREDENTIALS = struct.Struct("3i")  # Linux' struct ucred: process, user, group


@record
class _Ear:
    """Where this rank hears that another one of its node has spoken. `name`: with a rank's number behind it, that rank's."""

    socket: socket.socket
    name: str
    ranks: int


_ear: _Ear | None = None  # a worker shares it with the supervisor that has forked it


def listen() -> None:
    """From now on hear other ranks of this job and node. To be called in the process that the launcher has started."""
    global _ear
    launch = launched()
    if launch is None or launch.size == 1:
        return
    import socket  # both take milliseconds, and one process alone needs none
    from hashlib import blake2b

    with suppress(OSError):  # no such names, or no /proc: then turns alone must do
        ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ear.setblocking(False)
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        name = f"\0hybrid-{blake2b(_job().encode(), digest_size=12).hexdigest()}-"
        ear.bind(f"{name}{launch.rank}")
        _ear = _Ear(ear, name, launch.size)


def _job() -> str:
    """What the ranks of this job and node have in common, and others have not. Where Open MPI does not name the job, it is the
    process that has started the rank, the launcher or its daemon; ranks that a shell starts in between do not hear each other."""
    if job := os.environ.get("PMIX_NAMESPACE"):
        return job
    parent = os.getppid()
    started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]  # another container may count alike
    return f"{parent} {started}"


def speak() -> None:
    """Tell the other ranks of this node that this one says why the job ends."""
    if _ear is None:
        return
    own = rank_by_launcher()
    for rank in range(_ear.ranks):
        with suppress(OSError):  # it is on another node, has ended, or was told often enough
            if rank != own:
                _ear.socket.sendto(b"!", f"{_ear.name}{rank}")


def wait_for_turn(rank: int, *, after_causes: bool = False, soon: Callable[[], bool] = lambda: False) -> bool:
    """Wait before this rank prints an error that others may have, too; returns whether it is to print it. Where another rank has
    spoken meanwhile, this one gives the launcher the time to end the job with that one's exit code.

    `after_causes`: the error may follow from one that another rank has yet to print, in its turn. `soon`: whether the
    launcher is about to kill all ranks.
    """
    last = _FIRST_TURN + 3 * _NEXT_TURN
    own = _FIRST_TURN + _NEXT_TURN * min(rank - 1, 3) if rank else 0.0
    seconds = own + (last + _NEXT_TURN if after_causes else 0.0)
    began = time.monotonic()
    while not (heard := _heard()) and (waited := time.monotonic() - began) < seconds * (_SOON if soon() else 1.0):
        time.sleep(min(_POLL, seconds - waited))
    if heard:
        time.sleep(_FIRST_TURN)
        return False
    speak()
    return True


def _heard() -> bool:
    """Whether another rank of this user's has spoken."""
    if _ear is None:
        return False
    import socket

    with suppress(OSError):  # BlockingIOError: nobody has
        while True:
            _, about, _, _ = _ear.socket.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_PEEK)
            if any(len(data) == _CREDENTIALS.size and _CREDENTIALS.unpack(data)[1] == os.getuid() for _, _, data in about):
                return True  # and it stays there, for the worker or the supervisor to hear
            _ear.socket.recv(1)
    return False
