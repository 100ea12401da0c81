"""The road between GPUs of a node: each loads its rows of B over its own link, and fetches the others' from their GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid.board import Board
from hybrid.devices import Mark, Neighbour
from hybrid.exchange import Ends, Work
from hybrid.exchange.deliveries import Deliveries
from hybrid.exchange.members import Member, fetch_panel
from hybrid.schedule import Arrival, Strip


class PeersRoad:
    """For devices that hold all panels: none is overwritten while others may still read it."""

    def __init__(
        self,
        device: Neighbour,
        board: Board,
        rank: int,
        members: Mapping[int, Member],
        ends: Ends,
        deliveries: Deliveries | None = None,
    ) -> None:
        """`deliveries`: of panels that come from other nodes."""
        self._device, self._board, self._rank = device, board, rank
        self._members, self._ends, self._deliveries = members, ends, deliveries

    def begin(self) -> None:
        pass

    def ready(self, arrival: Arrival) -> bool:
        return self._deliveries is None or arrival.operand == "A" or self._deliveries.came(arrival.index)

    def bring(self, arrival: Arrival, into: Any, after: list[Mark]) -> Mark:
        part = arrival.span.slice
        if arrival.operand == "A":
            return self._device.copy_in(into, self._ends.a[part], after)
        if self._deliveries is not None:
            self._deliveries.wait_for(arrival.index)
        own = self._members[self._rank]
        rows, number = own.b_rows.slice, own.number(arrival)
        mark = self._device.copy_in(into[rows], self._ends.b[rows, part], after)
        self._device.announce(number, [mark])
        self._board.post(number)
        return mark

    def complete(self, arrival: Arrival, into: Any) -> list[Mark]:
        return fetch_panel(self._device, self._rank, self._members, arrival, into, self._loaded)

    def take(self, strip: Strip, source: Any, after: list[Mark]) -> Mark:
        return self._device.copy_out(self._ends.c[strip.rows.slice, strip.columns.slice], source, after)

    def finish(self) -> Work:
        return []

    def _loaded(self, rank: int, arrival: Arrival) -> Mark:
        number = self._members[rank].number(arrival)
        self._board.wait(rank, number)
        return self._members[rank].loaded[number]
