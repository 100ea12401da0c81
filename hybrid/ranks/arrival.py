# SPDX-License-Identifier: MIT
"""Waiting for ranks that have not called yet: the missing ones are named, and nobody waits for ever.

In a user's program a rank may compute for long before it calls, or it never calls because it has failed. So in the first phase
of each call a rank waits with `Arrivals`, which learns by messages who else is there. Before the first call on a communicator
there is no way for such messages: `await_all` learns it by collectives on the user's own communicator.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from hybrid.core.caller import warn
from hybrid.core.record import record
from hybrid.errors import RankMissing

if TYPE_CHECKING:
    from mpi4py import MPI

_HERE = 32002  # tag on the control communicator: "I wait in this phase, too"
_ANSWERED = 0.5  # seconds within which the others that wait have said so
_MOST_NAMED = 64  # ranks of a communicator whose first call names the missing: each sends a byte to each for that
_PAUSE = 1e-3  # seconds between two looks at the first call
_GIVEN_UP = 30.0  # seconds after which ranks that have called, but do not go on, must have given up waiting before

_abandoned: list[MPI.Request] = []  # nobody waits for these any more; kept here, they keep the buffers that they may still use


@record
class Limits:
    """The seconds of waiting after which the missing ranks are named (`warn`), and after which the call fails (`fail`)."""

    warn: float
    fail: float

    @classmethod
    def of(cls, asked: Any = None, environment: Mapping[str, str] = os.environ, default: float = 60.0) -> Limits:
        """The limits by the call's `stall`, else by HYBRID_STALL: the missing are named after so many seconds, and the call
        fails after as many more, but one at least.

        Where neither is given, a call never fails, since ranks of a user's program may come as late as they like.
        """
        try:
            stall = float(asked if asked is not None else environment.get("HYBRID_STALL") or math.nan)
        except (TypeError, ValueError):  # refused when all ranks have come and can be told
            stall = math.nan
        if stall > 0:
            return cls(stall, stall + max(stall, 2 * _ANSWERED))
        return cls(math.inf if stall == 0 else default, math.inf)


def unusable(why: str) -> RankMissing:
    """The error of every call on a communicator whose ranks have given up waiting for each other."""
    error = RankMissing(f"{why}; this communicator cannot be used any more, another can: comm.Dup()")
    error.on_all_ranks = True  # no rank waits for this one
    return error


class _Wait:
    """The wait of one rank for others."""

    def __init__(self, rank: int, limits: Limits) -> None:
        self._rank, self._limits, self._began, self._warned = rank, limits, time.monotonic(), False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def is_long(self) -> bool:
        return self.seconds > self._limits.warn

    def complain(self, missing: Collection[int] | None, here: Collection[int]) -> None:
        """Warn of the missing ranks (None: it is not known which), once, by the first of the ranks that wait. RankMissing when
        the wait has taken too long. `here`: the ranks that wait."""
        failed = self.seconds > self._limits.fail
        within = f"within {self._limits.fail if failed else self._limits.warn:g} s"
        if missing is None:
            text = f"some rank has not called {within}, or does not wait for this one any more"
        else:
            who = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, sorted(missing)))}"
            text = f"{who} did not call {within} of others, as every rank of the communicator must"
        if not self._warned and not failed and self._rank == min(here):
            warn(f"{text}: still waiting")
        self._warned = True
        if failed:
            raise RankMissing(text)


class Arrivals(_Wait):
    """The wait of a rank for those that have not come to a phase. `serial`: the phase's number."""

    def __init__(self, control: MPI.Comm, serial: int, limits: Limits) -> None:
        super().__init__(control.Get_rank(), limits)
        self._control, self._serial = control, serial
        self._others = set(range(control.Get_size())) - {self._rank}
        self._here = {self._rank}
        self._told = False

    def look(self) -> None:
        """To be called now and then while this rank waits. RankMissing when it has waited for too long."""
        self._listen()
        if self.is_long:
            self._tell()
        if self.seconds > self._limits.warn + _ANSWERED:
            self.complain(self._others - self._here, self._here)

    def _listen(self) -> None:
        """Note which other ranks have said that they wait."""
        from mpi4py import MPI

        status, serial = MPI.Status(), bytearray(8)
        while self._control.Iprobe(tag=_HERE, status=status):
            self._control.Recv([serial, MPI.BYTE], status.source, _HERE)
            if int.from_bytes(serial, "little") == self._serial:  # else it is about a phase to which all have come by now
                self._here.add(status.source)
                self._tell()

    def _tell(self) -> None:
        """Say to all others that this rank waits, once."""
        from mpi4py import MPI

        for other in self._others if not self._told else ():
            _abandoned.append(self._control.Isend([self._serial.to_bytes(8, "little"), MPI.BYTE], other, _HERE))
        self._told = True


def await_all(comm: MPI.Comm, limits: Limits) -> MPI.Comm:
    """A duplicate of a user's communicator, made when every rank has called. RankMissing when that takes too long."""
    from mpi4py import MPI

    size, rank = comm.Get_size(), comm.Get_rank()
    wait, named = _Wait(rank, limits), size <= _MOST_NAMED
    if named:
        # A scatter from each rank. MPI does not send that by way of other ranks: it is complete here when that rank has called.
        token, into = [bytes(size), (1,) * size, tuple(range(size)), MPI.BYTE], bytearray(1)
        calls = [comm.Iscatterv(token if root == rank else None, [into, MPI.BYTE], root) for root in range(size)]
    else:
        calls = [comm.Ibarrier()]
    _complete(calls, wait, rank, named=named)
    duplicate, request = comm.Idup()  # polled, too: others may have given up before the last one came
    limits = Limits(min(limits.warn, _GIVEN_UP), min(limits.fail, _GIVEN_UP))
    _complete([request], _Wait(rank, limits), rank, named=False)
    return duplicate


def _complete(requests: list[MPI.Request], wait: _Wait, rank: int, *, named: bool) -> None:
    """Wait for the requests. RankMissing when that takes too long. `named`: request number r is complete when rank r has
    called."""
    try:
        _poll(requests, wait, rank, named=named)
    except BaseException:  # also an interrupt
        _abandoned.extend(requests)
        raise


def _poll(requests: list[MPI.Request], wait: _Wait, rank: int, *, named: bool) -> None:
    pending = set(range(len(requests)))
    while pending := {number for number in pending if not requests[number].Test()}:
        if wait.is_long:
            here = set(range(len(requests))) - pending if named else {rank}
            wait.complain(pending if named else None, here | {rank} if named else here)
        time.sleep(_PAUSE if wait.seconds > _PAUSE else 0)
