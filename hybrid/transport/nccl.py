# SPDX-License-Identifier: MIT
"""The transport by NCCL: each rank loads some rows of B over its GPU's own link, and an allgather brings all ranks the others. C
of other nodes goes from their GPUs to those of the root's node."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from hybrid.core.spans import Span
from hybrid.devices.base import Device, Event
from hybrid.plan.schedule import Arrival, Tile
from hybrid.transport.base import CopyObserver, RankMatrices
from hybrid.transport.device_gather import DeviceGather
from hybrid.transport.device_group import DeviceGroup
from hybrid.transport.host import HostTransport


class NcclTransport(HostTransport):
    """For products of which all panels fit on the devices: then all ranks load them in the same order, as collectives must be. A
    is copied as by HostTransport, and so is C, unless it goes to another node."""

    def __init__(
        self,
        device: Device,
        rank: int,
        matrices: RankMatrices,
        device_group: DeviceGroup,
        rows_of: Sequence[Span],
        observer: CopyObserver | None = None,
        in_place: Container[str] = (),
        gather: DeviceGather | None = None,
    ) -> None:
        """`rows_of[rank]`: the rows of B that this rank loads. `matrices.b` has at least those of the calling one. `gather`:
        brings C of other nodes to the root's; None where it stays where it is computed."""
        super().__init__(device, rank, matrices, observer, in_place=in_place)
        self._device_group, self._own_rows, self._rows_of = device_group, rows_of[rank], rows_of
        self._gather, self._panels = gather, 0
        self._gathered: list[Event] = []

    def begin(self, order: Sequence[Arrival]) -> None:
        super().begin(order)
        self._gathered, self._panels = [], sum(arrival.operand == "B" for arrival in order)
        self._open_gather()

    def _copy_in(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        if arrival.operand == "A":
            return super()._copy_in(arrival, into, after)
        assert arrival.index == arrival.slot == len(self._gathered), "ranks that gather panels in different orders mix them up"
        loaded = self._device.copy_in(into[self._own_rows.slice], self._matrices.b[self._own_rows][:, arrival.span.slice], after)
        # Enqueued here and not in `exchange`: copies out may block the host, and must not delay a collective of later panels.
        self._gathered.append(self._device_group.allgather_rows(into, self._rows_of, [*after, loaded]))
        self._open_gather()
        return self._gathered[-1]

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        # A copy to pageable memory blocks the host until the tile is computed. If a rank has failed, its panel never arrives:
        # so wait where that is noticed.
        gather = self._gather
        if gather is None:
            self._device_group.wait_for(self._gathered[tile.slot])
            return super().store(tile, source, after)
        self._device_group.wait_for(self._gathered[tile.slot], gather.advance)
        gather.computed(tile, source, after)
        return after[-1] if gather.sends else super().store(tile, source, after)

    def _open_gather(self) -> None:
        """Let C leave or arrive once all collectives of B are enqueued: none of them may have to wait for C."""
        if self._gather is not None and len(self._gathered) == self._panels:
            self._gather.collectives_enqueued()
