# SPDX-License-Identifier: MIT
"""What the ranks of a team send each other: objects from all to all, bytes from one to one, and notices of failure.

Every wait polls its request, so that heartbeats go to the supervisor and no rank waits for one that has failed. Messages that a
failed phase leaves unfinished are received and discarded, so that the team can go on.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from hybrid.errors import RankMissing, one_line
from hybrid.ranks.arrival import Arrivals, Limits, await_all, unusable
from hybrid.ranks.collectives import Collectives
from hybrid.ranks.heartbeat import heartbeat
from hybrid.ranks.interrupts import overdue
from hybrid.ranks.polling import let_others_run

if TYPE_CHECKING:
    from mpi4py import MPI

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
