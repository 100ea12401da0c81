# SPDX-License-Identifier: MIT
"""The transport that works everywhere: every rank copies its row block of A and all of B from the host's matrices."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial
from typing import Any

from hybrid.devices.base import Device, Event, Timings
from hybrid.plan.schedule import Arrival, Tile
from hybrid.transport.base import ArrivingPanels, CopyObserver, RankMatrices
from hybrid.transport.tile_copies import copy_out, last_tile
from hybrid.transport.told_later import ToldLater


class HostTransport:
    """Each rank copies what it needs over its own link. `panel_stream`: brings B from other nodes, panel by panel; None where
    all of B is in host memory before."""

    def __init__(
        self,
        device: Device,
        rank: int,
        matrices: RankMatrices,
        observer: CopyObserver | None = None,
        panel_stream: ArrivingPanels | None = None,
        in_place: Container[str] = (),
    ) -> None:
        """`in_place`: operands that lie in the buffers already, and are not copied."""
        self._device, self._rank, self._matrices, self._in_place = device, rank, matrices, in_place
        self._observer, self._panel_stream, self._told_later = observer, panel_stream, ToldLater(observer)
        self._last: Tile | None = None

    def begin(self, order: Sequence[Arrival]) -> None:
        self._last = last_tile(order)
        self._told_later.forget()

    def ready(self, arrival: Arrival) -> bool:
        return self._panel_stream is None or arrival.operand == "A" or self._panel_stream.arrived(arrival.index)

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event | None:
        if arrival.operand in self._in_place:
            return None
        self._wait_for_panel(arrival)
        event = self._copy_in(arrival, into, after)
        self._told_later.add(self._rank, arrival, event)
        return event

    def _copy_in(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        part = arrival.span.slice
        if arrival.operand == "A":
            return self._device.copy_in(into, self._matrices.a[part], after)
        b = self._matrices.b
        slab = [rows for rows in arrival.slab if len(rows)] or [b.rows]
        # Copies in run in the order they are enqueued, so the last one's event covers all.
        return [self._device.copy_in(into[rows.slice], b[rows][:, part], after) for rows in slab][-1]

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        return []

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        if "C" in self._in_place:
            return after[-1]
        into = self._matrices.c[tile.rows.slice, tile.columns.slice]
        told = partial(self._observer.stored, self._rank, tile) if self._observer is not None else None
        return copy_out(self._device, into, source, after, told, is_last=tile is self._last)

    def advance(self) -> None:
        self._told_later.tell_some()

    def finish(self) -> Timings:
        self._told_later.tell_all()
        return []

    def _wait_for_panel(self, arrival: Arrival) -> None:
        if self._panel_stream is not None and arrival.operand == "B":
            self._panel_stream.wait_for(arrival.index)
