# SPDX-License-Identifier: MIT
"""What joins the devices of ranks: NCCL's communicator, and memory and events opened by CUDA IPC, or by shared files for CPUs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from hybrid.core.problem import record
from hybrid.core.spans import Span, Topology
from hybrid.devices.base import Buffers, CollectiveDevice, Device, DeviceCommunicator, Event, PeerDevice
from hybrid.errors import DeviceUnavailable, HybridError
from hybrid.plan.schedule import Arrival, RankShare
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.shared_memory import pauses
from hybrid.ranks.team import Team

# -------- device group
# The communicator of all ranks' devices (NCCL). It is created and tested by all ranks together, kept, and created anew after
# a failure.

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


# -------- ipc links
# Memory and events of a node's devices, opened in each other's processes: by CUDA IPC, or for CPUs by shared files.
#
# Either all ranks open the buffers of all others, to fetch rows of B from them. Or one rank, the driver, opens all of them,
# each on a device of its own on that GPU, to copy the root's arrays to and from all GPUs.


@record
class LinkRequest:
    """What is to be open: `sizes[rank]` bytes of every rank's device, and for each rank so many events that others can wait for.

    `driver`: the rank that opens all the others' memory; None: each rank does.
    """

    topology: Topology
    sizes: tuple[int, ...]
    events: int
    driver: int | None = None

    def serves(self, other: LinkRequest) -> bool:
        """Whether what is open for this request is enough for the other one."""
        same = self.topology == other.topology and self.driver == other.driver
        return same and self.events >= other.events and all(map(operator.ge, self.sizes, other.sizes))


class IpcLinks:
    """One rank's side of them. Methods that take `team` are called by all its ranks together.

    `opened[rank]`: that rank's memory, opened on this rank's device. On the driver, `devices[rank]` is a device on that rank's
    GPU, and `opened_by_driver[rank]` its memory, opened there. `loaded[rank]` and `multiplied[rank]`: events of that rank.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._request: LinkRequest | None = None
        self.devices: dict[int, PeerDevice] = {}
        self.opened: dict[int, Any] = {}
        self.opened_by_driver: dict[int, Any] = {}
        self.loaded: dict[int, list[Event]] = {}
        self.multiplied: dict[int, list[Event]] = {}

    @property
    def are_open(self) -> bool:
        """Whether anything is open."""
        return self._request is not None

    def serve(self, wanted: LinkRequest) -> bool:
        """Whether all that is wanted is open."""
        return self._request is not None and self._request.serves(wanted)

    def open(
        self, team: Team, wanted: LinkRequest, reserve: Callable[[int], Any], device_on: Callable[[int], PeerDevice] | None
    ) -> None:
        """Open what is wanted. `reserve(size)`: allocates this rank's memory so that others can open it. `device_on(rank)`:
        makes a device on that rank's GPU, for a driver.

        Raises on all ranks if it fails on one; then nothing is open.
        """
        try:
            self._open(team, wanted, reserve, device_on)
        except BaseException:
            with team.phase("prepare", timed=False):  # before any owner frees memory that others have opened
                self.close()
            raise
        self._request = wanted

    def _open(
        self, team: Team, wanted: LinkRequest, reserve: Callable[[int], Any], device_on: Callable[[int], PeerDevice] | None
    ) -> None:
        with team.phase("prepare", timed=False):
            self.close()
        with team.phase("prepare", timed=False) as offering:
            self.devices = {}
            memory = reserve(wanted.sizes[team.rank])
            own = self._device.make_ipc_events(wanted.events)
            if team.rank == wanted.driver and device_on is not None:
                self.devices = {rank: self._device if rank == team.rank else device_on(rank) for rank in team.node_ranks}
            of_driver = {rank: each.make_ipc_events(wanted.events) for rank, each in self.devices.items() if rank != team.rank}
            offering.mine = self._device.handle(memory), own, of_driver | ({team.rank: own} if self.devices else {})
        with team.phase("prepare", timed=False):
            for rank in team.node_ranks:
                if rank != team.rank:
                    self.opened[rank] = self._device.open(offering.all[rank][0])
            self._open_events(team, wanted.driver, offering.all)

    def _open_events(self, team: Team, driver: int | None, offers: Sequence[Any]) -> None:
        if driver is None:
            others = [rank for rank in team.node_ranks if rank != team.rank]
            self.loaded = {rank: self._device.open_ipc_events(offers[rank][1]) for rank in others}
        elif team.rank != driver:
            of_driver = offers[driver][2]
            self.loaded = {rank: self._device.open_ipc_events(handles) for rank, handles in of_driver.items()}
        for rank, device in self.devices.items():
            if rank != team.rank:
                handle, events, _ = offers[rank]
                self.opened_by_driver[rank] = device.open(handle)
                self.multiplied[rank] = device.open_ipc_events(events)

    def forget_devices(self) -> None:
        """Give up the driver's devices: after `close`, in a later phase, since until then other processes may hold their
        events."""
        self.devices = {}

    def close(self) -> None:
        """Close what others own and this rank has opened. `devices` stay until all ranks have done so."""
        self._request = None
        for rank, memory in self.opened_by_driver.items():
            self.devices[rank].close(memory)
        for memory in self.opened.values():
            self._device.close(memory)
        for known in (self.opened_by_driver, self.opened, self.loaded, self.multiplied):
            known.clear()


# -------- node peers
# The ranks of a node as peers: each copies rows of B from the others' device memory, opened by CUDA IPC.


@record
class Peer:
    """A rank of the node, as this rank's device reaches it. All of its panels fit on its device."""

    share: RankShare
    local_rank: int
    b_rows: Span  # the rows of B that it loads
    buffers: Buffers  # on its device, whose memory is opened here
    loaded: list[Event]  # IPC events: its row panels are loaded, then its rows of each column panel or k-slab
    multiplied: list[Event]  # IPC events: its tiles are computed, in order

    @property
    def loads(self) -> int:
        """The number of panels, or slabs, that the rank loads."""
        return len(self.share.row_panels) + self.share.pieces_of_b

    def rows_of(self, arrival: Arrival) -> Span:
        """The rows of a column panel or k-slab that the rank loads."""
        return arrival.slab[self.local_rank] if arrival.slab else self.b_rows

    def event_number(self, arrival: Arrival) -> int:
        """The number of the panel's event in `loaded`."""
        return arrival.index + (len(self.share.row_panels) if arrival.operand == "B" else 0)


def flags_needed(peers: int, row_panels: int, column_panels: int) -> int:
    """The number of flags that a rank needs: one for each of its tiles, or at a root that loads for all peers one for each of
    their panels."""
    return max(row_panels * column_panels, peers * (row_panels + column_panels))


def fetch_panel(
    device: Device,
    rank: int,
    peers: Mapping[int, Peer],
    arrival: Arrival,
    into: Any,
    loaded: Callable[[int, Arrival], Event],
) -> list[Event]:
    """Copy the other peers' rows of a column panel to this rank's device, each when the event `loaded(peer, arrival)` is
    complete."""
    events = []
    # Every rank begins with its successor, so that not all of them read from the same GPU at the same time.
    for other in sorted(peers, key=lambda other: (other <= rank, other)):
        if other == rank:
            continue
        rows = peers[other].rows_of(arrival).slice
        column_panel = peers[other].buffers.destination(arrival)
        events.append(device.exchange(into[rows], column_panel[rows], [loaded(other, arrival)]))
    return events
