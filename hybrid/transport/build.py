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
from hybrid.transport.base import Ends, Road
from hybrid.transport.host import HostRoad
from hybrid.transport.nccl import NcclRoad
from hybrid.transport.node_peers import notes_needed
from hybrid.transport.panel_stream import Deliveries, Passing
from hybrid.transport.peers import PeersRoad
from hybrid.transport.rank_device import Workplace
from hybrid.transport.root_push import DrivingRoad, PushedRoad

WORTH_EXCHANGING = 8 << 20  # bytes of B; less is loaded sooner than doors are opened between the GPUs


@dataclass(frozen=True)
class RoadChoice:
    """`name`: "in place", "host", "peers" or "nccl"."""

    name: str
    reason: str


def choose_road(team: Team, plan: Plan, settings: Settings, gpus: Sequence[Gpu | None], kernel: Kernel) -> RoadChoice:
    """The fastest road that works here, or the one asked for. Every rank calls it, and comes to the same.

    DeviceUnavailable if the road asked for does not work.
    """
    if not plan.staged:
        return RoadChoice("in place", "a CPU multiplies the matrices where they lie")
    if settings.road == "auto":
        return _road_that_works(team, plan, gpus, kernel)
    hindrance = {"peers": plan.why_no_peers, "nccl": _why_no_nccl(plan, gpus)}.get(settings.road, "")
    if hindrance:
        raise DeviceUnavailable(f"the road {settings.road} cannot be taken: {hindrance}")
    if settings.road == "peers":
        _workplace_to_probe(team, plan, gpus, kernel).probe(team)
    elif settings.road == "nccl":
        _workplace_to_probe(team, plan, gpus, kernel).communicator.join(team)
    return RoadChoice(settings.road, "asked for")


