"""The ranks of a job as a team: who shares memory, what all of them said, and a failure that reaches every rank.

A rank that fails must never leave the others waiting. So work is done in phases: each ends with one exchange in which
every rank hands in its result or its error, and when one failed, all raise. Waits inside a phase are polled, so the
notice of a failure elsewhere ends them. Nothing here blocks inside MPI.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hybrid.core.spans import Topology
from hybrid.core.timeline import Timeline
from hybrid.errors import HybridError, one_line, rebuild
from hybrid.ranks import supervisor
from hybrid.ranks.messages import Messages, PhaseEnded, Unsendable

if TYPE_CHECKING:
    from mpi4py import MPI


class Phase:
    """One rank's side of a phase: `mine` is handed in at its end, `all` then holds what every rank handed in."""

    def __init__(self, team: Team, name: str, timed: bool) -> None:
        self.mine: Any = None
        self.all: list[Any] = []
        self._team, self._name, self._timed = team, name, timed
        self._began = 0.0

    def __enter__(self) -> Phase:
        self._team._begin_phase(self._name)
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None) -> None:
        if self._timed:
            self._team.timeline.add(self._name, self._began, time.perf_counter())
        # SystemExit and KeyboardInterrupt are failures too: they would leave the others waiting.
        self._team._end_phase(self, None if isinstance(failure, PhaseEnded) else failure)


class Team:
    """The ranks of a communicator, or this process alone (`comm` None: MPI is not even imported).

    `patience`: seconds a failed rank waits for the others to come to the end of the phase before it raises alone
    (None: as long as it takes).
    """

    def __init__(self, comm: MPI.Comm | None = None, *, patience: float | None = None) -> None:
        self.host = socket.gethostname()
        self.timeline = Timeline()
        self.doing = "start"
        self._when_freed: list[Callable[[], None]] = []
        self.alone = False  # this rank could not agree with the others: only ending the job is left
        self._patience = patience
        self._messages: Messages | None = None
        if comm is None or comm.Get_size() == 1:
            self.rank, self.size = 0, 1
            self.topology = self._real_topology = Topology(((0,),))
            return
        self._messages = Messages(comm)
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.topology = self._real_topology = self._find_nodes(comm)

    def pretend_nodes(self, ranks_per_node: int) -> None:
        """Take every so many ranks of a node for a node of their own; 0: the real nodes. The same on every rank."""
        self.topology = self._real_topology.split(ranks_per_node) if ranks_per_node else self._real_topology

    def _find_nodes(self, comm: MPI.Comm) -> Topology:
        from mpi4py import MPI

        shared = comm.Split_type(MPI.COMM_TYPE_SHARED)
        ours, theirs = comm.Get_group(), shared.Get_group()
        leader = theirs.Translate_ranks([0], ours)[0]
        for done_with in (ours, theirs, shared):
            done_with.Free()
        return Topology.from_node_names(self.messages.exchange(leader))

    @property
    def serial(self) -> int:
        """Of the last phase that exchanged anything: the same on every rank, and never 0."""
        return 1 + (self._messages.serial if self._messages is not None else 0)

    @property
    def messages(self) -> Messages:
        """For what ranks send each other within a phase. A process alone has none."""
        assert self._messages is not None
        return self._messages

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
        supervisor.heartbeat(activity)

    def phase(self, name: str, *, timed: bool = True) -> Phase:
        """Do something on every rank and agree on how it went.

        Raises on all ranks if the body raised on any: the same HybridError where ranks raised one of those, else
        RankFailed; either names the rank, host and activity. The ranks leave the phase together.
        """
        return Phase(self, name, timed)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What a rank raises in here between phases, all raise: in the next phase. So one must follow on every rank."""
        try:
            yield
        except BaseException as error:
            if self._messages is None or (isinstance(error, HybridError) and error.on_all_ranks):
                raise
            with self.phase(self.doing, timed=False):
                raise

    def _begin_phase(self, name: str) -> None:
        if self._messages is not None:
            self._messages.begin_phase()
        self.enter(name)

    def _end_phase(self, phase: Phase, failure: BaseException | None) -> None:
        if self._messages is None:  # a failure goes on by itself
            phase.all = [phase.mine]
            return
        reports: list[Any] = []
        if failure is None:
            try:
                reports = self._messages.exchange((None, phase.mine))
            except Unsendable as cannot:
                failure = cannot
        if failure is not None:
            said = (type(failure).__name__, one_line(failure), self.host, self.doing)
            self._messages.notify_others()
            try:
                reports = self._messages.exchange((said, None), self._patience)
            except TimeoutError:
                self.alone = True
                raise _on_all_ranks([(self.rank, said)], self.size) from failure
        failures = [(rank, report[0]) for rank, report in enumerate(reports) if report[0] is not None]
        if failures:
            self._messages.clear_up([rank for rank, _ in failures])
            raise _on_all_ranks(failures, self.size) from failure
        phase.all = [report[1] for report in reports]

    def part(self, patience: float) -> None:
        """Wait for every rank to come here, for `patience` seconds at most; the last thing a team does."""
        if self._messages is not None:
            with suppress(TimeoutError):
                self._messages.exchange(None, patience)

    def when_freed(self, close: Callable[[], None]) -> None:
        """Have this called when the team's communicators are given back, on every rank."""
        self._when_freed.append(close)

    def free(self) -> None:
        """Give the team's communicators back; every rank calls it."""
        for close in self._when_freed:
            close()
        self._when_freed.clear()
        if self._messages is not None:
            self._messages.free()
            self._messages = None


def _on_all_ranks(failures: list[tuple[int, tuple[str, str, str, str]]], size: int) -> HybridError:
    error = _common_error(failures, size)
    error.on_all_ranks = True
    return error


def _common_error(failures: list[tuple[int, tuple[str, str, str, str]]], size: int) -> HybridError:
    rank, (kind, text, host, doing) = failures[0]
    if len(failures) == size and all(said[1] == text for _, said in failures):
        return rebuild(kind, text)  # all agree: no rank is to be named
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return rebuild(kind, f"rank {rank}{more} on {host}, {doing}: {text}")
