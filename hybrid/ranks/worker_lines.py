# SPDX-License-Identifier: MIT
"""What a rank's worker has told its supervisor, in the lines that `heartbeat` writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybrid.ranks import heartbeat

if TYPE_CHECKING:
    from hybrid.ranks.pulse import Pulse

_START = "start"  # the first phase


class WorkerLines:
    """The phase that the worker is in, and how it ends. `pulse`: learns of other ranks, where they are to be watched."""

    def __init__(self, pulse: Pulse | None) -> None:
        self._pulse = pulse
        self.phase = _START
        self.mpi_started = False
        self.exit_code: int | None = None  # that the worker has reported
        self.agreed = False  # all ranks end with that code
        self.how_to_go_on = ""  # the end of a line where the worker was ended: how a later job uses what it has done

    @property
    def starting(self) -> bool:
        """Whether MPI is being started, or the ranks do not watch each other yet."""
        return self.phase == _START

    def note(self, lines: Sequence[str]) -> bool:
        """Take lines in; whether they show progress. Heartbeats of the start do not: there a rank may wait for one that nobody
        else watches."""
        progress = not self.starting or any(line != _START for line in lines)
        for line in lines:
            self._note(line)
        return progress

    def _note(self, line: str) -> None:
        sign, rest = line[:1], line[1:]
        if sign in (heartbeat.AGREED, heartbeat.REPORTED):
            self.exit_code, self.agreed = int(rest), sign == heartbeat.AGREED
        elif line == heartbeat.MPI_STARTED:
            self.mpi_started = True
        elif sign == heartbeat.NEIGHBOURS:
            if self._pulse:
                self._pulse.start(rest)
        elif line == heartbeat.ALL_MET:
            if self._pulse:
                self._pulse.all_met()
        elif sign == heartbeat.HOW_TO_GO_ON:
            self.how_to_go_on = f"; {rest}" if rest else ""
        else:
            self.phase = line
