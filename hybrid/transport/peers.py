"""The road between GPUs of a node: each loads its rows of B over its own link, and fetches the others' from their GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid.devices.base import Event, PeerDevice
from hybrid.plan.schedule import Arrival
from hybrid.ranks.node_flags import NodeFlags
from hybrid.transport.base import RankMatrices
from hybrid.transport.host import HostTransport
from hybrid.transport.node_peers import Peer, fetch_panel
from hybrid.transport.panel_stream import PanelStream


class PeersTransport(HostTransport):
    """For devices that hold all panels: none is overwritten while others may still read it. A and C go as on the host road."""

    def __init__(
        self,
        device: PeerDevice,
        flags: NodeFlags,
        rank: int,
        members: Mapping[int, Peer],
        matrices: RankMatrices,
        panel_stream: PanelStream | None = None,
    ) -> None:
        super().__init__(device, matrices, panel_stream)
        self._peer_device, self._flags, self._rank, self._members = device, flags, rank, members

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        if arrival.operand == "A":
            return super().load(arrival, into, after)
        own = self._members[self._rank]
        rows, number = own.rows_of(arrival), own.number(arrival)
        self._await_delivery(arrival)
        event = self._device.copy_in(into[rows.slice], self._matrices.b[rows][:, arrival.span.slice], after)
        self._peer_device.record_ipc_event(number, event)
        self._flags.set_flag(number)
        return event

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        return fetch_panel(self._device, self._rank, self._members, arrival, into, self._loaded)

    def _loaded(self, rank: int, arrival: Arrival) -> Event:
        number = self._members[rank].number(arrival)
        self._flags.wait(rank, number)
        return self._members[rank].loaded[number]
