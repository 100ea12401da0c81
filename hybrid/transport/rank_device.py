# SPDX-License-Identifier: MIT
"""A rank's device, and what is kept with it from product to product: memory, views of it, flags, links to other ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid.core.spans import Topology
from hybrid.devices.base import Buffers, Device, PeerDevice
from hybrid.devices.cuda_gpus import Gpu, usable_gpus, use_context_of
from hybrid.errors import DeviceUnavailable, HybridError
from hybrid.host.memory import RowView
from hybrid.kernels.catalogue import Kernel
from hybrid.plan.gather_layout import receivers
from hybrid.plan.plan import Plan
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.shared_memory import NodeFlags
from hybrid.ranks.team import Team
from hybrid.transport.base import CopyObserver, HostTransport, RankMatrices, Transport
from hybrid.transport.links import DeviceGroup, IpcLinks, LinkRequest, Peer, flags_needed, pattern_of

if TYPE_CHECKING:
    from hybrid.transport.nccl import DeviceGather
    from hybrid.transport.panels import PanelGather, PanelStream, PanelTransfers


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


# -------- build
# Makes the transport that was decided on: the rank's device, its buffers, and the object that moves the panels.

# A product uses one transport, so its modules, but for the host's, are loaded where it is made: that is soon enough, and most
# products start sooner without the others.


def device_key(plan: Plan, gpus: Sequence[Gpu | None]) -> tuple[object, ...]:
    """What a rank's device depends on, for all ranks: where it is the same for the next plan, all of them keep their devices,
    else none does."""
    return plan.device, plan.staged, tuple(gpus)


def prepare_rank_device(
    team: Team, current: RankDevice | None, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel
) -> RankDevice:
    """This rank's device, ready for the kernel: `current`, or a new one where that is None. Every rank calls it."""
    instance = (kernel.name, plan.problem.operand_dtype, plan.adds)
    if current is not None and instance in current.ready_kernels:
        current.device.use_kernel(kernel, plan.problem.operand_dtype, adding=plan.adds)
        return current
    with team.phase("prepare", timed=False), busy():
        gpu = gpus[team.rank]
        use_context_of(gpu)
        made = current or RankDevice(device_key(plan, gpus), _device(plan, gpu, kernel), gpu)
        made.device.use_kernel(kernel, plan.problem.operand_dtype, adding=plan.adds)
    made.ready_kernels.add(instance)
    return made


def _device(plan: Plan, gpu: Gpu | None, kernel: Kernel) -> Device:
    """A device of this process: on the GPU, or where that is None the one that the plan names."""
    if gpu is not None:
        from hybrid.devices.cuda_device import CudaDevice

        return CudaDevice(gpu)
    if plan.device == "emulate":
        from hybrid.devices.emulated import EmulatedDevice

        return EmulatedDevice(kernel, plan.problem.operand_dtype)
    from hybrid.devices.cpu import CpuDevice

    return CpuDevice(staged=plan.staged)


def _device_on(gpu: Gpu | None, plan: Plan, kernel: Kernel) -> PeerDevice:
    """A device of this process on another rank's GPU, which may have another index here."""
    seen_here = next((each for each in usable_gpus() if each.uuid == gpu.uuid), None) if gpu else None
    device: PeerDevice = _device(plan, seen_here, kernel)  # type: ignore[assignment]  # all three can be opened
    return device


def make_panel_stream(
    team: Team, plan: Plan, rank_device: RankDevice, transfers: PanelTransfers, gather: PanelGather | None
) -> PanelStream:
    """The stream of column panels of B that come from other nodes. `gather` goes on while it waits. Every rank calls it."""
    rank_device.meet(team, _flags_of(plan))
    from hybrid.transport.panels import PanelStream

    assert rank_device.flags is not None
    meanwhile = gather.advance if gather is not None else lambda: None
    return PanelStream(team, rank_device.flags, _first_flag_of(plan, "B"), transfers, meanwhile)


