"""The road between GPUs of all nodes: each loads its rows of B over its own link, and NCCL brings every rank's to all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybrid.core.spans import Span
from hybrid.devices.base import Device, Mark
from hybrid.plan.schedule import Arrival, Strip
from hybrid.transport.base import Ends
from hybrid.transport.device_group import Communicator
from hybrid.transport.host import HostRoad


class NcclRoad(HostRoad):
    """For devices that hold all panels: so all ranks bring them in the same order. A and C go as on the host road."""

    def __init__(self, device: Device, ends: Ends, communicator: Communicator, rank: int, rows_of: Sequence[Span]) -> None:
        """`rows_of[rank]`: the rows of B that come over that rank's own link; of `ends.b` the own ones are read."""
        super().__init__(device, ends)
        self._communicator, self._own, self._rows_of = communicator, rows_of[rank].slice, rows_of
        self._gathered: list[Mark] = []

    def begin(self) -> None:
        self._gathered = []

    def bring(self, arrival: Arrival, into: Any, after: list[Mark]) -> Mark:
        if arrival.operand == "A":
            return super().bring(arrival, into, after)
        assert arrival.index == arrival.slot == len(self._gathered), "ranks that bring panels in another order mix them up"
        loaded = self._device.copy_in(into[self._own], self._ends.b[self._own, arrival.span.slice], after)
        # At once, and not when the panel is multiplied: no copy that keeps the host waiting comes between the exchanges.
        self._gathered.append(self._communicator.gather_rows(into, self._rows_of, [*after, loaded]))
        return self._gathered[-1]

    def take(self, strip: Strip, source: Any, after: list[Mark]) -> Mark:
        # A copy to memory that is not locked keeps the host waiting until the strip is there: not before its panel is.
        self._communicator.wait_for(self._gathered[strip.slot])
        return super().take(strip, source, after)
