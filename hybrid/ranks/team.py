# SPDX-License-Identifier: MIT
"""The ranks of a communicator as a team: which of them share a node, and phases in which a failure reaches every rank.

A rank that fails must not leave the others waiting. So work is done in phases: each ends with one exchange in which every
rank reports its result or its error, and if one failed, all raise. Waits inside a phase poll, so that a notice of failure
ends them. Nothing here blocks inside MPI.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hybrid.core.forks import Turn
from hybrid.core.spans import Topology
from hybrid.core.timeline import Timeline
from hybrid.errors import HybridError, code_of, one_line, rebuild
from hybrid.ranks.arrival import Limits
from hybrid.ranks.heartbeat import heartbeat, interrupted
from hybrid.ranks.interrupts import deferred
from hybrid.ranks.messages import Messages, PhaseEnded, Unsendable

if TYPE_CHECKING:
    from mpi4py import MPI


class Phase:
    """One rank's side of a phase: it sets `mine`; after the phase `all` holds the `mine` of every rank, in rank order."""

    def __init__(self, team: Team, name: str, timed: bool) -> None:
        self.mine: Any = None
        self.all: list[Any] = []
        self._team, self._name, self._timed = team, name, timed
        self._began = 0.0

    def __enter__(self) -> Phase:
        self._began = time.perf_counter()
        try:
            self._team._begin_phase(self._name)
        except BaseException as failure:  # an interrupt: the others are in this phase, and hear of it here
            self.__exit__(type(failure), failure, failure.__traceback__)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None) -> None:
        if self._timed:
            self._team.timeline.add(self._name, self._began, time.perf_counter())
        if self._team.alone:  # nobody to tell of a failure, which goes on by itself
            self.all = [self.mine]
            return
        # SystemExit and KeyboardInterrupt count as failures, too: this rank leaves, and the others would wait for it.
        with deferred():
            self._team._end_phase(self, None if isinstance(failure, PhaseEnded) else failure)


