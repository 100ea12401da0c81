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
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from hybrid.ranks import heartbeat
from hybrid.ranks.interrupts import end_by_signals, handle
from hybrid.ranks.job_end import end_job, exit_at_once
from hybrid.ranks.launcher import free_shared_bytes, launched
from hybrid.ranks.launcher_end import LauncherEnd
from hybrid.ranks.leftovers import remove_files, remove_files_of, remove_files_of_job, remove_of_launcher, segments_of
from hybrid.ranks.turns import listen
from hybrid.ranks.worker_end import GRACE, WorkerEnd
from hybrid.ranks.worker_lines import WorkerLines

if TYPE_CHECKING:
    from hybrid.ranks.pulse import Pulse

INTERRUPT_DELAY = 0.5  # seconds after which an interrupt is passed on to a worker that has not ended by it
INTERRUPT_LIMIT = 5.0  # seconds after which such a worker is ended, in a long call of BLAS perhaps; others await their turn
_POLL, _POLL_AT_START = 0.25, 0.05  # seconds; what MPI makes while it starts is to be seen before the worker ends
_CLOCK = 0.02  # seconds by which the times of files may be behind the clock
_JOB_ENDS = 5.0  # seconds in which the launcher ends all ranks when one has failed
_SUPERVISOR_STOPPED = 2.0  # seconds between two polls, at most, that tell that this process was stopped, too

# A worker dies of these and cannot say so, where they reach the supervisor alone.
_PASSED_ON = (signal.SIGHUP, signal.SIGQUIT, signal.SIGABRT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU)


def supervised(work: Callable[[], int], stall: float, start_failed: Callable[[str], int | None] | None) -> int:
    """Run `work` in a supervised child process and return the exit code for the launcher.

    The child returns from here as the worker; the parent stays in `_Watch.run` until the child has ended.
    `stall`: seconds without a heartbeat after which the worker counts as stuck (0: never).
    `start_failed`: what the supervisor does when the worker ended while it started MPI. It gets how the worker ended, and
    returns the exit code, or None to handle it like any other failure.
    """
    reading, writing = os.pipe()
    supervisor = os.getpid()
    pulse = _pulse(stall)
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal that comes before the supervisor has its handlers waits for them: else it would end the supervisor without a word.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGTERM, signal.SIGINT})
    listen()
    worker = os.fork()
    if worker:
        os.close(writing)
        _Watch(worker, reading, stall, start_failed, pulse).run(unblocked)
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    os.close(reading)
    heartbeat.connect(writing, supervisor, *((pulse.port, pulse.ever_heard) if pulse else ()))
    return work()


def _pulse(stall: float) -> Pulse | None:
    """The signs of life between supervisors, where other ranks' are to be watched; else None."""
    launch = launched()
    if not stall or launch is None or launch.size == 1:
        return None
    from hybrid.ranks.pulse import Pulse  # takes milliseconds, for sockets

    with suppress(OSError):  # no network at all
        return Pulse()
    return None


