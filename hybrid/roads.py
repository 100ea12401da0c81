"""Which road the operands take to the devices, and why; and the road made ready for a product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybrid.devices import Device
from hybrid.devices.buffers import Buffers
from hybrid.devices.cuda import Gpu, usable_gpus
from hybrid.errors import DeviceUnavailable, HybridError
from hybrid.exchange import Ends, Road
from hybrid.exchange.deliveries import Deliveries, Passing
from hybrid.exchange.host import HostRoad
from hybrid.exchange.members import notes_needed
from hybrid.exchange.peers import PeersRoad
from hybrid.exchange.push import DrivingRoad, PushedRoad
from hybrid.guard import busy
from hybrid.kernels.catalogue import Kernel
from hybrid.plan import Plan
from hybrid.settings import Settings
from hybrid.team import Team
from hybrid.workplace import Workplace

WORTH_EXCHANGING = 8 << 20  # bytes of B; less is loaded sooner than doors are opened between the GPUs


@dataclass(frozen=True)
class RoadChoice:
    """`name`: "in place", "host" or "peers"."""

    name: str
    reason: str


def choose_road(team: Team, plan: Plan, settings: Settings, gpu: Gpu | None, kernel: Kernel) -> RoadChoice:
    """The fastest road that works here, or the one asked for. Every rank calls it, and comes to the same.

    DeviceUnavailable if the road asked for does not work.
    """
    if not plan.staged:
        return RoadChoice("in place", "a CPU multiplies the matrices where they lie")
    hindrance = plan.why_no_peers
    if settings.road == "peers":
        if hindrance:
            raise DeviceUnavailable(f"the road peers cannot be taken: {hindrance}")
        _workplace_to_probe(team, plan, gpu, kernel).probe(team)
        return RoadChoice("peers", "asked for")
    if settings.road == "host":
        return RoadChoice("host", "asked for")
    if hindrance:
        return RoadChoice("host", hindrance)
    if plan.device != "cuda":
        return RoadChoice("host", "all memory is a CPU's own")
    if plan.problem.bytes(plan.problem.l, plan.problem.m) < WORTH_EXCHANGING:
        return RoadChoice("host", "B is small")
    place = _workplace_to_probe(team, plan, gpu, kernel)
    if team.topology not in place.refusals:
        try:
            place.probe(team)
        except HybridError as error:  # the same on all ranks
            place.refusals[team.topology] = str(error)
    if team.topology in place.refusals:
        return RoadChoice("host", f"the GPUs of a node cannot reach each other ({place.refusals[team.topology]})")
    return RoadChoice("peers", "each rank fetched data from the GPUs of its node's other ranks")


def _workplace_to_probe(team: Team, plan: Plan, gpu: Gpu | None, kernel: Kernel) -> Workplace:
    """Made in a phase where it is not there yet; a product's kernel is taken later."""
    place = team.kept
    if isinstance(place, Workplace) and place.key == (plan.device, plan.staged, gpu):
        return place
    with team.phase("prepare", timed=False), busy():
        return workplace_of(team, plan, gpu, kernel)


def workplace_of(team: Team, plan: Plan, gpu: Gpu | None, kernel: Kernel) -> Workplace:
    """This rank's, kept with the team and made anew for another device; ready for the kernel."""
    key = (plan.device, plan.staged, gpu)
    place = team.kept
    if not isinstance(place, Workplace) or place.key != key:
        if place is not None:
            place.leave()
        team.kept = place = Workplace(key, _device(plan, gpu, kernel), gpu)
    place.device.take_kernel(kernel, plan.problem.dtype)
    return place


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
    return max(len(each.chunks) for each in plan.shares), len(plan.shares[0].panels)


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
    if plan.road == "host":
        assert ends is not None
        place.hold(team, share.layout.bytes)
        return HostRoad(place.device, ends, deliveries), place.own_buffers(team, plan)
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
