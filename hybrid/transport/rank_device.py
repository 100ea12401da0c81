# SPDX-License-Identifier: MIT
"""A rank's device, and what is kept with it from product to product: memory, views of it, flags, links to other ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hybrid.devices.base import PeerDevice
from hybrid.devices.buffers import Buffers
from hybrid.devices.cuda_gpus import Gpu
from hybrid.plan.plan import Plan
from hybrid.ranks.node_flags import NodeFlags
from hybrid.ranks.team import Team
from hybrid.transport.device_group import DeviceGroup
from hybrid.transport.ipc_links import IpcLinks, LinkRequest
from hybrid.transport.node_peers import Peer

_MOST_KEPT_PLANS = 4
_MOST_KEPT_BYTES = 64 << 20  # of a device, unless one plan takes more: a small part of what forecasts leave free of large GPUs


@dataclass
class _KeptForPlan:
    """What has been made for plans with these shares."""

    shares: object
    device_bytes: int = 0  # beside the reserved memory
    made: dict[str, Any] = field(default_factory=dict)


class RankDevice:
    """One rank's. Methods that take `team` are called by all its ranks together."""

    def __init__(self, key: object, device: Any, gpu: Gpu | None = None) -> None:
        self.key = key  # `device_key` of the plan: one with another key needs another RankDevice
        self.gpu = gpu
        self.device = device
        self.device_group = DeviceGroup(device)
        self.links = IpcLinks(device)
        self.memory: Any = None
        self.reserved = 0  # bytes of `memory`
        self.memory_version = 0  # another one after each change of the reserved memory, and after each failure
        self._last_writer: tuple[object, object] | None = None  # the plan's shares, and `by`, of the last `used_for`
        self.flags: NodeFlags | None = None
        self.ready_kernels: set[tuple[str, str, bool]] = set()  # name, dtype, accumulating: compiled on all ranks' devices
        self._kept: list[_KeptForPlan] = []  # for the last plans, that of the newest last

    def reserve(self, team: Team, size: int) -> None:
        """Have at least `size` bytes of the device's memory, which other ranks need not open."""
        if self.links.are_open:
            with team.phase("prepare", timed=False):
                self.close()
        with team.phase("prepare", timed=False):
            self.links.forget_devices()
            if self.memory is None or self.reserved < size:
                self._reserve(size, shared=False)

    def _reserve(self, size: int, *, shared: bool) -> Any:
        """Allocate the memory anew."""
        self._forget_views()
        self.memory_version += 1
        self.memory, self.reserved = None, 0  # the old block is freed first: there may be no room for both
        self.memory, self.reserved = self.device.reserve(size, shared=shared), size
        return self.memory

    def connect(
        self, team: Team, wanted: LinkRequest, flag_count: int, device_on: Callable[[int], PeerDevice] | None = None
    ) -> None:
        """Have all ranks' memory open as wanted, and so many flags for each rank. `device_on(rank)`: makes a device on that
        rank's GPU, for a driver."""
        if not self.links.serve(wanted):
            self._forget_views()
            self.links.open(team, wanted, lambda size: self._reserve(size, shared=True), device_on)
        self.meet(team, flag_count)

    def meet(self, team: Team, flag_count: int) -> None:
        """Have at least so many flags for each rank."""
        if self.flags is None or self.flags.flag_count < flag_count or self.flags.topology != team.topology:
            self.flags = NodeFlags(team, flag_count)

    def pin(self, team: Team, arrays: Sequence[Any]) -> None:
        """Pin the arrays' memory for this rank's devices, for as long as it lives: copies then run at the link's full rate."""
        if not arrays:
            return
        began = time.perf_counter()
        for array in arrays:
            for device in self._devices():
                device.pin(array)
        team.timeline.add("prepare", began, time.perf_counter())

    def _devices(self) -> Iterable[Any]:
        """All devices of this process: a driver has one for each rank."""
        return {id(each): each for each in (self.device, *self.links.devices.values())}.values()

    def drain(self) -> None:
        """Wait for all work under way, after a failure, so that the next product meets nothing of it."""
        self.memory_version += 1
        self._last_writer = None
        self.device_group.abort()  # first: a collective that some rank never joined has no end
        for device in self._devices():
            with suppress(Exception):  # the failure has been reported; a broken device will report again
                device.finish()

    def close(self) -> None:
        """Close the other ranks' memory."""
        self._forget_views()
        self.links.close()

    def leave(self) -> None:
        """Free everything."""
        self.close()
        self.device_group.destroy()
        self.links.forget_devices()
        self.memory, self.flags, self.reserved = None, None, 0

    def own_buffers(self, team: Team, plan: Plan, in_place: Mapping[str, Any]) -> Buffers:
        """This rank's buffers; the matrices in `in_place` are used instead of those for the same operands. To be called after
        `reserve`."""
        share = plan.shares[team.rank]
        if in_place:
            return Buffers(self.device, self.memory, share, plan.problem, in_place)
        return self.once_for_plan("own", plan, lambda: Buffers(self.device, self.memory, share, plan.problem))

    def peers(self, team: Team, plan: Plan) -> dict[int, Peer]:
        """The ranks of the node, with their buffers as this rank's device reaches them. To be called after `connect`."""
        return self.once_for_plan("peers", plan, lambda: self._peers(team, plan))

    def _peers(self, team: Team, plan: Plan) -> dict[int, Peer]:
        peers = {}
        for local_rank, rank in enumerate(team.node_ranks):
            share = plan.shares[rank]
            memory = self.memory if rank == team.rank else self.links.opened[rank]
            peers[rank] = Peer(
                share,
                local_rank,
                plan.b_rows_over_link(rank),
                Buffers(self.device, memory, share, plan.problem),
                self.links.loaded.get(rank, []),
                self.links.multiplied.get(rank, []),
            )
        return peers

    def buffers_of_driver(self, team: Team, plan: Plan) -> dict[int, Buffers]:
        """All ranks' buffers, as the driver's device on each GPU reaches them. To be called after `connect`, on the driver."""

        def buffers(rank: int, device: PeerDevice) -> Buffers:
            memory = self.memory if rank == team.rank else self.links.opened_by_driver[rank]
            return Buffers(device, memory, plan.shares[rank], plan.problem)

        devices = self.links.devices
        return self.once_for_plan("driver", plan, lambda: {rank: buffers(rank, each) for rank, each in devices.items()})

    def used_for(self, plan: Plan, by: object) -> bool:
        """Note that a product of this plan begins, which writes to the memory. `by`: what computes its remainders, and keeps
        some there; None for native products.

        Returns whether the product before had the same plan and was computed by the same, so that what it has kept in the memory
        is still there.
        """
        before, self._last_writer = self._last_writer, (plan.shares, by)
        return before is not None and before[0] is plan.shares and before[1] is by

    def _forget_views(self) -> None:
        self._kept.clear()
        self._last_writer = None  # it has views, too

    def once_for_plan(self, what: str, plan: Plan, make: Callable[[], Any], device_bytes: int = 0) -> Any:
        """What `make` gave before for a plan with the same panels, or now gives. `device_bytes`: that it takes of the device,
        beside `memory`.

        Views of device memory are kept so, and launches that work on them: making them takes longer than a small copy. They are
        kept for several plans, for programs whose products have two shapes in turn.
        """
        kept = self._kept_for(plan)
        if what not in kept.made:
            while len(self._kept) > 1 and self.reserved_for_check + device_bytes > _MOST_KEPT_BYTES:
                del self._kept[0]
            kept.made[what] = make()
            kept.device_bytes += device_bytes
        return kept.made[what]

    def _kept_for(self, plan: Plan) -> _KeptForPlan:
        """What is kept for this plan, which is the newest one now."""
        for number, kept in enumerate(self._kept):
            if kept.shares is plan.shares:
                self._kept.append(self._kept.pop(number))
                return kept
        self._kept = [*self._kept[1 - _MOST_KEPT_PLANS :], _KeptForPlan(plan.shares)]
        return self._kept[-1]

    @property
    def reserved_for_check(self) -> int:
        """Bytes of the device that checks take beside `memory`."""
        return sum(each.device_bytes for each in self._kept)
