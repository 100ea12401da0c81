# SPDX-License-Identifier: MIT
"""One rank's part of a product on a grid of nodes, on a device with buffers, such as a GPU: panels go there as they arrive."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.devices.base import Timings
from hybrid.devices.buffers import Buffers
from hybrid.execution.grid_exchange import GridExchange, GridMatrices
from hybrid.execution.grid_panels import GridPanels
from hybrid.execution.modular_product import modular_product
from hybrid.execution.pipeline import run_share
from hybrid.execution.progress import Progress, TileProgress
from hybrid.host.row_view import RowView
from hybrid.plan.arithmetic import Computed
from hybrid.ranks.heartbeat import busy
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.transport.base import RankMatrices
from hybrid.transport.host import HostTransport


class GridOnDevice:
    """Every rank makes one. The rank's part is planned as a product of its own, with its own panels."""

    def __init__(
        self,
        session: Session,
        decision: Decision,
        matrices: GridMatrices,
        exchange: GridExchange,
        settings: Settings,
        progress: Progress,
    ) -> None:
        team, plan, layout = session.team, decision.plan, decision.plan.grid_layout
        assert layout is not None
        assert session.rank_device is not None
        self._team, self._exchange, self._settings = team, exchange, settings
        self._layout, self._rank_device = layout, session.rank_device
        began = time.perf_counter()
        self._part = part = plan.parts[team.rank]
        device = self._rank_device.device
        self._share = share = part.shares[0]
        self._rank_device.reserve(team, share.layout.bytes)
        with team.phase("prepare", timed=False), busy():
            self._buffers = self._rank_device.once_for_plan(
                "grid", part, lambda: Buffers(device, self._rank_device.memory, share, part.problem)
            )
            self._modular = modular_product(self._rank_device, decision, part, share, settings)
        team.timeline.add("prepare", began, time.perf_counter())
        assert self._rank_device.flags is not None
        self._panels = GridPanels(exchange, layout, team.rank, share, device.done, self._rank_device.flags.pauses)
        rows_of_b = RowView(matrices.b, Span(0, part.problem.l))
        of_rank = RankMatrices(matrices.a, rows_of_b, matrices.c)
        self._transport = HostTransport(device, 0, of_rank, panel_stream=self._panels)
        self._to_pin: Sequence[np.ndarray] = (matrices.a, matrices.b, matrices.c)
        self._tile_progress = TileProgress(team, share, progress)

    def make_ready(self) -> None:
        """Make this rank ready for a product, in a phase that all ranks leave together before they multiply."""
        self._rank_device.pin(self._team, self._to_pin)
        self._to_pin = ()
        self._tile_progress.begin()
        self._panels.begin()
        self._rank_device.used_for(self._part, self._modular)  # so that no other product takes what is there for its own
        if self._settings.poison:
            self._rank_device.device.poison(self._rank_device.memory)

    def multiply(self) -> Timings:
        """Multiply this rank's part, in a phase. Returns what `Device.finish` does."""
        self._exchange.wait_for_a()
        device, panels = self._rank_device.device, self._panels
        timings = run_share(
            self._share, self._buffers, self._transport, device, self._tile_progress, gather=panels, modular=self._modular
        )
        self._exchange.wait_for_panel(self._layout.pieces["B"] - 1)  # a rank without rows receives for the others of its node
        return timings

    @property
    def arithmetic(self) -> Computed:
        """The arithmetic of this rank's part of C; empty where all of it is native."""
        return self._modular.done if self._modular is not None else {}
