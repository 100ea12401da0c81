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
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, count, pairwise
from typing import TYPE_CHECKING, Any

from hybrid.errors import RankMissing, one_line
from hybrid.ranks.arrivals import Arrivals, Limits, abandoned, duplicate, unusable
from hybrid.ranks.heartbeat import heartbeat
from hybrid.ranks.interrupts import Interrupts

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

# Tags on the control communicator: "I failed, come to the end of the phase"; "I do not wait any more", with the error's text.
_NOTICE, _GAVE_UP = 32001, 32003
_POLLS_BETWEEN_CHECKS = 100  # then a heartbeat is sent, and notices and deadlines are looked at
# `exchange` starts with one Allgather of a slot per rank: the size of its object, and the object itself where it fits.
_SLOT, _LENGTH = 256, 8  # bytes of a slot, and of the size in it
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

        self._byte, self._new_status, self.limits = MPI.BYTE, MPI.Status, limits
        self._comm = duplicate(comm, limits) if limits else comm.Dup()
        self._control = comm.Dup()
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        self._interrupts = interrupts
        self.lost = ""  # why this communicator cannot be used any more: an exchange has not ended, so the ranks are out of step
        self.within_nodes = True  # whether ranks share a node, when `Team` has found out
        self.serial = 0  # the current phase's number, the same on every rank
        self._comms: dict[tuple[str, tuple[int, ...]], MPI.Comm | None] = {}  # of collectives, by kind and ranks
        self._series: dict[str, Series] = {}  # the latest of each kind, on the ranks that take part

    def begin_phase(self) -> None:
        """Every rank calls it when it begins a phase."""
        self.serial += 1

    def free(self) -> None:
        """Free the communicators; every rank calls it."""
        for comm in (*self._comms.values(), self._comm, self._control):
            if comm is not None:
                comm.Free()

    # --- waiting

    def end_if_others_failed(self) -> None:
        """PhaseEnded if a rank has failed in this phase."""
        if self._control.Iprobe(tag=_NOTICE) or self._control.Iprobe(tag=_GAVE_UP):
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

    def exchange(self, mine: Any, patience: float = math.inf, *, arriving: bool = False) -> list[Any]:
        """Every rank's object, in the order of the ranks (an Allgather). TimeoutError after `patience` seconds.

        Unsendable before anything is sent. Notices of failure do not end it, since failed ranks call it, too. `arriving`: other
        ranks may not have called yet; RankMissing where they do not for too long. An interrupt that waits too long is raised. An
        exchange that did not end is the last: every later call is a RankMissing.
        """
        arrivals = Arrivals(self._control, self.serial, self.limits) if arriving and self.limits else None

        def look() -> None:
            self._refuse_lost()
            if self._interrupts.overdue:
                self._interrupts.raise_noted()
            if arrivals is not None:
                arrivals.look()

        def gather(request: MPI.Request, *buffers: Any) -> None:
            try:
                self.complete(request, lambda: _EXCHANGE_PAUSE, look, deadline)
            except BaseException as error:
                abandoned.append((request, buffers))
                if isinstance(error, RankMissing):
                    self._give_up(str(error))
                self.lost = self.lost or "an exchange with the other ranks was interrupted"
                raise

        self._refuse_lost()
        deadline = time.monotonic() + patience
        try:
            packed = pickle.dumps(mine, protocol=5)
        except Exception as cannot:  # whatever the object's own methods raise
            raise Unsendable(f"{one_line(cannot)}, when it was pickled for the other ranks") from cannot
        slot = (len(packed).to_bytes(_LENGTH, "little") + packed[: _SLOT - _LENGTH]).ljust(_SLOT)
        slots = memoryview(bytearray(_SLOT * self._size))
        gather(self._comm.Iallgather([slot, self._byte], [slots, self._byte]), slot, slots)
        begins = range(0, len(slots), _SLOT)
        sizes = [int.from_bytes(slots[begin : begin + _LENGTH], "little") for begin in begins]
        if max(sizes) <= _SLOT - _LENGTH:
            parts = [slots[begin + _LENGTH :][:size] for begin, size in zip(begins, sizes, strict=True)]
        else:  # some object does not fit its slot: all are sent again, whole
            arrivals, starts = None, [0, *accumulate(sizes)]
            received = memoryview(bytearray(starts[-1]))
            gather(self._comm.Iallgatherv([packed, self._byte], [received, sizes, starts[:-1], self._byte]), packed, received)
            parts = [received[lo:hi] for lo, hi in pairwise(starts)]
        return [pickle.loads(part) for part in parts]

    def _refuse_lost(self) -> None:
        """RankMissing where this or some other rank has left an exchange that had not ended."""
        status = self._new_status()
        if not self.lost and self._control.Iprobe(tag=_GAVE_UP, status=status):
            text = bytearray(status.Get_count(self._byte))
            self._control.Recv([text, self._byte], status.source, _GAVE_UP)
            self.lost = text.decode()
        if self.lost:
            raise unusable(self.lost) from None

    def _give_up(self, why: str) -> None:
        """Have this and every other rank raise RankMissing, now or when it calls."""
        if not self.lost:
            self.lost = why
            for other in range(self._size):
                if other != self._rank:
                    abandoned.append((why, self._control.Isend([why.encode(), self._byte], dest=other, tag=_GAVE_UP)))
        raise unusable(self.lost) from None

    # --- failures

    def notify_others(self) -> None:
        """Send every other rank the notice that this one has failed, so that none waits for its messages."""
        for other in range(self._size):
            if other != self._rank:
                self._control.Isend(b"", dest=other, tag=_NOTICE).Free()

    def clear_up(self, failed: list[int]) -> None:
        """Complete the collectives that the phase has left unfinished. To be called after an exchange that named the `failed`
        ranks."""
        for rank in failed:
            if rank != self._rank:
                self._control.Recv(bytearray(0), source=rank, tag=_NOTICE)  # was sent before the exchange
        # For each kind the phase's number of the latest series, and how many of its collectives each rank has started.
        of_ranks = self.exchange({kind: (series.serial, series.started) for kind, series in self._series.items()})
        to_end = []
        for kind, series in self._series.items():
            latest, most = max(started.get(kind, (0, 0)) for started in of_ranks)
            if series.serial == latest:
                series.start(most)
                to_end.append(series)
        for series in to_end:
            series.end()

    # --- collectives

    def is_connected(self, kind: str, ranks: Sequence[int]) -> bool:
        """Whether there is a communicator for series of this kind between these ranks: the same on all ranks of the team, also
        on those that do not belong to it."""
        return (kind, tuple(ranks)) in self._comms

    def connect(self, kind: str, ranks: Sequence[int]) -> None:
        """Make the communicator for series of this kind between these ranks. It waits inside MPI: `Team.connect` calls it when
        all ranks are known to be there."""
        from mpi4py import MPI

        order = tuple(ranks)
        color, key = (0, order.index(self._rank)) if self._rank in order else (MPI.UNDEFINED, 0)
        made = self._comm.Split(color, key)
        self._comms[kind, order] = None if made == MPI.COMM_NULL else made

    def series(self, kind: str, ranks: Sequence[int], collectives: Iterable[Start]) -> Series | None:
        """A new series of these collectives between these ranks, in this order; None on other ranks. It is called in a phase.

        None of them is started before that phase has ended, and all of this kind that were started before are complete by then.
        Each rank may start collectives of different kinds in any order.
        """
        comm = self._comms[kind, tuple(ranks)]
        self._series.pop(kind, None)
        if comm is not None:
            self._series[kind] = Series(self, comm, collectives)
        return self._series.get(kind)