def make_panel_gather(team: Team, plan: Plan, rank_device: RankDevice, transfers: PanelTransfers) -> PanelGather:
    """The gathering of column panels of C that go to another node. Every rank calls it."""
    rank_device.meet(team, _flags_of(plan))
    from hybrid.transport.panels import PanelGather

    assert rank_device.flags is not None
    done = rank_device.device.done
    senders = [] if team.node == plan.root_node else [rank for rank in team.node_ranks if len(plan.shares[rank].rows)]
    return PanelGather(rank_device.flags, _first_flag_of(plan, "C"), plan.shares[team.rank], senders, transfers, done)


def make_device_gather(team: Team, plan: Plan, rank_device: RankDevice, c: RowView) -> DeviceGather:
    """The gathering of C from device to device. `c`: the rows of C in this node's memory. Every rank calls it."""
    from hybrid.transport.nccl import ReceivedC, SentC

    of_ranks = receivers(plan)
    rank_device.device_group.connect(team, of_ranks)
    return SentC(team, plan, rank_device) if team.rank in of_ranks else ReceivedC(team, plan, rank_device, c)


def _flags_of(plan: Plan) -> int:
    """The number of flags that a rank needs: those of the transport, then one for each column panel of B that comes from another
    node, and one for each of C that goes to one."""
    return _first_flag_of(plan, "C") + _most_panels(plan)


def _first_flag_of(plan: Plan, operand: str) -> int:
    """The first of the flags for column panels of B, or of C."""
    row_panels, pieces_of_b = _most_pieces(plan)
    first = flags_needed(max(map(len, plan.topology.nodes)), row_panels, pieces_of_b)
    return first + (_most_panels(plan) if operand == "C" else 0)


def _most_panels(plan: Plan) -> int:
    """The column panels of the rank that has most."""
    return max(len(each.column_panels) for each in plan.shares)


def _most_pieces(plan: Plan) -> tuple[int, int]:
    """The row panels of the rank that has most, and the pieces in which B comes."""
    return max(len(each.row_panels) for each in plan.shares), plan.shares[0].pieces_of_b


def operands_in_place(plan: Plan, rank: int, device: Device, matrices: RankMatrices | None) -> dict[str, Any]:
    """The matrices, by operand, that the rank's device multiplies or writes where they lie, instead of in buffers.

    With row blocks they can be such: nothing has to be copied, unless other ranks need it, or memory is so short that panels
    follow each other.
    """
    share = plan.shares[rank]
    if matrices is None or not (plan.has_row_blocks and plan.staged and share.order and share.holds_all):
        return {}
    there = {"A": matrices.a}
    if share.layout.slots == 1:
        there |= {"C": matrices.c} | ({"B": matrices.b.array} if plan.topology.size == 1 else {})
    return {operand: matrix for operand, matrix in there.items() if device.holds(matrix)}


def _links_for(plan: Plan, topology: Topology, driver: int | None) -> LinkRequest:
    """The memory and events of all ranks that a transport by CUDA IPC needs open."""
    row_panels, pieces_of_b = _most_pieces(plan)
    events = max(
        row_panels + pieces_of_b, row_panels * pieces_of_b
    )  # one for each panel that is loaded, or tile that is computed
    return LinkRequest(topology, tuple(each.layout.bytes for each in plan.shares), events, driver)


