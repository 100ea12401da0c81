# SPDX-License-Identifier: MIT
"""What the ranks of a team send each other: objects from all to all, bytes from one to one, and notices of failure.

Every wait polls its request, so that heartbeats go to the supervisor and no rank waits for one that has failed. Messages that a
failed phase leaves unfinished are received and discarded, so that the team can go on.
"""

from __future__ import annotations

import math
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from hybrid.core.problem import record
from hybrid.core.text import warn
from hybrid.errors import RankMissing, one_line
from hybrid.ranks.collectives import Collectives
from hybrid.ranks.heartbeat import heartbeat
from hybrid.ranks.job_end import overdue

if TYPE_CHECKING:
    from mpi4py import MPI


# -------- polling
# What a rank does between two polls for what another one does.

_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
_SLOW_YIELD = 5e-4  # seconds: a sched_yield that takes longer means that another thread spins on this core
_SLEEP_FOR, _ONE_SLEEP = 0.02, 1e-5  # seconds: how long to sleep instead of yielding then, and each sleep
_crowded_until = 0.0


def let_others_run() -> None:
    """Called between two polls for what another rank does: give the core to other threads, yet be back soon.

    Beside threads that spin, as those of a BLAS do for a while after each call, a sched_yield returns only after a time slice
    of milliseconds. A thread that sleeps instead is woken at once.
    """
    global _crowded_until
    began = time.perf_counter()
    if began < _crowded_until:
        time.sleep(_ONE_SLEEP)
        return
    _give_way()
    if time.perf_counter() - began > _SLOW_YIELD:
        _crowded_until = began + _SLEEP_FOR


# -------- arrival
# Waiting for ranks that have not called yet: the missing ones are named, and nobody waits for ever.
#
# In a user's program a rank may compute for long before it calls, or it never calls because it has failed. So in the first
# phase of each call a rank waits with `Arrivals`, which learns by messages who else is there. Before the first call on a
# communicator there is no way for such messages: `await_all` learns it by collectives on the user's own communicator.

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


_NOTICE = 32001  # tag on the control communicator: "I failed, come to the end of the phase"
_GAVE_UP = 32003  # tag: "I do not wait for the others any more", and the text of the error
_TAGS = 32000  # MPI guarantees tags up to 32767
_POLLS_BETWEEN_CHECKS = 100  # then a heartbeat is sent, and notices and deadlines are looked at
# `exchange` starts with one Allgather of a slot per rank: the size of its object, and the object itself where it fits.
_SLOT, _LENGTH = 256, 8  # bytes of a slot, and of the size in it


class PhaseEnded(BaseException):
    """Raised inside a phase on a rank that waits for one which has failed; never leaves the phase."""


class Unsendable(Exception):
    """This rank's object cannot be pickled; nothing has been sent."""


