"""Which road the operands take to the devices, and why; and the road made ready for a product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybrid.core.settings import Settings
from hybrid.devices.base import Device
from hybrid.devices.buffers import Buffers
from hybrid.devices.cuda_gpus import Gpu, usable_gpus
from hybrid.errors import DeviceUnavailable
from hybrid.kernels.catalogue import Kernel
from hybrid.plan.plan import Plan
from hybrid.ranks.supervisor import busy
from hybrid.ranks.team import Team
from hybrid.transport.base import RankMatrices, Transport
from hybrid.transport.host import HostTransport
from hybrid.transport.nccl import NcclTransport
from hybrid.transport.node_peers import flags_needed
from hybrid.transport.panel_stream import PanelForwarder, PanelStream
from hybrid.transport.peers import PeersTransport
from hybrid.transport.rank_device import RankDevice
from hybrid.transport.root_push import RootPushDriver, RootPushReceiver

WORTH_EXCHANGING = 8 << 20  # bytes of B; less is loaded sooner than doors are opened between the GPUs


@dataclass(frozen=True)
class TransportChoice:
    """`name`: "in place", "host", "peers" or "nccl"."""

    name: str
    reason: str


def choose_transport(team: Team, plan: Plan, settings: Settings, gpus: Sequence[Gpu | None], kernel: Kernel) -> TransportChoice:
    """The fastest road that works here, or the one asked for. Every rank calls it, and comes to the same.

    DeviceUnavailable if the road asked for does not work.
    """
    if not plan.staged:
        return TransportChoice("in place", "a CPU multiplies the matrices where they lie")
    if settings.transport == "auto":
        return _transport_that_works(team, plan, gpus, kernel)
    hindrance = {"peers": plan.why_no_peers, "nccl": _why_no_nccl(plan, gpus)}.get(settings.transport, "")
    if hindrance:
        raise DeviceUnavailable(f"the road {settings.transport} cannot be taken: {hindrance}")
    if settings.transport == "peers":
        _rank_device_to_probe(team, plan, gpus, kernel).probe(team)
    elif settings.transport == "nccl":
        _rank_device_to_probe(team, plan, gpus, kernel).device_group.init_communicator(team)
    return TransportChoice(settings.transport, "asked for")


def _transport_that_works(team: Team, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> TransportChoice:
    """Peers, or NCCL where no node has peers or the only one's do not reach each other, or the host."""
    one_a_node = len(plan.topology.nodes) == plan.topology.size
    without_peers, without_nccl = plan.why_no_peers, _why_no_nccl(plan, gpus)
    if without_peers and (without_nccl or not one_a_node):
        return TransportChoice("host", without_peers)
    if plan.device != "cuda":
        return TransportChoice("host", "all memory is a CPU's own")
    if plan.problem.bytes(plan.problem.l, plan.problem.m) < WORTH_EXCHANGING:
        return TransportChoice("host", without_peers or "B is small")
    rank_device = _rank_device_to_probe(team, plan, gpus, kernel)
    if one_a_node:
        without_peers = "one rank a node has no peers"
    else:
        refusal = rank_device.refusal(team)
        if not refusal:
            return TransportChoice("peers", "each rank fetched data from the GPUs of its node's other ranks")
        without_peers = f"the GPUs of a node cannot reach each other ({refusal})"
        if len(plan.topology.nodes) > 1:
            return TransportChoice("host", without_peers)
    without_nccl = without_nccl or rank_device.device_group.refusal(team)
    if without_nccl:
        return TransportChoice("host", f"{without_peers}, nor can NCCL help ({without_nccl})")
    return TransportChoice("nccl", f"{without_peers}, but NCCL brought every rank's data to every other")


def _why_no_nccl(plan: Plan, gpus: Sequence[Gpu | None]) -> str:
    """What `plan.why_no_nccl` says, or which ranks use the same one of `gpus[rank]`: NCCL wants one for each."""
    if plan.why_no_nccl:
        return plan.why_no_nccl
    users: dict[str, int] = {}
    for rank, gpu in enumerate(gpus):
        if gpu is not None and users.setdefault(gpu.uuid, rank) != rank:
            return f"ranks {users[gpu.uuid]} and {rank} share a GPU"
    return ""


