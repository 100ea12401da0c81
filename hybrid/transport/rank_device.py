# SPDX-License-Identifier: MIT
"""A rank's device with what it keeps between products (memory, flags, links to other ranks), and a plan's transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hybrid.core.problem import Topology
from hybrid.devices.base import Buffers, Device, EmulatedDevice
from hybrid.devices.cuda_gpus import usable_gpus, use_context_of
from hybrid.errors import HybridError
from hybrid.kernels.catalogue import Kernel
from hybrid.planning.decision import Gpu
from hybrid.planning.plan import Plan
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.shared_memory import NodeFlags
from hybrid.ranks.team import Team
from hybrid.transport.base import Arriving, CopyObserver, HostTransport, RankMatrices, Transport

# Modules of transports other than the host's are loaded on use, so that most products start sooner.
if TYPE_CHECKING:
    from hybrid.transport.nccl import DeviceGather, DeviceGroup
    from hybrid.transport.peers import LinkRequest, NodeLinks


_MAX_PLANS = 128
# Device memory of plan caches, beside `memory`: at most the larger of these bytes and this part of `memory`, or one plan.
_CACHE_BYTES, _CACHE_PART = 512 << 20, 1 / 4


@dataclass
class _PlanCache:
    """Objects cached for plans with these shares."""

    shares: object
    device_bytes: int = 0  # of device memory beside `RankDevice.memory`
    made: dict[object, Any] = field(default_factory=dict)


class RankDevice:
    """One rank's device. `reserve`, `connect`, `meet` and `refusal` are collective."""

    def __init__(self, team: Team, make: Callable[..., Any], gpus: Sequence[Gpu | None] = (), key: object = None) -> None:
        """`make`: creates a `Device` on a GPU of this process, or for None a CPU's. `gpus`: of all ranks. `key`: `device_key`."""
        self.team, self._make, self._gpus, self.key = team, make, gpus, key
        self.gpu = gpus[team.rank] if gpus else None
        self.device = make(self.gpu)
        self.memory: Any = None
        self.reserved = 0  # bytes of `memory`
        self.flags: NodeFlags | None = None
        self.ready_kernels: set[tuple[str, str, bool]] = set()  # name, dtype, accumulating: compiled on all ranks' devices
        self._caches: dict[int, _PlanCache] = {}  # by the id of the plan's shares, the newest last
        self.links: NodeLinks | None = None  # to the other ranks of the node
        self._probed: Topology | None = None  # the topology for which `probe` succeeded
        self._refusals: dict[tuple[str, Topology], str] = {}

    @cached_property
    def device_group(self) -> DeviceGroup:
        from hybrid.transport.nccl import DeviceGroup

        return DeviceGroup(self.team, self.device)

    def refusal(self, transport: str, *, again: bool) -> str:
        """Why the devices cannot use "peers" or "nccl"; "" if they can. The same on all ranks. `again`: test again."""
        key = transport, self.team.topology
        if again or not self._refusals.get(key):
            self._refusals[key] = ""
            try:
                if transport == "nccl":
                    self.device_group.init_communicator()
                elif self._probed != self.team.topology:
                    from hybrid.transport.peers import probe

                    probe(self)
                    self._probed = self.team.topology
            except HybridError as error:  # raised on all ranks, with the same message
                self._refusals[key] = str(error)
        return self._refusals[key]

    def reserve(self, size: int) -> None:
        """Reserve at least `size` bytes of device memory, not open to other ranks."""
        if self.links is not None and self.links.are_open:
            with self.team.phase("prepare", timed=False):
                self.close()
        with self.team.phase("prepare", timed=False):
            self.links = None  # in a later phase than `close`: before, other processes may hold a driver's events
            if self.memory is None or self.reserved < size:
                self._reserve(size, shared=False)

    def _reserve(self, size: int, *, shared: bool) -> None:
        self._caches.clear()
        self.memory, self.reserved = None, 0  # the old block is freed first: there may be no room for both
        self.memory, self.reserved = self.device.reserve(size, shared=shared), size

    def connect(self, wanted: LinkRequest, flag_count: int) -> tuple[NodeLinks, NodeFlags]:
        """Open links between all ranks, with `flag_count` flags for each. If that fails on one, all raise, and none is open."""
        wanted = self.links.with_more(wanted) if self.links is not None else wanted
        if self.links is None or not self.links.are_open or self.links.wanted != wanted:
            try:
                self._open(wanted)
            except HybridError:  # raised on all ranks
                with self.team.phase("prepare", timed=False):  # all close before any owner frees its memory
                    self.close()
                raise
        assert self.links is not None
        return self.links, self.meet(flag_count)

    def _open(self, wanted: LinkRequest) -> None:
        from hybrid.transport.peers import NodeLinks

        team = self.team
        with team.phase("prepare", timed=False):
            self.close()
        with team.phase("prepare", timed=False) as offering:
            self.links = NodeLinks(team, self.device, wanted)
            self._reserve(wanted.sizes[team.rank], shared=True)
            offering.mine = self.links.offer(self.memory, self._device_on)
        with team.phase("prepare", timed=False):
            self.links.open(offering.all)
        self.links.are_open = True

    def _device_on(self, rank: int) -> Device:
        """A `Device` of this process on another rank's GPU, whose index may differ here."""
        gpu = self._gpus[rank]
        here = next((each for each in usable_gpus() if each.uuid == gpu.uuid), None) if gpu else None
        made: Device = self._make(here)
        return made

    def meet(self, flag_count: int) -> NodeFlags:
        """At least `flag_count` flags for each rank."""
        if self.flags is None or self.flags.flag_count < flag_count or self.flags.topology != self.team.topology:
            self.flags = NodeFlags(self.team, flag_count)
        return self.flags

    def prepare_copies(self, arrays: Sequence[Any], threads: int, *, again: bool) -> None:
        """Prepare this rank's device copies from and to these arrays; only the last is written.

        Memory is pinned, as long as it lives, on its second use, or at once with `again`. Until then up to `threads` threads copy
        it through pinned staging buffers ("slots").
        """
        if not arrays:
            return
        began, devices = time.perf_counter(), list(self._all_devices())
        on_gpus = [array for array in arrays if hasattr(array, "__cuda_array_interface__")]
        on_host = [array for array in arrays if not hasattr(array, "__cuda_array_interface__")]
        for array in on_gpus:
            for device in devices:
                device.pin(array)
        if again:
            for array in on_host:
                self.device.pin(array)
        through_slots = [] if again else self.device.pin_again(on_host, threads)
        for device in devices:  # this rank's own first: its threads wait for the events of all devices
            if not device.use_slots(through_slots, max(1, threads // len(devices)), len(self.team.node_ranks)):
                through_slots = []
        if any(array is arrays[-1] for array in through_slots):
            self.device.populate(arrays[-1])
        self.team.timeline.add("prepare", began, time.perf_counter())

    def give_up_copies(self) -> None:
        """Stop all copies through slots. When this returns, no thread accesses the arrays."""
        for device in self._all_devices():
            device.give_up()

    def _all_devices(self) -> Iterable[Any]:
        """All `Device`s of this process; a driver has one for each rank."""
        of_driver = self.links.devices.values() if self.links is not None else ()
        return {id(each): each for each in (self.device, *of_driver)}.values()

    def drain(self) -> None:
        """After a failure, wait for all submitted work, so that it does not disturb the next product."""
        if "device_group" in self.__dict__:
            self.device_group.abort()  # first: a collective that some rank never joined has no end
        self.give_up_copies()
        for device in self._all_devices():
            with suppress(Exception):  # the failure has been reported already
                device.finish()

    def close(self) -> None:
        """Close the other ranks' memory. A driver's devices stay until all ranks have closed theirs."""
        self._caches.clear()
        if self.links is not None:
            self.links.close()

    def leave(self) -> None:
        self.close()
        if "device_group" in self.__dict__:
            self.device_group.destroy()
        self.links, self.memory, self.flags, self.reserved = None, None, None, 0

    def once_for_plan(self, what: object, plan: Plan, make: Callable[[], Any], device_bytes: int = 0) -> Any:
        """The result of `make`, cached for plans with the same panels. `device_bytes`: its device memory beside `memory`.

        Views of device memory and prepared launches take longer to make than a small copy. Programs alternate between plans.
        """
        key = id(plan.shares)
        cache = self._caches[key] = self._caches.pop(key) if key in self._caches else _PlanCache(plan.shares)
        if what not in cache.made:
            most = self.reserved + max(_CACHE_BYTES, int(self.reserved * _CACHE_PART))
            while len(self._caches) > 1 and (len(self._caches) > _MAX_PLANS or self.bytes_reserved + device_bytes > most):
                del self._caches[next(iter(self._caches))]
            cache.made[what] = make()
            cache.device_bytes += device_bytes
        return cache.made[what]

    def own_buffers(self, plan: Plan, rank: int, in_place: Mapping[str, Any]) -> Buffers:
        """This rank's buffers, in the reserved memory except for operands `in_place`."""
        part, share = plan.on_device(rank)
        if in_place:
            return Buffers(self.device, self.memory, share, part.problem, in_place)
        made: Buffers = self.once_for_plan("own", plan, lambda: Buffers(self.device, self.memory, share, part.problem))
        return made

    @property
    def bytes_reserved(self) -> int:
        """Bytes of device memory held for the next products."""
        return self.reserved + sum(each.device_bytes for each in self._caches.values())


def device_key(plan: Plan, gpus: Sequence[Gpu | None]) -> tuple[object, ...]:
    """What the ranks' devices depend on. If it is equal for the next plan, all ranks keep their devices, else none does."""
    return plan.device, plan.staged, tuple(gpus)


def device_of_alone(team: Team, gpu: Gpu) -> RankDevice:
    """A device on this GPU for a process alone, without a kernel."""
    use_context_of(gpu)
    return RankDevice(team, _cuda_device, [gpu], ("cuda", True, (gpu,)))


def ready_device(team: Team, current: RankDevice | None, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> RankDevice:
    """This rank's device, ready for the kernel: `current`, or a new one if None. Collective."""
    instance = (kernel.name, plan.problem.operand_dtype, plan.adds)
    if current is not None and instance in current.ready_kernels:
        current.device.use_kernel(kernel, plan.problem.operand_dtype, adding=plan.adds)
        return current

    def make(gpu: Gpu | None) -> Device:
        if gpu is not None:
            return _cuda_device(gpu)
        return EmulatedDevice(kernel, instance[1]) if plan.device == "emulate" else Device(staged=plan.staged)

    with team.phase("prepare", timed=False), busy():
        use_context_of(gpus[team.rank])
        made = current or RankDevice(team, make, gpus, device_key(plan, gpus))
        made.device.use_kernel(kernel, plan.problem.operand_dtype, adding=plan.adds)
    made.ready_kernels.add(instance)
    return made


def _cuda_device(gpu: Any) -> Device:
    from hybrid.devices.cuda_device import CudaDevice

    return CudaDevice(gpu)


def operands_in_place(plan: Plan, rank: int, device: Device, matrices: RankMatrices | None) -> dict[str, Any]:
    """The matrices, by operand, that the rank's device uses in place, instead of buffers.

    Possible for row blocks already on the device, unless other ranks need the operand, or panels replace each other.
    """
    share = plan.shares[rank]
    if matrices is None or plan.parts or not (plan.has_row_blocks and plan.staged and share.order and share.holds_all):
        return {}
    there = {"A": matrices.a}
    if share.layout.slots == 1:
        there |= {"C": matrices.c} | ({"B": matrices.b.array} if plan.topology.size == 1 else {})
    return {operand: matrix for operand, matrix in there.items() if device.holds(matrix)}


def make_transport(
    plan: Plan,
    rank_device: RankDevice,
    matrices: RankMatrices | None,
    observer: CopyObserver | None,
    panels: Arriving | None,
    in_place: Mapping[str, Any],
    device_gather: DeviceGather | None = None,
) -> tuple[Transport, Buffers]:
    """The plan's transport, and the buffers that it fills. Collective.

    `matrices`: this rank's rows; if the operands are the root's arrays, the whole matrices at the root and None elsewhere.
    `in_place`: from `operands_in_place`. `device_gather`: if C goes from device to device.
    """
    rank = rank_device.team.rank
    if plan.transport == "peers":
        from hybrid.transport.peers import make_peers_transport

        return make_peers_transport(plan, rank_device, matrices, observer, panels, in_place)
    rank_device.reserve(plan.bytes_of_buffers(rank))
    buffers = rank_device.own_buffers(plan, rank, in_place)
    own: dict[str, Any] = {"device": rank_device.device, "rank": rank, "matrices": matrices, "in_place": in_place}
    if plan.transport == "host":
        return HostTransport(**own, observer=observer, panels=panels), buffers
    from hybrid.transport.nccl import NcclTransport

    rows_of = [plan.b_rows_over_link(each) for each in range(plan.topology.size)]
    group = rank_device.device_group
    return NcclTransport(**own, observer=observer, group=group, rows_of=rows_of, gather=device_gather), buffers
