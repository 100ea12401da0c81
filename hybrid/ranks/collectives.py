# SPDX-License-Identifier: MIT
"""MPI's non-blocking collectives between some ranks of a team, in series: each rank starts them in the same order, some ahead.

Nobody waits inside MPI: whoever needs a result polls for it, and hears of other ranks' failures meanwhile. After a failure the
ranks that have started fewer start the others as well, so that all can end and the communicator can be used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hybrid.core.spans import Span

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from hybrid.ranks.messages import Messages

_PAUSE = 1e-4  # seconds between two polls, while others multiply: what arrives meanwhile fits the network's buffers

Start = Callable[["MPI.Comm"], "MPI.Request"]


class Collectives:
    """Those of a team: of each kind the latest series, in the ranks that take part."""

    def __init__(self, messages: Messages, comm: MPI.Comm) -> None:
        self._messages, self._comm = messages, comm
        self._comms: dict[tuple[str, tuple[int, ...]], MPI.Comm | None] = {}
        self._series: dict[str, Series] = {}

    def series(self, kind: str, ranks: Sequence[int], collectives: Sequence[Start]) -> Series | None:
        """A new one between these ranks, in this order; None on the others. Every rank of the team calls it, in a phase.

        Nothing is started before that phase has ended, and all of this kind that was started before is complete. In which order
        collectives of different kinds are started is up to each rank.
        """
        comm = self._between(kind, tuple(ranks))
        self._series.pop(kind, None)
        if comm is not None:
            self._series[kind] = Series(self._messages, comm, collectives)
        return self._series.get(kind)

    def _between(self, kind: str, ranks: tuple[int, ...]) -> MPI.Comm | None:
        if (kind, ranks) not in self._comms:
            from mpi4py import MPI

            rank = self._comm.Get_rank()
            color, key = (0, ranks.index(rank)) if rank in ranks else (MPI.UNDEFINED, 0)
            made = self._comm.Split(color, key)
            self._comms[kind, ranks] = None if made == MPI.COMM_NULL else made
        return self._comms[kind, ranks]

    @property
    def started(self) -> dict[str, tuple[int, int]]:
        """Of each kind's latest series: its phase's number, and how many collectives this rank has started."""
        return {kind: (series.serial, series.started) for kind, series in self._series.items()}

    def end(self, started: Sequence[dict[str, tuple[int, int]]]) -> None:
        """After a failure: start what other ranks have started, and wait for all. `started[rank]`."""
        to_end = []
        for kind, series in self._series.items():
            latest, most = max(of_rank.get(kind, (0, 0)) for of_rank in started)
            if series.serial == latest:
                series.start(most)
                to_end.append(series)
        for series in to_end:
            series.end()

    def free(self) -> None:
        """Every rank calls it."""
        for comm in filter(None, self._comms.values()):
            comm.Free()


class Series:
    """The same on all ranks of the communicator."""

    def __init__(self, messages: Messages, comm: MPI.Comm, collectives: Sequence[Start]) -> None:
        self._messages, self._comm, self._collectives = messages, comm, collectives
        self._requests: list[MPI.Request] = []
        self.serial = messages.serial

    @property
    def started(self) -> int:
        return len(self._requests)

    def start(self, until: int) -> None:
        """All before number `until` that there are."""
        for collective in self._collectives[len(self._requests) : until]:
            self._requests.append(collective(self._comm))

    def is_complete(self, number: int) -> bool:
        """Without waiting. MPI goes on with all that have been started."""
        self.start(number + 1)
        return self._requests[number].Test()

    def wait_for(self, number: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Until it is complete; PhaseEnded if a rank fails meanwhile. `meanwhile` is called now and then, and must not wait."""
        self.start(number + 1)
        self._messages.complete(self._requests[number], longest_pause=_PAUSE, look=meanwhile)

    def end(self) -> None:
        """Wait for all that have been started, on all ranks."""
        for request in self._requests:
            self._messages.complete(request, anyway=True)


def row_broadcast(matrix: np.ndarray, root: int) -> Start:
    """Broadcast a matrix, or some columns of one, from rank `root` of the communicator."""

    def start(comm: MPI.Comm) -> MPI.Request:
        with _rows_of(matrix) as (buffer, row):
            return comm.Ibcast([buffer, len(matrix), row], root)

    return start


def row_allgather(matrix: np.ndarray, rows: Sequence[Span]) -> Start:
    """Gather a matrix, or some columns of one, on all ranks, each of which has `rows[rank]` of it in place."""

    def start(comm: MPI.Comm) -> MPI.Request:
        from mpi4py import MPI

        with _rows_of(matrix) as (buffer, row):
            counts, displacements = [len(each) for each in rows], [each.lo for each in rows]
            return comm.Iallgatherv(MPI.IN_PLACE, [buffer, counts, displacements, row])

    return start


def row_gather(matrix: np.ndarray, rows: Sequence[Span], root: int) -> Start:
    """Gather a matrix, or some columns of one, at rank `root`, where `matrix` is all of it and its own rows are in place; on the
    others it is their `rows[rank]`."""

    def start(comm: MPI.Comm) -> MPI.Request:
        from mpi4py import MPI

        with _rows_of(matrix) as (buffer, row):
            if comm.Get_rank() != root:
                return comm.Igatherv([buffer, len(matrix), row], None, root)
            counts, displacements = [len(each) for each in rows], [each.lo for each in rows]
            return comm.Igatherv(MPI.IN_PLACE, [buffer, counts, displacements, row], root)

    return start


@contextmanager
def _rows_of(matrix: np.ndarray) -> Iterator[tuple[MPI.buffer, MPI.Datatype]]:
    """A matrix' memory, and the datatype of one of its rows, which need not be contiguous with the next."""
    from mpi4py import MPI

    size, stride = matrix.shape[1] * matrix.itemsize, matrix.strides[0]
    contiguous = MPI.BYTE.Create_contiguous(size)
    row = contiguous.Create_resized(0, stride).Commit()
    try:
        yield MPI.buffer.fromaddress(matrix.ctypes.data, max(0, (len(matrix) - 1) * stride + size)), row
    finally:  # what has been started keeps it
        row.Free()
        contiguous.Free()
