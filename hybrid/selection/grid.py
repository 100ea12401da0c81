# SPDX-License-Identifier: MIT
"""Which grid the nodes form, if any: the one asked for, or the one in which they receive least."""

from __future__ import annotations

from hybrid.core.settings import Settings
from hybrid.errors import UsageError
from hybrid.plan import grid as grids
from hybrid.plan.request import OperandLocation, PlanRequest
from hybrid.selection.machine import Machine


def choose_grid(asked: PlanRequest, machine: Machine, operands: OperandLocation, settings: Settings) -> grids.Grid | None:
    """The grid asked for, or the best; None where B comes to every node in column panels. UsageError where there can be none."""
    nodes = len(asked.topology.nodes)
    grid = grids.parse(settings.grid, nodes)
    if asked.copies_to_buffers and asked.blocks_2d is not None:
        raise UsageError("2-D blocks are multiplied on CPUs, in place: choose device cpu, or use row blocks")
    if asked.copies_to_buffers and grid is not None and not grid.is_rows:
        raise UsageError(f"a grid of nodes multiplies on CPUs, in place: choose device cpu, or grid {grids.ROWS}")
    if asked.copies_to_buffers or (nodes == 1 and asked.blocks_2d is None):
        return None
    if grid is None:
        # The root's arrays leave it over one link, whoever needs them: row blocks ask for no more of that.
        if operands is OperandLocation.ROOT_ARRAYS:
            return None
        memory = min(each.host_bytes for each in machine.memory)
        grid = grids.choose(asked.problem, asked.topology, asked.placement, memory)
    # Unless C is gathered: then its panels and B's travel as broadcasts and gathers, which spare the root's link.
    return grid if asked.row_blocks or asked.blocks_2d or not grid.is_rows else None
