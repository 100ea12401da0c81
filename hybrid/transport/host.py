"""The road that works everywhere: every rank loads all it needs from the node's window, and brings its rows of C back there."""

from __future__ import annotations

from typing import Any

from hybrid.devices.base import Device, Mark, Work
from hybrid.plan.schedule import Arrival, Strip
from hybrid.transport.base import Ends
from hybrid.transport.panel_stream import Deliveries


class HostRoad:
    """`deliveries`: of panels that come from other nodes."""

    def __init__(self, device: Device, ends: Ends, deliveries: Deliveries | None = None) -> None:
        self._device, self._ends, self._deliveries = device, ends, deliveries

    def begin(self) -> None:
        pass

    def ready(self, arrival: Arrival) -> bool:
        return self._deliveries is None or arrival.operand == "A" or self._deliveries.came(arrival.index)

    def bring(self, arrival: Arrival, into: Any, after: list[Mark]) -> Mark:
        part = arrival.span.slice
        self._await_delivery(arrival)
        if arrival.operand == "A":
            return self._device.copy_in(into, self._ends.a[part], after)
        slab = [rows.slice for rows in arrival.slab if len(rows)] or [slice(None)]
        # Copies in keep their order: the last one's mark stands for all.
        return [self._device.copy_in(into[rows], self._ends.b[rows, part], after) for rows in slab][-1]

    def complete(self, arrival: Arrival, into: Any) -> list[Mark]:
        return []

    def take(self, strip: Strip, source: Any, after: list[Mark]) -> Mark:
        return self._device.copy_out(self._ends.c[strip.rows.slice, strip.columns.slice], source, after)

    def finish(self) -> Work:
        return []

    def _await_delivery(self, arrival: Arrival) -> None:
        if self._deliveries is not None and arrival.operand == "B":
            self._deliveries.wait_for(arrival.index)
