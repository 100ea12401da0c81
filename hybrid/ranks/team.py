# SPDX-License-Identifier: MIT
"""The ranks of a communicator as a team: which of them share a node, and phases that carry a failure to every rank.

A failed rank must not leave the others waiting, so all work happens in phases. Each phase ends with one exchange in which every
rank reports its result or its error; if one failed, all raise. Waits inside a phase poll, so that a notice of failure ends them.
A rank that fails between phases reports in the next exchange; one that leaves an exchange early tells the others that the
communicator is lost. Nothing blocks inside MPI but the creation of communicators, once all ranks are known to take part.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from hybrid.core.forks import Turn, forked_from_rank
from hybrid.core.installation import PACKAGE, fingerprint
from hybrid.core.problem import Topology, alike
from hybrid.core.timeline import Timeline
from hybrid.errors import CheckFailed, HybridError, Overflow, RankMissing, UsageError, code_of, one_line, rebuild
from hybrid.host.memory import kernel
from hybrid.ranks.heartbeat import heartbeat
from hybrid.ranks.launcher import has_come, launched
from hybrid.ranks.messages import Limits, Messages, PhaseEnded, Start, growing, unusable
from hybrid.ranks.mpi import all_processes, refuse_foreign_launcher, start_mpi_of, unname_files

if TYPE_CHECKING:
    from mpi4py import MPI


# --- Ctrl-C in a call
#
# A KeyboardInterrupt at a random moment would abandon an exchange, or start one that the others take for another.

_OVERDUE = 1.0  # seconds that an interrupt waits for the other ranks


class Interrupts:
    """One rank's interrupts. Within the body of a phase they are raised at once, and the phase's end reports them to the others.
    Elsewhere they are noted, and raised at the start of the next phase or at the end of the call."""

    def __init__(self) -> None:
        self.in_body = False  # of a phase
        self._handler: Any = None
        self._noted_at = 0.0  # when the noted interrupt came; 0: none

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context that handles interrupts this way, in the main thread; only it is interrupted."""
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._handler = handler
        try:
            signal.signal(signal.SIGINT, self._take)
            yield
        finally:
            signal.signal(signal.SIGINT, handler)

    @contextmanager
    def within_call(self) -> Iterator[None]:
        """A context for a call, which raises a noted interrupt at its end."""
        try:
            with self.held():
                yield
        finally:
            self.raise_noted()

    def _take(self, signum: int, frame: FrameType | None) -> None:
        # On entry to `Phase.__exit__` the body has ended, although `in_body` is not cleared yet.
        if self.in_body and (frame is None or frame.f_code is not Phase.__exit__.__code__):
            self._handler(signum, frame)
        else:
            self._noted_at = self._noted_at or time.monotonic()

    def raise_noted(self) -> None:
        """Raise a noted interrupt, if any."""
        if self._noted_at:
            self._noted_at = 0.0
            self._handler(signal.SIGINT, None)

    def raise_overdue(self) -> None:
        """Raise a noted interrupt that has waited too long for the other ranks."""
        if self._noted_at and time.monotonic() - self._noted_at > _OVERDUE:
            self.raise_noted()


class Phase:
    """One rank's side of a phase. Set `mine` within it; afterwards `all` holds every rank's `mine`, in rank order."""

    def __init__(self, team: Team, name: str, timed: bool, patience: float) -> None:
        """`patience`: seconds that this rank, if it fails, waits for the others to end the phase."""
        self.mine: Any = None
        self.all: list[Any] = []
        self.patience = patience
        self._team, self._name, self._timed = team, name, timed
        self._began = 0.0

    def __enter__(self) -> Phase:
        team, self._began = self._team, time.perf_counter()
        try:
            if not team.alone:
                team._interrupts.in_body = True
                team._interrupts.raise_noted()
            team.enter(self._name)
        except BaseException as failure:  # an interrupt: report it to the others, which are in this phase
            self.__exit__(type(failure), failure, failure.__traceback__)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None) -> None:
        team = self._team
        team._interrupts.in_body = False
        if self._timed:
            team.timeline.add(self._name, self._began, time.perf_counter())
        if team.alone:  # a failure simply propagates
            self.all = [self.mine]
        else:  # SystemExit and KeyboardInterrupt are failures too: the others would wait for this rank
            team._end_phase(self, None if isinstance(failure, PhaseEnded) else failure)


