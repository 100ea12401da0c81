# SPDX-License-Identifier: MIT
"""What the ranks of a team send each other: objects from all to all, parts of matrices by two collectives, notices of failure.

No rank waits inside MPI: each polls its request, so that heartbeats go to the supervisor, and no rank waits for one that has
failed or never calls. After a failure, ranks that have started fewer collectives than others start the missing ones, so that all
end and the communicator can be used again.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, count, pairwise
from typing import TYPE_CHECKING, Any

from hybrid.core.problem import record
from hybrid.core.text import warn
from hybrid.errors import RankMissing, one_line, with_code
from hybrid.ranks.heartbeat import heartbeat
from hybrid.ranks.launcher import end_job, speak

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from hybrid.ranks.team import Interrupts

# --- ranks that have not called: those that wait name them, in a warning first, then in RankMissing
#
# In a user's program a rank may compute for long before it calls, or it never calls because it has failed. In the first phase of
# a call a rank learns by messages who else waits (`Arrivals`). Before the first call on a communicator there is no way for such
# messages: `duplicates` learns it by collectives on the user's own communicator.

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
        """The limits by the call's `stall`, in seconds, else by HYBRID_STALL: after it the missing are named, and after it once
        more, but a second at least, the call fails.

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


# Tags on the control communicator: "I failed, come to the end of the phase", with its number; "this communicator is lost", with
# the reason.
_NOTICE, _LOST = 32001, 32003
_POLLS_BETWEEN_CHECKS = 100  # then a heartbeat is sent, and notices and deadlines are looked at
# `exchange` starts with one Allgather of a slot per rank: the size of its object, and the object itself where it fits.
_SLOT, _LENGTH = 2048, 8  # bytes of a slot, which hold what the ranks usually tell each other, and of the size in it
_EXCHANGE_PAUSE = 1e-3  # seconds between two polls, at most, for ranks that may compute for long before they come
# What arrives by a collective meanwhile fits the network's buffers. But between ranks of a node MPI copies only some kilobytes at
# each poll, so there nobody sleeps who has nothing else to do.
_COLLECTIVE_PAUSE = 1e-4
_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
_SLOW_YIELD = 5e-4  # seconds: a sched_yield that takes longer means that another thread spins on this core
_SLEEP_FOR, _ONE_SLEEP = 0.02, 1e-5  # seconds: how long to sleep instead of yielding then, and each sleep
_crowded_until = 0.0


def _let_others_run() -> None:
    """Give the core to other threads between two polls, yet be back soon.

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


# --- messages


class PhaseEnded(BaseException):
    """Raised inside a phase on a rank that waits for one which has failed; never leaves the phase."""


class Unsendable(Exception):
    """This rank's object cannot be pickled; nothing has been sent."""


