# SPDX-License-Identifier: MIT
"""Which grid the nodes form, if any: the one asked for, or the one in which nodes receive the least data."""

from __future__ import annotations

from hybrid.core.settings import Settings
from hybrid.plan import grid as grids
from hybrid.plan.request import OperandLocation, PlanRequest
from hybrid.selection.machine import Machine


def choose_grid(asked: PlanRequest, machine: Machine, operands: OperandLocation, settings: Settings) -> grids.Grid | None:
    """The grid asked for, or the best; None for no grid, where B comes to every node in column panels. UsageError if the grid
    asked for has another number of nodes."""
    nodes = len(asked.topology.nodes)
    grid = grids.parse(settings.grid, nodes)
    if nodes == 1 and asked.blocks_2d is None:
        return None
    # On GPUs, row blocks come from GPU to GPU where they can. No network was measured beside that, so a grid is not chosen there.
    if asked.copies_to_buffers and asked.blocks_2d is None and (grid is None or grid.is_rows):
        return None
    if grid is None:
        # The root's arrays leave it over one link, whatever nodes need: a grid would spare nothing there.
        if operands is OperandLocation.ROOT_ARRAYS:
            return None
        memory = min(each.host_bytes for each in machine.memory)
        grid = grids.choose(asked.problem, asked.topology, asked.placement, memory)
    # A grid of rows is no grid where C is gathered: then C's and B's panels travel by gathers and broadcasts, which spare the
    # root's link.
    return grid if asked.row_blocks or asked.blocks_2d or not grid.is_rows else None
