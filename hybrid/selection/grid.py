# SPDX-License-Identifier: MIT
"""Which grid the nodes form, if any: the one asked for, or the one in which they receive least."""

from __future__ import annotations

from hybrid.core.settings import Settings
from hybrid.plan import grid as grids
from hybrid.plan.request import OperandLocation, PlanRequest
from hybrid.selection.machine import Machine


def choose_grid(asked: PlanRequest, machine: Machine, operands: OperandLocation, settings: Settings) -> grids.Grid | None:
    """The grid asked for, or the best; None where B comes to every node in column panels. UsageError for one of other nodes."""
    nodes = len(asked.topology.nodes)
    grid = grids.parse(settings.grid, nodes)
    if nodes == 1 and asked.blocks_2d is None:
        return None
    # On GPUs row blocks come from GPU to GPU where they can, which no network has been measured beside: grids are asked for.
    if asked.copies_to_buffers and asked.blocks_2d is None and (grid is None or grid.is_rows):
        return None
    if grid is None:
        # The root's arrays leave it over one link, whoever needs them: row blocks ask for no more of that.
        if operands is OperandLocation.ROOT_ARRAYS:
            return None
        memory = min(each.host_bytes for each in machine.memory)
        grid = grids.choose(asked.problem, asked.topology, asked.placement, memory)
    # Unless C is gathered: then its panels and B's travel as broadcasts and gathers, which spare the root's link.
    return grid if asked.row_blocks or asked.blocks_2d or not grid.is_rows else None
