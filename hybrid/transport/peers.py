"""The road between GPUs of a node: each loads its rows of B over its own link, and fetches the others' from their GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid.devices.base import Mark, Neighbour
from hybrid.plan.schedule import Arrival
from hybrid.ranks.node_flags import Board
from hybrid.transport.base import Ends
from hybrid.transport.host import HostRoad
from hybrid.transport.node_peers import Member, fetch_panel
from hybrid.transport.panel_stream import Deliveries


class PeersRoad(HostRoad):
    """For devices that hold all panels: none is overwritten while others may still read it. A and C go as on the host road."""

    def __init__(
        self,
        device: Neighbour,
        board: Board,
        rank: int,
        members: Mapping[int, Member],
        ends: Ends,
        deliveries: Deliveries | None = None,
    ) -> None:
        super().__init__(device, ends, deliveries)
        self._neighbour, self._board, self._rank, self._members = device, board, rank, members

    def bring(self, arrival: Arrival, into: Any, after: list[Mark]) -> Mark:
        if arrival.operand == "A":
            return super().bring(arrival, into, after)
        own = self._members[self._rank]
        rows, number = own.rows_of(arrival).slice, own.number(arrival)
        self._await_delivery(arrival)
        mark = self._device.copy_in(into[rows], self._ends.b[rows, arrival.span.slice], after)
        self._neighbour.announce(number, mark)
        self._board.post(number)
        return mark

    def complete(self, arrival: Arrival, into: Any) -> list[Mark]:
        return fetch_panel(self._device, self._rank, self._members, arrival, into, self._loaded)

    def _loaded(self, rank: int, arrival: Arrival) -> Mark:
        number = self._members[rank].number(arrival)
        self._board.wait(rank, number)
        return self._members[rank].loaded[number]