class Messages:
    """Messages between the ranks of a communicator. They travel on duplicates of it, and so never meet those of the user's
    program."""

    def __init__(self, comm: MPI.Comm, limits: Limits | None, interrupts: Interrupts) -> None:
        """`limits`: of the wait for ranks that have not called, where each rank of a user's program calls by itself.
        `interrupts`: of this rank, which wait for exchanges to end."""
        from mpi4py import MPI

        self._byte, self._new_status = MPI.BYTE, MPI.Status
        self._comm, self._control = duplicates(comm, limits or Limits(math.inf, math.inf), interrupts)
        self.limits = limits and limits.of_the_present()  # of the first exchange; each call has its own
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        self._interrupts = interrupts
        self.lost = ""  # why this communicator cannot be used any more: the ranks are out of step
        self.within_nodes = True  # whether ranks share a node, when `Team` has found out
        self.serial = 0  # exchanges that have ended: the same on every rank within a phase
        # The request and the buffers of the last exchange. mpi4py 4.1 keeps those of an Iallgatherv no longer than its call.
        self._pending: tuple[Any, ...] = ()
        self._failed = -1  # the last phase, by its `serial`, in which another rank has failed
        self.comms: dict[tuple[str, tuple[int, ...]], MPI.Comm] = {}  # of collectives, on all ranks: null on others
        self._series: dict[str, Series] = {}  # the latest of each kind, on the ranks that take part

    def free(self) -> None:
        """Free the communicators; every rank calls it. Those that are lost stay, with what MPI may still write to."""
        if self.lost:
            abandoned.append(self)
            return
        for comm in filter(None, (*self.comms.values(), self._comm, self._control)):  # a null one is false
            comm.Free()

    # --- waiting

    def end_if_others_failed(self) -> None:
        """PhaseEnded if a rank has failed in this phase."""
        self._receive_notices()
        if self._failed == self.serial or self._control.Iprobe(tag=_LOST):
            raise PhaseEnded

    def pauses(
        self, eager: int, longest: Callable[[], float], look: Callable[[], object] | None = None, deadline: float = math.inf
    ) -> Iterator[None]:
        """The pauses of a rank that polls: it takes the next one after each poll.

        `eager`: polls at full speed, after which it sleeps between two polls; `longest`: gives the seconds of a sleep at most.
        `look`: is called now and then, and may raise; by default it raises PhaseEnded if a rank has failed. TimeoutError after
        the `deadline`.
        """
        pause = 0.0
        for polls in count(1):
            if polls % _POLLS_BETWEEN_CHECKS == 0:
                heartbeat()
                (look or self.end_if_others_failed)()
                if time.monotonic() > deadline:
                    raise TimeoutError
                if polls >= eager:
                    pause = min(longest(), 5e-5 + pause * 1.2)
            time.sleep(pause) if pause else _let_others_run()
            yield

    def complete(
        self,
        request: MPI.Request,
        longest: Callable[[], float],
        look: Callable[[], object] | None = None,
        deadline: float = math.inf,
    ) -> None:
        """Wait for a request, as by `pauses`. MPI moves its data only while it is called."""
        pauses = self.pauses(_POLLS_BETWEEN_CHECKS, longest, look, deadline)
        while not request.Test():
            next(pauses)

    # --- objects

    def exchange(self, mine: Any, patience: float = math.inf, *, arriving: bool = False, why: str = "") -> list[Any]:
        """Every rank's object, in the order of the ranks (an Allgather). TimeoutError after `patience` seconds; `why`: what the
        others are told then.

        Unsendable before anything is sent. Notices of failure do not end it, since failed ranks call it, too. `arriving`: other
        ranks may not have called yet; RankMissing where they do not for too long. An interrupt that waits too long is raised. An
        exchange that this rank leaves before its end is the last: all ranks raise RankMissing, now or when they call.
        """
        arrivals = Arrivals(self._control, self.serial, self.limits) if arriving and self.limits else None

        def look() -> None:
            self.refuse_lost()
            self._interrupts.raise_overdue()
            if arrivals is not None:
                arrivals.look()

        def gather() -> None:
            self.complete(self._pending[0], lambda: _EXCHANGE_PAUSE, look, deadline)

        self.refuse_lost()
        deadline = time.monotonic() + patience
        try:
            packed = pickle.dumps(mine, protocol=5)
        except Exception as cannot:  # whatever the object's own methods raise
            raise Unsendable(f"{one_line(cannot)}, when it was pickled for the other ranks") from cannot
        slot = (len(packed).to_bytes(_LENGTH, "little") + packed[: _SLOT - _LENGTH]).ljust(_SLOT)
        slots = memoryview(bytearray(_SLOT * self._size))
        begins = range(0, len(slots), _SLOT)
        try:
            self._pending = self._comm.Iallgather([slot, self._byte], [slots, self._byte]), slot, slots
            gather()
            sizes = [int.from_bytes(slots[begin : begin + _LENGTH], "little") for begin in begins]
            if max(sizes) <= _SLOT - _LENGTH:
                parts = [slots[begin + _LENGTH :][:size] for begin, size in zip(begins, sizes, strict=True)]
            else:  # some object does not fit its slot: all are sent again, whole
                arrivals, starts = None, [0, *accumulate(sizes)]
                received = memoryview(bytearray(starts[-1]))
                into = [received, sizes, starts[:-1], self._byte]
                self._pending = self._comm.Iallgatherv([packed, self._byte], into), packed, received
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
        """RankMissing where the communicator is lost."""
        status = self._new_status()
        if not self.lost and self._control.Iprobe(tag=_LOST, status=status):
            text = bytearray(status.Get_count(self._byte))
            self._control.Recv([text, self._byte], status.source, _LOST)
            self.lost = text.decode()
        if self.lost:
            raise unusable(self.lost) from None

    def lose(self, why: str) -> None:
        """Have this and every other rank raise RankMissing: in the exchange for which it waits, or when it calls."""
        if not self.lost:
            self.lost = why
            self._tell_others(why.encode(), _LOST)

    def _tell_others(self, data: bytes, tag: int) -> None:
        for other in range(self._size):
            if other != self._rank:
                abandoned.append(self._control.Isend([data, self._byte], other, tag))

    # --- failures

    def notify_others(self) -> None:
        """Send every other rank the notice that this one has failed, so that none waits for its messages."""
        self._tell_others(self.serial.to_bytes(8, "little"), _NOTICE)

    def _receive_notices(self) -> None:
        status, serial = self._new_status(), bytearray(8)
        while self._control.Iprobe(tag=_NOTICE, status=status):
            self._control.Recv([serial, self._byte], status.source, _NOTICE)
            self._failed = max(self._failed, int.from_bytes(serial, "little"))

    def clear_up(self) -> None:
        """Complete the collectives that the phase has left unfinished. Every rank calls it after an exchange that told of a
        failure."""
        # For each kind the number of the latest series, its ranks, and how many of its collectives this rank has started.
        of_ranks = self.exchange({kind: each.state for kind, each in self._series.items()})
        self._receive_notices()  # which a communicator that MPI makes in place of this one would get
        for kind in {kind for series in of_ranks for kind in series}:
            serial, ranks, _ = max(series[kind] for series in of_ranks if kind in series)
            states = [of_ranks[rank].get(kind, (-1, (), 0)) for rank in ranks]
            most = max(started for number, _, started in states if number == serial)
            # A rank has failed before it came so far, or while it started one. All ranks find that out here.
            if any(started < 0 or (most and number != serial) for number, _, started in states):
                self.lost = "a rank has failed while ranks began to exchange parts of matrices"
            elif self._rank in ranks:
                self._series[kind].start(most)
        for series in self._series.values():
            if not self.lost:
                series.end()

    # --- collectives

    def connect(self, kind: str, ranks: Sequence[int]) -> None:
        """Make the communicator for series of this kind between these ranks. Every rank of the team calls it right after a phase:
        MPI makes it while it waits for them."""
        from mpi4py import MPI

        order = tuple(ranks)
        color, key = (0, order.index(self._rank)) if self._rank in order else (MPI.UNDEFINED, 0)
        watch = threading.Timer(self.patience, self._end_alone)
        if self.limits is not None:  # a user's program, without a supervisor
            watch.start()
        self.comms[kind, order] = self._comm.Split(color, key)
        watch.cancel()

    def _end_alone(self) -> None:
        """End the job, by a thread, where this rank waits inside MPI for others that have left the call."""
        where = f"hybrid: rank {self._rank} on {os.uname().nodename}"
        text = with_code(f"{where}: other ranks have left a call, and this one waits for them inside MPI", "rank-missing")
        if speak(shared=True):
            os.write(2, f"{text}\n".encode())
        end_job(1)

    @property
    def patience(self) -> float:
        """Seconds of waiting for ranks that are in the same call, after which they must have left it."""
        return min(GIVEN_UP, self.limits.fail) if self.limits else math.inf

    def series(self, kind: str, ranks: Sequence[int], collectives: Iterable[Start]) -> Series | None:
        """A new series of these collectives between these ranks, in this order; None on other ranks. It is called in a phase.

        None of them is started before that phase has ended, and all of this kind that were started before are complete by then.
        Each rank may start collectives of different kinds in any order.
        """
        comm = self.comms[kind, tuple(ranks)]
        self._series.pop(kind, None)
        if comm:
            self._series[kind] = Series(self, comm, tuple(ranks), collectives)
        return self._series.get(kind)


