"""What a share holds on its device: chunks side by side, panels in slots, and C where they meet."""

from __future__ import annotations

from typing import Any

from hybrid.devices import Device
from hybrid.plan import Share
from hybrid.problem import Problem
from hybrid.schedule import Arrival, Strip


class Buffers:
    """A share's buffers in a block of device memory, of this rank's or, opened, of another's."""

    def __init__(self, device: Device, memory: Any, share: Share, problem: Problem) -> None:
        layout = share.layout
        self._rows, self._l = layout.rows, problem.l
        self._a = device.matrix(memory, 0, layout.rows, problem.l, problem.dtype)
        self._b = device.matrix(memory, layout.b, layout.panels * problem.l, layout.width, problem.dtype)
        self._c = device.matrix(memory, layout.c, layout.panels * layout.rows, layout.width, problem.dtype)

    def place(self, arrival: Arrival) -> Any:
        """Where a chunk or panel goes."""
        if arrival.operand == "A":
            return self._a[arrival.held.slice]
        return self.panel(arrival.slot, len(arrival.span))

    def panel(self, slot: int, columns: int) -> Any:
        return self._b[slot * self._l : (slot + 1) * self._l, :columns]

    def operands(self, strip: Strip) -> tuple[Any, Any, Any]:
        """What a strip is computed from and into."""
        first = strip.slot * self._rows
        c = self._c[first + strip.held.lo : first + strip.held.hi, : len(strip.columns)]
        return self._a[strip.held.slice], self.panel(strip.slot, len(strip.columns)), c
