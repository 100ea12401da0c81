# SPDX-License-Identifier: MIT
"""The transport "peers": the processes of a node open each other's device memory and events by CUDA IPC (for CPUs: shared files).

Each rank loads some rows of B over its GPU's own link, and copies the others from its peers. If the operands are the root's
private arrays, which other processes cannot read, the root opens every GPU's buffers, copies rows of A and B to each GPU over
that GPU's own link, and copies the tiles of C back ("root push"); the other ranks copy B from their peers and multiply.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid.core.problem import Span, Topology, record
from hybrid.devices.base import Buffers, Device, Event, Timings
from hybrid.errors import DeviceUnavailable
from hybrid.planning.plan import Plan
from hybrid.planning.schedule import Arrival, RankShare, Tile
from hybrid.ranks.shared_memory import NodeFlags
from hybrid.ranks.team import Team
from hybrid.transport.base import Arriving, CopyObserver, HostTransport, RankMatrices, Transport, pattern_of

if TYPE_CHECKING:
    from hybrid.transport.rank_device import RankDevice


@record
class LinkRequest:
    """The IPC links to open: `sizes[rank]` bytes of each rank's device memory, and `events` events of each rank.

    `driver`: the only rank that opens all others' memory, each on its GPU; None: each rank opens all others'.
    """

    topology: Topology
    sizes: tuple[int, ...]
    events: int
    driver: int | None = None


class NodeLinks:
    """A rank's open IPC links to the devices of its node (for CPUs: shared files).

    All ranks open the buffers of all others to fetch rows of B. With a driver, that rank also opens each rank's buffers on that
    rank's GPU, to copy the root's arrays to and from all GPUs.

    `opened[rank]`: that rank's memory, opened on this rank's device. On the driver, `devices[rank]` is a `Device` on that rank's
    GPU, and `opened_by_driver[rank]` its memory, opened there. `loaded[rank]` and `multiplied[rank]`: that rank's events.
    """

    def __init__(self, team: Team, device: Device, wanted: LinkRequest) -> None:
        self._team, self._device, self.wanted = team, device, wanted
        self.are_open = False  # on all ranks
        self.devices: dict[int, Device] = {}
        self.opened: dict[int, Any] = {}
        self.opened_by_driver: dict[int, Any] = {}
        self.loaded: dict[int, list[Event]] = {}
        self.multiplied: dict[int, list[Event]] = {}

    def with_more(self, wanted: LinkRequest) -> LinkRequest:
        """`wanted`, enlarged to what is open, so that alternating shapes do not reopen links."""
        there = self.wanted
        if not (self.are_open and there.topology == wanted.topology and there.driver == wanted.driver):
            return wanted
        sizes = tuple(map(max, there.sizes, wanted.sizes))
        return replace(wanted, sizes=sizes, events=max(there.events, wanted.events))

    def offer(self, memory: Any, device_on: Callable[[int], Device]) -> Any:
        """This rank's handles for `open` on the others: its memory and events, and on a driver the events of its devices.
        `device_on(rank)`: creates a `Device` on that rank's GPU."""
        own, wanted, team = self._device.make_ipc_events(self.wanted.events), self.wanted, self._team
        if team.rank == wanted.driver:
            self.devices = {rank: self._device if rank == team.rank else device_on(rank) for rank in team.node_ranks}
        of_driver = {rank: each.make_ipc_events(wanted.events) for rank, each in self.devices.items() if rank != team.rank}
        return self._device.handle(memory), own, of_driver | ({team.rank: own} if self.devices else {})

    def open(self, offers: Sequence[Any]) -> None:
        """Open the links from all ranks' `offers`."""
        team = self._team
        others = [rank for rank in team.node_ranks if rank != team.rank]
        for rank in others:
            self.opened[rank] = self._device.open(offers[rank][0])
        if self.wanted.driver is None:
            self.loaded |= {rank: self._device.open_ipc_events(offers[rank][1]) for rank in others}
        elif team.rank != self.wanted.driver:
            of_driver = offers[self.wanted.driver][2]
            self.loaded |= {rank: self._device.open_ipc_events(handles) for rank, handles in of_driver.items()}
        for rank, device in self.devices.items():
            if rank != team.rank:
                handle, events, _ = offers[rank]
                self.opened_by_driver[rank] = device.open(handle)
                self.multiplied[rank] = device.open_ipc_events(events)

    def close(self) -> None:
        self.are_open = False
        for rank, memory in self.opened_by_driver.items():
            self.devices[rank].close(memory)
        for memory in self.opened.values():
            self._device.close(memory)
        for known in (self.opened_by_driver, self.opened, self.loaded, self.multiplied):
            known.clear()


