# SPDX-License-Identifier: MIT
"""What a rank tells its supervisor: that it goes on, the phase it is in, and the exit code it ends with.

It is written to memory that the two processes share. Without a supervisor (in a user's own program, or with HYBRID_GUARD=0)
nobody reads it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, ClassVar

from hybrid.core.processes import is_stopped

AGREED, REPORTED = 1, 2  # how an exit code is told: all ranks end with it; this rank alone does, and has printed why
_LONGEST = 2048  # bytes of a text
_PR_SET_PDEATHSIG = 1  # of Linux' prctl
# Of processor time: operations in a second, also where a BLAS's threads spin while they wait for each other, and seconds besides.
_SLOWEST, _LEAST_COMPUTING = 1e7, 5.0


class Board(ctypes.Structure):
    """What the worker writes and the supervisor reads."""

    _fields_: ClassVar[Any] = [
        ("beats", ctypes.c_uint64),  # counts heartbeats
        ("busy", ctypes.c_int),  # calls under way that send no heartbeats, as of libraries
        ("mpi_started", ctypes.c_bool),  # from here on the other ranks may wait for this one
        ("has_own_group", ctypes.c_bool),  # of processes: signals come by the supervisor alone
        ("told", ctypes.c_int),  # AGREED or REPORTED when there is an exit code
        ("exit_code", ctypes.c_int),
        ("phase", ctypes.c_char * 256),
        ("how_to_go_on", ctypes.c_char * _LONGEST),  # the end of the supervisor's line when this process was ended
    ]

    @classmethod
    def shared(cls) -> Board:
        """One that a process and those forked from it see."""
        return cls.from_buffer(mmap.mmap(-1, ctypes.sizeof(cls)))


_board = Board()
_supervisor = 0  # its process; 0 without one
_one_by_one = threading.Lock()


def connect(board: Board, supervisor: int) -> None:
    """From now on this process writes to `board`, and ends when the process `supervisor` does."""
    global _board, _supervisor
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(1)
    _board, _supervisor = board, supervisor


def heartbeat(phase: str | None = None) -> None:
    """Show progress, and name the phase when it changes. Cheap enough for any loop."""
    if phase is not None:
        _board.phase = phase.encode()
    _board.beats += 1


class _Busy:
    """A context in which no heartbeats are expected. A stopped process (SIGSTOP) is noticed none the less."""

    def __enter__(self) -> None:
        with _one_by_one:
            _board.busy += 1

    def __exit__(self, *failure: object) -> None:
        with _one_by_one:
            _board.busy -= 1


_busy = _Busy()


def busy(progress: Callable[[], object] | None = None) -> AbstractContextManager[None]:
    """A context for calls of libraries, which may take any time and send no heartbeats.

    `progress`: returns another value each time if the work goes on, or None where nobody can tell; work that does not go on is
    noticed then.
    """
    return _busy if progress is None or not _supervisor else _watched(progress)


def computing(operations: int) -> AbstractContextManager[None]:
    """A context for a product on the CPU. It goes on as long as this process takes processor time, up to what so many operations
    can need."""
    began, most = time.process_time(), _LEAST_COMPUTING + operations / _SLOWEST
    return busy(lambda: int(10 * min(time.process_time() - began, most)))


@contextmanager
def _watched(progress: Callable[[], object]) -> Iterator[None]:
    """A context in which another thread sends heartbeats as long as there is progress."""
    done = threading.Event()

    def send_heartbeats() -> None:
        before = None
        while not done.wait(1.0):
            now = progress()
            if now is None or now != before:
                heartbeat()
            before = now

    with suppress(RuntimeError):  # the limit of threads is reached: most calls end before a heartbeat is missed
        threading.Thread(target=send_heartbeats, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def mpi_started() -> None:
    """Tell the supervisor that MPI has started."""
    _board.mpi_started = True


def leave_group() -> None:
    """From now on signals of the launcher and the terminal, which are for the whole group of processes, come by the supervisor
    alone, each once: for a program that decides what they do."""
    if _supervisor:
        os.setpgid(0, 0)
        _board.has_own_group = True


def tell_how_to_go_on(text: str) -> bool:
    """Tell the supervisor what to add to its line when this process was ended; an empty text for nothing. False where the text
    is too long."""
    line = " ".join(text.split()).encode(errors="surrogateescape")  # names of files need not be UTF-8
    fits = len(line) < _LONGEST
    if fits:
        _board.how_to_go_on = line
    return fits


def report_exit_code(code: int, *, agreed: bool = True) -> None:
    """Tell the supervisor this rank's exit code; there is nothing left for it to print. `agreed`: all ranks end with this
    code."""
    if agreed:
        heartbeat("end")
    _board.exit_code, _board.told = code, AGREED if agreed else REPORTED
    wake_supervisor()


def wake_supervisor() -> None:
    """Continue a supervisor that was stopped (SIGSTOP) while this process was not: the launcher would wait for it for ever."""
    if _supervisor and is_stopped(_supervisor):
        with suppress(ProcessLookupError):
            os.kill(_supervisor, signal.SIGCONT)
