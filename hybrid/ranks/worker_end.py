# SPDX-License-Identifier: MIT
"""How a rank's worker ended: what its supervisor says of it, and when, and the exit code that the launcher gets."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from hybrid.errors import with_code
from hybrid.ranks.launcher import OPEN_MPI, launched, rank_by_launcher
from hybrid.ranks.signal_causes import killed_by
from hybrid.ranks.turns import speak, wait_for_turn

GRACE = 1.5  # seconds that a launcher which is ending the whole job needs for it: until then supervisors print nothing
_POLL = 0.02  # seconds
# Open MPI prints where a process stood that gets one of these, and another one may end that within a line.
_TRACED = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)


@dataclass
class WorkerEnd:
    """What a supervisor knows of why its worker ends; times are those of time.monotonic, 0 where it has not come to that.

    `stall`, `unheard`: seconds without a heartbeat of the worker, and without a datagram of another rank's supervisor, after
    which the worker is ended. `shared_before`: bytes of /dev/shm that were free when it began.
    """

    stall: float
    unheard: float
    shared_before: int
    stuck: bool = False
    missing: str = ""  # the rank whose supervisor is not heard any more
    over: bool = (
        False  # another rank has said why the job ends, but this one's launcher, on a node that is cut off, has not heard
    )
    asked: float = 0.0  # when it was asked to end
    asked_again: bool = False  # since then
    interrupted: float = 0.0  # when an interrupt came

    def exit_code(self, code: int) -> int:
        """The exit code for the launcher. It is never 0: the other ranks were not done. `code`: the worker's own, negative where
        a signal killed it."""
        if self.asked:
            return 128 + signal.SIGTERM
        if self.stuck or self.missing or self.over or self.interrupted:
            return 1
        return 128 - code if code < 0 else code or 1

    def told(self, code: int, *, starting: bool) -> str:
        """The end of a sentence that begins with the rank. `starting`: MPI had not started."""
        if self.missing:
            return (
                f"has heard nothing of {self.missing} for {self.unheard:g} s: its node or its processes stand still, "
                "or the network is cut (--stall sets the seconds)"
            )
        if self.stuck:
            return f"showed no progress for {self.stall:g} s and was ended (--stall sets the seconds)"
        if self.asked:
            return "was asked to end"
        if self.interrupted:
            return "interrupted"
        if code < 0:
            return killed_by(-code, self.shared_before, starting=starting)
        return f"exited with code {code} before the other ranks were done"

    def kind(self, code: int) -> str:
        """The code (of `hybrid.errors.CODES`) of what `told` says."""
        if self.missing:
            return "node-silent"
        if self.stuck:
            return "stalled"
        if self.asked:
            return "terminated"
        if self.interrupted:
            return "interrupted"
        return "killed" if code < 0 else "rank-left"

    def line(self, phase: str, told: str, code: int, kind: str) -> str:
        """What is printed, of a worker that was in this phase. `kind`: as of the method."""
        launch = launched()
        begin = "\n" if -code in _TRACED and launch is not None and launch.name == OPEN_MPI else ""
        text = f"hybrid: rank {rank_by_launcher()} on {os.uname().nodename}, {phase}: {told}"
        return f"{begin}{with_code(text, kind)}\n"

    def is_to_speak(self, code: int, *, starting: bool, waits: bool) -> bool:
        """Whether this rank is to say how it ended, after a while where other ranks may say the same, or have the cause to tell.
        `waits`: others may say the same in any case.

        A launcher that ends the whole job kills this process meanwhile. Of ranks that would say the same, rank 0 is the first.
        """
        asked = self.asked or self.interrupted
        if self.over:
            return False
        launch = launched()
        if launch is None:
            return True
        while asked and not self.asked_again and time.monotonic() < asked + GRACE:
            time.sleep(_POLL)
        # Where /dev/shm becomes full all ranks of a node are killed by SIGBUS at once, where memory does several by SIGKILL.
        by_kernel = code == -signal.SIGBUS or (code == -signal.SIGKILL and not (self.stuck or self.missing))
        # MPI exits, while it starts because another rank has been killed, and when the connection to one on another node is lost.
        exited = code > 0 and (starting or launch.local_size != launch.size)
        if asked or waits or by_kernel or exited:
            # A launcher that is ending the job sends SIGTERM again, perhaps since MPI has ended a rank that lost this one.
            return wait_for_turn(rank_by_launcher(), after_causes=exited and not (asked or waits), soon=lambda: self.asked_again)
        speak()
        return True
