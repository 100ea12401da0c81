# SPDX-License-Identifier: MIT
"""Multiplies one rank's share of a plan on a CPU where the matrices lie, without buffers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hybrid.devices.base import Device, Timings
from hybrid.execution.progress import Entering
from hybrid.execution.worker import Worker
from hybrid.plan.rank_share import RankShare
from hybrid.plan.schedule import Tile
from hybrid.transport.base import RankMatrices

if TYPE_CHECKING:
    from hybrid.transport.panel_gather import PanelGather
    from hybrid.transport.panel_stream import PanelStream


def multiply_in_place(
    share: RankShare,
    matrices: RankMatrices,
    device: Device,
    entering: Entering,
    panel_stream: PanelStream | None = None,
    gather: PanelGather | None = None,
) -> Timings:
    """Multiply the rank's row block by B where they lie, while column panels of B arrive and those of C are sent. Returns what
    `Device.finish` does.

    Where this rank takes part in bringing them, another thread multiplies: MPI moves data only while it is called.
    """

    def multiply(tile: Tile) -> None:
        rows, columns = tile.rows.slice, tile.columns.slice
        device.multiply(matrices.a[rows], matrices.b.array[:, columns], matrices.c[rows, columns], after=[])
        if gather is not None:
            gather.stored(tile)

    with Worker(beside=any(each is not None and each.takes_part for each in (panel_stream, gather))) as worker:
        for arrival in share.order:
            if panel_stream is not None and arrival.operand == "B":
                panel_stream.wait_for(arrival.index, worker.computes)
            for tile in arrival.releases:
                entering("multiply")
                worker.do(partial(multiply, tile))
        entering("multiply")
        worker.wait(gather.advance if gather is not None else lambda: None)
    return device.finish()
