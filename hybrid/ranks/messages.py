# SPDX-License-Identifier: MIT
"""Messages between the ranks of a team: objects by allgather, parts of matrices by two collectives, notices of failure.

No rank blocks inside MPI: each polls its requests, so that heartbeats reach the supervisor and no rank waits for one that failed
or never calls. After a failure, ranks start the collectives that only others have started, so that the communicator stays usable.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from hybrid.core.problem import record
from hybrid.core.text import warn
from hybrid.errors import RankMissing, one_line
from hybrid.ranks.heartbeat import heartbeat

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from hybrid.ranks.team import Interrupts

# --- ranks that have not called: waiting ranks name them, first in a warning, then in RankMissing
#
# In a user's program a rank may compute for long before it calls, or fail and never call. In the first phase of a call, waiting
# ranks announce themselves by messages (`Arrivals`). The first call on a communicator has no channel for these messages yet:
# `duplicates` finds the missing ranks by collectives on the user's communicator.

_WAITING = 32002  # tag of "I wait in this phase, too" on the control communicator
_DEFAULT = 60.0  # seconds until the missing ranks are named
_ANSWERED = 0.5  # seconds for the other waiting ranks to answer
_MOST_NAMED = 64  # largest communicator whose first call names the missing ranks: each rank sends a byte to each other
_FIRST_PAUSE = 1e-3  # seconds between polls of the first call
GIVEN_UP = 30.0  # seconds without progress after which ranks that had called must have left the call

_UNUSABLE = "; this communicator cannot be used any more, another can: comm.Dup()"
abandoned: list[Any] = []  # requests that nobody waits for; the list keeps their buffers alive for MPI


@record
class Limits:
    """Seconds of waiting until the missing ranks are named (`warn`), and until the call fails (`fail`)."""

    warn: float
    fail: float

    @classmethod
    def of(cls, asked: Any = None) -> Limits:
        """The limits from the call's `stall` in seconds, else from HYBRID_STALL: missing ranks are named after `stall`, and the
        call fails after another `stall`, but at least 1 s, later.

        If neither is set, a call never fails, since ranks of a user's program may call arbitrarily late.
        """
        try:
            stall = float(asked if asked is not None else os.environ.get("HYBRID_STALL") or math.nan)
        except (TypeError, ValueError):  # refused later, when all ranks have called
            stall = math.nan
        if stall > 0:
            return cls(stall, stall + max(stall, 2 * _ANSWERED))
        return cls(math.inf if stall == 0 else _DEFAULT, math.inf)

    def of_the_present(self) -> Limits:
        """The limits for waiting on ranks that have called."""
        return Limits(min(self.warn, GIVEN_UP), min(self.fail, GIVEN_UP))


def unusable(why: str) -> RankMissing:
    """The error of every call on a lost communicator, whose ranks are out of step or gave up waiting for each other."""
    error = RankMissing(why.removesuffix(_UNUSABLE) + _UNUSABLE)
    error.on_all_ranks = True  # no rank waits for this one
    return error


class _Wait:
    def __init__(self, rank: int, limits: Limits) -> None:
        self.rank, self._limits, self._began, self._warned = rank, limits, time.monotonic(), False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def is_long(self, more: float = 0.0) -> bool:
        return self.seconds > self._limits.warn + more

    def complain(self, missing: Collection[int], here: Collection[int]) -> None:
        """Warn of the `missing` ranks (empty: unknown), once, on the lowest rank that is `here`. RankMissing after `fail` s."""
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
    """One rank's wait for ranks that have not reached a phase. `serial`: the phase's number."""

    def __init__(self, control: MPI.Comm, serial: int, limits: Limits) -> None:
        super().__init__(control.Get_rank(), limits)
        self._control, self._serial = control, serial
        self._waiting_ranks, self._announced = {self.rank}, False

    def look(self) -> None:
        """Exchange announcements with other waiting ranks. Call it repeatedly while waiting. RankMissing after the limit."""
        from mpi4py import MPI

        ranks, answered, status, serial = set(range(self._control.Get_size())), False, MPI.Status(), bytearray(8)
        while self._control.Iprobe(tag=_WAITING, status=status):
            self._control.Recv([serial, MPI.BYTE], status.source, _WAITING)
            if int.from_bytes(serial, "little") == self._serial:  # else about an earlier phase, which all have reached
                self._waiting_ranks.add(status.source)
                answered = True
        if (answered or self.is_long()) and not self._announced:
            self._announced = True
            for other in ranks - {self.rank}:
                abandoned.append(self._control.Isend([self._serial.to_bytes(8, "little"), MPI.BYTE], other, _WAITING))
        if self.is_long(_ANSWERED):
            self.complain(ranks - self._waiting_ranks, self._waiting_ranks)


def duplicates(comm: MPI.Comm, limits: Limits, interrupts: Interrupts) -> tuple[MPI.Comm, MPI.Comm]:
    """Two duplicates of a user's communicator, once every rank has called. RankMissing if that takes too long."""
    from mpi4py import MPI

    size, rank = comm.Get_size(), comm.Get_rank()

    def complete(requests: list[MPI.Request], wait: _Wait, *, named: bool) -> None:
        pending = everybody = set(range(len(requests)))  # `named`: request number r is complete when rank r has called
        while pending := {number for number in pending if not requests[number].Test()}:
            interrupts.raise_overdue()
            if wait.is_long():
                wait.complain(pending if named else (), {rank, *(everybody - pending if named else ())})
            time.sleep(_FIRST_PAUSE if wait.seconds > _FIRST_PAUSE else 0)

    requests: list[Any] = []
    abandoned.append(requests)  # unless all of them are complete
    if limits.warn < math.inf:
        if size <= _MOST_NAMED:
            # One scatterv from each rank, which MPI sends directly: it completes here once its root has called.
            token, into = [bytes(size), (1,) * size, tuple(range(size)), MPI.BYTE], bytearray(1)
            for root in range(size):
                requests.append(comm.Iscatterv(token if root == rank else None, [into, MPI.BYTE], root))
        else:
            requests.append(comm.Ibarrier())
        complete(requests, _Wait(rank, limits), named=size <= _MOST_NAMED)
        limits = limits.of_the_present()
    requests[:] = comm.Idup(), comm.Idup()  # polled too: others may have given up before the last rank called
    complete([request for _, request in requests], _Wait(rank, limits), named=False)
    abandoned.remove(requests)
    return requests[0][0], requests[1][0]


