"""What a rank keeps from product to product: its device, a block of its memory, and what it has opened of its neighbours."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid.core.spans import Topology
from hybrid.devices.base import Event, PeerDevice
from hybrid.devices.buffers import Buffers
from hybrid.devices.cuda_gpus import Gpu
from hybrid.errors import DeviceUnavailable, HybridError
from hybrid.plan.plan import Plan
from hybrid.ranks.node_flags import NodeFlags
from hybrid.ranks.team import Team
from hybrid.transport.device_group import DeviceGroup
from hybrid.transport.node_peers import Peer, flags_needed

_PROBED = 64  # rows and columns that every rank fetches from every other, to see whether it can


@dataclass(frozen=True)
class _Connection:
    """What all ranks hold open to the others of their nodes."""

    topology: Topology
    driver: int | None
    make_ipc_events: int
    sizes: tuple[int, ...]  # of every rank's memory

    def serves(self, other: _Connection) -> bool:
        same = self.topology == other.topology and self.driver == other.driver
        return same and self.make_ipc_events >= other.make_ipc_events and all(map(operator.ge, self.sizes, other.sizes))


class RankDevice:
    """One rank's. What takes `team` is called by all its ranks together."""

    def __init__(self, key: object, device: Any, gpu: Gpu | None = None) -> None:
        self.key = key  # of the device: whoever needs another needs another workplace
        self.gpu = gpu
        self.device: Any = device
        self.device_group = DeviceGroup(device)
        self.memory: Any = None
        self.flags: NodeFlags | None = None
        self.links: dict[int, PeerDevice] = {}  # on a root that drives the others' links: a device for each member
        self._at_links: dict[int, Any] = {}  # their memory, as opened there
        self._opened: dict[int, Any] = {}  # the neighbours' memory, as opened by this rank's own device
        self._loaded: dict[int, list[Event]] = {}
        self._multiplied: dict[int, list[Event]] = {}
        self.held = 0  # bytes of `memory`
        self.agreed: Any = None  # `Kept.agreed`
        self.ready_for: set[tuple[str, str, bool]] = set()  # kernels, for which type, and to add, that all devices have taken
        self._made: dict[str, tuple[object, Any]] = {}  # for the last plan, and what was made for it
        self._connection: _Connection | None = None
        self._probed: Topology | None = None
        self._refusals: dict[Topology, str] = {}

    def hold(self, team: Team, size: int) -> Any:
        """At least `size` bytes of the device, which other ranks need not open."""
        if self._connection is not None:
            with team.phase("prepare", timed=False):
                self.close()
        with team.phase("prepare", timed=False):
            self.links = {}  # others may have had their marks open until now
            if self.memory is None or self.held < size:
                self._reserve(size, shared=False)
        return self.memory

    def _for_plan(self, what: str, plan: Plan, make: Callable[[], Any]) -> Any:
        """Made once for plans that cut alike: views of the buffers take their time."""
        tiling, made = self._made.get(what, (None, None))
        if tiling is not plan.shares:
            made = make()
            self._made[what] = (plan.shares, made)
        return made

    def _reserve(self, size: int, *, shared: bool) -> None:
        self._made.clear()
        self.agreed = None
        self.memory, self.held = None, 0  # the old one goes first: both together may be too much
        self.memory, self.held = self.device.reserve(size, shared=shared), size

    def connect(
        self,
        team: Team,
        sizes: Sequence[int],
        make_ipc_events: int,
        flag_count: int,
        driver: int | None = None,
        link_to: Callable[[int], PeerDevice] | None = None,
    ) -> None:
        """On every rank `sizes[rank]` bytes that the other ranks of its node have open, and so many announcements.

        `driver`: a rank that opens all of these on a device for each, made by `link_to(rank)`, and announces what it loads.
        Raises on all ranks if it fails on one.
        """
        wanted = _Connection(team.topology, driver, make_ipc_events, tuple(sizes))
        if self._connection is None or not self._connection.serves(wanted):
            try:
                self._connect(team, sizes, make_ipc_events, driver, link_to)
            except BaseException:
                with team.phase("prepare", timed=False):  # before any owner gives back what others have opened
                    self.close()
                raise
            self._connection = wanted
        self.meet(team, flag_count)

    def meet(self, team: Team, flag_count: int) -> None:
        """A board of at least so many notes a rank."""
        if self.flags is None or self.flags.flag_count < flag_count or self.flags.topology != team.topology:
            self.flags = NodeFlags(team, flag_count)

    def _connect(
        self,
        team: Team,
        sizes: Sequence[int],
        make_ipc_events: int,
        driver: int | None,
        link_to: Callable[[int], PeerDevice] | None,
    ) -> None:
        peers_on_node = [rank for rank in team.node_ranks if rank != team.rank]
        with team.phase("prepare", timed=False):
            self.close()
        with team.phase("prepare", timed=False) as offering:
            self.links = {}
            self._reserve(sizes[team.rank], shared=True)
            own = self.device.make_ipc_events(make_ipc_events)
            if team.rank == driver and link_to is not None:
                self.links = {rank: self.device if rank == driver else link_to(rank) for rank in team.node_ranks}
            of_links = {rank: link.make_ipc_events(make_ipc_events) for rank, link in self.links.items() if rank != team.rank}
            offering.mine = (self.device.handle(self.memory), own, of_links | ({driver: own} if self.links else {}))
        with team.phase("prepare", timed=False):
            for rank in peers_on_node:
                self._opened[rank] = self.device.open(offering.all[rank][0])
            if driver is None:
                self._loaded = {rank: self.device.open_ipc_events(offering.all[rank][1]) for rank in peers_on_node}
            elif team.rank != driver:
                published = offering.all[driver][2]
                self._loaded = {rank: self.device.open_ipc_events(handle) for rank, handle in published.items()}
            for rank, link in self.links.items():
                if rank != team.rank:
                    handle, tiles, _ = offering.all[rank]
                    self._at_links[rank] = link.open(handle)
                    self._multiplied[rank] = link.open_ipc_events(tiles)

    def close(self) -> None:
        """What others have made and this rank has opened."""
        self._connection = None
        self._made.clear()
        for rank, memory in self._at_links.items():
            self.links[rank].close(memory)
        for memory in self._opened.values():
            self.device.close(memory)
        for known in (self._at_links, self._opened, self._loaded, self._multiplied):
            known.clear()

    def pin(self, array: Any) -> None:
        """Let copies from and to it run at full speed, for as long as its memory lives."""
        for device in self._devices():
            device.pin(array)

    def _devices(self) -> Iterable[Any]:
        return {id(each): each for each in (self.device, *self.links.values())}.values()

    def drain(self) -> None:
        """After a failure: let what is under way come to its end, so that the next product finds nothing of it."""
        self.agreed = None
        self.device_group.abort()  # first: what some rank never joined has no end
        for device in self._devices():
            with suppress(Exception):  # what failed has been said; a device beyond help will say so again
                device.finish()

    def leave(self) -> None:
        """Give everything back."""
        self.close()
        self.device_group.destroy()
        self.links = {}
        self.memory, self.flags, self.held = None, None, 0

    def own_buffers(self, team: Team, plan: Plan) -> Buffers:
        """After `hold`."""
        share = plan.shares[team.rank]
        return self._for_plan("own", plan, lambda: Buffers(self.device, self.memory, share, plan.problem))

    def members(self, team: Team, plan: Plan) -> dict[int, Peer]:
        """The ranks of the node, with their buffers as this rank's device reaches them. After `connect`."""
        return self._for_plan("members", plan, lambda: self._members(team, plan))

    def _members(self, team: Team, plan: Plan) -> dict[int, Peer]:
        members = {}
        for local_rank, rank in enumerate(team.node_ranks):
            share = plan.shares[rank]
            memory = self.memory if rank == team.rank else self._opened[rank]
            members[rank] = Peer(
                share,
                local_rank,
                plan.b_rows_over_link(rank),
                Buffers(self.device, memory, share, plan.problem),
                self._loaded.get(rank, []),
                self._multiplied.get(rank, []),
            )
        return members

    def buffers_at_links(self, team: Team, plan: Plan) -> dict[int, Buffers]:
        """The members' buffers as the links to them reach them. After `connect` on its driver."""

        def buffers(rank: int, link: PeerDevice) -> Buffers:
            memory = self.memory if rank == team.rank else self._at_links[rank]
            return Buffers(link, memory, plan.shares[rank], plan.problem)

        return self._for_plan("at links", plan, lambda: {rank: buffers(rank, link) for rank, link in self.links.items()})

    def refusal(self, team: Team) -> str:
        """Why the ranks of a node do not reach each other's memory, the same on all ranks; empty where they do."""
        if team.topology not in self._refusals:
            try:
                self.probe(team)
            except HybridError as error:  # the same on all ranks
                self._refusals[team.topology] = str(error)
        return self._refusals.get(team.topology, "")

    def probe(self, team: Team) -> None:
        """Let every rank fetch data from every other of its node. DeviceUnavailable on all ranks, with the reason, if one
        of them cannot, or gets what was not sent."""
        if self._probed == team.topology:
            return
        size = _PROBED * _PROBED * 8
        self.connect(team, [2 * size] * team.size, 1, flags_needed(len(team.node_ranks), 1, 1))
        assert self.flags is not None
        self.flags.new_round()
        with team.phase("prepare", timed=False):
            written = self.device.matrix(self.memory, 0, _PROBED, _PROBED, "float64")
            fetched = self.device.matrix(self.memory, size, _PROBED, _PROBED, "float64")
            own = _pattern(team.rank)  # as long as it is copied
            self.device.record_ipc_event(0, self.device.copy_in(written, own, []))
            self.flags.set_flag(0)
            for rank, memory in self._opened.items():
                self.flags.wait(rank, 0)
                theirs = self.device.matrix(memory, 0, _PROBED, _PROBED, "float64")
                seen = np.full((_PROBED, _PROBED), np.nan)
                arrived = self.device.exchange(fetched, theirs, [self._loaded[rank][0]])
                self.device.copy_out(seen, fetched, [arrived])
                self.device.finish()
                if not np.array_equal(seen, _pattern(rank)):
                    raise DeviceUnavailable(f"what was fetched from the GPU of rank {rank} is not what lies there")
            self.device.finish()
        self._probed = team.topology


def _pattern(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).random((_PROBED, _PROBED))
