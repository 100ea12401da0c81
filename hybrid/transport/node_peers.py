# SPDX-License-Identifier: MIT
"""The ranks of a node as peers: each copies rows of B from the others' device memory, opened by CUDA IPC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.devices.base import Device, Event
from hybrid.devices.buffers import Buffers
from hybrid.plan.rank_share import RankShare
from hybrid.plan.schedule import Arrival


@record
class Peer:
    """A rank of the node, as this rank's device reaches it. All of its panels fit on its device."""

    share: RankShare
    local_rank: int
    b_rows: Span  # the rows of B that it loads
    buffers: Buffers  # on its device, whose memory is opened here
    loaded: list[Event]  # IPC events: its row panels are loaded, then its rows of each column panel or k-slab
    multiplied: list[Event]  # IPC events: its tiles are computed, in order

    @property
    def loads(self) -> int:
        """The number of panels, or slabs, that the rank loads."""
        return len(self.share.row_panels) + self.share.pieces_of_b

    def rows_of(self, arrival: Arrival) -> Span:
        """The rows of a column panel or k-slab that the rank loads."""
        return arrival.slab[self.local_rank] if arrival.slab else self.b_rows

    def event_number(self, arrival: Arrival) -> int:
        """The number of the panel's event in `loaded`."""
        return arrival.index + (len(self.share.row_panels) if arrival.operand == "B" else 0)


def flags_needed(peers: int, row_panels: int, column_panels: int) -> int:
    """The number of flags that a rank needs: one for each of its tiles, or at a root that loads for all peers one for each of
    their panels."""
    return max(row_panels * column_panels, peers * (row_panels + column_panels))


def fetch_panel(
    device: Device,
    rank: int,
    peers: Mapping[int, Peer],
    arrival: Arrival,
    into: Any,
    loaded: Callable[[int, Arrival], Event],
) -> list[Event]:
    """Copy the other peers' rows of a column panel to this rank's device, each when the event `loaded(peer, arrival)` is
    complete."""
    events = []
    # Every rank begins with its successor, so that not all of them read from the same GPU at the same time.
    for other in sorted(peers, key=lambda other: (other <= rank, other)):
        if other == rank:
            continue
        rows = peers[other].rows_of(arrival).slice
        column_panel = peers[other].buffers.destination(arrival)
        events.append(device.exchange(into[rows], column_panel[rows], [loaded(other, arrival)]))
    return events
