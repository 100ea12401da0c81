"""The ranks of a node that fetch panels of B from each other's devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hybrid.core.spans import Span
from hybrid.devices.base import Device, Event
from hybrid.devices.buffers import Buffers
from hybrid.plan.rank_share import RankShare
from hybrid.plan.schedule import Arrival


@dataclass(frozen=True)
class Peer:
    """One of them, as the others see it. Its device holds all of its chunks and all panels."""

    share: RankShare
    local_rank: int
    b_rows: Span  # of B: those that come over its own link
    buffers: Buffers
    loaded: list[Event]  # announced: its chunks, then its rows of the panels or slabs
    multiplied: list[Event]  # announced: its strips, in order

    @property
    def loads(self) -> int:
        return len(self.share.row_panels) + self.share.pieces_of_b

    def rows_of(self, arrival: Arrival) -> Span:
        """Of a panel or slab, the rows that come over its link."""
        return arrival.slab[self.local_rank] if arrival.slab else self.b_rows

    def number(self, arrival: Arrival) -> int:
        """Of the announcement that a chunk or panel is there."""
        return arrival.index + (len(self.share.row_panels) if arrival.operand == "B" else 0)


def flags_needed(members: int, row_panels: int, column_panels: int) -> int:
    """Places of a board on which one rank notes its strips, or all loads of all members."""
    return max(row_panels * column_panels, members * (row_panels + column_panels))


def fetch_panel(
    device: Device,
    rank: int,
    members: Mapping[int, Peer],
    arrival: Arrival,
    into: Any,
    loaded: Callable[[int, Arrival], Event],
) -> list[Event]:
    """Copy the other members' rows of a panel to this rank's device; `loaded(member, arrival)` says when they are there."""
    events = []
    # Everybody begins with the next member, so that no GPU is asked by all others at once.
    for other in sorted(members, key=lambda other: (other <= rank, other)):
        if other == rank:
            continue
        rows = members[other].rows_of(arrival).slice
        column_panel = members[other].buffers.destination(arrival)
        events.append(device.exchange(into[rows], column_panel[rows], [loaded(other, arrival)]))
    return events