# --- collectives of parts of matrices

Start = Callable[["MPI.Comm"], "MPI.Request"]
Matrices = Mapping[int, Sequence["np.ndarray"]]  # for each rank of a communicator those that it gets, or has sent


class Series:
    """Collectives that all ranks of a communicator start in the same order, some ahead of need.

    `collectives` may make each one when it is started. The matrices of one are kept until it is complete.
    """

    def __init__(self, messages: Messages, comm: MPI.Comm, collectives: Iterable[Start]) -> None:
        self._messages, self._comm, self._waiting = messages, comm, iter(collectives)
        self._next: Start | None = None
        self._under_way: dict[int, tuple[MPI.Request, Start]] = {}  # by number
        self.started = 0
        self.serial = messages.serial

    def start(self, until: int) -> None:
        """Start the collectives before number `until`, as far as there are such."""
        while self.started < until:
            self._next = self._next or next(self._waiting, None)
            if self._next is None:
                return
            self._under_way[self.started] = self._next(self._comm), self._next
            self._next = None  # one whose start has failed stays the next: `end` has to start it
            self.started += 1

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
                self._under_way[number][0],
                lambda: _COLLECTIVE_PAUSE if computing() or not messages.within_nodes else 0.0,
                look,
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
            self._messages.complete(request, lambda: 0.0, lambda: None)
        self._under_way.clear()


def broadcast(matrix: np.ndarray, root: int) -> Start:
    """Broadcast a matrix, or some columns of one, from rank `root` of the communicator."""

    def start(comm: MPI.Comm) -> MPI.Request:
        from mpi4py import MPI

        size, stride = matrix.shape[1] * matrix.itemsize, matrix.strides[0]
        contiguous = MPI.BYTE.Create_contiguous(size)
        row = contiguous.Create_resized(0, stride).Commit()  # rows need not be contiguous with the next
        memory = MPI.buffer.fromaddress(matrix.ctypes.data, max(0, (len(matrix) - 1) * stride + size))
        try:
            return comm.Ibcast([memory, len(matrix), row], root)
        finally:  # a collective that has been started keeps the datatype
            row.Free()
            contiguous.Free()

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
        try:
            return comm.Ialltoallw((MPI.BOTTOM, counts, nowhere, types), (MPI.BOTTOM, counts_received, nowhere, types_received))
        finally:  # a collective that has been started keeps the datatypes
            for made in (*types, *types_received):
                if made != MPI.BYTE:
                    made.Free()

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