def _rank_device_to_probe(team: Team, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> RankDevice:
    rank_device = team.kept
    if isinstance(rank_device, RankDevice) and rank_device.key == _key(plan, gpus):
        return rank_device
    return make_rank_device(team, plan, gpus, kernel)


def make_rank_device(team: Team, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> RankDevice:
    """This rank's, kept with the team and made anew for other devices; ready for the kernel. Every rank calls it."""
    if team.kept is not None and team.kept.key != _key(plan, gpus):
        give_back(team)
    kept, known_as = team.kept, (kernel.name, plan.problem.dtype, plan.adds)
    if isinstance(kept, RankDevice) and known_as in kept.ready_for:
        kept.device.use_kernel(kernel, plan.problem.dtype, adding=plan.adds)
        return kept
    try:
        with team.phase("prepare", timed=False), busy():
            rank_device = kept
            if not isinstance(rank_device, RankDevice):
                gpu = gpus[team.rank]
                team.kept = rank_device = RankDevice(_key(plan, gpus), _device(plan, gpu, kernel), gpu)
            rank_device.device.use_kernel(kernel, plan.problem.dtype, adding=plan.adds)
    except BaseException:
        team.kept = kept  # on all ranks, also on those that could make theirs
        raise
    rank_device.ready_for.add(known_as)
    return rank_device


def give_back(team: Team) -> None:
    """What is held for the next product. Every rank calls it."""
    rank_device = team.kept
    assert isinstance(rank_device, RankDevice)
    with team.phase("prepare", timed=False):  # nobody gives back what others have open
        rank_device.close()
    with team.phase("prepare", timed=False):
        rank_device.leave()
        team.kept = None


def _key(plan: Plan, gpus: Sequence[Gpu | None]) -> tuple[object, ...]:
    """The same on all ranks: all need other workplaces, or none."""
    return plan.device, plan.staged, tuple(gpus)


def _device(plan: Plan, gpu: Gpu | None, kernel: Kernel) -> Device:
    if gpu is not None:
        from hybrid.devices.cuda_device import CudaDevice

        return CudaDevice(gpu)
    if plan.device == "emulate":
        from hybrid.devices.emulated import EmulatedDevice

        return EmulatedDevice(kernel, plan.problem.dtype)
    from hybrid.devices.cpu import CpuDevice

    return CpuDevice(staged=plan.staged)


def root_can_drive(plan: Plan, gpus: Sequence[Gpu | None], seen_by_root: Sequence[Gpu]) -> bool:
    """Whether the root can drive the links of all ranks, whose GPUs are `gpus[rank]`."""
    return len(plan.topology.nodes) == 1 and {gpu.uuid for gpu in gpus if gpu} <= {gpu.uuid for gpu in seen_by_root}


def flags_of_plan(plan: Plan) -> int:
    """Places on a board that the roads need; deliveries have theirs after them."""
    row_panels, column_panels = _most_pieces(plan)
    return flags_needed(max(len(members) for members in plan.topology.nodes), row_panels, column_panels) + column_panels


def make_panel_stream(team: Team, plan: Plan, rank_device: RankDevice, forwarder: PanelForwarder) -> PanelStream:
    """Of panels of B that come from other nodes. Every rank calls it."""
    rank_device.meet(team, flags_of_plan(plan))
    assert rank_device.flags is not None
    courier = plan.root if team.node == plan.root_node else plan.topology.leader(team.node)
    return PanelStream(rank_device.flags, flags_of_plan(plan) - _most_pieces(plan)[1], courier, forwarder)


def _most_pieces(plan: Plan) -> tuple[int, int]:
    return max(len(each.row_panels) for each in plan.shares), plan.shares[0].pieces_of_b


def make_transport(
    team: Team,
    plan: Plan,
    rank_device: RankDevice,
    matrices: RankMatrices | None,
    kernel: Kernel,
    gpus: Sequence[Gpu | None],
    panel_stream: PanelStream | None = None,
) -> tuple[Transport, Buffers]:
    """The road, with the buffers it leads to. Every rank calls it.

    `ends`: this rank's rows, or with `plan.at_root` the whole matrices at the root, None on the other ranks.
    """

    def link_to(rank: int) -> Any:
        theirs = gpus[rank]
        seen_here = next((gpu for gpu in usable_gpus() if gpu.uuid == theirs.uuid), None) if theirs else None
        return _device(plan, seen_here, kernel)

    share = plan.shares[team.rank]
    if plan.transport in ("host", "nccl"):
        assert matrices is not None
        rank_device.hold(team, share.layout.bytes)
        buffers = rank_device.own_buffers(team, plan)
        if plan.transport == "host":
            return HostTransport(rank_device.device, matrices, panel_stream), buffers
        rows_of = [plan.b_rows_over_link(rank) for rank in range(team.size)]
        return NcclTransport(rank_device.device, matrices, rank_device.device_group, team.rank, rows_of), buffers
    row_panels, column_panels = _most_pieces(plan)
    sizes = [each.layout.bytes for each in plan.shares]
    driver = plan.root if plan.at_root else None
    rank_device.connect(
        team,
        sizes,
        max(row_panels + column_panels, row_panels * column_panels),
        flags_of_plan(plan),
        driver,
        link_to,
    )
    assert rank_device.flags is not None
    members = rank_device.members(team, plan)
    made: Transport
    if driver is None:
        assert matrices is not None
        made = PeersTransport(rank_device.device, rank_device.flags, team.rank, members, matrices, panel_stream)
    elif team.rank == driver:
        assert matrices is not None
        made = RootPushDriver(
            rank_device.links, rank_device.flags, driver, members, rank_device.buffers_at_links(team, plan), matrices
        )
    else:
        made = RootPushReceiver(rank_device.device, rank_device.flags, team.rank, driver, members)
    return made, members[team.rank].buffers
