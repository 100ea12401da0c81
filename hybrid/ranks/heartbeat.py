# SPDX-License-Identifier: MIT
"""A rank's reports to its supervisor: heartbeats, the current phase and the exit code, in memory that the two processes share.

Without a supervisor (in a user's own program, or with HYBRID_GUARD=0) nobody reads them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
from typing import Any, ClassVar

AGREED, REPORTED = 1, 2  # kinds of exit code: all ranks end with it; this rank alone does, and has printed why
_LONGEST = 2048  # bytes of a text
_PR_SET_PDEATHSIG = 1  # for Linux's prctl


class Board(ctypes.Structure):
    """Shared memory that the worker writes and the supervisor reads."""

    _fields_: ClassVar[Any] = [
        ("beats", ctypes.c_uint64),  # counts heartbeats
        ("busy", ctypes.c_int),  # active calls that send no heartbeats, such as library calls
        ("mpi_started", ctypes.c_bool),  # other ranks may wait for this one
        ("has_own_group", ctypes.c_bool),  # the worker has its own process group: only the supervisor passes it signals
        ("told", ctypes.c_int),  # AGREED or REPORTED once `exit_code` is set
        ("exit_code", ctypes.c_int),
        ("phase", ctypes.c_char * 256),
        ("how_to_go_on", ctypes.c_char * _LONGEST),  # appended to the supervisor's line if this process is ended
    ]

    @classmethod
    def shared(cls) -> Board:
        """A board shared with processes forked later."""
        return cls.from_buffer(mmap.mmap(-1, ctypes.sizeof(cls)))


_board = Board()
_supervisor = 0  # its process id; 0: none
_lock = threading.Lock()


def connect(board: Board, supervisor: int) -> None:
    """Report to `board` from now on, and end when the process `supervisor` ends."""
    global _board, _supervisor
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(1)
    _board, _supervisor = board, supervisor


def heartbeat(phase: str | None = None) -> None:
    """Report progress, and the phase if it changes. Cheap enough for any loop."""
    if phase is not None:
        _board.phase = phase.encode()
    _board.beats += 1


class busy:
    """A context for library calls, which may take any time and send no heartbeats. A stopped process is still noticed."""

    def __enter__(self) -> None:
        with _lock:
            _board.busy += 1

    def __exit__(self, *failure: object) -> None:
        with _lock:
            _board.busy -= 1


def mpi_started() -> None:
    """Tell the supervisor that MPI has started."""
    _board.mpi_started = True


def leave_group() -> None:
    """Move a program that handles signals to its own group: those to the launcher's reach it once, through the supervisor."""
    if _supervisor:
        os.setpgid(0, 0)
        _board.has_own_group = True


def tell_how_to_go_on(text: str) -> bool:
    """Set the text that the supervisor appends to its line if this process is ended. False if the text is too long."""
    line = " ".join(text.split()).encode(errors="surrogateescape")  # file names need not be UTF-8
    fits = len(line) < _LONGEST
    if fits:
        _board.how_to_go_on = line
    return fits


def report_exit_code(code: int, *, agreed: bool = True) -> None:
    """Report this rank's exit code; the supervisor then prints nothing. `agreed`: all ranks end with this code."""
    if agreed:
        heartbeat("end")
    _board.exit_code, _board.told = code, AGREED if agreed else REPORTED