class Team:
    """The ranks of a communicator, or this process alone (`comm` is None; MPI is not imported).

    `patience`: seconds that a failed rank waits for the others to end the phase, before it raises alone.
    `limits`: for waiting on ranks that have not called, until RankMissing.
    """

    def __init__(self, comm: MPI.Comm | None = None, *, patience: float = math.inf, limits: Limits | None = None) -> None:
        self.host = os.uname().nodename  # as socket.gethostname(), without milliseconds for the import
        self.timeline = Timeline()
        self.doing = "start"
        self.when_freed: list[Callable[[], None]] = []  # called on every rank when the team's communicators are freed
        self._patience = patience
        self._turn = Turn()  # allows one call at a time
        self._interrupts = Interrupts()
        self._arriving = False  # the next phase is the first of a call: other ranks may not have called yet
        self._messages: Messages | None = None
        self.has_failed = False  # a call has failed: the state that ranks keep between calls may differ
        self._calling = False
        self._other_code = ""  # a message, if some rank runs other code of this package
        if comm is None or comm.Get_size() == 1:
            self.rank, self.size = 0, 1
            self.topology = self._real_topology = Topology(((0,),))
            return
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        with self._interrupts.held():  # the first phase of the call raises them
            self._messages = Messages(comm, limits, self._interrupts)
            self.topology = self._real_topology = self._find_nodes()
        self._messages.within_nodes = len(self.topology.nodes) < self.size

    def pretend_nodes(self, ranks_per_node: int) -> None:
        """Treat each group of `ranks_per_node` ranks of a node as a node; 0: use the real nodes. The same on every rank."""
        self.topology = self._real_topology.split(ranks_per_node) if ranks_per_node else self._real_topology

    def _find_nodes(self) -> Topology:
        """The ranks of each node. Collective."""
        descriptions = self.messages.exchange((self.host, str(PACKAGE), fingerprint(), _node()), arriving=True)
        host, folder, code, _ = descriptions[0]
        for rank, (other_host, other_folder, other, _) in enumerate(descriptions):
            if other != code and not self._other_code:
                self._other_code = (
                    f"rank {rank} on {other_host} runs other code of this package, in {other_folder}, than rank 0 on {host}, "
                    f"in {folder}: install the same version for all"
                )
        return Topology(alike(node for *_, node in descriptions))

    def refuse_other_code(self) -> None:
        """UsageError on all ranks if some rank runs other code of this package than rank 0."""
        if self._other_code:
            raise UsageError(self._other_code, code="ranks-differ")

    @property
    def serial(self) -> int:
        """The number of the last phase: the same on every rank, never 0."""
        return 1 + (self._messages.serial if self._messages is not None else 0)

    @property
    def alone(self) -> bool:
        return self._messages is None

    @property
    def messages(self) -> Messages:
        """Messages between ranks within a phase. Not for a team of one."""
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
        """Name this rank's current activity, for error messages and the supervisor."""
        self.doing = activity
        heartbeat(activity)

    def refuse_no_rank(self, root: Any) -> None:
        """UsageError unless `root` is the number of a rank."""
        if type(root) is not int or not 0 <= root < self.size:
            raise UsageError(f"root {root!r} is not a rank of a communicator of {self.size}", code="root")

    def phase(self, name: str, *, timed: bool = True) -> Phase:
        """A context in which every rank does its part of some work, and which all ranks leave together.

        If the body raises on any rank, all ranks raise: the same HybridError, or RankFailed for other exceptions. The message
        names the first failed rank, its host and its activity. `timed`: add the phase to the timeline.
        """
        return Phase(self, name, timed, self._patience)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A context for one call, in which all ranks of the team pass through the same phases.

        A rank that fails between phases takes part in the next exchange with its error, and all ranks raise; if the others do not
        come, the communicator is lost. Threads take turns, since calls of several ranks are matched by their order alone.
        """
        with self._turn:
            if self._messages is None:
                yield
                return
            self._arriving = True
            self.has_failed, self._calling = self.has_failed or self._calling, True  # until it has succeeded
            with self._interrupts.within_call():
                try:
                    try:
                        yield
                    except BaseException as error:
                        self._fail(error)
                except (UsageError, CheckFailed, Overflow) as refused:
                    self._calling = not refused.on_all_ranks  # if on all, the ranks' states still match
                    raise
                self._calling = False

    def _fail(self, error: BaseException) -> NoReturn:
        """Raise the error of a call on all ranks; only here if the others know it already."""
        messages = self.messages
        self._interrupts.in_body = False
        if messages.lost or (isinstance(error, HybridError) and error.on_all_ranks):
            raise error
        patience = self._patience if self._arriving else min(self._patience, messages.patience)
        self._end_phase(Phase(self, self.doing, False, patience), error)
        raise AssertionError("a phase has ended well that has failed")

    def _end_phase(self, phase: Phase, failure: BaseException | None) -> None:
        messages, reports = self.messages, []
        arriving, self._arriving = self._arriving, False
        if failure is None:
            reports = messages.exchange((None, phase.mine), arriving=arriving)
        else:
            # C code may turn an interrupt into another error.
            cause = KeyboardInterrupt() if has_come(signal.SIGINT) and not isinstance(failure, HybridError) else failure
            report = (type(cause).__name__, one_line(cause), code_of(cause), self.host, self.doing)
            messages.notify_others()
            alone = _joint_error([(self.rank, report)], self.size, on_all_ranks=False)
            try:
                reports = messages.exchange((report, None), phase.patience, arriving=arriving, why=str(alone))
            except TimeoutError:
                raise alone from failure
        failures = [(rank, failed) for rank, (failed, _) in enumerate(reports) if failed is not None]
        if failures:
            messages.clear_up()
            raise _joint_error(failures, self.size, on_all_ranks=True) from failure
        phase.all = [result for _, result in reports]

    def connect(self, kind: str, ranks: Sequence[int]) -> None:
        """Ensure a communicator for this kind of collectives between these ranks. Collective over the team.

        MPI blocks until all ranks come, so a phase precedes it to ensure that they do.
        """
        if (kind, tuple(ranks)) not in self.messages.comms:
            with self.phase("prepare", timed=False):
                pass
            self.messages.connect(kind, ranks)

    def carry_out(
        self, phase: str, kind: str, ranks: Sequence[int], collectives: Iterable[Start], ahead: int = 1, *, timed: bool = True
    ) -> None:
        """Carry out collectives of these ranks, up to `ahead` of them started early. Collective over the team."""
        self.connect(kind, ranks)
        with self.phase(phase, timed=False):
            series = self.messages.series(kind, ranks, collectives)
        with self.phase(phase, timed=timed):
            if series is not None:
                series.wait_until_complete(ahead)

    def leave_together(self, patience: float) -> None:
        """A final barrier that waits at most `patience` seconds."""
        if self._messages is not None:
            with suppress(TimeoutError):
                self._messages.exchange(None, patience)

    def free(self) -> None:
        """Free the team's communicators. Collective."""
        while self.when_freed:
            self.when_freed.pop()()
        if self._messages is not None:
            self._messages.free()
            self._messages = None