def make_transport(
    team: Team,
    plan: Plan,
    rank_device: RankDevice,
    matrices: RankMatrices | None,
    gpus: Sequence[Gpu | None],
    kernel: Kernel,
    observer: CopyObserver | None,
    panel_stream: PanelStream | None,
    in_place: Mapping[str, Any],
    device_gather: DeviceGather | None = None,
) -> tuple[Transport, Buffers]:
    """The plan's transport, and the buffers that it fills. Every rank calls it.

    `matrices`: this rank's rows; where the operands are the root's arrays, the whole matrices at the root and None elsewhere.
    `in_place`: what `operands_in_place` gave. `device_gather`: where C goes from device to device.
    """
    if plan.transport in ("host", "nccl"):
        assert matrices is not None
        rank_device.reserve(team, plan.bytes_of_buffers(team.rank))
        buffers = rank_device.own_buffers(team, plan, in_place)
        if plan.transport == "host":
            return HostTransport(rank_device.device, team.rank, matrices, observer, panel_stream, in_place), buffers
        from hybrid.transport.nccl import NcclTransport

        rows_of = [plan.b_rows_over_link(rank) for rank in range(team.size)]
        parts = rank_device.device, team.rank, matrices, rank_device.device_group, rows_of
        return NcclTransport(*parts, observer, in_place, device_gather), buffers

    driver = plan.root if plan.at_root else None
    rank_device.connect(
        team, _links_for(plan, team.topology, driver), _flags_of(plan), lambda rank: _device_on(gpus[rank], plan, kernel)
    )
    assert rank_device.flags is not None
    device, flags, peers = rank_device.device, rank_device.flags, rank_device.peers(team, plan)
    made: Transport
    if driver is None:
        from hybrid.transport.peers import PeersTransport

        assert matrices is not None
        made = PeersTransport(device, flags, team.rank, peers, matrices, observer, panel_stream, in_place)
        if in_place:
            return made, rank_device.own_buffers(team, plan, in_place)
    elif team.rank == driver:
        from hybrid.transport.root_push import RootPushDriver

        assert matrices is not None
        remote_buffers = rank_device.buffers_of_driver(team, plan)
        made = RootPushDriver(rank_device.links.devices, flags, driver, peers, remote_buffers, matrices, observer)
    else:
        from hybrid.transport.root_push import RootPushReceiver

        made = RootPushReceiver(device, flags, team.rank, driver, peers)
    return made, peers[team.rank].buffers


# -------- peer access
# Can the ranks of a node fetch data from each other's devices? They try it before a plan relies on it.

_SIZE = 64  # rows and columns of the matrix that every rank fetches from every other
_BYTES = _SIZE * _SIZE * 8


class PeerAccess:
    """The trial and its outcome. Every rank of the team calls its methods."""

    def __init__(self, rank_device: RankDevice) -> None:
        self._rank_device = rank_device
        self._passed: Topology | None = None
        self._refusals: dict[Topology, str] = {}

    def refusal(self, team: Team, *, again: bool = False) -> str:
        """Why ranks of a node cannot fetch from each other's devices, the same on all ranks; empty where they can.

        The outcome is remembered for the topology. With `again`, a failure is not.
        """
        if again or team.topology not in self._refusals:
            self._refusals.pop(team.topology, None)
            try:
                self.probe(team)
            except HybridError as error:  # the same on all ranks
                self._refusals[team.topology] = str(error)
        return self._refusals.get(team.topology, "")

    def probe(self, team: Team) -> None:
        """Let every rank fetch a matrix from every other of its node.

        DeviceUnavailable on all ranks, with the reason, if one of them cannot, or does not get what was sent.
        """
        if self._passed == team.topology:
            return
        wanted = LinkRequest(team.topology, (2 * _BYTES,) * team.size, events=1)
        self._rank_device.connect(team, wanted, flags_needed(len(team.node_ranks), 1, 1))
        flags, links, device = self._rank_device.flags, self._rank_device.links, self._rank_device.device
        assert flags is not None
        flags.new_round()
        with team.phase("prepare", timed=False):
            written = device.matrix(self._rank_device.memory, 0, _SIZE, _SIZE, "float64")
            fetched = device.matrix(self._rank_device.memory, _BYTES, _SIZE, _SIZE, "float64")
            own = pattern_of(team.rank, _SIZE, _SIZE)  # referred to until it has been copied
            device.record_ipc_event(0, device.copy_in(written, own, []))
            flags.set_flag(0)
            for rank, memory in links.opened.items():
                flags.wait(rank, 0)
                theirs = device.matrix(memory, 0, _SIZE, _SIZE, "float64")
                seen = np.full((_SIZE, _SIZE), np.nan)
                device.copy_out(seen, fetched, [device.exchange(fetched, theirs, [links.loaded[rank][0]])])
                device.finish()
                if not np.array_equal(seen, pattern_of(rank, _SIZE, _SIZE)):
                    raise DeviceUnavailable(
                        f"what was fetched from the GPU of rank {rank} is not what lies there", code="gpu-data"
                    )
            device.finish()
        self._passed = team.topology