@record
class Peer:
    """A rank of the node and its device, seen from this rank. The device holds all of its panels at once."""

    share: RankShare
    local_rank: int
    b_rows: Span  # the rows of B that the peer loads
    buffers: Buffers  # on the peer's device, opened here
    loaded: list[Event]  # IPC events for its loads: row panels, then its rows of each column panel or k-slab
    multiplied: list[Event]  # IPC events for its tiles, in order

    @property
    def loads(self) -> int:
        """The number of panels and slabs that the rank loads."""
        return len(self.share.row_panels) + self.share.pieces_of_b

    def rows_of(self, arrival: Arrival) -> Span:
        """The rows of a column panel or k-slab that the rank loads."""
        return arrival.slab[self.local_rank] if arrival.slab else self.b_rows

    def event_number(self, arrival: Arrival) -> int:
        """The number of the panel's event in `loaded`."""
        return arrival.index + (len(self.share.row_panels) if arrival.operand == "B" else 0)


@dataclass(kw_only=True)
class _FetchesFromPeers(Transport):
    """Copies rows of B from the devices of its node's other ranks."""

    flags: NodeFlags
    peers: Mapping[int, Peer]

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        events = []
        # A ring: every rank starts with its successor, so that they do not all read from the same GPU.
        for other in sorted(self.peers, key=lambda other: (other <= self.rank, other)):
            if other != self.rank:
                rows = self.peers[other].rows_of(arrival).slice
                column_panel = self.peers[other].buffers.destination(arrival)
                events.append(self.device.exchange(into[rows], column_panel[rows], [self._loaded(other, arrival)]))
        return events

    @abstractmethod
    def _loaded(self, rank: int, arrival: Arrival) -> Event:
        """Wait until the event for a peer's rows of the panel is recorded, and return it. PhaseEnded if a rank fails before."""


