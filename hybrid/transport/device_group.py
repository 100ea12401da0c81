# SPDX-License-Identifier: MIT
"""The communicator of all ranks' devices (NCCL). It is created and tested by all ranks together, kept, and created anew after a
failure."""

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

_ROWS, _COLUMNS = 64, 1024  # of the matrix that each rank sends to all others in the test: enough for NCCL to split it


class DeviceGroup:
    """One rank's part of it. Methods that take `team` are collective over its ranks."""

    def __init__(self, device: CollectiveDevice) -> None:
        self._device = device
        self._team: Team | None = None
        self._communicator: DeviceCommunicator | None = None
        self._tested = False
        self._refusal = ""

    def init_communicator(self, team: Team) -> None:
        """Create and test the communicator, unless it is there. DeviceUnavailable on all ranks, with the reason, if that fails
        on one or a rank receives wrong data."""
        try:
            with team.phase("prepare", timed=False) as checking, busy():
                if self._communicator is None:
                    self._device.load_collectives()
                checking.mine = self._tested
            # After a failure some ranks may have aborted it and others not: then all create it anew.
            if not all(checking.all):
                self.abort()
                self._create(team)
                self._test(team)
        except BaseException:
            self.abort()
            raise

    def refusal(self, team: Team, *, again: bool = False) -> str:
        """Why there can be no communicator, the same on all ranks; empty where there is one. With `again`, an earlier failure is
        forgotten."""
        if again or not self._refusal:
            self._refusal = ""
            try:
                self.init_communicator(team)
            except HybridError as error:  # raised on all ranks, with the same message
                self._refusal = str(error)
        return self._refusal

    def allgather_rows(self, matrix: Any, rows_of: Sequence[Span], after: list[Event]) -> Event:
        """See `CollectiveDevice.allgather_rows`. Call `wait_for` before any call that blocks the host until it is complete."""
        assert self._communicator is not None
        return self._device.allgather_rows(self._communicator, matrix, rows_of, after)

    def wait_for(self, event: Event) -> None:
        """Poll until the collective is complete. PhaseEnded if a rank fails before it submits its part: the other ranks' devices
        would wait for it for ever."""
        assert self._communicator is not None
        assert self._team is not None
        pause = pauses(self._team)
        while not self._device.done(event):
            self._communicator.check()
            next(pause)

    def abort(self) -> None:
        """End the collectives in flight, after a failure on this rank or another, and give the communicator up."""
        communicator, self._communicator, self._tested = self._communicator, None, False
        if communicator is not None:
            with suppress(Exception):  # the failure that led here is reported already
                communicator.abort()

    def destroy(self) -> None:
        """Give the communicator up. Collective, and nothing may be in flight."""
        communicator, self._communicator, self._tested = self._communicator, None, False
        if communicator is not None:
            communicator.destroy()

    def _create(self, team: Team) -> None:
        self._team = team
        with team.phase("prepare", timed=False) as sharing, busy():
            sharing.mine = self._device.unique_id() if team.rank == 0 else None
        # Blocks until all ranks call it. They do: a rank that failed before would have ended the phase above on all.
        with team.phase("prepare", timed=False), busy():
            self._communicator = self._device.init_communicator(sharing.all[0], team.rank, team.size)

    def _test(self, team: Team) -> None:
        """Let every rank receive a matrix from every other. DeviceUnavailable where one is not what was sent."""
        device, rows_of = self._device, [Span(rank * _ROWS, (rank + 1) * _ROWS) for rank in range(team.size)]
        with team.phase("prepare", timed=False), busy():
            memory = device.reserve(8 * _ROWS * _COLUMNS * team.size, shared=False)
            try:
                device.poison(memory)
                matrix = device.matrix(memory, 0, team.size * _ROWS, _COLUMNS, "float64")
                # Host memory, kept until the copies are complete.
                own, received = pattern_of(team.rank, _ROWS, _COLUMNS), np.full(matrix.shape, np.nan)
                gathered = self.allgather_rows(matrix, rows_of, [device.copy_in(matrix[rows_of[team.rank].slice], own, [])])
                self.wait_for(gathered)
                device.copy_out(received, matrix, [gathered])
            except BaseException:
                self.abort()
                raise
            finally:
                device.finish()  # before the memory is freed
            for rank, rows in enumerate(rows_of):
                if not np.array_equal(received[rows.slice], pattern_of(rank, _ROWS, _COLUMNS)):
                    raise DeviceUnavailable(f"what was brought from the GPU of rank {rank} is not what lies there")
        self._tested = True


def pattern_of(rank: int, rows: int, columns: int) -> np.ndarray:
    """The matrix that a rank sends where the connection to its device is tested: each rank's has other numbers."""
    return np.random.default_rng(rank).random((rows, columns))
