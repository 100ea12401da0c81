"""The road between GPUs of all nodes: each loads its rows of B over its own link, and NCCL brings every rank's to all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybrid.core.spans import Span
from hybrid.devices.base import Device, Event
from hybrid.plan.schedule import Arrival, Tile
from hybrid.transport.base import RankMatrices
from hybrid.transport.device_group import DeviceGroup
from hybrid.transport.host import HostTransport


class NcclTransport(HostTransport):
    """For devices that hold all panels: so all ranks bring them in the same order. A and C go as on the host road."""

    def __init__(
        self, device: Device, matrices: RankMatrices, device_group: DeviceGroup, rank: int, rows_of: Sequence[Span]
    ) -> None:
        """`rows_of[rank]`: the rows of B that come over that rank's own link; of `ends.b` the own ones are read."""
        super().__init__(device, matrices)
        self._communicator, self._own, self._rows_of = device_group, rows_of[rank], rows_of
        self._gathered: list[Event] = []

    def begin(self) -> None:
        self._gathered = []

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        if arrival.operand == "A":
            return super().load(arrival, into, after)
        assert arrival.index == arrival.slot == len(self._gathered), "ranks that bring panels in another order mix them up"
        loaded = self._device.copy_in(into[self._own.slice], self._matrices.b[self._own][:, arrival.span.slice], after)
        # At once, and not when the panel is multiplied: no copy that keeps the host waiting comes between the exchanges.
        self._gathered.append(self._communicator.gather_rows(into, self._rows_of, [*after, loaded]))
        return self._gathered[-1]

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        # A copy to memory that is not locked keeps the host waiting until the strip is there: not before its panel is.
        self._communicator.wait_for(self._gathered[tile.slot])
        return super().store(tile, source, after)
