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


def choose_road(team: Team, plan: Plan, settings: Settings, gpus: Sequence[Gpu | None], kernel: Kernel) -> RoadChoice:
    """The fastest road that works here, or the one asked for. Every rank calls it, and comes to the same.

    DeviceUnavailable if the road asked for does not work.
    """
    if not plan.staged:
        return RoadChoice("in place", "a CPU multiplies the matrices where they lie")
    hindrance = plan.why_no_peers
    if settings.road == "peers":
        if hindrance:
            raise DeviceUnavailable(f"the road peers cannot be taken: {hindrance}")
        _workplace_to_probe(team, plan, gpus, kernel).probe(team)
        return RoadChoice("peers", "asked for")
    if settings.road == "host":
        return RoadChoice("host", "asked for")
    if hindrance:
        return RoadChoice("host", hindrance)
    if plan.device != "cuda":
        return RoadChoice("host", "all memory is a CPU's own")
    if plan.problem.bytes(plan.problem.l, plan.problem.m) < WORTH_EXCHANGING:
        return RoadChoice("host", "B is small")
    place = _workplace_to_probe(team, plan, gpus, kernel)
    if team.topology not in place.refusals:
        try:
            place.probe(team)
        except HybridError as error:  # the same on all ranks
            place.refusals[team.topology] = str(error)
    if team.topology in place.refusals:
        return RoadChoice("host", f"the GPUs of a node cannot reach each other ({place.refusals[team.topology]})")
    return RoadChoice("peers", "each rank fetched data from the GPUs of its node's other ranks")


def _workplace_to_probe(team: Team, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> Workplace:
    place = team.kept
    if isinstance(place, Workplace) and place.key == _key(plan, gpus):
        return place
    return settled_workplace(team, plan, gpus, kernel)


def settled_workplace(team: Team, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> Workplace:
    """This rank's, kept with the team and made anew for other devices; ready for the kernel. Every rank calls it."""
    if team.kept is not None and team.kept.key != _key(plan, gpus):
        give_back(team)
    kept = team.kept
    try:
        with team.phase("prepare", timed=False), busy():
            place = kept
            if not isinstance(place, Workplace):
                gpu = gpus[team.rank]
                team.kept = place = Workplace(_key(plan, gpus), _device(plan, gpu, kernel), gpu)
            place.device.take_kernel(kernel, plan.problem.dtype)
    except BaseException:
        team.kept = kept  # on all ranks, also on those that could make theirs
        raise
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
