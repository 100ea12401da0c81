# SPDX-License-Identifier: MIT
"""A supervisor for every rank: the process that the launcher started forks; the child works, and the parent watches it.

A killed or stopped process cannot report what happened, and a rank that just exits leaves the others waiting in MPI. The
supervisor watches heartbeats and the phase, sees how the worker ends, prints one line, and exits with a code that makes the
launcher end the job. It forks before MPI, NumPy or CUDA are loaded, so it holds none of their resources.
(faulthandler.dump_traceback_later can end a rank that hangs, but not report one that was killed or stopped.)

Nobody watches supervisors and other nodes: a stopped or lost one is left to the launcher, MPI or the batch system.
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

from hybrid.core.processes import is_stopped
from hybrid.errors import with_code
from hybrid.ranks import heartbeat
from hybrid.ranks.heartbeat import AGREED, Board
from hybrid.ranks.launcher import OPEN_MPI, end_job, exit_at_once, handle, launched, rank_by_launcher, share_voice, speak

# Seconds:
GRACE = 1.5  # for a launcher to end the whole job; until then supervisors print nothing
INTERRUPT_DELAY = 0.5  # until an interrupt is passed on to a worker that has not ended
INTERRUPT_LIMIT = 5.0  # until such a worker is killed, perhaps in a long BLAS call
_POLL = 0.25
_ASLEEP = 2.0  # a longer time between two polls means that this process was stopped too
_START = "start"  # the first phase

# Signals that kill a worker silently; they are passed on if they reach only the supervisor.
_PASSED_ON = (signal.SIGHUP, signal.SIGQUIT, signal.SIGABRT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU)
# Open MPI prints a backtrace for these, which another signal may cut off within a line.
_TRACED = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)


def supervised(work: Callable[[], int], stall: float, start_failed: Callable[[str], int | None] | None) -> int:
    """Run `work` in a supervised child process and return the exit code for the launcher.

    The child returns from here as the worker; the parent stays in `_Watch.run` until the child has ended.
    `stall`: seconds without a heartbeat after which the worker counts as stuck (0: never).
    `start_failed`: called in the supervisor if the worker ends while it starts MPI, with the way it ended. Returns the exit code,
    or None to treat the end like any other failure.
    """
    board, supervisor = Board.shared(), os.getpid()
    board.phase = _START.encode()
    reading, writing = os.pipe()  # signals the worker's end by closing; carries no data
    sys.stdout.flush()
    sys.stderr.flush()
    # Block signals until the supervisor has its handlers: otherwise one could end it silently.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGTERM, signal.SIGINT})
    share_voice()
    worker = os.fork()
    if worker:
        os.close(writing)
        _Watch(worker, reading, board, stall, start_failed).run(unblocked)
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    os.close(reading)
    heartbeat.connect(board, supervisor)
    return work()


class _Watch:
    """A supervisor's view of its worker. Times are from time.monotonic; 0: not yet."""

    def __init__(
        self, worker: int, pipe: int, board: Board, stall: float, start_failed: Callable[[str], int | None] | None
    ) -> None:
        self._worker, self._pipe, self._board, self._stall, self._start_failed = worker, pipe, board, stall, start_failed
        self._launcher = os.getppid() if launched() else 0
        # Why the worker ends.
        self._stuck = False
        self._asked = self._interrupted = 0.0  # times of SIGTERM and SIGINT
        self._asked_again = False
        self._shared = False  # other ranks may report the same of their workers

    # --- following the worker

    def run(self, unblocked: set[signal.Signals | int]) -> NoReturn:
        """Watch the worker until it ends, then end this process. `unblocked`: the signal mask to set once handlers exist."""
        for signum in _PASSED_ON:
            handle(signum, self._pass_on)
        signal.signal(signal.SIGTERM, self._on_terminate)
        # A terminal interrupts the worker too: the interrupt is passed on only if the worker survives it.
        handle(signal.SIGINT, self._on_interrupt)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        self._follow()
        _, status = os.waitpid(self._worker, 0)
        self._worker = 0  # the system may reuse its id
        self._conclude(os.waitstatus_to_exitcode(status))

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        self._shared = True  # Open MPI's launcher forwards signals to all ranks
        self._kill(signum)

    def _on_terminate(self, signum: int, frame: FrameType | None) -> None:
        self._asked_again = bool(self._asked)
        self._asked = self._asked or time.monotonic()
        self._kill(signum)

    def _on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        before, self._interrupted = self._interrupted, time.monotonic()
        # Terminal and launcher may both send one interrupt: pass it on once.
        if self._board.has_own_group and self._interrupted - before > INTERRUPT_DELAY:
            self._kill(signum)

    def _kill(self, signum: int) -> None:
        if self._worker:
            with suppress(ProcessLookupError):
                os.kill(self._worker, signum)

    def _follow(self) -> None:
        """Watch the worker until it ends; kill it if it makes no progress."""
        seen: object = None
        heard = polled = time.monotonic()
        asleep = min(_ASLEEP, max(self._stall, 3 * _POLL))
        interrupts = [(INTERRUPT_LIMIT, signal.SIGKILL), (INTERRUPT_DELAY, signal.SIGINT)]
        while not select.select([self._pipe], [], [], _POLL)[0]:
            now = time.monotonic()
            if now - polled > asleep:
                heard = now  # the whole job was stopped: start counting again
            polled = now
            if self._launcher_is_gone():
                self._kill(signal.SIGKILL)
            overdue = self._interrupted and not self._board.has_own_group
            while overdue and interrupts and now - self._interrupted > interrupts[-1][0]:
                self._kill(interrupts.pop()[1])
            # During the start only a new phase counts, no heartbeat: a rank may wait there for one that nobody else watches.
            shown, stopped = (self._phase, self._phase != _START and self._board.beats), is_stopped(self._worker)
            if shown != seen or (self._board.busy and not stopped):
                seen, heard = shown, now
            # Report a stopped process first, then ranks that may wait for it in MPI.
            if self._stall and now - heard > self._stall + (0 if stopped else 2 * GRACE):
                self._stuck, self._shared = True, not stopped
                self._kill(signal.SIGKILL)
            elif self._asked and now - heard > 3 * GRACE:  # a busy machine may need that long to report
                self._kill(signal.SIGKILL)

    @property
    def _phase(self) -> str:
        return self._board.phase.decode(errors="replace")

    def _launcher_is_gone(self) -> bool:
        return bool(self._launcher) and os.getppid() != self._launcher

    # --- its end

    def _conclude(self, code: int) -> NoReturn:
        """Print how the worker ended, unless it has, and exit so that no rank waits for it. `code`: negative for a signal."""
        if self._launcher_is_gone():
            os._exit(1)  # silently: all ranks of the job would say the same
        told, told_code = self._board.told, self._board.exit_code
        # A worker may be killed after it reported an exit code, while other ranks wait for it in MPI_Finalize.
        if told == AGREED and code >= 0 and not self._stuck:
            exit_at_once(told_code)
        how, kind, exit_code = self._how_it_ended(code)
        if not told and self._start_failed is not None and not (self._board.mpi_started or self._asked):
            for signum in (signal.SIGTERM, signal.SIGINT):  # no worker is left to pass them on to
                signal.signal(signum, signal.SIG_DFL)
            other_code = self._start_failed(how)
            if other_code is not None:
                exit_at_once(other_code)
        if not told or (told == AGREED and not (self._interrupted or self._asked)):  # else the worker has said why
            if self._may_speak(code):
                self._print_line(how, code, kind)
        elif told != AGREED:
            exit_code = told_code
        end_job(exit_code)

    def _how_it_ended(self, code: int) -> tuple[str, str, int]:
        """The end of a sentence about the rank, a code of `hybrid.errors`, and an exit code: not 0, as others are not done."""
        asked = 128 + signal.SIGTERM if self._asked else 0
        if self._stuck:
            text = f"showed no progress for {self._stall:g} s and was ended (--stall sets the seconds)"
            return text, "stalled", asked or 1
        if asked:
            return "was asked to end", "terminated", asked
        if self._interrupted:
            return "interrupted", "interrupted", 1
        if code < 0:
            cause = " (out of memory?)" if code == -signal.SIGKILL else ""
            return f"was killed by {signal.Signals(-code).name}{cause}", "killed", 128 - code
        return f"exited with code {code} before the other ranks were done", "rank-left", code or 1

    def _may_speak(self, code: int) -> bool:
        """Whether this rank should print how it ended, unless a launcher that ends the whole job kills this process meanwhile."""
        asked, launch = self._asked or self._interrupted, launched()
        # A launcher that ends the job sends SIGTERM again, for example because MPI ended a rank that lost this one.
        while launch is not None and asked and not self._asked_again and time.monotonic() < asked + GRACE:
            time.sleep(_POLL / 10)
        # MPI exits if another rank is killed during its start, and exits or dies of a signal if it loses another node.
        apart = launch is not None and launch.local_size != launch.size
        by_mpi = (code > 0 and self._phase == _START) or (apart and code != -signal.SIGKILL)
        return speak(shared=bool(asked or self._shared), follows=by_mpi and not (asked or self._shared))

    def _print_line(self, how: str, code: int, kind: str) -> None:
        launch, more = launched(), self._board.how_to_go_on.decode(errors="surrogateescape")
        begin = "\n" if -code in _TRACED and launch is not None and launch.name == OPEN_MPI else ""
        text = f"hybrid: rank {rank_by_launcher()} on {os.uname().nodename}, {self._phase}: {how}{f'; {more}' if more else ''}"
        with suppress(OSError):  # a log's disk is full, or the pipe was closed
            line = f"{begin}{with_code(text, kind)}\n"
            os.write(2, line.encode(errors="surrogateescape"))  # in one write, so that lines of several ranks do not mix
