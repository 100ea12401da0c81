# SPDX-License-Identifier: MIT
"""Ranks that have not called: those that wait name them, in a warning first, then in RankMissing.

In a user's program a rank may compute for long before it calls, or it never calls because it has failed. In the first phase of a
call a rank learns by messages who else waits (`Arrivals`). Before the first call on a communicator there is no way for such
messages: `duplicates` learns it by collectives on the user's own communicator.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from hybrid.core.problem import record
from hybrid.core.text import warn
from hybrid.errors import RankMissing
from hybrid.ranks.job_end import Interrupts

if TYPE_CHECKING:
    from mpi4py import MPI

_HERE = 32002  # the tag of "I wait in this phase, too" on the control communicator
_DEFAULT = 60.0  # seconds after which the missing are named
_ANSWERED = 0.5  # seconds within which the others that wait have said so
_MOST_NAMED = 64  # ranks of a communicator whose first call names the missing: each sends a byte to each for that
_FIRST_PAUSE = 1e-3  # seconds between two looks at the first call
GIVEN_UP = 30.0  # seconds after which ranks that have called, but do not go on, must have left the call

_UNUSABLE = "; this communicator cannot be used any more, another can: comm.Dup()"
abandoned: list[Any] = []  # requests that nobody waits for any more, and which keep the buffers that MPI may still use


@record
class Limits:
    """The seconds of waiting after which the missing ranks are named (`warn`), and after which the call fails (`fail`)."""

    warn: float
    fail: float

    @classmethod
    def of(cls, asked: Any = None) -> Limits:
        """The limits by the call's `stall`, else by HYBRID_STALL: the missing are named after so many seconds, and the call
        fails after as many more, but one at least.

        Where neither is given, a call never fails, since ranks of a user's program may come as late as they like.
        """
        try:
            stall = float(asked if asked is not None else os.environ.get("HYBRID_STALL") or math.nan)
        except (TypeError, ValueError):  # refused when all ranks have come and can be told
            stall = math.nan
        if stall > 0:
            return cls(stall, stall + max(stall, 2 * _ANSWERED))
        return cls(math.inf if stall == 0 else _DEFAULT, math.inf)

    def of_the_present(self) -> Limits:
        """The limits of a wait for ranks that have called."""
        return Limits(min(self.warn, GIVEN_UP), min(self.fail, GIVEN_UP))


def unusable(why: str) -> RankMissing:
    """The error of every call on a communicator that is lost: its ranks are out of step, or have given up waiting for each
    other."""
    error = RankMissing(why.removesuffix(_UNUSABLE) + _UNUSABLE)
    error.on_all_ranks = True  # no rank waits for this one
    return error


class _Wait:
    """The wait of one rank for others."""

    def __init__(self, rank: int, limits: Limits) -> None:
        self.rank, self._limits, self._began, self._warned = rank, limits, time.monotonic(), False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def is_long(self, more: float = 0.0) -> bool:
        return self.seconds > self._limits.warn + more

    def complain(self, missing: Collection[int], here: Collection[int]) -> None:
        """Warn of the missing ranks (empty: it is not known which), once, by the first of the ranks that wait, `here`.
        RankMissing when the wait has taken too long."""
        failed = self.seconds > self._limits.fail
        within = f"within {self._limits.fail if failed else self._limits.warn:g} s"
        text = f"some rank has not called {within}, or does not wait for this one any more"
        if missing:
            who = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, sorted(missing)))}"
            text = f"{who} did not call {within} of others, as every rank of the communicator must"
        if failed:
            raise RankMissing(text)
        if not self._warned and self.rank == min(here):
            warn(f"{text}: still waiting")
        self._warned = True


class Arrivals(_Wait):
    """The wait of a rank for those that have not come to a phase. `serial`: the phase's number."""

    def __init__(self, control: MPI.Comm, serial: int, limits: Limits) -> None:
        super().__init__(control.Get_rank(), limits)
        self._control, self._serial = control, serial
        self._here, self._told = {self.rank}, False

    def look(self) -> None:
        """To be called now and then while this rank waits. RankMissing when it has waited for too long."""
        from mpi4py import MPI

        ranks, answered, status, serial = set(range(self._control.Get_size())), False, MPI.Status(), bytearray(8)
        while self._control.Iprobe(tag=_HERE, status=status):
            self._control.Recv([serial, MPI.BYTE], status.source, _HERE)
            if int.from_bytes(serial, "little") == self._serial:  # else it is about a phase to which all have come by now
                self._here.add(status.source)
                answered = True
        if (answered or self.is_long()) and not self._told:
            self._told = True
            for other in ranks - {self.rank}:
                abandoned.append(self._control.Isend([self._serial.to_bytes(8, "little"), MPI.BYTE], other, _HERE))
        if self.is_long(_ANSWERED):
            self.complain(ranks - self._here, self._here)


def duplicates(comm: MPI.Comm, limits: Limits, interrupts: Interrupts) -> tuple[MPI.Comm, MPI.Comm]:
    """Two duplicates of a user's communicator, made when every rank has called. RankMissing when that takes too long."""
    from mpi4py import MPI

    size, rank = comm.Get_size(), comm.Get_rank()

    def complete(requests: list[MPI.Request], wait: _Wait, *, named: bool) -> None:
        pending = everybody = set(range(len(requests)))  # `named`: request number r is complete when rank r has called
        while pending := {number for number in pending if not requests[number].Test()}:
            interrupts.raise_overdue()
            if wait.is_long():
                wait.complain(pending if named else (), {rank, *(everybody - pending if named else ())})
            time.sleep(_FIRST_PAUSE if wait.seconds > _FIRST_PAUSE else 0)

    under_way: list[Any] = []
    abandoned.append(under_way)  # unless all of them are complete
    if limits.warn < math.inf:
        if size <= _MOST_NAMED:
            # A scatter from each rank, which MPI does not send by way of others: it is complete here when that rank has called.
            token, into = [bytes(size), (1,) * size, tuple(range(size)), MPI.BYTE], bytearray(1)
            for root in range(size):
                under_way.append(comm.Iscatterv(token if root == rank else None, [into, MPI.BYTE], root))
        else:
            under_way.append(comm.Ibarrier())
        complete(under_way, _Wait(rank, limits), named=size <= _MOST_NAMED)
        limits = limits.of_the_present()
    under_way[:] = comm.Idup(), comm.Idup()  # polled, too: others may have given up before the last one came
    complete([request for _, request in under_way], _Wait(rank, limits), named=False)
    abandoned.remove(under_way)
    return under_way[0][0], under_way[1][0]
