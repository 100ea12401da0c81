# SPDX-License-Identifier: MIT
"""A rank's device with what is kept from product to product (memory, views of it, flags, links to other ranks), and the transport
that a plan has decided on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
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

# A product uses one transport, so the modules of the others than the host's are loaded where one is made: most products start
# sooner without them.
if TYPE_CHECKING:
    from hybrid.transport.nccl import DeviceGather, DeviceGroup
    from hybrid.transport.peers import LinkRequest, NodeLinks


_MOST_KEPT_PLANS = 128
# Of a device, what is kept for plans takes at most so much beside `memory`, or that part of it, unless one plan takes more.
_MOST_KEPT_BYTES, _MOST_KEPT_PART = 512 << 20, 1 / 4


@dataclass
class _KeptForPlan:
    """What has been made for plans with these shares."""

    shares: object
    device_bytes: int = 0  # beside the reserved memory
    made: dict[object, Any] = field(default_factory=dict)


class RankDevice:
    """One rank's device. `reserve`, `connect`, `meet` and `refusal` are called by all ranks of the team together."""

    def __init__(
        self, team: Team, make: Callable[[Gpu | None], Any], gpus: Sequence[Gpu | None] = (), key: object = None
    ) -> None:
        """`make`: makes a device of this process, on a GPU or on the CPU. `gpus`: of all ranks. `key`: `device_key` of the plan,
        since one with another key needs another RankDevice."""
        self.team, self._make, self._gpus, self.key = team, make, gpus, key
        self.gpu = gpus[team.rank] if gpus else None
        self.device = make(self.gpu)
        self.memory: Any = None
        self.reserved = 0  # bytes of `memory`
        self.memory_version = 0  # another one after each change of the reserved memory, and after each failure
        self._last_writer: object = None  # of the last `used_by`
        self.flags: NodeFlags | None = None
        self.ready_kernels: set[tuple[str, str, bool]] = set()  # name, dtype, accumulating: compiled on all ranks' devices
        self._kept: dict[int, _KeptForPlan] = {}  # for the last plans, by the ids of their shares, that of the newest last
        self.links: NodeLinks | None = None  # to the other ranks of the node
        self._probed: Topology | None = None  # whose ranks have fetched from each other's devices
        self._refusals: dict[tuple[str, Topology], str] = {}

    @cached_property
    def device_group(self) -> DeviceGroup:
        from hybrid.transport.nccl import DeviceGroup

        return DeviceGroup(self.team, self.device)

    def refusal(self, transport: str, *, again: bool) -> str:
        """Why the devices cannot be joined for "peers" or "nccl", the same on all ranks; empty where they can. A refusal is
        remembered for the topology, unless `again`."""
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
        """Have at least `size` bytes of the device's memory, which other ranks need not open."""
        if self.links is not None and self.links.are_open:
            with self.team.phase("prepare", timed=False):
                self.close()
        with self.team.phase("prepare", timed=False):
            self.links = None  # in a later phase than `close`: until then other processes may hold a driver's events
            if self.memory is None or self.reserved < size:
                self._reserve(size, shared=False)

    def _reserve(self, size: int, *, shared: bool) -> None:
        """Allocate the memory anew."""
        self._forget_views()
        self.memory_version += 1
        self.memory, self.reserved = None, 0  # the old block is freed first: there may be no room for both
        self.memory, self.reserved = self.device.reserve(size, shared=shared), size

    def connect(self, wanted: LinkRequest, flag_count: int) -> tuple[NodeLinks, NodeFlags]:
        """Have all ranks' memory open as wanted, and so many flags for each rank.

        Raises on all ranks if it fails on one; then nothing is open.
        """
        wanted = self.links.with_more(wanted) if self.links is not None else wanted
        if self.links is None or not self.links.are_open or self.links.wanted != wanted:
            try:
                self._open(wanted)
            except HybridError:  # raised on all ranks
                with self.team.phase("prepare", timed=False):  # before any owner frees memory that others have opened
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
        """A device of this process on a rank's GPU, which may have another index here."""
        gpu = self._gpus[rank]
        here = next((each for each in usable_gpus() if each.uuid == gpu.uuid), None) if gpu else None
        made: Device = self._make(here)
        return made

    def meet(self, flag_count: int) -> NodeFlags:
        """At least so many flags for each rank."""
        if self.flags is None or self.flags.flag_count < flag_count or self.flags.topology != self.team.topology:
            self.flags = NodeFlags(self.team, flag_count)
        return self.flags

    def prepare_copies(self, arrays: Sequence[Any], threads: int, *, again: bool) -> None:
        """Prepare a product's copies from and to these arrays, of which the last is written, by this rank's devices.

        Memory is pinned, for as long as it lives, if products use it `again`: at once, or when this is called for it a second
        time. Until then up to `threads` threads copy it through slots.
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
        for device in devices:  # this rank's first: threads wait for all devices' events as for its own
            if not device.use_slots(through_slots, max(1, threads // len(devices)), len(self.team.node_ranks)):
                through_slots = []
        if any(array is arrays[-1] for array in through_slots):
            self.device.populate(arrays[-1])
        self.team.timeline.add("prepare", began, time.perf_counter())

    def give_up_copies(self) -> None:
        """Begin no further part of a copy through slots. When this returns, no thread reads or writes the arrays."""
        for device in self._all_devices():
            device.give_up()

    def _all_devices(self) -> Iterable[Any]:
        """All devices of this process: a driver has one for each rank."""
        of_driver = self.links.devices.values() if self.links is not None else ()
        return {id(each): each for each in (self.device, *of_driver)}.values()

    def drain(self) -> None:
        """Wait for all work under way, after a failure, so that the next product meets nothing of it."""
        self.memory_version += 1
        self._last_writer = None
        if "device_group" in self.__dict__:
            self.device_group.abort()  # first: a collective that some rank never joined has no end
        self.give_up_copies()
        for device in self._all_devices():
            with suppress(Exception):  # the failure has been reported; a broken device will report again
                device.finish()

    def close(self) -> None:
        """Close the other ranks' memory. A driver's devices stay until all ranks have done so."""
        self._forget_views()
        if self.links is not None:
            self.links.close()

    def leave(self) -> None:
        self.close()
        if "device_group" in self.__dict__:
            self.device_group.destroy()
        self.links, self.memory, self.flags, self.reserved = None, None, None, 0

    def used_by(self, modular: object) -> bool:
        """Note that a product begins, which writes to the memory. `modular`: what makes its remainders there; None for native
        products. Returns whether the product before had the same, whose remainders are then still there."""
        before, self._last_writer = self._last_writer, modular
        return before is modular

    def _forget_views(self) -> None:
        self._kept.clear()
        self._last_writer = None  # it has views, too

    def once_for_plan(self, what: object, plan: Plan, make: Callable[[], Any], device_bytes: int = 0) -> Any:
        """What `make` gave before for a plan with the same panels, or now gives. `device_bytes`: that it takes of the device,
        beside `memory`.

        Views of device memory are kept so, and launches that work on them: making them takes longer than a small copy. They are
        kept for many plans, for programs whose products have several shapes in turn.
        """
        key = id(plan.shares)
        kept = self._kept[key] = self._kept.pop(key) if key in self._kept else _KeptForPlan(plan.shares)
        if what not in kept.made:
            most = self.reserved + max(_MOST_KEPT_BYTES, int(self.reserved * _MOST_KEPT_PART))
            while len(self._kept) > 1 and (len(self._kept) > _MOST_KEPT_PLANS or self.bytes_reserved + device_bytes > most):
                del self._kept[next(iter(self._kept))]
            kept.made[what] = make()
            kept.device_bytes += device_bytes
        return kept.made[what]

    def own_buffers(self, plan: Plan, rank: int, in_place: Mapping[str, Any]) -> Buffers:
        """The buffers of what this rank computes in the reserved memory."""
        part, share = plan.on_device(rank)
        if in_place:
            return Buffers(self.device, self.memory, share, part.problem, in_place)
        made: Buffers = self.once_for_plan("own", plan, lambda: Buffers(self.device, self.memory, share, part.problem))
        return made

    @property
    def bytes_reserved(self) -> int:
        """Bytes of the device that this project holds, for the next product to use."""
        return self.reserved + sum(each.device_bytes for each in self._kept.values())


def device_key(plan: Plan, gpus: Sequence[Gpu | None]) -> tuple[object, ...]:
    """What a rank's device depends on, for all ranks: where it is the same for the next plan, all of them keep their devices,
    else none does."""
    return plan.device, plan.staged, tuple(gpus)


def device_of_alone(team: Team, current: RankDevice | None, gpu: Gpu) -> RankDevice:
    """The device of a process alone on this GPU, for which no kernel need be ready: `current`, or a new one."""
    if current is not None and current.gpu == gpu:
        return current
    use_context_of(gpu)
    return RankDevice(team, _device, [gpu], ("cuda", True, (gpu,)))


def prepare_rank_device(
    team: Team, current: RankDevice | None, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel
) -> RankDevice:
    """This rank's device, ready for the kernel: `current`, or a new one where that is None. Every rank calls it."""
    instance = (kernel.name, plan.problem.operand_dtype, plan.adds)
    if current is not None and instance in current.ready_kernels:
        current.device.use_kernel(kernel, plan.problem.operand_dtype, adding=plan.adds)
        return current
    with team.phase("prepare", timed=False), busy():
        use_context_of(gpus[team.rank])
        made = current or RankDevice(team, partial(_device, plan=plan, kernel=kernel), gpus, device_key(plan, gpus))
        made.device.use_kernel(kernel, plan.problem.operand_dtype, adding=plan.adds)
    made.ready_kernels.add(instance)
    return made