class Messages:
    """Messages between the ranks of a communicator. They travel on duplicates of it, and so never meet those of the user's
    program."""

    def __init__(self, comm: MPI.Comm, limits: Limits | None = None) -> None:
        """`limits`: of the wait for ranks that have not called, where each rank of a user's program calls by itself."""
        from mpi4py import MPI

        self._byte, self._new_status, self.limits = MPI.BYTE, MPI.Status, limits
        self._comm = await_all(comm, limits) if limits else comm.Dup()
        self._control = comm.Dup()
        self._given_up = ""  # why this communicator cannot be used any more
        self._left: list[Any] = []  # requests that were given up, and their buffers
        self.interrupted = False  # an exchange was, and did not end: the ranks are out of step
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        self.within_nodes = True  # whether ranks share a node, when `Team` has found out
        self.serial = 0  # the current phase's number, the same on every rank
        # For `clear_up`: how many messages of this phase went to each rank, and came from each, and unfinished requests.
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._sending: list[MPI.Request] = []
        self._receiving: list[tuple[MPI.Request, int]] = []
        self.collectives = Collectives(self, self._comm)

    def begin_phase(self) -> None:
        """Messages from here on belong to a new phase. Every rank calls it."""
        self.serial += 1
        self._sent.clear()
        self._received.clear()

    @property
    def _tag(self) -> int:
        """The tag of the phase's messages: a late one of a phase that failed is never taken for one of a later phase."""
        return self.serial % _TAGS

    def send(self, data: Any, to: int) -> None:
        """Send bytes from a buffer to a rank that receives them in this phase. PhaseEnded if a rank fails meanwhile."""
        request = self._comm.Isend([data, self._byte], to, self._tag)
        self._sent[to] += 1
        self._sending.append(request)
        self.complete(request)
        self._sending.remove(request)

    def receive(self, into: Any, source: int) -> None:
        """Receive bytes into a buffer of exactly their size. PhaseEnded if a rank fails meanwhile."""
        request = self._comm.Irecv([into, self._byte], source, self._tag)
        self._receiving.append((request, source))
        self.complete(request)
        self._receiving.clear()
        self._received[source] += 1

    def end_if_others_failed(self) -> None:
        """PhaseEnded if a rank has failed in this phase."""
        if self._others_failed():
            raise PhaseEnded

    def _others_failed(self) -> bool:
        return bool(self._control.Iprobe(tag=_NOTICE) or self._control.Iprobe(tag=_GAVE_UP))

    def complete(
        self,
        request: MPI.Request,
        *,
        anyway: bool = False,
        longest_pause: Callable[[], float] = lambda: 0.0,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait for a request. PhaseEnded if a rank fails meanwhile, unless it is to be waited for `anyway`.

        `longest_pause`: gives the seconds between two polls at most, where other threads need the core. `look`: is called now
        and then.
        """
        if not self._poll(request, stop=lambda: not anyway and self._others_failed(), longest_pause=longest_pause, look=look):
            raise PhaseEnded

    def exchange(self, mine: Any, patience: float | None = None, *, arriving: bool = False) -> list[Any]:
        """Every rank's object, in the order of the ranks (an Allgather). TimeoutError after `patience` seconds.

        Unsendable before anything is sent. Notices of failure do not end it, since failed ranks call it, too. KeyboardInterrupt
        where an interrupt has been deferred for too long. `arriving`: other ranks may not have called yet; RankMissing, now and
        from then on, where they do not for too long.
        """
        self._refuse_given_up()
        deadline = None if patience is None else time.monotonic() + patience
        try:
            packed = pickle.dumps(mine, protocol=5)
        except Exception as cannot:  # whatever the object's own methods raise
            raise Unsendable(f"{one_line(cannot)}, when it was pickled for the other ranks") from cannot
        slot = len(packed).to_bytes(_LENGTH, "little") + packed[: _SLOT - _LENGTH]
        slots = memoryview(bytearray(_SLOT * self._size))
        slot = slot.ljust(_SLOT)
        request = self._comm.Iallgather([slot, self._byte], [slots, self._byte])
        arrivals = Arrivals(self._control, self.serial, self.limits) if arriving and self.limits else None
        try:
            self._poll(request, deadline=deadline, look=partial(self._refuse_given_up, arrivals))
        except (RankMissing, KeyboardInterrupt, TimeoutError) as error:
            self._left += [request, slot, slots]
            if not isinstance(error, RankMissing):
                raise
            self._give_up(str(error))
        begins = range(0, len(slots), _SLOT)
        sizes = [int.from_bytes(slots[begin : begin + _LENGTH], "little") for begin in begins]
        if max(sizes) <= _SLOT - _LENGTH:
            parts = [slots[begin + _LENGTH :][:size] for begin, size in zip(begins, sizes, strict=True)]
        else:  # some object does not fit its slot: all are sent again, whole
            starts = [0, *accumulate(sizes)]
            received = memoryview(bytearray(starts[-1]))
            request = self._comm.Iallgatherv([packed, self._byte], [received, sizes, starts[:-1], self._byte])
            try:
                self._poll(request, deadline=deadline, look=self._refuse_given_up)
            except (KeyboardInterrupt, TimeoutError):
                self._left += [request, packed, received]
                raise
            parts = [received[lo:hi] for lo, hi in pairwise(starts)]
        return [pickle.loads(part) for part in parts]

    def _refuse_given_up(self, arrivals: Arrivals | None = None) -> None:
        """RankMissing where some rank waits no longer for others, or this rank has waited too long for those that `arrivals`
        misses. KeyboardInterrupt where an interrupt is overdue."""
        if overdue():
            self.interrupted, self._given_up = True, "an exchange with the other ranks was interrupted"
            raise KeyboardInterrupt
        status = self._new_status()
        if not self._given_up and self._control.Iprobe(tag=_GAVE_UP, status=status):
            text = bytearray(status.Get_count(self._byte))
            self._control.Recv([text, self._byte], status.source, _GAVE_UP)
            self._given_up = text.decode()
        if self._given_up:
            raise unusable(self._given_up) from None
        if arrivals is not None:
            arrivals.look()

    def _give_up(self, why: str) -> None:
        """Have this and every other rank raise RankMissing, now or when it calls."""
        if not self._given_up:
            self._given_up = why
            for other in range(self._size):
                if other != self._rank:
                    self._left.append((why, self._control.Isend([why.encode(), self._byte], dest=other, tag=_GAVE_UP)))
        self._refuse_given_up()

    def notify_others(self) -> None:
        """Send every other rank the notice that this one has failed, so that none waits for its messages."""
        for other in range(self._size):
            if other != self._rank:
                self._control.Isend(b"", dest=other, tag=_NOTICE).Free()

    def clear_up(self, failed: list[int]) -> None:
        """Receive and discard what the phase has left unfinished. To be called after an exchange that named the `failed`
        ranks."""
        for rank in failed:
            if rank != self._rank:
                self._control.Recv(bytearray(0), source=rank, tag=_NOTICE)  # was sent before the exchange
        for request, source in self._receiving:
            request.Cancel()
            status = self._new_status()
            request.Wait(status)
            self._received[source] += not status.Is_cancelled()
        everybody = self.exchange((dict(self._sent), self.collectives.started))
        for source, (counts, _) in enumerate(everybody):
            for _ in range(counts.get(self._rank, 0) - self._received[source]):
                self._discard_message(source)
        self.collectives.end([started for _, started in everybody])
        for request in self._sending:
            self._poll(request)
        self._sending.clear()
        self._receiving.clear()

    def _discard_message(self, source: int) -> None:
        """Receive a message of this phase, and discard it."""
        status = self._new_status()
        while (message := self._comm.Improbe(source, self._tag, status)) is None:
            heartbeat()
            let_others_run()
        self._poll(message.Irecv([bytearray(status.Get_count(self._byte)), self._byte]))

    def _poll(
        self,
        request: MPI.Request,
        stop: Callable[[], bool] | None = None,
        deadline: float | None = None,
        look: Callable[[], None] = lambda: None,
        longest_pause: Callable[[], float] = lambda: 1e-3,
    ) -> bool:
        """Wait for a request. False if `stop` became true before it was complete. `look` is called now and then, and may
        raise."""
        polls, pause = 0, 0.0
        while not request.Test():
            polls += 1
            if polls % _POLLS_BETWEEN_CHECKS == 0:
                heartbeat()
                look()
                if stop is not None and stop():
                    return False
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError
                # Other ranks may compute for long before they call an exchange: leave them the cores. A send or receive does not
                # sleep: MPI moves its data only while it is called.
                pause = min(longest_pause(), 5e-5 + pause * 1.2)
            time.sleep(pause) if pause else let_others_run()
        return True

    def free(self) -> None:
        """Free the communicators; every rank calls it."""
        self.collectives.free()
        self._comm.Free()
        self._control.Free()