# Tags on the control communicator: "I failed", with the phase's number; "this communicator is lost", with the reason.
_NOTICE, _LOST = 32001, 32003
_POLLS_BETWEEN_CHECKS = 100  # polls between two heartbeats and checks of notices and deadlines
# `exchange` starts with an Allgather of one slot per rank: the object's size, and the object if it fits. Open MPI sends up to 256
# bytes at once. A longer send completes only when the receiver polls, and a rank that has waited for long polls rarely.
_SLOT, _LENGTH = 256, 8  # bytes of a slot, and of the size field
_EXCHANGE_PAUSE = 1e-3  # seconds: longest pause between polls for ranks that may compute for long first
# Long waits pause for this share of the time so far: they take less than 1 % of a core, and end hardly later than polling ones.
_SHARE = 0.01
_FLAG_POLLS, _FLAG_PAUSE = 10_000, 1e-4  # polls of flags and devices at full speed, then seconds between polls
# Seconds between polls of a collective between nodes. Within a node, MPI copies only some KB per poll: no rank sleeps there.
_COLLECTIVE_PAUSE = 1e-4
_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
_SLOW_YIELD = 5e-4  # seconds: a slower sched_yield means that another thread spins on this core
_SLEEP_FOR, _ONE_SLEEP = 0.02, 1e-5  # seconds to sleep instead of yielding then, and of each sleep
_crowded_until = 0.0