def _node() -> tuple[str, str, int]:
    """Identifies ranks that can share memory: the machine's name, its kernel's boot, and the network namespace of the socket that
    carries the memory's descriptor, which differs between some containers."""
    namespace = Path("/proc/self/ns/net")
    return os.uname().nodename, kernel(), namespace.stat().st_ino if namespace.exists() else 0


def _joint_error(failures: list[tuple[int, tuple[str, str, str, str, str]]], size: int, *, on_all_ranks: bool) -> HybridError:
    """The error that all ranks raise, from the failed ranks' reports."""
    rank, (kind, text, code, host, doing) = failures[0]
    # Name a rank, unless all report the same.
    if not (len(failures) == size and all(report[1] == text for _, report in failures)):
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        text = f"rank {rank}{more} on {host}, {doing}: {text}"
    error = rebuild(kind, text, code)
    error.on_all_ranks = on_all_ranks
    return error


# --- the teams of communicators

_keyval: int | None = None  # of the attribute by which MPI attaches `_Attached` to a communicator
_attaching = threading.Lock()


class _Attached:
    """Attached to a communicator: its team, or why it has none."""

    def __init__(self) -> None:
        self.team: Team | None = None
        self.unusable = ""
        self.turn = Turn()  # for constructing the team, where ranks wait for each other


