# SPDX-License-Identifier: MIT
"""Makes the transport that was decided on: the rank's device, its buffers, and the object that moves the panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hybrid.core.spans import Topology
from hybrid.devices.base import Device, PeerDevice
from hybrid.devices.buffers import Buffers
from hybrid.devices.cuda_contexts import use_context_of
from hybrid.devices.cuda_gpus import Gpu, usable_gpus
from hybrid.host.row_view import RowView
from hybrid.kernels.catalogue import Kernel
from hybrid.plan.gather_layout import receivers
from hybrid.plan.plan import Plan
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team
from hybrid.transport.base import CopyObserver, RankMatrices, Transport
from hybrid.transport.host import HostTransport
from hybrid.transport.ipc_links import LinkRequest
from hybrid.transport.node_peers import flags_needed
from hybrid.transport.rank_device import RankDevice

if TYPE_CHECKING:
    from hybrid.transport.device_gather import DeviceGather
    from hybrid.transport.panel_gather import PanelGather
    from hybrid.transport.panel_stream import PanelStream, PanelTransfers

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
    from hybrid.transport.panel_stream import PanelStream

    assert rank_device.flags is not None
    meanwhile = gather.advance if gather is not None else lambda: None
    return PanelStream(team, rank_device.flags, _first_flag_of(plan, "B"), transfers, meanwhile)


def make_panel_gather(team: Team, plan: Plan, rank_device: RankDevice, transfers: PanelTransfers) -> PanelGather:
    """The gathering of column panels of C that go to another node. Every rank calls it."""
    rank_device.meet(team, _flags_of(plan))
    from hybrid.transport.panel_gather import PanelGather

    assert rank_device.flags is not None
    done = rank_device.device.done
    senders = [] if team.node == plan.root_node else [rank for rank in team.node_ranks if len(plan.shares[rank].rows)]
    return PanelGather(rank_device.flags, _first_flag_of(plan, "C"), plan.shares[team.rank], senders, transfers, done)


def make_device_gather(team: Team, plan: Plan, rank_device: RankDevice, c: RowView) -> DeviceGather:
    """The gathering of C from device to device. `c`: the rows of C in this node's memory. Every rank calls it."""
    from hybrid.transport.device_gather import ReceivedC, SentC

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
