"""What joins the devices of all ranks, on whichever nodes: made together, tried out, kept, made anew after a failure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from hybrid.core.spans import Span
from hybrid.devices.base import CollectiveDevice, DeviceCommunicator, Event
from hybrid.errors import DeviceUnavailable, HybridError
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.node_flags import pauses
from hybrid.ranks.team import Team

_ROWS, _COLUMNS = 64, 1024  # that every rank brings to every other, to see whether it can: enough to be sent in pieces


class DeviceGroup:
    """One rank's part. What takes `team` is called by all its ranks together."""

    def __init__(self, device: CollectiveDevice) -> None:
        self._device = device
        self._team: Team | None = None
        self._joined: DeviceCommunicator | None = None
        self._tried = False
        self._refusal = ""

    def init_communicator(self, team: Team) -> None:
        """From here on all devices are joined. DeviceUnavailable on all ranks, with the reason, if one cannot be, or gets
        what was not sent."""
        try:
            with team.phase("prepare", timed=False) as looking, busy():
                if self._joined is None:
                    self._device.load_collectives()
                looking.mine = self._tried
            # After a failure some ranks have left and others have not: a part of what was joined serves nobody.
            if not all(looking.all):
                self.abort()
                self._join(team)
                self._try_out(team)
        except BaseException:
            self.abort()
            raise

    def refusal(self, team: Team, *, again: bool = False) -> str:
        """Why the devices cannot be joined, the same on all ranks; empty when they are. `again`: a failure is not remembered."""
        if again or not self._refusal:
            self._refusal = ""
            try:
                self.init_communicator(team)
            except HybridError as error:  # the same on all ranks
                self._refusal = str(error)
        return self._refusal

    def gather_rows(self, matrix: Any, rows_of: Sequence[Span], after: list[Event]) -> Event:
        """As `Collective.gather_rows`. What waits for it on the host shall come after `wait_for`."""
        assert self._joined is not None
        return self._device.gather_rows(self._joined, matrix, rows_of, after)

    def wait_for(self, event: Event) -> None:
        """Until the work is done. A rank that fails before it hands over its part would keep the others waiting on their
        devices for ever: here they see it, as PhaseEnded."""
        assert self._joined is not None
        assert self._team is not None
        pause = pauses(self._team)
        while not self._device.done(event):
            self._joined.check()
            next(pause)

    def abort(self) -> None:
        """After a failure on this rank or another: what is under way ends."""
        joined, self._joined, self._tried = self._joined, None, False
        if joined is not None:
            with suppress(Exception):  # what failed has been said
                joined.abort()

    def leave(self) -> None:
        """Every rank calls it, with nothing under way."""
        joined, self._joined, self._tried = self._joined, None, False
        if joined is not None:
            joined.leave()

    def _join(self, team: Team) -> None:
        self._team = team
        with team.phase("prepare", timed=False) as inviting, busy():
            inviting.mine = self._device.unique_id() if team.rank == 0 else None
        # All ranks have said that they can, and come here together: nobody waits for one that never comes.
        with team.phase("prepare", timed=False), busy():
            self._joined = self._device.init_communicator(inviting.all[0], team.rank, team.size)

    def _try_out(self, team: Team) -> None:
        device, rows_of = self._device, [Span(rank * _ROWS, (rank + 1) * _ROWS) for rank in range(team.size)]
        with team.phase("prepare", timed=False), busy():
            memory = device.reserve(8 * _ROWS * _COLUMNS * team.size, shared=False)
            try:
                device.poison(memory)
                matrix = device.matrix(memory, 0, team.size * _ROWS, _COLUMNS, "float64")
                own, seen = _pattern(team.rank), np.full(matrix.shape, np.nan)  # as long as they are copied
                arrived = self.gather_rows(matrix, rows_of, [device.copy_in(matrix[rows_of[team.rank].slice], own, [])])
                self.wait_for(arrived)
                device.copy_out(seen, matrix, [arrived])
            except BaseException:
                self.abort()
                raise
            finally:
                device.finish()  # before the memory goes
            for rank, rows in enumerate(rows_of):
                if not np.array_equal(seen[rows.slice], _pattern(rank)):
                    raise DeviceUnavailable(f"what was brought from the GPU of rank {rank} is not what lies there")
        self._tried = True


def _pattern(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).random((_ROWS, _COLUMNS))
