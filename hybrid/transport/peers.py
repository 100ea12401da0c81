# SPDX-License-Identifier: MIT
"""The transport by CUDA IPC: each rank loads some rows of B over its GPU's own link, and copies the others from its peers."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from hybrid.devices.base import Event, PeerDevice
from hybrid.plan.schedule import Arrival
from hybrid.ranks.shared_memory import NodeFlags
from hybrid.transport.base import CopyObserver, HostTransport, RankMatrices
from hybrid.transport.links import Peer, fetch_panel
from hybrid.transport.panels import PanelStream


class PeersTransport(HostTransport):
    """For products of which all panels fit on the devices: then none is overwritten while peers may still read it. A and C are
    copied as by HostTransport."""

    def __init__(
        self,
        device: PeerDevice,
        flags: NodeFlags,
        rank: int,
        peers: Mapping[int, Peer],
        matrices: RankMatrices,
        observer: CopyObserver | None = None,
        panel_stream: PanelStream | None = None,
        in_place: Container[str] = (),
    ) -> None:
        super().__init__(device, rank, matrices, observer, panel_stream, in_place)
        self._peer_device, self._flags, self._peers = device, flags, peers

    def _copy_in(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        if arrival.operand == "A":
            return super()._copy_in(arrival, into, after)
        own = self._peers[self._rank]
        rows, number = own.rows_of(arrival), own.event_number(arrival)
        event = self._device.copy_in(into[rows.slice], self._matrices.b[rows][:, arrival.span.slice], after)
        self._peer_device.record_ipc_event(number, event)
        self._flags.set_flag(number)
        return event

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        return fetch_panel(self._device, self._rank, self._peers, arrival, into, self._loaded)

    def _loaded(self, rank: int, arrival: Arrival) -> Event:
        """The event that a peer's rows of the panel are loaded, once the peer has recorded it."""
        number = self._peers[rank].event_number(arrival)
        self._flags.wait(rank, number)
        return self._peers[rank].loaded[number]