class Team:
    """The ranks of a communicator, or this process alone (`comm` is None, and MPI is not imported).

    `patience`: seconds for which a failed rank waits for the others to end the phase, before it raises alone (None: for ever).
    `limits`: of the wait for ranks that have not called, after which that is a RankMissing.
    """

    def __init__(self, comm: MPI.Comm | None = None, *, patience: float | None = None, limits: Limits | None = None) -> None:
        self.host = os.uname().nodename  # the same as socket.gethostname(), whose module takes milliseconds to import
        self.timeline = Timeline()
        self.doing = "start"
        self._when_freed: list[Callable[[], None]] = []
        self.unheard = False  # this rank failed and the others did not hear of it: it must end the job
        self._patience = patience
        self._turn = Turn()  # for one call at a time
        self._arriving = False  # the next phase is the first of a call: other ranks may not have called yet
        self._messages: Messages | None = None
        if comm is None or comm.Get_size() == 1:
            self.rank, self.size = 0, 1
            self.topology = self._real_topology = Topology(((0,),))
            return
        self._messages = Messages(comm, limits)
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.topology = self._real_topology = self._find_nodes(comm)
        self._messages.within_nodes = len(self.topology.nodes) < self.size

    def pretend_nodes(self, ranks_per_node: int) -> None:
        """Treat each `ranks_per_node` ranks of a node as a node of their own; 0: the real nodes. The same on every rank."""
        self.topology = self._real_topology.split(ranks_per_node) if ranks_per_node else self._real_topology

    def _find_nodes(self, comm: MPI.Comm) -> Topology:
        """The ranks of each node. Every rank calls it."""
        from mpi4py import MPI

        shared = comm.Split_type(MPI.COMM_TYPE_SHARED)
        all_ranks, node_ranks = comm.Get_group(), shared.Get_group()
        leader = node_ranks.Translate_ranks([0], all_ranks)[0]
        for handle in (all_ranks, node_ranks, shared):
            handle.Free()
        return Topology.from_node_names(self.messages.exchange(leader))

    @property
    def serial(self) -> int:
        """The number of the last phase: the same on every rank, and never 0."""
        return 1 + (self._messages.serial if self._messages is not None else 0)

    @property
    def alone(self) -> bool:
        """Whether no other rank takes part in the phases of this one."""
        return self._messages is None

    @property
    def messages(self) -> Messages:
        """Messages between ranks within a phase. A team of one has none."""
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
        """Name what this rank does from here on: error messages and the supervisor quote it."""
        self.doing = activity
        heartbeat(activity)

    def phase(self, name: str, *, timed: bool = True) -> Phase:
        """A context in which every rank does its part of something, and which all ranks leave together.

        If the body raised on any rank, all ranks raise: the HybridError that was raised, else RankFailed. The message names
        the first rank that failed, its host and what it did. `timed`: the phase is added to the timeline.
        """
        return Phase(self, name, timed)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A context for one call. What a rank raises in it between two phases, all ranks raise in the next phase: so every rank
        must begin one.

        Threads of a process take turns: which calls of several ranks belong together is told by their order alone.
        """
        with self._turn:
            self._arriving = True
            try:
                yield
            except BaseException as error:
                if (
                    self._messages is None
                    or (isinstance(error, HybridError) and error.on_all_ranks)
                    or self._messages.interrupted
                ):
                    raise
                with self.phase(self.doing, timed=False):
                    raise

    def _begin_phase(self, name: str) -> None:
        if self._messages is not None:
            self._messages.begin_phase()
        self.enter(name)

    def _end_phase(self, phase: Phase, failure: BaseException | None) -> None:
        assert self._messages is not None
        reports: list[Any] = []
        arriving, self._arriving = self._arriving, False
        if failure is None:
            try:
                reports = self._messages.exchange((None, phase.mine), arriving=arriving)
            except Unsendable as cannot:
                failure = cannot
        if failure is not None:
            # C code may have turned an interrupt into another error.
            said = KeyboardInterrupt() if interrupted() and not isinstance(failure, HybridError) else failure
            report = (type(said).__name__, one_line(said), code_of(said), self.host, self.doing)
            self._messages.notify_others()
            try:
                reports = self._messages.exchange((report, None), self._patience, arriving=arriving)
            except TimeoutError:
                self.unheard = True
                raise _on_all_ranks([(self.rank, report)], self.size) from failure
        failures = [(rank, failed) for rank, (failed, _) in enumerate(reports) if failed is not None]
        if failures:
            self._messages.clear_up([rank for rank, _ in failures])
            raise _on_all_ranks(failures, self.size) from failure
        phase.all = [result for _, result in reports]

    def connect(self, kind: str, ranks: Sequence[int]) -> None:
        """Have a communicator for this kind of collectives between these ranks. Every rank of the team calls it.

        MPI makes one while it waits for the ranks. So a phase comes before: when it has ended, all ranks are there, and one that
        has failed keeps no other waiting inside MPI.
        """
        collectives = self.messages.collectives
        if not collectives.is_connected(kind, ranks):
            with self.phase("prepare", timed=False):
                pass
            collectives.connect(kind, ranks)

    def leave_together(self, patience: float) -> None:
        """A barrier that waits for `patience` seconds at most; the last thing a team does."""
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


def _on_all_ranks(failures: list[tuple[int, tuple[str, str, str, str, str]]], size: int) -> HybridError:
    """The error that all ranks raise, from the reports of those that have failed."""
    error = _common_error(failures, size)
    error.on_all_ranks = True
    return error


def _common_error(failures: list[tuple[int, tuple[str, str, str, str, str]]], size: int) -> HybridError:
    rank, (kind, text, code, host, doing) = failures[0]
    if len(failures) == size and all(report[1] == text for _, report in failures):
        return rebuild(kind, text, code)  # the same on all ranks: naming one would mislead
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return rebuild(kind, f"rank {rank}{more} on {host}, {doing}: {text}", code)
