# SPDX-License-Identifier: MIT
"""Memory and events of a node's devices, opened in each other's processes: by CUDA IPC, or for CPUs by shared files.

Either all ranks open the buffers of all others, to fetch rows of B from them. Or one rank, the driver, opens all of them, each
on a device of its own on that GPU, to copy the root's arrays to and from all GPUs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from hybrid.core.record import record
from hybrid.core.spans import Topology
from hybrid.devices.base import Event, PeerDevice
from hybrid.ranks.team import Team


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
