# SPDX-License-Identifier: MIT
"""MPI's two non-blocking collectives that move parts of matrices between ranks, a broadcast and an exchange, and series of them.

All ranks of a series start its collectives in the same order, some ahead of need. No rank waits inside MPI: a rank polls for what
it needs, and hears of other ranks' failures meanwhile. After a failure, ranks that have started fewer collectives than others
start the missing ones, so that all can end and the communicator can be used again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from hybrid.ranks.messages import Messages

# Seconds between two polls: what arrives meanwhile fits the network's buffers. But between ranks of a node MPI copies only some
# kilobytes at each poll, so there nobody sleeps who has nothing else to do.
_PAUSE = 1e-4

Start = Callable[["MPI.Comm"], "MPI.Request"]
Matrices = Mapping[int, Sequence["np.ndarray"]]  # for each rank of a communicator those that it gets, or has sent


class Collectives:
    """The collectives of a team: for each kind the latest series, on the ranks that take part."""

    def __init__(self, messages: Messages, comm: MPI.Comm) -> None:
        self._messages, self._comm = messages, comm
        self._comms: dict[tuple[str, tuple[int, ...]], MPI.Comm | None] = {}
        self._series: dict[str, Series] = {}

    def is_connected(self, kind: str, ranks: Sequence[int]) -> bool:
        """Whether there is a communicator for series of this kind between these ranks: the same on all ranks of the team, also
        on those that do not belong to it."""
        return (kind, tuple(ranks)) in self._comms

    def connect(self, kind: str, ranks: Sequence[int]) -> None:
        """Make the communicator for series of this kind between these ranks. It waits inside MPI: `Team.connect` calls it when
        all ranks are known to be there."""
        from mpi4py import MPI

        rank, order = self._comm.Get_rank(), tuple(ranks)
        color, key = (0, order.index(rank)) if rank in order else (MPI.UNDEFINED, 0)
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
            self._series[kind] = Series(self._messages, comm, collectives)
        return self._series.get(kind)

    @property
    def started(self) -> dict[str, tuple[int, int]]:
        """For each kind the phase's number of the latest series, and how many of its collectives this rank has started."""
        return {kind: (series.serial, series.started) for kind, series in self._series.items()}

    def end(self, started: Sequence[dict[str, tuple[int, int]]]) -> None:
        """After a failure, start what other ranks have started, and wait for all of it. `started[rank]`: what `started` gave
        there."""
        to_end = []
        for kind, series in self._series.items():
            latest, most = max(of_rank.get(kind, (0, 0)) for of_rank in started)
            if series.serial == latest:
                series.start(most)
                to_end.append(series)
        for series in to_end:
            series.end()

    def free(self) -> None:
        """Free the communicators. Every rank calls it."""
        for comm in filter(None, self._comms.values()):
            comm.Free()


class Series:
    """Collectives that all ranks of a communicator start in the same order.

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
            sleeps = not self._messages.within_nodes
            self._messages.complete(
                self._under_way[number][0], longest_pause=lambda: _PAUSE if sleeps or computing() else 0.0, look=meanwhile
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
        """Wait for all collectives that have been started; all ranks must have started the same ones."""
        while self._under_way:
            number = min(self._under_way)
            self._messages.complete(self._under_way[number][0], anyway=True)
            del self._under_way[number]


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
