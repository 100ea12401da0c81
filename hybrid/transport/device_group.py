# SPDX-License-Identifier: MIT
"""The communicator of all ranks' devices (NCCL). It is created and tested by all ranks together, kept, and created anew after a
failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from hybrid.core.spans import Span
from hybrid.devices.base import Event
from hybrid.devices.collective import CollectiveDevice, DeviceCommunicator
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
        self._connected: set[frozenset[tuple[int, int]]] = set()  # the senders with their receivers that were tested
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

    def connect(self, team: Team, receivers: Mapping[int, int]) -> None:
        """Connect the devices of senders, by rank, with those of the ranks that receive from them, and test that, unless it was
        done before. DeviceUnavailable on all ranks if it fails on one."""
        pairs = frozenset(receivers.items())
        if pairs not in self._connected:
            try:
                # A decision that is remembered tests nothing again, and a connection that failed has ended the communicator.
                self.init_communicator(team)
                self._connect(team, receivers)
            except BaseException:
                self.abort()
                raise
            self._connected.add(pairs)

    def send(self, matrix: Any, to: int, after: list[Event]) -> Event:
        """See `CollectiveDevice.send`."""
        assert self._communicator is not None
        return self._device.send(self._communicator, matrix, to, after)

    def receive(self, into: Any, source: int, after: list[Event]) -> Event:
        """See `CollectiveDevice.receive`."""
        assert self._communicator is not None
        return self._device.receive(self._communicator, into, source, after)

    def done(self, event: Event) -> bool:
        """Whether an operation is complete, without waiting. DeviceUnavailable if it no longer can be."""
        assert self._communicator is not None
        if self._device.done(event):
            return True
        self._communicator.check()
        return False

    def wait_for(self, event: Event, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Poll until an operation is complete, and call `meanwhile` between two polls. PhaseEnded if a rank fails before it
        submits its part: the other ranks' devices would wait for it for ever."""
        assert self._team is not None
        pause = pauses(self._team)
        while not self.done(event):
            meanwhile()
            next(pause)

    def abort(self) -> None:
        """End the collectives in flight, after a failure on this rank or another, and give the communicator up."""
        communicator = self._given_up()
        if communicator is not None:
            with suppress(Exception):  # the failure that led here is reported already
                communicator.abort()

    def destroy(self) -> None:
        """Give the communicator up. Collective, and nothing may be in flight."""
        communicator = self._given_up()
        if communicator is not None:
            communicator.destroy()

    def _given_up(self) -> DeviceCommunicator | None:
        communicator, self._communicator, self._tested = self._communicator, None, False
        self._connected.clear()
        return communicator

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
                    raise DeviceUnavailable(
                        f"what was brought from the GPU of rank {rank} is not what lies there", code="gpu-data"
                    )
        self._tested = True

    def _connect(self, team: Team, receivers: Mapping[int, int]) -> None:
        device, sources = self._device, [sender for sender, receiver in receivers.items() if receiver == team.rank]
        own, received = pattern_of(team.rank, _ROWS, _COLUMNS), np.full((len(sources), _ROWS, _COLUMNS), np.nan)
        with team.phase("prepare", timed=False), busy():
            count = max(1, len(sources))
            memory = device.reserve(own.nbytes * count, shared=False)
            device.poison(memory)
            matrices = [device.matrix(memory, number * own.nbytes, _ROWS, _COLUMNS, "float64") for number in range(count)]
            loaded = device.copy_in(matrices[0], own, []) if team.rank in receivers else None
        try:
            # To connect two devices, NCCL blocks both hosts until both have come so far. They do: what can fail before was done
            # in the phase above.
            with team.phase("prepare", timed=False), busy():
                if team.rank in receivers:
                    self.wait_for(self.send(matrices[0], receivers[team.rank], [loaded]))
                arriving = [self.receive(into, source, []) for into, source in zip(matrices, sources, strict=False)]
                for event, into, matrix in zip(arriving, received, matrices, strict=False):
                    self.wait_for(event)
                    device.copy_received(into, matrix, [event])
        except BaseException:
            self.abort()  # before the device is waited for
            raise
        finally:
            device.finish()  # before the memory is freed
        with team.phase("prepare", timed=False):
            for source, matrix in zip(sources, received, strict=True):
                if not np.array_equal(matrix, pattern_of(source, _ROWS, _COLUMNS)):
                    raise DeviceUnavailable(f"what the GPU of rank {source} sent is not what arrived", code="gpu-data")


def pattern_of(rank: int, rows: int, columns: int) -> np.ndarray:
    """The matrix that a rank sends where the connection to its device is tested: each rank's has other numbers."""
    return np.random.default_rng(rank).random((rows, columns))