def is_alone(comm: Any) -> bool:
    """Whether a communicator consists of this process alone."""
    from mpi4py import MPI

    usable = isinstance(comm, MPI.Intracomm) and comm != MPI.COMM_NULL and not MPI.Is_finalized() and not forked_from_rank()
    return usable and comm.Get_size() == 1 and team_of(comm) is _team_of_one()


def team_of(comm: Any, stall: Any = None) -> Team:
    """The team of a user's communicator, created at the first call and freed with the communicator.

    `stall`: seconds until this call names ranks that have not called; None: from HYBRID_STALL.
    """
    if comm is None:
        return _team_of_one()
    from mpi4py import MPI

    if isinstance(comm, MPI.Comm) and comm == MPI.COMM_NULL:
        raise UsageError("comm is MPI.COMM_NULL: it was freed, or this process does not belong to it", code="communicator")
    if not isinstance(comm, MPI.Intracomm):
        raise UsageError(f"comm must be an mpi4py intracommunicator or None, not {type(comm).__name__}", code="communicator")
    if MPI.Is_finalized():
        raise UsageError("MPI has been finalized: comm cannot be used any more", code="communicator")
    if forked_from_rank():
        raise UsageError(
            "this process was forked from a rank, and MPI does not work in it: leave out comm to compute here alone",
            code="communicator",
        )
    if MPI.Comm.Compare(comm, MPI.COMM_WORLD) == MPI.IDENT:
        refuse_foreign_launcher(comm)
    if comm.Get_size() == 1:
        return _team_of_one()
    entry = _attached_to(comm)
    with entry.turn:
        if entry.team is None and not entry.unusable:
            try:
                entry.team = Team(comm, limits=Limits.of(stall))
            except BaseException as error:  # including interrupts: the other ranks may be anywhere in the constructor
                entry.unusable = str(error) if isinstance(error, HybridError) else f"its first call was ended: {one_line(error)}"
                if not isinstance(error, RankMissing):
                    raise
    if entry.team is None:
        raise unusable(entry.unusable)
    entry.team.refuse_other_code()
    entry.team.messages.limits = Limits.of(stall)
    return entry.team


def _attached_to(comm: MPI.Comm) -> _Attached:
    """The communicator's attribute on this rank, created if missing. Local."""
    global _keyval
    from mpi4py import MPI

    with _attaching:
        if _keyval is None:
            _keyval = MPI.Comm.Create_keyval(delete_fn=_free_team)
        entry: Any = comm.Get_attr(_keyval)
        if entry is None:
            entry = _Attached()
            comm.Set_attr(_keyval, entry)
        return entry


@cache
def _team_of_one() -> Team:
    """One team for all calls, since its session keeps a device between calls."""
    return Team()


def _free_team(comm: MPI.Comm, keyval: int, entry: _Attached) -> None:
    if entry.team is not None:
        entry.team.free()


# --- the job


def start_world(*, patience: float = math.inf) -> Team:
    """The team of all ranks of this job. Starts MPI only if a launcher started this process.

    StartError if MPI cannot start, or sees another number of processes than the launcher started.
    """
    launch = launched()
    if launch is None:
        return Team()
    start_mpi_of(launch)
    team = Team(all_processes(), patience=patience)
    unname_files()
    return team


def world_communicator(team: Team) -> MPI.Comm | None:
    """The communicator of `start_world`'s team, for `hybrid.multiply`; None for a process alone."""
    return None if team.size == 1 else all_processes()


# --- requests of the root, for which the other ranks wait at almost no cost

_LONGEST = 2e-2  # seconds: longest pause between polls


class Requests:
    """The requests of a communicator's root. Construction and `free` are collective."""

    def __init__(self, comm: MPI.Comm, root: int) -> None:
        self._team, self._comm, self._root = team_of(comm), comm.Dup(), root

    def send(self, request: Any) -> None:
        """At the root: send a request to all other ranks."""
        for rank in range(self._team.size):
            if rank != self._root:
                self._comm.send(request, rank)

    def receive(self) -> Any:
        """On the other ranks: wait for the next request."""
        self._team.enter("wait for requests")
        self._team.messages.wait_until(lambda: self._comm.Iprobe(self._root), growing(_LONGEST), lambda: None)
        return self._comm.recv(source=self._root)

    def free(self) -> None:
        self._comm.Free()
