"""The ranks of a job as a team: who shares memory, what all of them said, and a failure that reaches every rank.

A rank that fails must never leave the others waiting. So work is done in phases: each ends with one exchange in which
every rank hands in its result or its error, and when one failed, all raise. Waits inside a phase are polled, so the
notice of a failure elsewhere ends them. Nothing here blocks inside MPI.
"""

from __future__ import annotations

import os
import pickle
import socket
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from hybrid import guard
from hybrid.errors import HybridError, one_line, rebuild
from hybrid.partition import Topology
from hybrid.timeline import Timeline

if TYPE_CHECKING:
    from mpi4py import MPI

_POLLS_BETWEEN_LOOKS = 100
_NOTICE = 32001  # tag on the control communicator: "I failed, come to the end of the phase"


class PhaseEnded(BaseException):
    """Raised inside a phase on a rank that waits for another which has failed; never leaves the phase."""


class Phase:
    """One rank's side of a phase: `mine` is handed in at its end, `all` then holds what every rank handed in."""

    def __init__(self) -> None:
        self.mine: Any = None
        self.all: list[Any] = []


class Team:
    """The ranks of a communicator, or this process alone (`comm` None: MPI is not even imported).

    `patience`: seconds a failed rank waits for the others to come to the end of the phase before it raises alone
    (None: as long as it takes).
    """

    def __init__(self, comm: MPI.Comm | None = None, *, patience: float | None = None) -> None:
        self.host = socket.gethostname()
        self.timeline = Timeline()
        self.doing = "start"
        self.alone = False  # this rank could not agree with the others: only ending the job is left
        self._patience = patience
        # Of the current phase, to clear up after a failure: messages counted by their other end, unfinished requests.
        self._serial = 0
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._sending: list[MPI.Request] = []
        self._receiving: list[tuple[MPI.Request, int]] = []
        self._comm: MPI.Comm | None = None
        self._control: MPI.Comm | None = None
        if comm is None or comm.Get_size() == 1:
            self.rank, self.size = 0, 1
            self.topology = self._real_topology = Topology(((0,),))
            return
        self._comm = comm.Dup()
        self._control = comm.Dup()
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.topology = self._real_topology = self._find_nodes(comm)

    def pretend_nodes(self, ranks_per_node: int) -> None:
        """Take every so many ranks for a node of their own; 0: the real nodes. The same on every rank."""
        self.topology = Topology.of_equal_nodes(self.size, ranks_per_node) if ranks_per_node else self._real_topology

    def _find_nodes(self, comm: MPI.Comm) -> Topology:
        shared = comm.Split_type(_mpi().COMM_TYPE_SHARED)
        ours, theirs = comm.Get_group(), shared.Get_group()
        leader = theirs.Translate_ranks([0], ours)[0]
        for done_with in (ours, theirs, shared):
            done_with.Free()
        return Topology.from_node_names(self._exchange(leader))

    @property
    def node(self) -> int:
        return self.topology.node_of(self.rank)

    @property
    def node_ranks(self) -> tuple[int, ...]:
        return self.topology.nodes[self.node]

    @property
    def leads_node(self) -> bool:
        return self.node_ranks[0] == self.rank

    def enter(self, activity: str) -> None:
        """Name what this rank does from here on: failures and the guard quote it."""
        self.doing = activity
        guard.beat(activity)

    @contextmanager
    def phase(self, name: str, *, timed: bool = True) -> Iterator[Phase]:
        """Do something on every rank and agree on how it went.

        Raises on all ranks if the body raised on any: the same HybridError where ranks raised one of those, else
        RankFailed; either names the rank, host and activity. The ranks leave the phase together.
        """
        phase = Phase()
        self._serial += 1
        self._sent.clear()
        self._received.clear()
        failure: BaseException | None = None
        began = time.perf_counter()
        try:
            self.enter(name)
            yield phase
        except PhaseEnded:
            pass
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: they would leave the others waiting
            failure = error
        if timed:
            self.timeline.add(name, began, time.perf_counter())
        self._end_phase(phase, failure)

    def _end_phase(self, phase: Phase, failure: BaseException | None) -> None:
        if self._comm is None:
            if failure is not None:
                raise failure
            phase.all = [phase.mine]
            return
        if failure is None:
            reports = self._exchange((None, phase.mine))
        else:
            said = (type(failure).__name__, one_line(failure), self.host, self.doing)
            self._notify_others()
            try:
                reports = self._exchange((said, None), self._patience)
            except TimeoutError:
                self.alone = True
                raise _common_error([(self.rank, said)], self.size) from failure
        failures = [(rank, report[0]) for rank, report in enumerate(reports) if report[0] is not None]
        if failures:
            self._clear_up([rank for rank, _ in failures])
            raise _common_error(failures, self.size) from failure
        phase.all = [report[1] for report in reports]

    def _notify_others(self) -> None:
        assert self._control is not None
        for other in range(self.size):
            if other != self.rank:
                self._control.Isend(b"", dest=other, tag=_NOTICE).Free()

    def _clear_up(self, failed: list[int]) -> None:
        """Take in what a broken phase left under way, so that buffers are free again and the team can go on."""
        assert self._comm is not None
        assert self._control is not None
        for rank in failed:
            if rank != self.rank:
                self._control.Recv(bytearray(0), source=rank, tag=_NOTICE)  # sent before the exchange that told us
        for request, source in self._receiving:
            request.Cancel()
            status = _mpi().Status()
            request.Wait(status)
            self._received[source] += not status.Is_cancelled()
        sent = self._exchange(dict(self._sent))
        for source, counts in enumerate(sent):
            for _ in range(counts.get(self.rank, 0) - self._received[source]):
                self._throw_away(source)
        for request in self._sending:
            self._poll(request)
        self._sending.clear()
        self._receiving.clear()

    def _throw_away(self, source: int) -> None:
        """Receive a message that was sent in this phase and is not wanted any more."""
        assert self._comm is not None
        status = _mpi().Status()
        while (message := self._comm.Improbe(source, self._tag, status)) is None:
            guard.beat()
            time.sleep(1e-4)
        self._poll(message.Irecv([bytearray(status.Get_count(_mpi().BYTE)), _mpi().BYTE]))

    def _exchange(self, mine: Any, patience: float | None = None) -> list[Any]:
        """Every rank's object, in rank order. Not ended by notices: a failed rank comes here too."""
        assert self._comm is not None
        byte = _mpi().BYTE
        deadline = None if patience is None else time.monotonic() + patience
        packed = pickle.dumps(mine, protocol=5)
        sizes = array("q", [0] * self.size)
        self._poll(self._comm.Iallgather(array("q", [len(packed)]), sizes), deadline=deadline)
        starts = [0, *accumulate(sizes)]
        everything = bytearray(starts[-1])
        self._poll(self._comm.Iallgatherv([packed, byte], [everything, sizes.tolist(), starts[:-1], byte]), deadline=deadline)
        view = memoryview(everything)
        return [pickle.loads(view[lo:hi]) for lo, hi in pairwise(starts)]

    def _poll(self, request: MPI.Request, stop: Callable[[], bool] | None = None, deadline: float | None = None) -> bool:
        """Wait for a request. False when `stop` said so first."""
        polls, pause = 0, 0.0
        while not request.Test():
            polls += 1
            if polls % _POLLS_BETWEEN_LOOKS == 0:
                guard.beat()
                if stop is not None and stop():
                    return False
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError
                if stop is None:  # ranks may compute for long before they come here: leave them the cores
                    pause = min(1e-3, 5e-5 + pause * 1.2)
            # Messages move only while MPI is called: no pause for them but letting others run.
            time.sleep(pause) if pause else os.sched_yield()
        return True

    @property
    def _tag(self) -> int:
        return self._serial % 32000  # a message of a phase that failed can never be taken for one of a later phase

    def send(self, data: Any, to: int) -> None:
        """Send a buffer of bytes to a rank that receives it in this phase; PhaseEnded if a rank fails meanwhile."""
        assert self._comm is not None
        request = self._comm.Isend([data, _mpi().BYTE], to, self._tag)
        self._sent[to] += 1
        self._sending.append(request)
        self._wait(request)
        self._sending.remove(request)

    def receive(self, into: Any, source: int) -> None:
        """Receive bytes into a buffer of exactly their size; PhaseEnded if a rank fails meanwhile."""
        assert self._comm is not None
        request = self._comm.Irecv([into, _mpi().BYTE], source, self._tag)
        self._receiving.append((request, source))
        self._wait(request)
        self._receiving.clear()
        self._received[source] += 1

    def _wait(self, request: MPI.Request) -> None:
        control = self._control
        assert control is not None
        if not self._poll(request, stop=lambda: control.Iprobe(tag=_NOTICE)):
            raise PhaseEnded

    def part(self, patience: float) -> None:
        """Wait for every rank to come here, for `patience` seconds at most; the last thing a team does."""
        if self._comm is not None:
            with suppress(TimeoutError):
                self._exchange(None, patience)

    def free(self) -> None:
        """Give the team's communicators back; every rank calls it."""
        for comm in (self._comm, self._control):
            if comm is not None:
                comm.Free()
        self._comm = self._control = None


def _mpi() -> Any:
    from mpi4py import MPI

    return MPI


def _common_error(failures: list[tuple[int, tuple[str, str, str, str]]], size: int) -> HybridError:
    rank, (kind, text, host, doing) = failures[0]
    if len(failures) == size and all(said[1] == text for _, said in failures):
        return rebuild(kind, text)  # all agree: no rank is to be named
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return rebuild(kind, f"rank {rank}{more} on {host}, {doing}: {text}")