def _let_others_run() -> None:
    """Yield the core between two polls, and return soon.

    While others spin on the core, as BLAS threads do after a call, sched_yield takes milliseconds; a sleeper is woken at once.
    """
    global _crowded_until
    began = time.perf_counter()
    if began < _crowded_until:
        time.sleep(_ONE_SLEEP)
        return
    _give_way()
    if time.perf_counter() - began > _SLOW_YIELD:
        _crowded_until = began + _SLEEP_FOR


def growing(longest: float) -> Callable[[], float]:
    """For `Messages.wait_until`: pauses that grow with the time from now on, up to `longest` seconds."""
    began = time.monotonic()
    return lambda: min(longest, _SHARE * (time.monotonic() - began))


# --- messages


class PhaseEnded(BaseException):
    """Raised inside a phase on a rank that waits for a failed one; never leaves the phase."""


class Messages:
    """Messages between the ranks of a communicator, on duplicates of it, separate from the user's messages."""

    def __init__(self, comm: MPI.Comm, limits: Limits | None, interrupts: Interrupts) -> None:
        """`limits`: for waiting on ranks that have not called; None: unlimited. `interrupts`: delayed until exchanges end."""
        from mpi4py import MPI

        self._byte, self._new_status = MPI.BYTE, MPI.Status
        self._comm, self._control = duplicates(comm, limits or Limits(math.inf, math.inf), interrupts)
        self.limits = limits and limits.of_the_present()  # of the first exchange; each call has its own
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        self._interrupts = interrupts
        self.lost = ""  # why this communicator is unusable; "" if it is not
        self.within_nodes = True  # whether some ranks share a node; set by `Team`
        self.serial = 0  # number of finished exchanges; the same on every rank within a phase
        # The request and the buffers of the last exchange, kept alive here: mpi4py 4.1 drops those of Iallgatherv after the call.
        self._last_exchange: tuple[Any, ...] = ()
        self._failed = -1  # the `serial` of the last phase in which another rank failed
        self.comms: dict[tuple[str, tuple[int, ...]], MPI.Comm] = {}  # of collectives; null on ranks that take no part
        self._series: dict[str, Series] = {}  # the latest of each kind, on the ranks that take part

    def free(self) -> None:
        """Free the communicators. Collective. If lost, keep them and the buffers that MPI may still write to."""
        if self.lost:
            abandoned.append(self)
            return
        for comm in filter(None, (*self.comms.values(), self._comm, self._control)):  # a null one is false
            comm.Free()

    # --- waiting

    def end_if_others_failed(self) -> None:
        """PhaseEnded if another rank has failed in this phase."""
        self._receive_notices()
        if self._failed == self.serial or self._control.Iprobe(tag=_LOST):
            raise PhaseEnded

    def wait_until(
        self,
        done: Callable[[], bool],
        longest: Callable[[], float] | None = None,
        look: Callable[[], object] | None = None,
        deadline: float = math.inf,
    ) -> None:
        """Poll until `done()`, such as the `Test` of a request: MPI makes progress only inside its calls.

        `longest`: returns the longest pause between polls in seconds; None: polls of flags in shared memory, or of devices.
        `look`: called regularly, may raise; by default raises PhaseEnded if a rank has failed. TimeoutError after `deadline`.
        """
        pause, polls, eager = 0.0, 0, _POLLS_BETWEEN_CHECKS if longest is not None else _FLAG_POLLS
        while not done():
            polls += 1
            if polls % _POLLS_BETWEEN_CHECKS == 0:
                heartbeat()
                (look or self.end_if_others_failed)()
                if time.monotonic() > deadline:
                    raise TimeoutError
                if polls >= eager:
                    pause = min(longest() if longest is not None else _FLAG_PAUSE, 5e-5 + pause * 1.2)
            time.sleep(pause) if pause else _let_others_run()

    # --- objects

    def exchange(self, mine: Any, patience: float = math.inf, *, arriving: bool = False, why: str = "") -> list[Any]:
        """Allgather Python objects, in rank order. TimeoutError after `patience` seconds; `why` then tells the others the reason.

        Notices of failure do not end an exchange, since failed ranks take part. `arriving`: other ranks may not have called yet;
        RankMissing if they do not for too long. Raises an overdue interrupt. If a rank leaves an exchange early, the communicator
        is lost: all ranks raise RankMissing, now or at their next call.
        """
        arrivals = Arrivals(self._control, self.serial, self.limits) if arriving and self.limits else None

        def look() -> None:
            self.refuse_lost()
            self._interrupts.raise_overdue()
            if arrivals is not None:
                arrivals.look()

        def gather() -> None:
            self.wait_until(self._last_exchange[0].Test, growing(_EXCHANGE_PAUSE), look, deadline)

        self.refuse_lost()
        deadline = time.monotonic() + patience
        packed = pickle.dumps(mine, protocol=5)
        slot = (len(packed).to_bytes(_LENGTH, "little") + packed[: _SLOT - _LENGTH]).ljust(_SLOT)
        slots = memoryview(bytearray(_SLOT * self._size))
        begins = range(0, len(slots), _SLOT)
        try:
            self._last_exchange = self._comm.Iallgather([slot, self._byte], [slots, self._byte]), slot, slots
            gather()
            sizes = [int.from_bytes(slots[begin : begin + _LENGTH], "little") for begin in begins]
            if max(sizes) <= _SLOT - _LENGTH:
                parts = [slots[begin + _LENGTH :][:size] for begin, size in zip(begins, sizes, strict=True)]
            else:  # some object does not fit its slot: send all objects again
                arrivals, starts = None, [0, *accumulate(sizes)]
                received = memoryview(bytearray(starts[-1]))
                into = [received, sizes, starts[:-1], self._byte]
                self._last_exchange = self._comm.Iallgatherv([packed, self._byte], into), packed, received
                gather()
                parts = [received[lo:hi] for lo, hi in pairwise(starts)]
            objects = [pickle.loads(part) for part in parts]
            self.serial += 1
        except BaseException as error:
            abandoned.append(self)
            if isinstance(error, RankMissing):
                self.lose(str(error))
                raise unusable(self.lost) from None
            self.lose(why or f"rank {self._rank} on {os.uname().nodename} has left a call: {one_line(error)}")
            raise
        return objects

    def refuse_lost(self) -> None:
        """RankMissing if the communicator is lost."""
        status = self._new_status()
        if not self.lost and self._control.Iprobe(tag=_LOST, status=status):
            text = bytearray(status.Get_count(self._byte))
            self._control.Recv([text, self._byte], status.source, _LOST)
            self.lost = text.decode()
        if self.lost:
            raise unusable(self.lost) from None

    def lose(self, why: str) -> None:
        """Mark the communicator as lost: this and every other rank raises RankMissing, in its exchange or at its next call."""
        if not self.lost:
            self.lost = why
            self._tell_others(why.encode(), _LOST)

    def _tell_others(self, data: bytes, tag: int) -> None:
        for other in range(self._size):
            if other != self._rank:
                abandoned.append(self._control.Isend([data, self._byte], other, tag))

    # --- failures

    def notify_others(self) -> None:
        """Tell every other rank that this one has failed, so that none waits for its messages."""
        self._tell_others(self.serial.to_bytes(8, "little"), _NOTICE)

    def _receive_notices(self) -> None:
        status, serial = self._new_status(), bytearray(8)
        while self._control.Iprobe(tag=_NOTICE, status=status):
            self._control.Recv([serial, self._byte], status.source, _NOTICE)
            self._failed = max(self._failed, int.from_bytes(serial, "little"))

    def clear_up(self) -> None:
        """Complete the collectives that a failed phase left unfinished. Collective, after an exchange that reported a failure."""
        of_ranks = self.exchange({kind: each.state for kind, each in self._series.items()})
        self._receive_notices()  # a new communicator that reuses this one's context would receive them
        for kind in {kind for series in of_ranks for kind in series}:
            serial, ranks, _ = max(series[kind] for series in of_ranks if kind in series)
            states = [of_ranks[rank].get(kind, (-1, (), 0)) for rank in ranks]
            most = max(started for number, _, started in states if number == serial)
            # Some rank failed before this series, or while starting a collective; all ranks see this here.
            if any(started < 0 or (most and number != serial) for number, _, started in states):
                self.lost = "a rank has failed while ranks began to exchange parts of matrices"
            elif self._rank in ranks:
                self._series[kind].start(most)
        for series in self._series.values():
            if not self.lost:
                series.end()

    # --- collectives

    def connect(self, kind: str, ranks: Sequence[int]) -> None:
        """Create the communicator for series of this kind. Collective over the team, after a phase: it blocks inside MPI."""
        from mpi4py import MPI

        order = tuple(ranks)
        color, key = (0, order.index(self._rank)) if self._rank in order else (MPI.UNDEFINED, 0)
        self.comms[kind, order] = self._comm.Split(color, key)

    @property
    def patience(self) -> float:
        """Seconds of waiting after which ranks of the same call must have left it."""
        return min(GIVEN_UP, self.limits.fail) if self.limits else math.inf

    def series(self, kind: str, ranks: Sequence[int], collectives: Iterable[Start]) -> Series | None:
        """A new series of these collectives, in this order, between these ranks; None on other ranks. Call it within a phase.

        The caller starts none before that phase has ended, and completes all earlier ones of this kind before. Ranks may start
        collectives of different kinds in any order.
        """
        comm = self.comms[kind, tuple(ranks)]
        self._series.pop(kind, None)
        if comm:
            self._series[kind] = Series(self, comm, tuple(ranks), collectives)
        return self._series.get(kind)


