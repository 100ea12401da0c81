"""The road from the root's own arrays: the root drives every GPU's link, the others exchange B and multiply.

Only the root can read its arrays. It opens every GPU's buffers, brings each its rows of A and B over that GPU's own link,
and fetches the strips of C from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, zip_longest
from typing import Any

from hybrid.devices.base import Event, PeerDevice, Work
from hybrid.devices.buffers import Buffers
from hybrid.plan.rank_share import RankShare
from hybrid.plan.schedule import Arrival, Tile
from hybrid.ranks.node_flags import NodeFlags
from hybrid.transport.base import RankMatrices
from hybrid.transport.node_peers import Peer, fetch_panel


class RootPushReceiver:
    """On every rank but the root."""

    def __init__(self, device: PeerDevice, flags: NodeFlags, rank: int, root: int, members: Mapping[int, Peer]) -> None:
        self._device, self._flags, self._rank, self._root, self._members = device, flags, rank, root, members
        self._tiles_of = 0

    def begin(self) -> None:
        self._tiles_of = 0

    def ready(self, arrival: Arrival) -> bool:
        return self._flags.is_set(self._root, _flag_of(self._members, self._rank, arrival))

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        return self._loaded(self._rank, arrival)

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        return fetch_panel(self._device, self._rank, self._members, arrival, into, self._loaded)

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        self._device.record_ipc_event(self._tiles_of, after[-1])
        self._flags.set_flag(self._tiles_of)
        self._tiles_of += 1
        return after[-1]

    def finish(self) -> Work:
        return []

    def _loaded(self, rank: int, arrival: Arrival) -> Event:
        self._flags.wait(self._root, _flag_of(self._members, rank, arrival))
        return self._members[rank].loaded[self._members[rank].number(arrival)]


class RootPushDriver:
    """On the root: it loads for all members before it multiplies its own share, then fetches what the others computed.

    `ends`: the whole matrices. `links`: for each member a device on its GPU, on which the copies for it run; `remote_buffers`: its
    buffers as they are reached there.
    """

    def __init__(
        self,
        links: Mapping[int, PeerDevice],
        flags: NodeFlags,
        root: int,
        members: Mapping[int, Peer],
        remote_buffers: Mapping[int, Buffers],
        matrices: RankMatrices,
    ) -> None:
        self._links, self._flags, self._root = links, flags, root
        self._members, self._remote_buffers, self._matrices = members, remote_buffers, matrices
        self._events: dict[tuple[int, int], Event] = {}

    def begin(self) -> None:
        for rank, arrival in self._in_turn(lambda share: share.order):
            member, link = self._members[rank], self._links[rank]
            destination, part, number = (
                self._remote_buffers[rank].destination(arrival),
                arrival.span.slice,
                member.number(arrival),
            )
            if arrival.operand == "A":
                event = link.copy_in(destination, self._matrices.a[member.share.rows.slice][part], [])
            else:
                rows = member.rows_of(arrival)
                event = link.copy_in(destination[rows.slice], self._matrices.b[rows][:, part], [])
            self._events[rank, number] = event
            link.record_ipc_event(number, event)
            self._flags.set_flag(_flag_of(self._members, rank, arrival))

    def ready(self, arrival: Arrival) -> bool:
        return True

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        return self._loaded(self._root, arrival)

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        return fetch_panel(self._links[self._root], self._root, self._members, arrival, into, self._loaded)

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        return self._links[self._root].copy_out(self._home(self._root, tile), source, after)

    def finish(self) -> Work:
        # Each strip's copy is handed over when the strip is there: where processes take turns on a GPU, a copy that waits
        # there for another process's work waits for its turn as well.
        coming = {rank: deque(enumerate(_tiles_of(member.share))) for rank, member in self._members.items() if rank != self._root}
        pause = self._flags.pauses()
        while any(coming.values()):
            there = [rank for rank, tiles in coming.items() if tiles and self._is_there(rank, tiles[0][0])]
            for rank in there:
                _, tile = coming[rank].popleft()
                self._links[rank].copy_out(self._home(rank, tile), self._remote_buffers[rank].operands(tile)[2], [])
            if there:
                pause = self._flags.pauses()
            else:
                next(pause)
        return chain.from_iterable([link.finish() for rank, link in self._links.items() if rank != self._root])

    def _is_there(self, rank: int, number: int) -> bool:
        return self._flags.is_set(rank, number) and self._links[rank].done(self._members[rank].multiplied[number])

    def _in_turn(self, items_of: Callable[[RankShare], Iterable[Any]]) -> Iterator[tuple[int, Any]]:
        """Every member's first item, every member's second, …: so all links are kept busy."""
        sequences = [[(rank, item) for item in items_of(member.share)] for rank, member in self._members.items()]
        return (entry for entries in zip_longest(*sequences) for entry in entries if entry is not None)

    def _home(self, rank: int, tile: Tile) -> Any:
        return self._matrices.c[self._members[rank].share.rows.slice][tile.rows.slice, tile.columns.slice]

    def _loaded(self, rank: int, arrival: Arrival) -> Event:
        return self._events[rank, self._members[rank].number(arrival)]


def _tiles_of(share: RankShare) -> Iterator[Tile]:
    """Those that are taken home."""
    return (tile for arrival in share.order for tile in arrival.releases if tile.completes)


def _flag_of(members: Mapping[int, Peer], rank: int, arrival: Arrival) -> int:
    """Where the root notes that it has announced an arrival of this member."""
    before = sum(member.loads for other, member in members.items() if other < rank)
    return before + members[rank].number(arrival)