def _device(gpu: Gpu | None, plan: Plan | None = None, kernel: Kernel | None = None) -> Device:
    """A device of this process: on the GPU, or where that is None the one that the plan names."""
    if gpu is not None:
        from hybrid.devices.cuda_device import CudaDevice

        return CudaDevice(gpu)
    assert plan is not None
    assert kernel is not None
    if plan.device == "emulate":
        return EmulatedDevice(kernel, plan.problem.operand_dtype)
    return Device(staged=plan.staged)


def operands_in_place(plan: Plan, rank: int, device: Device, matrices: RankMatrices | None) -> dict[str, Any]:
    """The matrices, by operand, that the rank's device multiplies or writes where they lie, instead of in buffers.

    With row blocks they can be such: nothing has to be copied, unless other ranks need it, or memory is so short that panels
    follow each other.
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
    """The plan's transport, and the buffers that it fills. Every rank calls it.

    `matrices`: this rank's rows; where the operands are the root's arrays, the whole matrices at the root and None elsewhere.
    `in_place`: what `operands_in_place` gave. `device_gather`: where C goes from device to device.
    """
    device, team = rank_device.device, rank_device.team
    if plan.transport == "peers":
        from hybrid.transport.peers import make_peers_transport

        return make_peers_transport(plan, rank_device, matrices, observer, panels, in_place)
    assert matrices is not None
    rank_device.reserve(plan.bytes_of_buffers(team.rank))
    buffers = rank_device.own_buffers(plan, team.rank, in_place)
    if plan.transport == "host":
        return HostTransport(device, team.rank, matrices, observer, panels, in_place), buffers
    from hybrid.transport.nccl import NcclTransport

    rows_of = [plan.b_rows_over_link(rank) for rank in range(team.size)]
    parts = device, team.rank, matrices, rank_device.device_group, rows_of
    return NcclTransport(*parts, observer, in_place, device_gather), buffers