class _Watch:
    """What a supervisor knows of its worker."""

    def __init__(
        self, worker: int, pipe: int, stall: float, start_failed: Callable[[str], int | None] | None, pulse: Pulse | None
    ) -> None:
        self._worker, self._pipe, self._stall, self._pulse = worker, pipe, stall, pulse
        self._told = WorkerLines(pulse)
        self._launcher = os.getppid() if launched() else 0
        self._launcher_end = LauncherEnd(self._launcher)
        self._start_failed = start_failed
        self._began, self._files = time.time() - _CLOCK, set[str]()  # what the worker has opened while MPI started
        self._end = WorkerEnd(stall, stall + GRACE, free_shared_bytes() or 0)
        self._waits = False  # other ranks may say the same of their workers: this one waits for its turn
        self._orphaned = 0.0  # when the launcher was seen to be gone
        self._interrupt_passed_on = False

    def run(self, unblocked: set[signal.Signals | int]) -> NoReturn:
        """Watch the worker until it has ended, and end this process. `unblocked`: the signal mask once there are handlers."""
        for signum in _PASSED_ON:
            handle(signum, self._pass_on_deadly)
        signal.signal(signal.SIGTERM, self._pass_on)
        # A terminal interrupts the worker as well: the interrupt is passed on only if it lives on.
        handle(signal.SIGINT, self._note_interrupt)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        self._follow()
        _, status = os.waitpid(self._worker, 0)
        self._worker = 0  # its number may soon be another process's
        self._conclude(os.waitstatus_to_exitcode(status))

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        self._end.asked_again = bool(self._end.asked)
        self._end.asked = self._end.asked or time.monotonic()
        self._kill(signum)

    def _pass_on_deadly(self, signum: int, frame: FrameType | None) -> None:
        """Pass a signal on of which the worker dies."""
        self._waits = True  # Open MPI's launcher sends its own to all ranks
        self._kill(signum)

    def _note_interrupt(self, signum: int, frame: FrameType | None) -> None:
        self._end.interrupted = time.monotonic()

    def _hurry(self, seconds: float) -> None:
        """Hurry a worker that has not ended so many seconds after an interrupt."""
        if seconds > INTERRUPT_DELAY and not self._interrupt_passed_on:
            self._interrupt_passed_on = True
            self._kill(signal.SIGINT)
        if seconds > INTERRUPT_LIMIT:
            self._kill(signal.SIGKILL)

    def _kill(self, signum: int) -> None:
        with suppress(ProcessLookupError):
            if self._worker:
                os.kill(self._worker, signum)

    def _follow(self) -> None:
        """Read the worker's lines until it has ended, or has been ended because it is stuck."""
        last_line = polled = time.monotonic()
        stood_still = min(_SUPERVISOR_STOPPED, max(self._stall, 3 * _POLL))
        while True:
            starting = self._told.starting
            sources = [self._pipe, *(self._pulse.sources() if self._pulse else ())]
            ready = select.select(sources, [], [], _POLL_AT_START if starting else _POLL)[0]
            if starting:
                self._files.update(segments_of(self._worker))
            if time.monotonic() - polled > stood_still:
                # This process was stopped, with the whole job: the worker's silence tells nothing.
                last_line = time.monotonic()
                if self._pulse:
                    self._pulse.forgive()
            polled = time.monotonic()
            if self._launcher_is_gone():
                self._end_orphan(polled)
            if self._end.interrupted:
                self._hurry(polled - self._end.interrupted)
            if self._misses_another():
                return
            if self._pipe in ready:
                text = os.read(self._pipe, 65536).decode(errors="surrogateescape")
                if not text:
                    return
                if self._told.note(text.split("\n")[:-1]):
                    last_line = time.monotonic()
            elif self._is_silent(time.monotonic() - last_line):
                return

    def _launcher_is_gone(self) -> bool:
        """Whether it is; what it has left is removed then."""
        gone = bool(self._launcher) and os.getppid() != self._launcher
        if gone:
            remove_of_launcher(self._launcher)
        return gone

    def _end_orphan(self, now: float) -> None:
        """End the worker: without the launcher nobody would see its result, or could end the job."""
        if not self._orphaned:
            self._orphaned = now
            remove_files_of(self._worker)
            self._pass_on(signal.SIGTERM, None)
        elif now - self._orphaned > GRACE:  # it may be amid a long product
            self._kill(signal.SIGKILL)

    def _misses_another(self) -> bool:
        """Whether the rank that this one watches has been silent for too long, or another has failed and this one's launcher does
        not end it; then the worker is ended."""
        if self._pulse:
            self._pulse.beat()
            self._end.over = self._pulse.since_failure() > _JOB_ENDS
            if self._pulse.silence() > self._end.unheard:
                self._end.missing = self._pulse.watched
            if self._end.over or self._end.missing:
                self._kill(signal.SIGKILL)
        return bool(self._end.over or self._end.missing)

    def _is_silent(self, seconds: float) -> bool:
        """Whether the worker has been silent for too long; then it is ended."""
        if self._end.asked and seconds > 3 * GRACE:  # it may be reporting, on a machine with much to do
            self._kill(signal.SIGKILL)
        # A stopped process is reported first, then a supervisor that is not heard, then those who may wait for these in MPI.
        stopped = heartbeat.is_stopped(self._worker)
        if self._stall and seconds > self._stall + (0 if stopped else 2 * GRACE):
            self._end.stuck, self._waits = True, not stopped
            self._kill(signal.SIGKILL)
        return self._end.stuck

    def _conclude(self, code: int) -> NoReturn:
        """Print what happened to the worker, unless it has done so itself, and exit so that no other rank waits for it."""
        told_code, agreed = self._told.exit_code, self._told.agreed
        # Also after it reported an exit code: in MPI_Finalize the other ranks may wait for it.
        was_killed = self._end.stuck or code < 0
        if self._pulse:
            self._pulse.end()
        gone = self._launcher_is_gone()
        if gone:
            remove_files(self._files)
        if self._orphaned:
            os._exit(1)  # there is no job that it could end, and others of it would say the same
        # A rank that stands still now has nobody else to tell of it, and the launcher would wait for it.
        if agreed and not was_killed and self._pulse and not told_code:
            end_by_signals()
            if not self._pulse.sees_end(self._end.unheard):
                self._end.missing = self._pulse.watched
        if agreed and told_code is not None and not was_killed and not self._end.missing:
            exit_at_once(told_code)
        self._launcher_end.see_to_it()
        starting = self._told.starting
        how, kind = self._end.told(code, starting=starting), self._end.kind(code)
        if told_code is None and self._start_failed is not None and not (self._told.mpi_started or self._end.asked):
            end_by_signals()
            other_code = self._start_failed(how)
            if other_code is not None:
                exit_at_once(other_code)
        # Else the worker has said itself what happened.
        untold = told_code is None or (agreed and not (self._end.interrupted or self._end.asked))
        if untold and self._end.is_to_speak(code, starting=starting, waits=self._waits) and not self._follows_from_another(code):
            self._launcher_end.say(self._end.line(self._told.phase, how + self._told.how_to_go_on, code, kind))
        code = told_code if told_code is not None and not agreed else self._end.exit_code(code)
        if self._pulse:
            self._pulse.end(failed=True)
        end_job(code, (lambda: None) if gone else partial(remove_files_of_job, self._files, self._began if starting else None))

    def _follows_from_another(self, code: int) -> bool:
        """Whether a rank, maybe of another node, has said why the job ends, and this one has exited or was asked to end since."""
        return bool((code > 0 or self._end.asked) and self._pulse and self._pulse.since_failure())
