"""What the ranks of a team keep from one product to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hybrid.arrays.shared_arrays import SharedArrays
from hybrid.devices.cuda_gpus import Gpu
from hybrid.kernels.catalogue import Kernel
from hybrid.plan.plan import Plan
from hybrid.ranks.team import Team
from hybrid.transport.build import device_key, prepare_rank_device
from hybrid.transport.rank_device import RankDevice

if TYPE_CHECKING:
    from hybrid.selection.decision import Decision


@dataclass(frozen=True)
class Remembered:
    """A decision, for the product that is like the one it was made for."""

    serial: int  # of the team's last phase when it was made: the same on every rank
    asked: Any
    decision: Decision
    memory_version: int  # of the rank device: the decision holds while the reserved memory is the same


class Session:
    """A team with its rank's device, the arrays its ranks share, and the last decision. One for each team."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.rank_device: RankDevice | None = None
        self.shared_arrays = SharedArrays()
        self.remembered: Remembered | None = None
        team.when_freed(self._close)

    @property
    def remembered_serial(self) -> int:
        """Of the decision that this rank would use again; 0 if there is none."""
        known, device = self.remembered, self.rank_device
        return known.serial if known and device and known.memory_version == device.memory_version else 0

    def device(self, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> RankDevice:
        """This rank's device, ready for the kernel; another one than before where the plan needs it. Every rank calls it."""
        if self.rank_device is not None and self.rank_device.key != device_key(plan, gpus):
            self.release_device()
        self.rank_device = prepare_rank_device(self.team, self.rank_device, plan, gpus, kernel)
        return self.rank_device

    def device_to_test(self, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> RankDevice:
        """As `device`, but which kernel the device is ready for does not matter."""
        if self.rank_device is not None and self.rank_device.key == device_key(plan, gpus):
            return self.rank_device
        return self.device(plan, gpus, kernel)

    def release_device(self) -> None:
        """Give back the device's memory. Every rank calls it."""
        if self.rank_device is None:
            return
        with self.team.phase("prepare", timed=False):  # nobody frees memory that another rank has still open
            self.rank_device.close()
        with self.team.phase("prepare", timed=False):
            self._close()

    def _close(self) -> None:
        if self.rank_device is not None:
            self.rank_device.leave()
        self.rank_device = self.remembered = None


_sessions: WeakKeyDictionary[Team, Session] = WeakKeyDictionary()


def session_of(team: Team) -> Session:
    """The team's session, made at the first call."""
    if team not in _sessions:
        _sessions[team] = Session(team)
    return _sessions[team]
