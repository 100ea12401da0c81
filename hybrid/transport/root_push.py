# SPDX-License-Identifier: MIT
"""The transport of the root's own arrays, which no other process can read: the root submits the copies of all ranks' GPUs.

It opens every GPU's buffers by CUDA IPC, copies each its rows of A and B over that GPU's own link, and copies the tiles of C
back. The other ranks copy B from their peers, and multiply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from typing import Any

from hybrid.devices.base import Buffers, Event, PeerDevice, Timings
from hybrid.plan.schedule import Arrival, RankShare, Tile
from hybrid.ranks.shared_memory import NodeFlags
from hybrid.transport.base import CopyObserver, RankMatrices, ToldLater, copy_out, last_tile
from hybrid.transport.links import Peer, fetch_panel


class RootPushReceiver:
    """The transport of every rank but the root: it waits for what the root loads, and tells the root which tiles are
    computed."""

    def __init__(self, device: PeerDevice, flags: NodeFlags, rank: int, root: int, peers: Mapping[int, Peer]) -> None:
        self._device, self._flags, self._rank, self._root, self._peers = device, flags, rank, root, peers
        self._stored = 0

    def begin(self, order: Sequence[Arrival]) -> None:
        self._stored = 0

    def ready(self, arrival: Arrival) -> bool:
        return self._flags.is_set(self._root, _flag_of(self._peers, self._rank, arrival))

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        return self._loaded(self._rank, arrival)

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        return fetch_panel(self._device, self._rank, self._peers, arrival, into, self._loaded)

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        self._device.record_ipc_event(self._stored, after[-1])
        self._flags.set_flag(self._stored)
        self._stored += 1
        return after[-1]

    def advance(self) -> None:
        pass

    def finish(self) -> Timings:
        return []

    def _loaded(self, rank: int, arrival: Arrival) -> Event:
        self._flags.wait(self._root, _flag_of(self._peers, rank, arrival))
        return self._peers[rank].loaded[self._peers[rank].event_number(arrival)]


class RootPushDriver:
    """The transport of the root: it submits all loads of all ranks, then its own share, then the copies of the other ranks'
    tiles of C.

    `matrices`: the whole ones. `links`: for each rank a device of this process on that rank's GPU, on whose streams its copies
    run. `remote_buffers`: each rank's buffers, as opened on that device.
    """

    def __init__(
        self,
        links: Mapping[int, PeerDevice],
        flags: NodeFlags,
        root: int,
        peers: Mapping[int, Peer],
        remote_buffers: Mapping[int, Buffers],
        matrices: RankMatrices,
        observer: CopyObserver | None = None,
    ) -> None:
        self._observer = observer
        self._links, self._flags, self._root = links, flags, root
        self._peers, self._remote_buffers, self._matrices = peers, remote_buffers, matrices
        self._events: dict[tuple[int, int], Event] = {}
        self._to_store: dict[int, deque[tuple[int, Tile]]] = {}  # the other ranks' tiles, in their order
        self._told_later = ToldLater(observer)
        self._last = {rank: last_tile(peer.share.order) for rank, peer in peers.items()}

    def begin(self, order: Sequence[Arrival]) -> None:
        others = {rank: peer.share for rank, peer in self._peers.items() if rank != self._root}
        self._told_later.forget()
        self._to_store = {rank: deque(enumerate(_stored_tiles(share))) for rank, share in others.items()}
        for rank, arrival in self._in_turn(lambda share: share.order):
            peer, link = self._peers[rank], self._links[rank]
            destination, part = self._remote_buffers[rank].destination(arrival), arrival.span.slice
            if arrival.operand == "A":
                event = link.copy_in(destination, self._matrices.a[peer.share.rows.slice][part], [])
            else:
                rows = peer.rows_of(arrival)
                event = link.copy_in(destination[rows.slice], self._matrices.b[rows][:, part], [])
            number = peer.event_number(arrival)
            self._events[rank, number] = event
            link.record_ipc_event(number, event)
            self._flags.set_flag(_flag_of(self._peers, rank, arrival))
            self._told_later.add(rank, arrival, event)

    def ready(self, arrival: Arrival) -> bool:
        return True

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        return self._loaded(self._root, arrival)

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        return fetch_panel(self._links[self._root], self._root, self._peers, arrival, into, self._loaded)

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        return self._store(self._root, tile, source, after)

    def _store(self, rank: int, tile: Tile, source: Any, after: list[Event]) -> Event:
        told = partial(self._observer.stored, rank, tile) if self._observer is not None else None
        is_last = tile is self._last[rank]
        return copy_out(self._links[rank], self._tile_of_c(rank, tile), source, after, told, is_last=is_last)

    def advance(self) -> None:
        self._told_later.tell_some()
        while self._store_computed():
            pass

    def _store_computed(self) -> bool:
        """Copy the next tile of each of the other ranks that has computed it; whether there was any.

        A copy is submitted only when its tile is computed. Where processes share a GPU by time slices, a stream that waits for
        another process's event would go on only in this process's next slice.
        """
        ready = [rank for rank, tiles in self._to_store.items() if tiles and self._is_computed(rank, tiles[0][0])]
        for rank in ready:
            _, tile = self._to_store[rank].popleft()
            self._store(rank, tile, self._remote_buffers[rank].operands(tile)[2], [])
        return bool(ready)

    def finish(self) -> Timings:
        self._told_later.tell_all()
        pause = self._flags.pauses()
        while any(self._to_store.values()):
            if self._store_computed():
                pause = self._flags.pauses()
            else:
                next(pause)
        return chain.from_iterable([link.finish() for rank, link in self._links.items() if rank != self._root])

    def _is_computed(self, rank: int, number: int) -> bool:
        """Whether a rank has computed its tile of this number."""
        return self._flags.is_set(rank, number) and self._links[rank].done(self._peers[rank].multiplied[number])

    def _in_turn(self, items_of: Callable[[RankShare], Iterable[Any]]) -> Iterator[tuple[int, Any]]:
        """Every rank's first item, then every rank's second, and so on, each with its rank: so all GPUs' links are busy."""
        sequences = [[(rank, item) for item in items_of(peer.share)] for rank, peer in self._peers.items()]
        return (entry for entries in zip_longest(*sequences) for entry in entries if entry is not None)

    def _tile_of_c(self, rank: int, tile: Tile) -> Any:
        """Where a rank's tile belongs in the root's C."""
        return self._matrices.c[self._peers[rank].share.rows.slice][tile.rows.slice, tile.columns.slice]

    def _loaded(self, rank: int, arrival: Arrival) -> Event:
        return self._events[rank, self._peers[rank].event_number(arrival)]


def _stored_tiles(share: RankShare) -> Iterator[Tile]:
    """The tiles that are copied back, in their order: of those that accumulate over k-slabs only the last."""
    return (tile for arrival in share.order for tile in arrival.releases if tile.completes)


def _flag_of(peers: Mapping[int, Peer], rank: int, arrival: Arrival) -> int:
    """The number of the flag that the root sets when it has recorded the IPC event of this rank's panel."""
    before = sum(peer.loads for other, peer in peers.items() if other < rank)
    return before + peers[rank].event_number(arrival)