# --- collectives of parts of matrices

Start = Callable[["MPI.Comm"], "MPI.Request"]
Matrices = Mapping[int, Sequence["np.ndarray"]]  # for each rank of a communicator those that it gets, or has sent


class Series:
    """Collectives that all ranks of a communicator start in the same order, some ahead of need.

    `collectives` may make each one when it is started. The matrices of one are kept until it is complete.
    """

    def __init__(self, messages: Messages, comm: MPI.Comm, ranks: tuple[int, ...], collectives: Iterable[Start]) -> None:
        self._messages, self._comm, self.ranks, self._waiting = messages, comm, ranks, iter(collectives)
        self._starting: Any = None  # a collective, which MPI may have begun
        self._under_way: dict[int, tuple[MPI.Request, Start]] = {}  # by number
        self.started = 0
        self.serial = messages.serial

    @property
    def state(self) -> tuple[int, tuple[int, ...], int]:
        """The phase's number, the ranks, and how many have been started; a negative number where a start has failed."""
        return self.serial, self.ranks, -1 if self._starting else self.started

    def start(self, until: int) -> None:
        """Start the collectives before number `until`, as far as there are such."""
        while self.started < until:
            self._starting = True
            following = self._starting = next(self._waiting, None)
            if following is None:
                return
            self._under_way[self.started] = following(self._comm), following
            self.started, self._starting = self.started + 1, None

    def is_complete(self, number: int) -> bool:
        """Whether this collective is complete, without waiting. MPI goes on with all that have been started."""
        self.start(number + 1)
        if number in self._under_way and self._under_way[number][0].Test():
            del self._under_way[number]
        return number not in self._under_way

    def wait_for(
        self, number: int, meanwhile: Callable[[], None] = lambda: None, computing: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until this collective is complete. PhaseEnded if a rank fails meanwhile.

        `meanwhile` is called now and then, and must not wait. `computing`: whether another thread of this rank needs its core.
        """
        self.start(number + 1)
        if number in self._under_way:
            messages = self._messages

            def look() -> None:
                meanwhile()
                messages.end_if_others_failed()

            messages.complete(
                self._under_way[number][0], lambda: _COLLECTIVE_PAUSE if computing() or not messages.within_nodes else 0.0, look
            )
            del self._under_way[number]

    def wait_until_complete(self, ahead: int = sys.maxsize) -> None:
        """Wait for all collectives that are left, and start up to `ahead` of them before the one that is waited for is complete.
        PhaseEnded if a rank fails meanwhile."""
        number = min(self._under_way, default=self.started)
        self.start(number + 1 + ahead)
        while number < self.started:
            self.wait_for(number)
            number += 1
            self.start(number + 1 + ahead)

    def end(self) -> None:
        """Wait for all collectives that have been started, after a failure; all ranks must have started the same ones."""
        for request, _ in self._under_way.values():
            self._messages.complete(request, lambda: 0.0, self._messages.refuse_lost)
        self._under_way.clear()


def broadcast(matrix: np.ndarray, root: int) -> Start:
    """Broadcast a matrix, or some columns of one, from rank `root` of the communicator."""

    def start(comm: MPI.Comm) -> MPI.Request:
        from mpi4py import MPI

        placed = _placed([matrix])
        try:
            abandoned.append(comm.Ibcast([MPI.BOTTOM, 1, placed], root))  # until `Series.start` has it, whatever happens
        finally:  # a collective that has been started keeps the datatype
            placed.Free()
        return abandoned.pop()

    return start


def exchange(sends: Matrices, receives: Matrices, own_rank: int) -> Start:
    """Send each rank its matrices in `sends`, and receive as many, of the same shapes, into those in `receives`: an all-to-all
    of matrices, which may be parts of larger ones with contiguous rows. What a rank has for itself is copied."""

    def start(comm: MPI.Comm) -> MPI.Request:
        from mpi4py import MPI

        def side(matrices: Matrices) -> tuple[list[int], list[MPI.Datatype]]:
            there = [rank != own_rank and any(each.size for each in matrices.get(rank, ())) for rank in range(comm.Get_size())]
            types = [_placed(matrices[rank]) if is_there else MPI.BYTE for rank, is_there in enumerate(there)]
            return list(map(int, there)), types

        copy_own(sends, receives, own_rank)
        (counts, types), (counts_received, types_received) = side(sends), side(receives)
        nowhere = [0] * len(counts)  # the datatypes have the addresses
        sent, received = (MPI.BOTTOM, counts, nowhere, types), (MPI.BOTTOM, counts_received, nowhere, types_received)
        try:
            abandoned.append(comm.Ialltoallw(sent, received))
        finally:  # a collective that has been started keeps the datatypes
            for made in (*types, *types_received):
                if made != MPI.BYTE:
                    made.Free()
        return abandoned.pop()

    return start


def copy_own(sends: Matrices, receives: Matrices, rank: int) -> None:
    """Copy what a rank sends to itself."""
    for into, source in zip(receives.get(rank, ()), sends.get(rank, ()), strict=True):
        into[...] = source


def _placed(matrices: Sequence[np.ndarray]) -> MPI.Datatype:
    """An MPI datatype of these matrices at their addresses."""
    from mpi4py import MPI

    lines = [MPI.BYTE.Create_hvector(len(matrix), matrix.shape[1] * matrix.itemsize, matrix.strides[0]) for matrix in matrices]
    placed = MPI.Datatype.Create_struct([1] * len(lines), [matrix.ctypes.data for matrix in matrices], lines).Commit()
    for each in lines:
        each.Free()
    return placed