def _road_that_works(team: Team, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> RoadChoice:
    """Peers, or NCCL where no node has peers or the only one's do not reach each other, or the host."""
    one_a_node = len(plan.topology.nodes) == plan.topology.size
    without_peers, without_nccl = plan.why_no_peers, _why_no_nccl(plan, gpus)
    if without_peers and (without_nccl or not one_a_node):
        return RoadChoice("host", without_peers)
    if plan.device != "cuda":
        return RoadChoice("host", "all memory is a CPU's own")
    if plan.problem.bytes(plan.problem.l, plan.problem.m) < WORTH_EXCHANGING:
        return RoadChoice("host", without_peers or "B is small")
    place = _workplace_to_probe(team, plan, gpus, kernel)
    if one_a_node:
        without_peers = "one rank a node has no peers"
    else:
        refusal = place.refusal(team)
        if not refusal:
            return RoadChoice("peers", "each rank fetched data from the GPUs of its node's other ranks")
        without_peers = f"the GPUs of a node cannot reach each other ({refusal})"
        if len(plan.topology.nodes) > 1:
            return RoadChoice("host", without_peers)
    without_nccl = without_nccl or place.communicator.refusal(team)
    if without_nccl:
        return RoadChoice("host", f"{without_peers}, nor can NCCL help ({without_nccl})")
    return RoadChoice("nccl", f"{without_peers}, but NCCL brought every rank's data to every other")


def _why_no_nccl(plan: Plan, gpus: Sequence[Gpu | None]) -> str:
    """What `plan.why_no_nccl` says, or which ranks use the same one of `gpus[rank]`: NCCL wants one for each."""
    if plan.why_no_nccl:
        return plan.why_no_nccl
    users: dict[str, int] = {}
    for rank, gpu in enumerate(gpus):
        if gpu is not None and users.setdefault(gpu.uuid, rank) != rank:
            return f"ranks {users[gpu.uuid]} and {rank} share a GPU"
    return ""


def _workplace_to_probe(team: Team, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> Workplace:
    place = team.kept
    if isinstance(place, Workplace) and place.key == _key(plan, gpus):
        return place
    return settled_workplace(team, plan, gpus, kernel)


def settled_workplace(team: Team, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> Workplace:
    """This rank's, kept with the team and made anew for other devices; ready for the kernel. Every rank calls it."""
    if team.kept is not None and team.kept.key != _key(plan, gpus):
        give_back(team)
    kept, known_as = team.kept, (kernel.name, plan.problem.dtype, plan.adds)
    if isinstance(kept, Workplace) and known_as in kept.ready_for:
        kept.device.take_kernel(kernel, plan.problem.dtype, adding=plan.adds)
        return kept
    try:
        with team.phase("prepare", timed=False), busy():
            place = kept
            if not isinstance(place, Workplace):
                gpu = gpus[team.rank]
                team.kept = place = Workplace(_key(plan, gpus), _device(plan, gpu, kernel), gpu)
            place.device.take_kernel(kernel, plan.problem.dtype, adding=plan.adds)
    except BaseException:
        team.kept = kept  # on all ranks, also on those that could make theirs
        raise
    place.ready_for.add(known_as)
    return place


def give_back(team: Team) -> None:
    """What is held for the next product. Every rank calls it."""
    place = team.kept
    assert isinstance(place, Workplace)
    with team.phase("prepare", timed=False):  # nobody gives back what others have open
        place.close()
    with team.phase("prepare", timed=False):
        place.leave()
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


def notes_of(plan: Plan) -> int:
    """Places on a board that the roads need; deliveries have theirs after them."""
    chunks, panels = _most_pieces(plan)
    return notes_needed(max(len(members) for members in plan.topology.nodes), chunks, panels) + panels


def make_deliveries(team: Team, plan: Plan, place: Workplace, passing: Passing) -> Deliveries:
    """Of panels of B that come from other nodes. Every rank calls it."""
    place.meet(team, notes_of(plan))
    assert place.board is not None
    courier = plan.root if team.node == plan.root_node else plan.topology.leader(team.node)
    return Deliveries(place.board, notes_of(plan) - _most_pieces(plan)[1], courier, passing)


def _most_pieces(plan: Plan) -> tuple[int, int]:
    return max(len(each.chunks) for each in plan.shares), plan.shares[0].pieces_of_b


def make_road(
    team: Team,
    plan: Plan,
    place: Workplace,
    ends: Ends | None,
    kernel: Kernel,
    gpus: Sequence[Gpu | None],
    deliveries: Deliveries | None = None,
) -> tuple[Road, Buffers]:
    """The road, with the buffers it leads to. Every rank calls it.

    `ends`: this rank's rows, or with `plan.at_root` the whole matrices at the root, None on the other ranks.
    """

    def link_to(rank: int) -> Any:
        theirs = gpus[rank]
        seen_here = next((gpu for gpu in usable_gpus() if gpu.uuid == theirs.uuid), None) if theirs else None
        return _device(plan, seen_here, kernel)

    share = plan.shares[team.rank]
    if plan.road in ("host", "nccl"):
        assert ends is not None
        place.hold(team, share.layout.bytes)
        buffers = place.own_buffers(team, plan)
        if plan.road == "host":
            return HostRoad(place.device, ends, deliveries), buffers
        rows_of = [plan.b_rows_over_link(rank) for rank in range(team.size)]
        return NcclRoad(place.device, ends, place.communicator, team.rank, rows_of), buffers
    chunks, panels = _most_pieces(plan)
    sizes = [each.layout.bytes for each in plan.shares]
    driver = plan.root if plan.at_root else None
    place.connect(
        team,
        sizes,
        max(chunks + panels, chunks * panels),
        notes_of(plan),
        driver,
        link_to,
    )
    assert place.board is not None
    members = place.members(team, plan)
    made: Road
    if driver is None:
        assert ends is not None
        made = PeersRoad(place.device, place.board, team.rank, members, ends, deliveries)
    elif team.rank == driver:
        assert ends is not None
        made = DrivingRoad(place.links, place.board, driver, members, place.buffers_at_links(team, plan), ends)
    else:
        made = PushedRoad(place.device, place.board, team.rank, driver, members)
    return made, members[team.rank].buffers
