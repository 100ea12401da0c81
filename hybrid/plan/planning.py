# SPDX-License-Identifier: MIT
"""The plan that fulfils a request: the product cut into row blocks, row panels, and column panels or k-slabs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from hybrid.core.spans import Topology
from hybrid.plan.buffer_layout import Tiling, layout_of
from hybrid.plan.check_layout import memory_for_check, most_bytes_of_check
from hybrid.plan.grid_layout import GridLayout, grid_layout
from hybrid.plan.k_slabs import slabs_of
from hybrid.plan.plan import Plan, refuse_many
from hybrid.plan.rank_share import RankShare
from hybrid.plan.request import OperandLocation, PlanRequest, TilingRequest
from hybrid.plan.tiling import choose_tiling


@lru_cache(maxsize=16)
def make_plan(request: PlanRequest) -> Plan:
    """The plan for this request. It is cached: a product is often followed by others like it."""
    problem, topology = request.problem, request.topology
    staged, tallest = request.copies_to_buffers, max(map(len, request.rows_of_a))
    tiling = choose_tiling(_tiling_request(request, tallest))
    pieces_of_b = -(-problem.l // tiling.slab_rows) if tiling.slab_rows else tiling.column_panels_in(problem.m)
    refuse_many(problem, -(-tallest // tiling.panel_rows) + pieces_of_b)
    check = request.check
    if check == "on":
        check = "device" if staged and not request.grid and _checks_on_device(request, tiling, tallest) else "host"
    layout = None
    if request.grid:
        layout = grid_layout(problem, topology, request.grid, request.placement, request.message_bytes)
    return Plan(
        problem,
        topology,
        request.root,
        request.device,
        staged,
        check,
        _shares(request, tiling),
        _operand_location(request),
        device_memory=request.device_memory,
        grid_layout=layout,
        parts=_parts(request, layout) if layout is not None and staged else (),
    )


def _tiling_request(request: PlanRequest, tallest: int) -> TilingRequest:
    """What the tiling depends on. `tallest`: the rows of the largest row block."""
    problem, nodes, staged = request.problem, request.topology.nodes, request.copies_to_buffers
    on_devices = request.row_blocks is not None  # the operands need not cross the links to the host
    alone = on_devices and request.topology.size == 1 and not request.device_memory  # nothing arrives piece by piece
    for_check = memory_for_check(problem, tallest, request.device_memory) if request.check == "on" else 0
    return TilingRequest(
        problem,
        tallest,
        device=request.device,
        nodes=len(nodes),
        links=0 if on_devices else max(map(len, nodes)),
        memory=request.device_memory - for_check if staged else 0,
        panel_rows=request.panel_rows,
        panel_columns=request.panel_columns or (problem.m if alone else 0),
        slab_rows=request.slab_rows,
        may_use_slabs=staged and request.accumulates and len(nodes) == 1 and not on_devices,
        c_leaves=request.c_leaves or (len(nodes) > 1 and not on_devices),
        moduli=request.moduli,
        speed=request.speed,
        model=request.model,
    )


def _shares(request: PlanRequest, tiling: Tiling) -> tuple[RankShare, ...]:
    """The shares of all ranks."""
    problem, topology, device = request.problem, request.topology, request.device
    column_panels = tiling.column_panels_of(problem.m, device)
    links = topology.size if tiling.interleaved else 1
    slabs = slabs_of(problem.l, links, tiling.slab_rows) if tiling.slab_rows and column_panels else ()
    return tuple(
        RankShare(
            rank,
            topology.node_of(rank),
            rows,
            b_rows,
            tiling.row_panels_of(len(rows), device),
            column_panels,
            tiling,
            layout_of(problem, len(rows), tiling, device),
            slabs,
        )
        for rank, (rows, b_rows) in enumerate(zip(request.rows_of_a, request.rows_of_b, strict=True))
    )


def _operand_location(request: PlanRequest) -> OperandLocation:
    if request.blocks_2d is not None:
        return OperandLocation.BLOCKS_2D
    return OperandLocation.ROW_BLOCKS if request.row_blocks is not None else OperandLocation.NODE_SHARED


def _parts(request: PlanRequest, layout: GridLayout) -> tuple[Plan, ...]:
    """For each rank of a grid the plan of the product that its device computes, as if the rank were alone.

    The column panels of B of such a product arrive from other nodes, so B does not come in k-slabs.
    """
    alone = replace(
        request,
        topology=Topology(((0,),)),
        root=0,
        accumulates=False,
        check="off",
        row_blocks=None,
        blocks_2d=None,
        left_out=(),
        grid=None,
        c_leaves=True,
    )
    made: dict[tuple[int, int, int], Plan] = {}  # few: most ranks' parts are alike
    parts = []
    for rank in range(request.topology.size):
        (n, l), (_, m) = layout.rows_of_a(rank).shape, layout.part_of_c(rank).shape
        if (n, l, m) not in made:
            made[n, l, m] = make_plan(replace(alone, problem=replace(request.problem, n=n, l=l, m=m)))
        parts.append(made[n, l, m])
    return tuple(parts)


def _checks_on_device(request: PlanRequest, tiling: Tiling, rows: int) -> bool:
    """Whether the check's sums have room beside the buffers, where the plan is cut to the memory of the devices."""
    if not request.device_memory:
        return True
    buffers = layout_of(request.problem, rows, tiling, request.device).bytes
    return buffers + most_bytes_of_check(request.problem, rows, tiling, request.device_memory) <= request.device_memory
