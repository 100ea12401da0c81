"""What the ranks of a team send each other: objects from all to all, rows from one to one, and the notice of a failure.

Every wait is polled, so that a sign of life goes to the guard and a failed rank keeps nobody waiting. What a failed phase
leaves under way is received and thrown away, so that the team can go on.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import Counter
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from hybrid.errors import one_line
from hybrid.ranks import supervisor

if TYPE_CHECKING:
    from mpi4py import MPI

_NOTICE = 32001  # tag on the control communicator: "I failed, come to the end of the phase"
_POLLS_BETWEEN_LOOKS = 100
_SLOT, _LENGTH = 256, 8  # bytes of an object that its size brings along, and of the size: mostly that is all
_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
_CROWDED = 5e-4  # seconds without the core that was left to others: they do not rest
_CROWDED_FOR, _MOMENT = 0.02, 1e-5  # seconds: then it is left to them again; of a sleep until then
_crowded_until = 0.0


def let_others_run() -> None:
    """Between two looks for what another rank does.

    Beside threads that never rest, as BLAS' own for a while after each call, the core would come back after a time slice of
    milliseconds only. Whoever sleeps is woken at once.
    """
    global _crowded_until
    began = time.perf_counter()
    if began < _crowded_until:
        time.sleep(_MOMENT)
        return
    _give_way()
    if time.perf_counter() - began > _CROWDED:
        _crowded_until = began + _CROWDED_FOR


class PhaseEnded(BaseException):
    """Raised inside a phase on a rank that waits for another which has failed; never leaves the phase."""


class Unsendable(Exception):
    """What a rank hands in cannot be made a message; nothing has been sent."""


class Messages:
    """The messages of a communicator's ranks, on communicators of their own."""

    def __init__(self, comm: MPI.Comm) -> None:
        from mpi4py import MPI

        self._byte, self._new_status = MPI.BYTE, MPI.Status
        self._comm, self._control = comm.Dup(), comm.Dup()
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        # Of the current phase, to clear up after a failure: messages counted by their other end, unfinished requests.
        self.serial = 0  # of the phase, the same on every rank
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._sending: list[MPI.Request] = []
        self._receiving: list[tuple[MPI.Request, int]] = []

    def begin_phase(self) -> None:
        """Messages from here on belong to a new phase; the same on every rank."""
        self.serial += 1
        self._sent.clear()
        self._received.clear()

    @property
    def _tag(self) -> int:
        return self.serial % 32000  # a message of a phase that failed can never be taken for one of a later phase

    def send(self, data: Any, to: int) -> None:
        """Send a buffer of bytes to a rank that receives it in this phase; PhaseEnded if a rank fails meanwhile."""
        request = self._comm.Isend([data, self._byte], to, self._tag)
        self._sent[to] += 1
        self._sending.append(request)
        self._wait(request)
        self._sending.remove(request)

    def receive(self, into: Any, source: int) -> None:
        """Receive bytes into a buffer of exactly their size; PhaseEnded if a rank fails meanwhile."""
        request = self._comm.Irecv([into, self._byte], source, self._tag)
        self._receiving.append((request, source))
        self._wait(request)
        self._receiving.clear()
        self._received[source] += 1

    def end_if_others_failed(self) -> None:
        """PhaseEnded if a rank has failed in this phase."""
        if self._control.Iprobe(tag=_NOTICE):
            raise PhaseEnded

    def _wait(self, request: MPI.Request) -> None:
        if not self._poll(request, stop=lambda: self._control.Iprobe(tag=_NOTICE)):
            raise PhaseEnded

    def exchange(self, mine: Any, patience: float | None = None) -> list[Any]:
        """Every rank's object, in rank order; TimeoutError after `patience` seconds. Unsendable before anything is sent.

        Not ended by notices: a failed rank comes here too.
        """
        deadline = None if patience is None else time.monotonic() + patience
        try:
            packed = pickle.dumps(mine, protocol=5)
        except Exception as cannot:  # whatever the object's own methods raise
            raise Unsendable(f"{one_line(cannot)}, when it was made a message") from cannot
        slot = len(packed).to_bytes(_LENGTH, "little") + packed[: _SLOT - _LENGTH]
        slots = memoryview(bytearray(_SLOT * self._size))
        self._poll(self._comm.Iallgather([slot.ljust(_SLOT), self._byte], [slots, self._byte]), deadline=deadline)
        begins = range(0, len(slots), _SLOT)
        sizes = [int.from_bytes(slots[begin : begin + _LENGTH], "little") for begin in begins]
        if max(sizes) <= _SLOT - _LENGTH:
            parts = [slots[begin + _LENGTH :][:size] for begin, size in zip(begins, sizes, strict=True)]
        else:
            starts = [0, *accumulate(sizes)]
            everything = memoryview(bytearray(starts[-1]))
            into = [everything, sizes, starts[:-1], self._byte]
            self._poll(self._comm.Iallgatherv([packed, self._byte], into), deadline=deadline)
            parts = [everything[lo:hi] for lo, hi in pairwise(starts)]
        return [pickle.loads(part) for part in parts]

    def notify_others(self) -> None:
        """Tell every other rank that this one has failed: it must not wait for messages any more."""
        for other in range(self._size):
            if other != self._rank:
                self._control.Isend(b"", dest=other, tag=_NOTICE).Free()

    def clear_up(self, failed: list[int]) -> None:
        """After an exchange that told every rank which ones failed: take in what the phase left under way."""
        for rank in failed:
            if rank != self._rank:
                self._control.Recv(bytearray(0), source=rank, tag=_NOTICE)  # sent before the exchange
        for request, source in self._receiving:
            request.Cancel()
            status = self._new_status()
            request.Wait(status)
            self._received[source] += not status.Is_cancelled()
        for source, counts in enumerate(self.exchange(dict(self._sent))):
            for _ in range(counts.get(self._rank, 0) - self._received[source]):
                self._throw_away(source)
        for request in self._sending:
            self._poll(request)
        self._sending.clear()
        self._receiving.clear()

    def _throw_away(self, source: int) -> None:
        status = self._new_status()
        while (message := self._comm.Improbe(source, self._tag, status)) is None:
            supervisor.heartbeat()
            let_others_run()
        self._poll(message.Irecv([bytearray(status.Get_count(self._byte)), self._byte]))

    def _poll(self, request: MPI.Request, stop: Callable[[], bool] | None = None, deadline: float | None = None) -> bool:
        """Wait for a request. False when `stop` said so first."""
        polls, pause = 0, 0.0
        while not request.Test():
            polls += 1
            if polls % _POLLS_BETWEEN_LOOKS == 0:
                supervisor.heartbeat()
                if stop is not None and stop():
                    return False
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError
                if stop is None:  # ranks may compute for long before they come here: leave them the cores
                    pause = min(1e-3, 5e-5 + pause * 1.2)
            # Messages move only while MPI is called: no pause for them but letting others run.
            time.sleep(pause) if pause else let_others_run()
        return True

    def free(self) -> None:
        """Give the communicators back; every rank calls it."""
        self._comm.Free()
        self._control.Free()
