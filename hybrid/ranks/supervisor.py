# SPDX-License-Identifier: MIT
"""A supervisor for every rank: the process that the launcher started forks, the child works, and the parent watches it.

A process that is killed or stopped cannot say what happened to it, and a rank that just exits leaves the others waiting in
MPI. The supervisor reads heartbeats and the phase from a pipe, sees how the worker ended, prints one line, and exits with a
code that makes the launcher end the job. It is forked before MPI, NumPy or CUDA are loaded, so it holds nothing of theirs.
(faulthandler.dump_traceback_later would end a rank that hangs, but cannot speak for one that was killed or stopped.)

A whole rank that is stopped, with its supervisor, is seen by another rank of its node. Other nodes are not watched: one that
stands still or is lost is for the launcher, MPI or the batch system to notice.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hybrid.core.text import readable
from hybrid.errors import with_code
from hybrid.ranks import heartbeat
from hybrid.ranks.heartbeat import is_stopped
from hybrid.ranks.job_end import end_job, exit_at_once, handle, share_voice, speak
from hybrid.ranks.launcher import OPEN_MPI, children, free_shared_bytes, launched, rank_by_launcher
from hybrid.ranks.leftovers import remove_files_of, remove_files_of_job, remove_of_launcher, remove_unused

GRACE = 1.5  # seconds that a launcher which is ending the whole job needs for it: until then supervisors print nothing
INTERRUPT_DELAY = 0.5  # seconds after which an interrupt is passed on to a worker that has not ended by it
INTERRUPT_LIMIT = 5.0  # seconds after which such a worker is ended, in a long call of BLAS perhaps; others await their turn
_POLL = 0.25  # seconds
_CLOCK = 0.02  # seconds by which the times of files may be behind the clock
_SUPERVISOR_STOPPED = 2.0  # seconds between two polls, at most, that tell that this process was stopped, too
_START = "start"  # the first phase
_LITTLE_SHARED = 64 << 20  # bytes of /dev/shm

# A worker dies of these and cannot say so, where they reach the supervisor alone.
_PASSED_ON = (signal.SIGHUP, signal.SIGQUIT, signal.SIGABRT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU)
# Open MPI prints where a process stood that gets one of these, and another one may end that within a line.
_TRACED = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)


def supervised(work: Callable[[], int], stall: float, start_failed: Callable[[str], int | None] | None) -> int:
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
    # A signal that comes before the supervisor has its handlers waits for them: else it would end the supervisor without a word.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGTERM, signal.SIGINT})
    share_voice()
    worker = os.fork()
    if worker:
        os.close(writing)
        _Watch(worker, reading, stall, start_failed).run(unblocked)
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    os.close(reading)
    heartbeat.connect(writing, supervisor)
    return work()


class _Watch:
    """What a supervisor knows of its worker. Times are those of time.monotonic, 0 where it has not come to that."""

    def __init__(self, worker: int, pipe: int, stall: float, start_failed: Callable[[str], int | None] | None) -> None:
        self._worker, self._pipe, self._stall, self._start_failed = worker, pipe, stall, start_failed
        self._launcher = os.getppid() if launched() else 0
        self._began = time.time() - _CLOCK
        self._shared_before = free_shared_bytes() or 0
        # What the worker has told.
        self._phase, self._mpi_started = _START, False
        self._told_code: int | None = None  # the exit code that it has reported
        self._agreed = False  # all ranks end with that code
        self._how_to_go_on = ""  # the end of a line where the worker was ended: how a later job uses what it has done
        # Why it ends.
        self._stuck = False
        self._missing = ""  # the rank of this node that stands still
        self._asked = 0.0  # when it was asked to end
        self._asked_again = False  # since then
        self._interrupted, self._interrupt_passed_on = 0.0, False
        self._shared = False  # other ranks may say the same of their workers
        self._orphaned = 0.0  # when the launcher was seen to be gone
        self._sibling, self._sibling_stopped = 0, 0.0  # a process of this node that stands still, and since when

    # --- following the worker

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
        self._asked_again = bool(self._asked)
        self._asked = self._asked or time.monotonic()
        self._kill(signum)

    def _pass_on_deadly(self, signum: int, frame: FrameType | None) -> None:
        """Pass a signal on of which the worker dies."""
        self._shared = True  # Open MPI's launcher sends its own to all ranks
        self._kill(signum)

    def _note_interrupt(self, signum: int, frame: FrameType | None) -> None:
        self._interrupted = time.monotonic()

    def _kill(self, signum: int) -> None:
        with suppress(ProcessLookupError):
            if self._worker:
                os.kill(self._worker, signum)

    def _follow(self) -> None:
        """Read the worker's lines until it has ended, or has been ended because the job cannot go on."""
        last_line = polled = time.monotonic()
        stood_still = min(_SUPERVISOR_STOPPED, max(self._stall, 3 * _POLL))
        while True:
            ready = select.select([self._pipe], [], [], _POLL)[0]
            now = time.monotonic()
            if now - polled > stood_still:
                last_line, self._sibling = now, 0  # this process was stopped, with the whole job: silence tells nothing
            polled = now
            if self._launcher_is_gone():
                self._end_orphan(now)
            if self._interrupted:
                self._hurry(now - self._interrupted)
            if self._misses_another(now):
                return
            if ready:
                text = os.read(self._pipe, 65536).decode(errors="surrogateescape")
                if not text:
                    return
                if self._note(text.split("\n")[:-1]):
                    last_line = time.monotonic()
            elif self._is_silent(now - last_line):
                return

    def _note(self, lines: Sequence[str]) -> bool:
        """Take the worker's lines in; whether they show progress. Heartbeats of the start do not: there a rank may wait for one
        that nobody else watches."""
        progress = self._phase != _START or any(line != _START for line in lines)
        for line in lines:
            sign, rest = line[:1], line[1:]
            if sign in (heartbeat.AGREED, heartbeat.REPORTED):
                self._told_code, self._agreed = int(rest), sign == heartbeat.AGREED
            elif line == heartbeat.MPI_STARTED:
                self._mpi_started = True
            elif sign == heartbeat.HOW_TO_GO_ON:
                self._how_to_go_on = f"; {rest}" if rest else ""
            else:
                self._phase = line
        return progress

    def _hurry(self, seconds: float) -> None:
        """Hurry a worker that has not ended so many seconds after an interrupt."""
        if seconds > INTERRUPT_DELAY and not self._interrupt_passed_on:
            self._interrupt_passed_on = True
            self._kill(signal.SIGINT)
        if seconds > INTERRUPT_LIMIT:
            self._kill(signal.SIGKILL)

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

    def _is_silent(self, seconds: float) -> bool:
        """Whether the worker has been silent for too long; then it is ended."""
        if self._asked and seconds > 3 * GRACE:  # it may be reporting, on a machine with much to do
            self._kill(signal.SIGKILL)
        # A stopped process is reported first, then a whole rank that stands still, then those who may wait for these in MPI.
        stopped = is_stopped(self._worker)
        if self._stall and seconds > self._stall + (0 if stopped else 2 * GRACE):
            self._stuck, self._shared = True, not stopped
            self._kill(signal.SIGKILL)
        return self._stuck

    def _misses_another(self, now: float) -> bool:
        """Whether another rank of this node has stood still for too long, its supervisor, too; then this worker is ended."""
        sibling = self._stopped_sibling() if self._stall else 0
        if sibling != self._sibling:
            self._sibling, self._sibling_stopped = sibling, now
        if sibling and now - self._sibling_stopped > self._stall + GRACE:
            with suppress(OSError):  # it has ended
                said = Path(f"/proc/{sibling}/environ").read_text(errors="replace").split("\0")
                other = launched(dict(entry.split("=", 1) for entry in said if "=" in entry))
                self._missing = f"rank {other.rank if other else '?'} on {os.uname().nodename}"
                self._kill(signal.SIGKILL)
        return bool(self._missing)

    def _stopped_sibling(self) -> int:
        """The rank that the launcher has started here before this one, the last one before the first, where all of its processes
        are stopped; else 0."""
        ranks = sorted(children(self._launcher)) if self._launcher else []
        before = ranks[ranks.index(os.getpid()) - 1] if len(ranks) > 1 and os.getpid() in ranks else 0
        return before if before and all(map(is_stopped, [before, *children(before)])) else 0

    # --- its end

    def _conclude(self, code: int) -> NoReturn:
        """Print what happened to the worker, unless it has done so itself, and exit so that no other rank waits for it. `code`:
        the worker's own, negative where a signal killed it."""
        gone = self._launcher_is_gone()
        if gone:
            remove_unused(self._began)
        if self._orphaned:
            os._exit(1)  # there is no job that it could end, and others of it would say the same
        # A worker may also be killed after it reported an exit code: in MPI_Finalize the other ranks may wait for it.
        ended = self._agreed and self._told_code is not None and not self._stuck and code >= 0
        while ended and not self._told_code and not self._misses_another(time.monotonic()) and self._sibling:
            time.sleep(_POLL)  # nobody else is left to tell of a rank that stands still now
        if ended and not self._missing:
            exit_at_once(self._told_code or 0)
        how, kind, exit_code = self._ending(code)
        if self._told_code is None and self._start_failed is not None and not (self._mpi_started or self._asked):
            for signum in (signal.SIGTERM, signal.SIGINT):  # there is nobody left to pass them on to
                signal.signal(signum, signal.SIG_DFL)
            other_code = self._start_failed(how)
            if other_code is not None:
                exit_at_once(other_code)
        if self._told_code is None or (self._agreed and not (self._interrupted or self._asked)):  # else it has said itself why
            if self._may_speak(code):
                self._say(how + self._how_to_go_on, code, kind)
        elif not self._agreed:
            exit_code = self._told_code
        end_job(exit_code, lambda: None if gone else remove_files_of_job(self._began))

    def _ending(self, code: int) -> tuple[str, str, int]:
        """How the worker ended: the end of a sentence that begins with the rank, its code (of `hybrid.errors.CODES`), and the
        exit code for the launcher, which is never 0: the other ranks were not done."""
        asked = 128 + signal.SIGTERM if self._asked else 0
        if self._missing:
            seconds = f"{self._stall + GRACE:g} s"
            text = f"has heard nothing of {self._missing} for {seconds}: its processes stand still (--stall sets the seconds)"
            return text, "node-silent", asked or 1
        if self._stuck:
            text = f"showed no progress for {self._stall:g} s and was ended (--stall sets the seconds)"
            return text, "stalled", asked or 1
        if asked:
            return "was asked to end", "terminated", asked
        if self._interrupted:
            return "interrupted", "interrupted", 1
        if code < 0:
            return self._killed_by(-code), "killed", 128 - code
        return f"exited with code {code} before the other ranks were done", "rank-left", code or 1

    def _killed_by(self, signum: int) -> str:
        """The signal, and its likely cause."""
        try:
            told = f"was killed by {signal.Signals(signum).name}"
        except ValueError:
            told = f"was killed by signal {signum}"
        if signum == signal.SIGKILL:
            seconds, _ = resource.getrlimit(resource.RLIMIT_CPU)
            limit = f", or beyond the {seconds} s of processor time that ulimit -t allows"
            return f"{told} (out of memory{'' if seconds == resource.RLIM_INFINITY else limit}?)"
        # MPICH dies of SIGSEGV where /dev/shm is nearly full.
        if signum == signal.SIGBUS or (signum == signal.SIGSEGV and self._phase == _START):
            free, before = free_shared_bytes(), self._shared_before
            if free is not None and min(free, before) < _LITTLE_SHARED:
                return f"{told} (is /dev/shm full? {readable(free)} are free, {readable(before)} were at the start)"
            if signum == signal.SIGBUS:
                return f"{told} (a file that it had mapped became shorter, or the memory is faulty; /dev/shm is not full)"
        return told

    def _may_speak(self, code: int) -> bool:
        """Whether this rank is to say how it ended. A launcher that ends the whole job kills this process meanwhile."""
        asked, launch = self._asked or self._interrupted, launched()
        # A launcher that is ending the job sends SIGTERM again, perhaps since MPI has ended a rank that lost this one.
        while launch is not None and asked and not self._asked_again and time.monotonic() < asked + GRACE:
            time.sleep(_POLL / 10)
        # MPI exits while it starts because another rank has been killed. When the connection to one on another node is lost, it
        # exits or dies of a signal.
        apart = launch is not None and launch.local_size != launch.size
        by_mpi = (code > 0 and self._phase == _START) or (apart and code != -signal.SIGKILL)
        return speak(shared=bool(asked or self._shared), follows=by_mpi and not (asked or self._shared or self._missing))

    def _say(self, told: str, code: int, kind: str) -> None:
        launch = launched()
        begin = "\n" if -code in _TRACED and launch is not None and launch.name == OPEN_MPI else ""
        text = f"hybrid: rank {rank_by_launcher()} on {os.uname().nodename}, {self._phase}: {told}"
        with suppress(OSError):  # nobody can read it: the disk of a log is full, or a pipe was closed
            line = f"{begin}{with_code(text, kind)}\n"
            os.write(2, line.encode(errors="surrogateescape"))  # at once, so that the lines of several ranks are not mixed
