"""The road from the root's own arrays: the root drives every GPU's link, the others exchange B and multiply.

Only the root can read its arrays. It opens every GPU's buffers, brings each its rows of A and B over that GPU's own link,
and fetches the strips of C from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, zip_longest
from typing import Any

from hybrid.devices.base import Mark, Neighbour, Work
from hybrid.devices.buffers import Buffers
from hybrid.plan.rank_share import Share
from hybrid.plan.schedule import Arrival, Strip
from hybrid.ranks.node_flags import Board
from hybrid.transport.base import Ends
from hybrid.transport.node_peers import Member, fetch_panel


class PushedRoad:
    """On every rank but the root."""

    def __init__(self, device: Neighbour, board: Board, rank: int, root: int, members: Mapping[int, Member]) -> None:
        self._device, self._board, self._rank, self._root, self._members = device, board, rank, root, members
        self._strips = 0

    def begin(self) -> None:
        self._strips = 0

    def ready(self, arrival: Arrival) -> bool:
        return self._board.posted(self._root, _place(self._members, self._rank, arrival))

    def bring(self, arrival: Arrival, into: Any, after: list[Mark]) -> Mark:
        return self._loaded(self._rank, arrival)

    def complete(self, arrival: Arrival, into: Any) -> list[Mark]:
        return fetch_panel(self._device, self._rank, self._members, arrival, into, self._loaded)

    def take(self, strip: Strip, source: Any, after: list[Mark]) -> Mark:
        self._device.announce(self._strips, after[-1])
        self._board.post(self._strips)
        self._strips += 1
        return after[-1]

    def finish(self) -> Work:
        return []

    def _loaded(self, rank: int, arrival: Arrival) -> Mark:
        self._board.wait(self._root, _place(self._members, rank, arrival))
        return self._members[rank].loaded[self._members[rank].number(arrival)]


class DrivingRoad:
    """On the root: it loads for all members before it multiplies its own share, then fetches what the others computed.

    `ends`: the whole matrices. `links`: for each member a device on its GPU, on which the copies for it run; `places`: its
    buffers as they are reached there.
    """

    def __init__(
        self,
        links: Mapping[int, Neighbour],
        board: Board,
        root: int,
        members: Mapping[int, Member],
        places: Mapping[int, Buffers],
        ends: Ends,
    ) -> None:
        self._links, self._board, self._root = links, board, root
        self._members, self._places, self._ends = members, places, ends
        self._marks: dict[tuple[int, int], Mark] = {}

    def begin(self) -> None:
        for rank, arrival in self._in_turn(lambda share: share.order):
            member, link = self._members[rank], self._links[rank]
            place, part, number = self._places[rank].place(arrival), arrival.span.slice, member.number(arrival)
            if arrival.operand == "A":
                mark = link.copy_in(place, self._ends.a[member.share.rows.slice][part], [])
            else:
                rows = member.rows_of(arrival).slice
                mark = link.copy_in(place[rows], self._ends.b[rows, part], [])
            self._marks[rank, number] = mark
            link.announce(number, mark)
            self._board.post(_place(self._members, rank, arrival))

    def ready(self, arrival: Arrival) -> bool:
        return True

    def bring(self, arrival: Arrival, into: Any, after: list[Mark]) -> Mark:
        return self._loaded(self._root, arrival)

    def complete(self, arrival: Arrival, into: Any) -> list[Mark]:
        return fetch_panel(self._links[self._root], self._root, self._members, arrival, into, self._loaded)

    def take(self, strip: Strip, source: Any, after: list[Mark]) -> Mark:
        return self._links[self._root].copy_out(self._home(self._root, strip), source, after)

    def finish(self) -> Work:
        # Each strip's copy is handed over when the strip is there: where processes take turns on a GPU, a copy that waits
        # there for another process's work waits for its turn as well.
        coming = {rank: deque(enumerate(_strips(member.share))) for rank, member in self._members.items() if rank != self._root}
        pause = self._board.pauses()
        while any(coming.values()):
            there = [rank for rank, strips in coming.items() if strips and self._is_there(rank, strips[0][0])]
            for rank in there:
                _, strip = coming[rank].popleft()
                self._links[rank].copy_out(self._home(rank, strip), self._places[rank].operands(strip)[2], [])
            if there:
                pause = self._board.pauses()
            else:
                next(pause)
        return chain.from_iterable([link.finish() for rank, link in self._links.items() if rank != self._root])

    def _is_there(self, rank: int, number: int) -> bool:
        return self._board.posted(rank, number) and self._links[rank].done(self._members[rank].multiplied[number])

    def _in_turn(self, items_of: Callable[[Share], Iterable[Any]]) -> Iterator[tuple[int, Any]]:
        """Every member's first item, every member's second, …: so all links are kept busy."""
        sequences = [[(rank, item) for item in items_of(member.share)] for rank, member in self._members.items()]
        return (entry for entries in zip_longest(*sequences) for entry in entries if entry is not None)

    def _home(self, rank: int, strip: Strip) -> Any:
        return self._ends.c[self._members[rank].share.rows.slice][strip.rows.slice, strip.columns.slice]

    def _loaded(self, rank: int, arrival: Arrival) -> Mark:
        return self._marks[rank, self._members[rank].number(arrival)]


def _strips(share: Share) -> Iterator[Strip]:
    """Those that are taken home."""
    return (strip for arrival in share.order for strip in arrival.releases if strip.completes)


def _place(members: Mapping[int, Member], rank: int, arrival: Arrival) -> int:
    """Where the root notes that it has announced an arrival of this member."""
    before = sum(member.loads for other, member in members.items() if other < rank)
    return before + members[rank].number(arrival)
