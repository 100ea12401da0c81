# SPDX-License-Identifier: MIT
"""A supervisor for every rank: the process that the launcher started forks, the child works, and the parent watches it.

A process that is killed or stopped cannot say what happened to it, and a rank that just exits leaves the others waiting in
MPI. The supervisor reads heartbeats and the phase from a pipe, sees how the worker ended, prints one line, and exits with a
code that makes the launcher end the job. It is forked before MPI, NumPy or CUDA are loaded, so it holds nothing of theirs.
(faulthandler.dump_traceback_later would end a rank that hangs, but cannot speak for one that was killed or stopped.)
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from hybrid.core.text import readable
from hybrid.ranks import heartbeat
from hybrid.ranks.launcher import launched, rank_by_launcher
from hybrid.ranks.preflight import free_shared_bytes

GRACE = 1.5  # seconds that a launcher which is ending the whole job needs for it: until then supervisors print nothing
DRAIN = 0.2  # seconds a launcher gets to read what was printed: at the first failure it may throw away the rest
INTERRUPT_DELAY = 0.5  # seconds after which an interrupt is passed on to a worker that has not ended by it
_POLL = 0.25  # seconds
_SUPERVISOR_STOPPED = 2.0  # seconds between two polls that tell that this process was stopped, too

_LITTLE_SHARED = 64 << 20  # bytes of /dev/shm


def let_launcher_read() -> None:
    """Wait before an exit that makes the launcher end the job: it gives no sign of having read what was printed."""
    time.sleep(DRAIN)


def supervised(work: Callable[[], int], stall: float, start_failed: Callable[[str], int | None] | None = None) -> int:
    """Run `work` in a supervised child process and return the exit code for the launcher.

    The child returns from here as the worker; the parent stays in `_Watch.run` until the child has ended.
    `stall`: seconds without a heartbeat after which the worker counts as stuck (0: never).
    `start_failed`: what the supervisor does when the worker ended while it started MPI. It gets how the worker ended, and
    returns the exit code, or None to handle it like any other failure.
    """
    reading, writing = os.pipe()
    supervisor = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    worker = os.fork()
    if worker:
        os.close(writing)
        _Watch(worker, reading, stall, start_failed).run()
    os.close(reading)
    heartbeat.connect(writing, supervisor)
    return work()


class _Watch:
    """What a supervisor knows of its worker."""

    def __init__(self, worker: int, pipe: int, stall: float, start_failed: Callable[[str], int | None] | None) -> None:
        self._worker, self._pipe, self._stall = worker, pipe, stall
        self._start_failed = start_failed  # None once MPI has started
        self._phase = "start"
        self._shared = free_shared_bytes() or 0  # at the start
        self._exit_line = ""  # in which the worker reported its exit code
        self._stuck = False
        self._asked_to_end = False
        self._interrupted = 0.0  # when; 0: not, or passed on

    def run(self) -> NoReturn:
        signal.signal(signal.SIGTERM, self._pass_on)
        # A terminal interrupts the worker as well: the interrupt is passed on only if it lives on.
        signal.signal(signal.SIGINT, self._note_interrupt)
        self._follow()
        _, status = os.waitpid(self._worker, 0)
        self._conclude(os.waitstatus_to_exitcode(status))

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        self._asked_to_end = True
        self._kill(signum)

    def _note_interrupt(self, signum: int, frame: FrameType | None) -> None:
        self._interrupted = time.monotonic()

    def _kill(self, signum: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._worker, signum)

    def _follow(self) -> None:
        """Read the worker's lines until it has ended, or has been ended because it is stuck."""
        last_line = polled = time.monotonic()
        while True:
            if time.monotonic() - polled > _SUPERVISOR_STOPPED:  # with the whole job: the worker's silence tells nothing
                last_line = time.monotonic()
            polled = time.monotonic()
            if self._interrupted and polled - self._interrupted > INTERRUPT_DELAY:
                self._interrupted = 0.0
                self._kill(signal.SIGINT)
            if select.select([self._pipe], [], [], _POLL)[0]:
                text = os.read(self._pipe, 65536).decode()
                if not text:
                    return
                last_line = time.monotonic()
                for line in text.split("\n")[:-1]:
                    self._note(line)
                continue
            silent = time.monotonic() - last_line
            if self._asked_to_end and silent > GRACE:
                self._kill(signal.SIGKILL)
            # A stopped process is reported before those that wait for it inside MPI, where they send no heartbeats.
            if self._stall and silent > (self._stall if _is_stopped(self._worker) else self._stall + GRACE):
                self._stuck = True
                self._kill(signal.SIGKILL)
                return

    def _note(self, line: str) -> None:
        if line[:1] in (heartbeat.AGREED, heartbeat.REPORTED):
            self._exit_line = line
        elif line == heartbeat.MPI_STARTED:
            self._start_failed = None
        else:
            self._phase = line

    def _conclude(self, code: int) -> NoReturn:
        """Print what happened to the worker unless it has done so itself, and exit so that no other rank waits for it."""
        line, agreed = self._exit_line, self._exit_line.startswith(heartbeat.AGREED)
        # Also after it reported an exit code: in MPI_Finalize the other ranks may wait for it.
        was_killed = self._stuck or code < 0
        if agreed and not was_killed:
            _exit(int(line[1:]))
        if not line and self._start_failed is not None and not self._asked_to_end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # there is no worker left to pass them on to
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            other_code = self._start_failed(self._how_it_ended(code))
            if other_code is not None:
                _exit(other_code)
        if not line or agreed:
            if self._asked_to_end:
                time.sleep(GRACE)  # a launcher that ends the whole job kills this process now
            where = f"rank {rank_by_launcher()} on {os.uname().nodename}, {self._phase}"
            # One write, so that the lines of several ranks are not mixed.
            os.write(2, f"hybrid: {where}: {self._how_it_ended(code)}\n".encode())
        if launched() is not None and (self._phase == "start" or was_killed):
            # Other ranks may wait for this one. MPICH's launcher ends them when a process is killed; for an exit code it
            # does not while MPI starts, and never those on other nodes.
            let_launcher_read()
            os.kill(os.getpid(), signal.SIGKILL)
        _exit(int(line[1:]) if line.startswith(heartbeat.REPORTED) else 128 - code if code < 0 else code or 1)

    def _how_it_ended(self, code: int) -> str:
        if self._stuck:
            return f"showed no progress for {self._stall:g} s and was ended (--stall sets the seconds)"
        if self._asked_to_end:
            return "was asked to end"
        if code < 0:
            return f"was killed by {_name(-code)}{self._likely(-code)}"
        return f"exited with code {code} before the other ranks were done"

    def _likely(self, signum: int) -> str:
        if signum == signal.SIGKILL:
            return " (out of memory?)"
        free = free_shared_bytes()
        if signum == signal.SIGBUS or (signum == signal.SIGSEGV and self._phase == "start"):  # as MPICH where it is nearly full
            if free is not None and min(free, self._shared) < _LITTLE_SHARED:
                return f" (is /dev/shm full? {readable(free)} are free, {readable(self._shared)} were at the start)"
            if signum == signal.SIGBUS:
                return " (a file that it had mapped became shorter, or the memory is faulty; /dev/shm is not full)"
        return ""


def _is_stopped(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def _exit(code: int) -> NoReturn:
    if code and launched() is not None:
        let_launcher_read()
    os._exit(code)  # the parent of a fork owns nothing that needs cleaning up


def _name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