@dataclass(kw_only=True)
class PeersTransport(_FetchesFromPeers, HostTransport):
    """Copies A and C like HostTransport. All panels must fit on the devices: peers read them."""

    def _copy_in(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        if arrival.operand == "A":
            return super()._copy_in(arrival, into, after)
        own = self.peers[self.rank]
        rows, number = own.rows_of(arrival), own.event_number(arrival)
        event = self.device.copy_in(into[rows.slice], self.matrices.b[rows][:, arrival.span.slice], after)
        self.device.record_ipc_event(number, event, self.flags, number)
        return event

    def _loaded(self, rank: int, arrival: Arrival) -> Event:
        number = self.peers[rank].event_number(arrival)
        self.flags.wait(rank, number)
        return self.peers[rank].loaded[number]


@dataclass(kw_only=True)
class RootPushReceiver(_FetchesFromPeers):
    """Root push on every rank but the root: waits for the root's loads, and tells the root which tiles are computed."""

    root: int

    def begin(self, order: Sequence[Arrival]) -> None:
        self._stored = 0

    def ready(self, arrival: Arrival) -> bool:
        return self.flags.is_set(self.root, _flag_of(self.peers, self.rank, arrival))

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        return self._loaded(self.rank, arrival)

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        self.device.record_ipc_event(self._stored, after[-1], self.flags, self._stored)
        self._stored += 1
        return after[-1]

    def _loaded(self, rank: int, arrival: Arrival) -> Event:
        self.flags.wait(self.root, _flag_of(self.peers, rank, arrival))
        return self.peers[rank].loaded[self.peers[rank].event_number(arrival)]


@dataclass(kw_only=True)
class RootPushDriver(_FetchesFromPeers):
    """Root push on the root: submits the loads of all ranks, its own share, then the D2H copies of the other ranks' tiles."""

    matrices: RankMatrices  # the whole matrices
    links: Mapping[int, Device]  # for each rank a `Device` of this process on that rank's GPU, with the streams for its copies
    remote_buffers: Mapping[int, Buffers]  # each rank's buffers, opened on that device

    def begin(self, order: Sequence[Arrival]) -> None:
        super().begin(order)
        self._events = dict[tuple[int, int], Event]()
        self._to_store: dict[int, deque[tuple[int, Tile]]] = {  # the other ranks' tiles, in their order
            rank: deque(enumerate(tile for arrival in peer.share.order for tile in arrival.releases if tile.completes))
            for rank, peer in self.peers.items()
            if rank != self.rank
        }
        # Round robin over the ranks, to keep all GPUs' links busy.
        orders = [[(rank, arrival) for arrival in peer.share.order] for rank, peer in self.peers.items()]
        for rank, arrival in filter(None, chain.from_iterable(zip_longest(*orders))):
            peer, link = self.peers[rank], self.links[rank]
            destination, part = self.remote_buffers[rank].destination(arrival), arrival.span.slice
            if arrival.operand == "A":
                event = link.copy_in(destination, self.matrices.a[peer.share.rows.slice][part], [])
            else:
                rows = peer.rows_of(arrival)
                event = link.copy_in(destination[rows.slice], self.matrices.b[rows][:, part], [])
            number = peer.event_number(arrival)
            self._events[rank, number] = event
            link.record_ipc_event(number, event, self.flags, _flag_of(self.peers, rank, arrival))
            self._report_later(rank, arrival, event)

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        return self._loaded(self.rank, arrival)

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        return self._store(self.rank, tile, source, after)

    def _store(self, rank: int, tile: Tile, source: Any, after: list[Event]) -> Event:
        into = self.matrices.c[self.peers[rank].share.rows.slice][tile.rows.slice, tile.columns.slice]
        return self._copy_out(self.links[rank], rank, tile, into, source, after)

    def advance(self) -> None:
        super().advance()
        while self._store_computed():
            pass

    def _store_computed(self) -> bool:
        """Copy each other rank's next tile, if computed. Returns whether there was any.

        A copy is submitted only once its tile is computed. If processes share a GPU by time slices, a stream that waits for
        another process's event would continue only in this process's next slice.
        """
        any_computed = False
        for rank, tiles in self._to_store.items():
            number, tile = tiles[0] if tiles else (-1, None)
            if tile and self.flags.is_set(rank, number) and self.links[rank].done(self.peers[rank].multiplied[number]):
                tiles.popleft()
                self._store(rank, tile, self.remote_buffers[rank].operands(tile)[2], [])
                any_computed = True
        return any_computed

    def finish(self) -> Timings:
        super().finish()
        while any(self._to_store.values()):
            self.flags.team.messages.wait_until(self._store_computed)
        return chain.from_iterable([link.finish() for rank, link in self.links.items() if rank != self.rank])

    def _loaded(self, rank: int, arrival: Arrival) -> Event:
        return self._events[rank, self.peers[rank].event_number(arrival)]


def make_peers_transport(
    plan: Plan,
    rank_device: RankDevice,
    matrices: RankMatrices | None,
    observer: CopyObserver | None,
    panels: Arriving | None,
    in_place: Mapping[str, Any],
) -> tuple[Transport, Buffers]:
    """The transport and its buffers, as from `make_transport`."""
    team, device, once = rank_device.team, rank_device.device, rank_device.once_for_plan
    driver = plan.root if plan.at_root else None
    row_panels, pieces_of_b = _pieces(plan)
    events = max(row_panels + pieces_of_b, row_panels * pieces_of_b)  # for each loaded panel, or each computed tile
    wanted = LinkRequest(team.topology, tuple(each.layout.bytes for each in plan.shares), events, driver)
    links, flags = rank_device.connect(wanted, flags_of(plan))

    def buffers(rank: int, on: Device, opened: Mapping[int, Any]) -> Buffers:
        return Buffers(on, opened.get(rank, rank_device.memory), plan.shares[rank], plan.problem)

    def peer(rank: int) -> Peer:
        events = links.loaded.get(rank, []), links.multiplied.get(rank, [])
        local_rank, of_peer = team.node_ranks.index(rank), buffers(rank, device, links.opened)
        return Peer(plan.shares[rank], local_rank, plan.b_rows_over_link(rank), of_peer, *events)

    peers = once("peers", plan, lambda: {rank: peer(rank) for rank in team.node_ranks})
    own: dict[str, Any] = {"device": device, "rank": team.rank, "flags": flags, "peers": peers}
    own_buffers = peers[team.rank].buffers
    if driver is not None and team.rank != driver:
        return RootPushReceiver(**own, root=driver), own_buffers
    assert matrices is not None
    if driver is None:
        made = PeersTransport(**own, matrices=matrices, observer=observer, panels=panels, in_place=in_place)
        return made, rank_device.own_buffers(plan, team.rank, in_place) if in_place else own_buffers
    opened = links.opened_by_driver
    remote = once("driver", plan, lambda: {rank: buffers(rank, link, opened) for rank, link in links.devices.items()})
    return RootPushDriver(**own, matrices=matrices, observer=observer, links=links.devices, remote_buffers=remote), own_buffers


def flags_of(plan: Plan) -> int:
    """The number of flags that a transport needs a rank: one a tile, or at a driving root one for each panel of each rank."""
    row_panels, pieces_of_b = _pieces(plan)
    return max(row_panels * pieces_of_b, max(map(len, plan.topology.nodes)) * (row_panels + pieces_of_b))


def _pieces(plan: Plan) -> tuple[int, int]:
    """The largest number of row panels of a rank, and the number of pieces of B."""
    return max(len(each.row_panels) for each in plan.shares), plan.shares[0].pieces_of_b


def _flag_of(peers: Mapping[int, Peer], rank: int, arrival: Arrival) -> int:
    """The flag that the root sets after recording the IPC event of this rank's panel."""
    before = sum(peer.loads for other, peer in peers.items() if other < rank)
    return before + peers[rank].event_number(arrival)


_SIZE = 64  # rows and columns of the test matrix
_BYTES = _SIZE * _SIZE * 8


def probe(rank_device: RankDevice) -> None:
    """Test "peers" before a plan relies on it: every rank fetches a matrix from every other device of its node. Collective.

    DeviceUnavailable on all ranks, with the reason, if a rank cannot, or receives wrong data.
    """
    team, device = rank_device.team, rank_device.device
    wanted = LinkRequest(team.topology, (2 * _BYTES,) * team.size, events=1)
    links, flags = rank_device.connect(wanted, 2 * len(team.node_ranks))
    flags.new_round()
    with team.phase("prepare", timed=False):
        written = device.matrix(rank_device.memory, 0, _SIZE, _SIZE, "float64")
        fetched = device.matrix(rank_device.memory, _BYTES, _SIZE, _SIZE, "float64")
        own = pattern_of(team.rank, _SIZE, _SIZE)  # stays alive until copied
        device.record_ipc_event(0, device.copy_in(written, own, []), flags, 0)
        for rank, memory in links.opened.items():
            flags.wait(rank, 0)
            theirs = device.matrix(memory, 0, _SIZE, _SIZE, "float64")
            seen = np.full((_SIZE, _SIZE), np.nan)
            device.copy_out(seen, fetched, [device.exchange(fetched, theirs, [links.loaded[rank][0]])])
            device.finish()
            if not np.array_equal(seen, pattern_of(rank, _SIZE, _SIZE)):
                raise DeviceUnavailable(f"what was fetched from the GPU of rank {rank} is not what lies there", code="gpu-data")
        device.finish()
