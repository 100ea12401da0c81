# SPDX-License-Identifier: MIT
"""What the ranks of a team keep from one product to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid.arrays.interop import SharedArrays
from hybrid.core.problem import record
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.core.timeline import wall
from hybrid.devices.cuda_gpus import Gpu, callers_context, gpu_context
from hybrid.kernels.catalogue import Kernel
from hybrid.planning.plan import Plan
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team
from hybrid.selection.decision import Decision, ProductRequest, Unknown, decide
from hybrid.selection.machine import Inventory, Machine, Test, free_memory_of
from hybrid.transport.rank_device import RankDevice, device_key, prepare_rank_device

TOO_OFTEN = 2  # a rank whose device made so many products wrong is left out of the next


@record
class Remembered:
    """A decision that may be taken again for the same kind of product."""

    serial: int  # of the team's last phase when it was made: the same on every rank
    asked: Any  # what it was made from
    decision: Decision
    memory_version: int  # of the rank device: the decision holds while its reserved memory is the same


class Session:
    """A team with its rank's device, the arrays its ranks share, and the last decision. One for each team."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.rank_device: RankDevice | None = None
        self.shared_arrays = SharedArrays()
        self.remembered: Remembered | None = None
        self.workspace_serial = (
            0  # of the team's last phase when the workspace was made: the same on every rank; 0: there is none
        )
        self._workspace = np.empty(0, np.uint8)
        self._times_wrong: Counter[int] = Counter()  # by rank, in how many products its device was wrong, which were repaired
        team.when_freed(self._end)

    @property
    def remembered_serial(self) -> int:
        """The serial of the decision that this rank would take again; 0 if there is none."""
        known, device = self.remembered, self.rank_device
        return known.serial if known and device and known.memory_version == device.memory_version else 0

    def workspace(self, size: int) -> np.ndarray:
        """So many bytes, or more, that the ranks of the only node share, and that are kept for the next call. Every rank calls
        it."""
        if not self.workspace_serial or len(self._workspace) < size:
            self.drop_workspace()
            room = 1 << max(16, (size - 1).bit_length())
            made = make_shared_matrices(self.team, {"A": Span(0, 1)}, {"A": room}, {"A": "uint8"})["A"]
            self._workspace, self.workspace_serial = made.array[0], self.team.serial
        return self._workspace

    def drop_workspace(self) -> None:
        self._workspace, self.workspace_serial = np.empty(0, np.uint8), 0

    def note_wrong(self, ranks: Iterable[int]) -> None:
        """The devices of these ranks made one product wrong. Every rank calls it with the same ranks."""
        self._times_wrong.update(list(ranks))

    def times_wrong(self, rank: int) -> int:
        """How many products the device of this rank has made wrong so far."""
        return self._times_wrong[rank]

    @property
    def left_out(self) -> tuple[int, ...]:
        """The ranks that shall get no rows where others of their node can take them: the same on every rank."""
        return tuple(sorted(rank for rank, times in self._times_wrong.items() if times >= TOO_OFTEN))

    def device(self, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> RankDevice:
        """This rank's device, ready for the kernel: the one of the last product, or a new one where the plan needs another. Every
        rank calls it."""
        if self.rank_device is not None and self.rank_device.key != device_key(plan, gpus):
            self.release_device()
        with wall.within("GPU start" if plan.device == "cuda" else "prepare"):
            self.rank_device = prepare_rank_device(self.team, self.rank_device, plan, gpus, kernel)
        self._use_gpu()
        return self.rank_device

    def why_test_fails(self, test: Test, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel, *, again: bool) -> str:
        """Why a test fails on some rank; "" where it passes. Every rank calls it and gets the same.

        An outcome is remembered with the device. `again`: make a test that failed once more.
        """
        if self.rank_device is None or self.rank_device.key != device_key(plan, gpus):
            self.device(plan, gpus, kernel)
        self._use_gpu()
        assert self.rank_device is not None
        return self.rank_device.refusal(self.team, "peers" if test is Test.PEERS else "nccl", again=again)

    def _use_gpu(self) -> None:
        """Have this thread's CUDA calls work on the rank's GPU, to the end of the call, or of the command."""
        if self.rank_device is not None and self.rank_device.gpu is not None:
            gpu_context(self.rank_device.gpu.index).stay()

    def release_device(self) -> None:
        """Give back the device's memory. Every rank calls it."""
        if self.rank_device is None:
            return
        self._use_gpu()
        with self.team.phase("prepare", timed=False):  # nobody frees memory that another rank has still open
            self.rank_device.close()
        with self.team.phase("prepare", timed=False):
            self._close()

    def _close(self) -> None:
        with callers_context():  # the communicator may be freed outside of calls
            self._use_gpu()
            if self.rank_device is not None:
                self.rank_device.leave()
            self.rank_device = self.remembered = None

    def _end(self) -> None:
        """The communicator has been freed, and nobody can name this rank's copies of shared arrays any more."""
        self._close()
        self.drop_workspace()
        self.shared_arrays = SharedArrays()
        _sessions.pop(self.team, None)


_sessions: dict[Team, Session] = {}


def session_of(team: Team) -> Session:
    """The team's session, made at the first call and kept until its communicator is freed."""
    if team not in _sessions:
        _sessions[team] = Session(team)
    return _sessions[team]


# -------- agreement
# All ranks come to the same decision, before any data moves, from what they find together.


def agree(session: Session, request: ProductRequest, settings: Settings, inventories: Sequence[Inventory]) -> Decision:
    """The decision for this product, the same on every rank. Every rank calls it, with the inventories of all ranks.

    Raises on all ranks alike: DoesNotFit with the missing amount, UsageError, DeviceUnavailable.

    The last decision is taken again if the same is asked for, unless free memory had to be measured for it: that may have changed
    without a sign.
    """
    if len({inventory.workspace for inventory in inventories}) > 1:  # a rank failed while it was made
        session.drop_workspace()
    asked = request, settings, tuple(inventories)
    serials = {inventory.remembers for inventory in inventories}  # a rank that failed alone remembers another one, or none
    known = session.remembered  # which all ranks may have forgotten since, where another plan was tried first and rejected
    if len(serials) == 1 and 0 not in serials and known is not None and known.asked == asked:
        return known.decision
    machine = Machine(session.team.topology, tuple(inventories))
    decision = decide(machine, request, settings)
    while isinstance(decision, Unknown):
        machine = _find_out(session, machine, settings, decision)
        decision = decide(machine, request, settings)
    if decision.shortage:
        raise decision.shortage
    decision.plan.refuse_endless()
    if decision.needs_reserved:
        session.release_device()
    if machine.free:
        session.remembered = None
    elif session.rank_device is not None:
        session.remembered = Remembered(session.team.serial, asked, decision, session.rank_device.memory_version)
    return decision


def _find_out(session: Session, machine: Machine, settings: Settings, unknown: Unknown) -> Machine:
    """The machine, now with what was unknown. Every rank calls it."""
    team = session.team
    if unknown.test is None:
        with team.phase("agree", timed=False) as looking:
            looking.mine = free_memory_of(session, settings, unknown.gpus[team.rank], now=True)
        return replace(machine, free=tuple(looking.all))
    again = settings.transport != "auto"  # who asks for a transport may have mended what an earlier test failed for
    outcome = session.why_test_fails(unknown.test, unknown.plan, unknown.gpus, unknown.kernel, again=again)
    return replace(machine, outcomes={**machine.outcomes, unknown.test: outcome})
