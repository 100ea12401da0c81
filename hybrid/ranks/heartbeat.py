# SPDX-License-Identifier: MIT
"""What a rank tells its supervisor: heartbeats, the phase it is in, and the exit code it ends with.

Each is a line written to a pipe. Without a supervisor (in a user's own program, or with HYBRID_GUARD=0) nothing is written.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from hybrid.ranks.job_end import handle

INTERVAL = 0.1  # seconds: heartbeats in the same phase are written no more often
# How lines begin that do not name a phase. An exit code follows the first two: with AGREED all ranks end with it; with REPORTED
# this rank alone does, and has printed why. A text follows HOW_TO_GO_ON.
AGREED, REPORTED, MPI_STARTED, HOW_TO_GO_ON = "=", "!", "*", ">"
_LONGEST_LINE = 2048  # bytes: below what a pipe takes at once
_PR_SET_PDEATHSIG = 1  # of Linux' prctl


class _State:
    """What this process knows of its supervisor, and the worker's end of the pipe to it."""

    def __init__(self) -> None:
        self.pipe: int | None = None  # None without a supervisor
        self.supervisor = 0
        self.phase = b""
        self.written = 0.0  # when the last line was written
        self.asked_to_end = self.interrupted = False


_state = _State()


def connect(pipe: int, supervisor: int) -> None:
    """Have a supervisor: from now on this process writes to `pipe`, and ends when the process `supervisor` does."""
    if sys.platform == "linux":  # elsewhere the next write to the broken pipe ends this process
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(1)
    os.set_blocking(pipe, False)
    _state.pipe, _state.supervisor = pipe, supervisor
    heartbeat("start")


def heartbeat(phase: str | None = None) -> None:
    """Show progress, and name the phase when it changes. Cheap enough for any loop."""
    if _state.pipe is None:
        return
    now = time.monotonic()
    name = _state.phase if phase is None else phase.encode()
    if name == _state.phase and now - _state.written < INTERVAL:
        return
    _state.phase, _state.written = name, now
    _write(name)


@contextmanager
def busy(progress: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Within this context another thread sends the heartbeats: for calls of libraries, which may take any time.

    A stopped process (SIGSTOP) is still noticed, since all of its threads are stopped.
    `progress`: returns another value each time if the work goes on, or None where nobody can tell.
    """
    if _state.pipe is None:
        yield
        return
    done = threading.Event()

    def send_heartbeats() -> None:
        before = None
        while not done.wait(1.0):
            now = progress()
            if now is None or now != before:
                heartbeat()
            before = now

    sender = threading.Thread(target=send_heartbeats, daemon=True)
    with suppress(RuntimeError):  # the limit of threads is reached: most calls end before a heartbeat is missed
        sender.start()
    try:
        yield
    finally:
        done.set()


def finish_when_asked() -> None:
    """From now on a SIGTERM does not end this process: `asked_to_end` tells of it, and the caller ends in an orderly way."""

    def remember(signum: int, frame: FrameType | None) -> None:
        _state.asked_to_end = True

    if threading.current_thread() is threading.main_thread() and _state.pipe is not None:
        signal.signal(signal.SIGTERM, remember)


def asked_to_end() -> bool:
    """Whether a SIGTERM has come since `finish_when_asked`."""
    return _state.asked_to_end


def note_interrupts() -> None:
    """From now on `interrupted` tells of a SIGINT, which still raises KeyboardInterrupt: C code may turn that into other
    errors."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        _state.interrupted = True
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        handle(signal.SIGINT, interrupt)


def interrupted() -> bool:
    """Whether a SIGINT has come since `note_interrupts`."""
    return _state.interrupted


def mpi_started() -> None:
    """Tell the supervisor that MPI has started: from here on the other ranks may wait for this one."""
    _write(MPI_STARTED.encode())


def tell_how_to_go_on(text: str) -> bool:
    """Tell the supervisor what to add to its line when this process was ended; an empty text for nothing. False where the text
    is too long."""
    line = f"{HOW_TO_GO_ON}{' '.join(text.split())}".encode(errors="surrogateescape")  # names of files need not be UTF-8
    if len(line) > _LONGEST_LINE:
        return False
    _write(line)
    return True


def report_exit_code(code: int, *, agreed: bool = True) -> None:
    """Tell the supervisor this rank's exit code; there is nothing left for it to print. `agreed`: all ranks end with this
    code."""
    if agreed:
        heartbeat("end")
    wake_supervisor()
    _write(f"{AGREED if agreed else REPORTED}{code}".encode())


def wake_supervisor() -> None:
    """Continue a supervisor that was stopped (SIGSTOP) while this process was not: the launcher would wait for it for ever."""
    if _state.supervisor and is_stopped(_state.supervisor):
        with suppress(ProcessLookupError):
            os.kill(_state.supervisor, signal.SIGCONT)


def is_stopped(process: int) -> bool:
    """Whether the process is stopped (SIGSTOP), or traced."""
    try:
        with open(f"/proc/{process}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def _write(line: bytes) -> None:
    if _state.pipe is None:
        return
    while True:
        try:
            os.write(_state.pipe, line + b"\n")
            return
        except BlockingIOError:  # the supervisor has not read for minutes
            wake_supervisor()
            time.sleep(INTERVAL)
        except BrokenPipeError:
            os._exit(1)  # the launcher has ended the supervisor, so it wants this rank to end
