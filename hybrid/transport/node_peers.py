"""The ranks of a node that fetch panels of B from each other's devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hybrid.core.spans import Span
from hybrid.devices.base import Device, Mark
from hybrid.devices.buffers import Buffers
from hybrid.plan.rank_share import Share
from hybrid.plan.schedule import Arrival


@dataclass(frozen=True)
class Member:
    """One of them, as the others see it. Its device holds all of its chunks and all panels."""

    share: Share
    place: int  # among the node's ranks
    b_rows: Span  # of B: those that come over its own link
    buffers: Buffers
    loaded: list[Mark]  # announced: its chunks, then its rows of the panels or slabs
    multiplied: list[Mark]  # announced: its strips, in order

    @property
    def loads(self) -> int:
        return len(self.share.chunks) + self.share.pieces_of_b

    def rows_of(self, arrival: Arrival) -> Span:
        """Of a panel or slab, the rows that come over its link."""
        return arrival.slab[self.place] if arrival.slab else self.b_rows

    def number(self, arrival: Arrival) -> int:
        """Of the announcement that a chunk or panel is there."""
        return arrival.index + (len(self.share.chunks) if arrival.operand == "B" else 0)


def notes_needed(members: int, chunks: int, panels: int) -> int:
    """Places of a board on which one rank notes its strips, or all loads of all members."""
    return max(chunks * panels, members * (chunks + panels))


def fetch_panel(
    device: Device,
    rank: int,
    members: Mapping[int, Member],
    arrival: Arrival,
    into: Any,
    loaded: Callable[[int, Arrival], Mark],
) -> list[Mark]:
    """Copy the other members' rows of a panel to this rank's device; `loaded(member, arrival)` says when they are there."""
    marks = []
    # Everybody begins with the next member, so that no GPU is asked by all others at once.
    for other in sorted(members, key=lambda other: (other <= rank, other)):
        if other == rank:
            continue
        rows = members[other].rows_of(arrival).slice
        panel = members[other].buffers.place(arrival)
        marks.append(device.exchange(into[rows], panel[rows], [loaded(other, arrival)]))
    return marks
