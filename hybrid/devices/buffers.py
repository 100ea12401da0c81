"""What a share holds on its device: chunks and panels side by side, and C where they meet."""

from __future__ import annotations

from typing import Any

from hybrid.core.problem import Problem
from hybrid.devices.base import Device
from hybrid.plan.buffer_layout import Region
from hybrid.plan.rank_share import Share
from hybrid.plan.schedule import Arrival, Strip

_MOST_KEPT = 10_000  # strips


class Buffers:
    """A share's buffers in a block of device memory, of this rank's or, opened, of another's."""

    def __init__(self, device: Device, memory: Any, share: Share, problem: Problem) -> None:
        layout, dtype = share.layout, problem.dtype
        self._a = device.matrix(memory, 0, layout.rows, problem.l, dtype)

        def matrices(region: Region, rows: int) -> list[Any]:
            return [device.matrix(memory, region.begin_of(slot), rows, layout.width, dtype) for slot in range(layout.slots)]

        self._b, self._c = matrices(layout.b, problem.l), matrices(layout.c, layout.rows)
        self._operands: dict[Strip, tuple[Any, Any, Any]] = {}  # kept: views of a GPU's memory take their time

    def place(self, arrival: Arrival) -> Any:
        """Where a chunk or panel goes; a slab's rows go to the same rows of what this gives."""
        return self._a[arrival.held.slice] if arrival.operand == "A" else self._b[arrival.slot][:, arrival.held.slice]

    def operands(self, strip: Strip) -> tuple[Any, Any, Any]:
        """What a strip is computed from and into."""
        if strip not in self._operands:
            if len(self._operands) >= _MOST_KEPT:
                self._operands.clear()
            rows, columns = strip.held_rows.slice, strip.held_columns.slice
            inner = strip.inner.slice if strip.inner else slice(None)
            self._operands[strip] = self._a[rows, inner], self._b[strip.slot][inner, columns], self._c[strip.slot][rows, columns]
        return self._operands[strip]
