"""The road that works everywhere: every rank loads all it needs from the node's window, and brings its rows of C back there."""

from __future__ import annotations

from typing import Any

from hybrid.devices.base import Device, Event, Work
from hybrid.plan.schedule import Arrival, Tile
from hybrid.transport.base import RankMatrices
from hybrid.transport.panel_stream import PanelStream


class HostTransport:
    """`deliveries`: of panels that come from other nodes."""

    def __init__(self, device: Device, matrices: RankMatrices, panel_stream: PanelStream | None = None) -> None:
        self._device, self._matrices, self._panel_stream = device, matrices, panel_stream

    def begin(self) -> None:
        pass

    def ready(self, arrival: Arrival) -> bool:
        return self._panel_stream is None or arrival.operand == "A" or self._panel_stream.arrived(arrival.index)

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        part = arrival.span.slice
        self._await_delivery(arrival)
        if arrival.operand == "A":
            return self._device.copy_in(into, self._matrices.a[part], after)
        b = self._matrices.b
        slab = [rows for rows in arrival.slab if len(rows)] or [b.rows]
        # Copies in keep their order: the last one's event stands for all.
        return [self._device.copy_in(into[rows.slice], b[rows][:, part], after) for rows in slab][-1]

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        return []

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        return self._device.copy_out(self._matrices.c[tile.rows.slice, tile.columns.slice], source, after)

    def finish(self) -> Work:
        return []

    def _await_delivery(self, arrival: Arrival) -> None:
        if self._panel_stream is not None and arrival.operand == "B":
            self._panel_stream.wait_for(arrival.index)