# --- collectives of parts of matrices

Start = Callable[["MPI.Comm"], "MPI.Request"]
Matrices = Mapping[int, Sequence["np.ndarray"]]  # by rank of a communicator: the matrices to or from that rank


class Series:
    """Collectives that all ranks of a communicator start in the same order, some ahead of need.

    `collectives` is iterated lazily, one item per start. A collective's matrices stay referenced until it completes.
    """

    def __init__(self, messages: Messages, comm: MPI.Comm, ranks: tuple[int, ...], collectives: Iterable[Start]) -> None:
        self._messages, self._comm, self.ranks, self._waiting = messages, comm, ranks, iter(collectives)
        self._being_started: Any = None  # a collective, which MPI may have begun
        self._pending: dict[int, tuple[MPI.Request, Start]] = {}  # by number
        self.started = 0
        self.serial = messages.serial

    @property
    def state(self) -> tuple[int, tuple[int, ...], int]:
        """The phase's number, the ranks, and the number of started collectives; -1 if a start failed."""
        return self.serial, self.ranks, -1 if self._being_started else self.started

    def start(self, until: int) -> None:
        """Start all collectives with numbers below `until`."""
        while self.started < until:
            self._being_started = True
            collective = self._being_started = next(self._waiting, None)
            if collective is None:
                return
            self._pending[self.started] = collective(self._comm), collective
            self.started, self._being_started = self.started + 1, None

    def is_complete(self, number: int) -> bool:
        """Whether this collective is complete. Does not wait; MPI progresses all started ones."""
        self.start(number + 1)
        if number in self._pending and self._pending[number][0].Test():
            del self._pending[number]
        return number not in self._pending

    def wait_for(
        self, number: int, meanwhile: Callable[[], None] = lambda: None, computing: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until this collective is complete. PhaseEnded if a rank fails meanwhile.

        `meanwhile`: called regularly, must not wait. `computing`: returns whether another thread of this rank needs the core.
        """
        self.start(number + 1)
        if number in self._pending:
            messages = self._messages

            def look() -> None:
                meanwhile()
                messages.end_if_others_failed()

            def longest() -> float:
                return _COLLECTIVE_PAUSE if computing() or not messages.within_nodes else 0.0

            messages.wait_until(self._pending[number][0].Test, longest, look)
            del self._pending[number]

    def wait_until_complete(self, ahead: int = sys.maxsize) -> None:
        """Wait for all collectives, up to `ahead` of them started beyond the one waited for. PhaseEnded if a rank fails."""
        number = min(self._pending, default=self.started)
        self.start(number + 1 + ahead)
        while number < self.started:
            self.wait_for(number)
            number += 1
            self.start(number + 1 + ahead)

    def end(self) -> None:
        """After a failure, wait for all started collectives; all ranks must have started the same ones."""
        for request, _ in self._pending.values():
            self._messages.wait_until(request.Test, lambda: 0.0, self._messages.refuse_lost)
        self._pending.clear()


def broadcast(matrix: np.ndarray, root: int) -> Start:
    """Broadcast a matrix with contiguous rows, such as a column panel, from rank `root` of the communicator."""

    def start(comm: MPI.Comm) -> MPI.Request:
        from mpi4py import MPI

        placed = _datatype_of([matrix])
        try:
            abandoned.append(comm.Ibcast([MPI.BOTTOM, 1, placed], root))  # keeps the request if an interrupt hits here
        finally:  # MPI keeps the datatype for a started collective
            placed.Free()
        return abandoned.pop()

    return start


def exchange(sends: Matrices, receives: Matrices, own_rank: int) -> Start:
    """An all-to-all of matrices: sends each rank its matrices in `sends`, and receives matrices of the same shapes into
    `receives`. They may be parts of larger ones with contiguous rows. A rank's matrices for itself are copied."""

    def start(comm: MPI.Comm) -> MPI.Request:
        from mpi4py import MPI

        def side(matrices: Matrices) -> tuple[list[int], list[MPI.Datatype]]:
            there = [rank != own_rank and any(each.size for each in matrices.get(rank, ())) for rank in range(comm.Get_size())]
            types = [_datatype_of(matrices[rank]) if is_there else MPI.BYTE for rank, is_there in enumerate(there)]
            return list(map(int, there)), types

        copy_own(sends, receives, own_rank)
        (counts, types), (counts_received, types_received) = side(sends), side(receives)
        nowhere = [0] * len(counts)  # the datatypes have the addresses
        sent, received = (MPI.BOTTOM, counts, nowhere, types), (MPI.BOTTOM, counts_received, nowhere, types_received)
        try:
            abandoned.append(comm.Ialltoallw(sent, received))
        finally:  # MPI keeps the datatypes for a started collective
            for made in (*types, *types_received):
                if made != MPI.BYTE:
                    made.Free()
        return abandoned.pop()

    return start


def copy_own(sends: Matrices, receives: Matrices, rank: int) -> None:
    """Copy what a rank sends to itself."""
    for into, source in zip(receives.get(rank, ()), sends.get(rank, ()), strict=True):
        into[...] = source


def _datatype_of(matrices: Sequence[np.ndarray]) -> MPI.Datatype:
    """An MPI datatype of these matrices at their addresses."""
    from mpi4py import MPI

    lines = [MPI.BYTE.Create_hvector(len(matrix), matrix.shape[1] * matrix.itemsize, matrix.strides[0]) for matrix in matrices]
    placed = MPI.Datatype.Create_struct([1] * len(lines), [matrix.ctypes.data for matrix in matrices], lines).Commit()
    for each in lines:
        each.Free()
    return placed
