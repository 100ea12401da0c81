"""What a share holds on its device: chunks and panels side by side, and C where they meet."""

from __future__ import annotations

from typing import Any

from hybrid.core.problem import Problem
from hybrid.devices.base import Device
from hybrid.plan.buffer_layout import Region
from hybrid.plan.rank_share import RankShare
from hybrid.plan.schedule import Arrival, Tile

_MOST_KEPT = 10_000  # strips


class Buffers:
    """A share's buffers in a block of device memory, of this rank's or, opened, of another's."""

    def __init__(self, device: Device, memory: Any, share: RankShare, problem: Problem) -> None:
        layout, dtype = share.layout, problem.dtype
        self._a = device.matrix(memory, 0, layout.rows, problem.l, dtype)

        def matrices(region: Region, rows: int) -> list[Any]:
            return [device.matrix(memory, region.offset_of(slot), rows, layout.width, dtype) for slot in range(layout.slots)]

        self._b, self._c = matrices(layout.b, problem.l), matrices(layout.c, layout.rows)
        self._operands: dict[Tile, tuple[Any, Any, Any]] = {}  # kept: views of a GPU's memory take their time

    def destination(self, arrival: Arrival) -> Any:
        """Where a chunk or panel goes; a slab's rows go to the same rows of what this gives."""
        return (
            self._a[arrival.buffer_span.slice] if arrival.operand == "A" else self._b[arrival.slot][:, arrival.buffer_span.slice]
        )

    def operands(self, tile: Tile) -> tuple[Any, Any, Any]:
        """What a strip is computed from and into."""
        if tile not in self._operands:
            if len(self._operands) >= _MOST_KEPT:
                self._operands.clear()
            rows, columns = tile.buffer_rows.slice, tile.buffer_columns.slice
            inner = tile.inner.slice if tile.inner else slice(None)
            self._operands[tile] = self._a[rows, inner], self._b[tile.slot][inner, columns], self._c[tile.slot][rows, columns]
        return self._operands[tile]
