# SPDX-License-Identifier: MIT
"""Into which panels and k-slabs the operands are divided for the devices, and how many panels are resident on one.

All panels are resident where they fit; where they do not, out_of_core.py chooses.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from hybrid.core.spans import Span, pieces
from hybrid.plan.arithmetic import UNIT
from hybrid.plan.buffer_layout import KERNEL_TILE, Tiling, layout_of
from hybrid.plan.forecast import forecast
from hybrid.plan.out_of_core import OutOfCoreTiling
from hybrid.plan.request import TilingRequest
from hybrid.plan.schedule import arrivals


def choose_tiling(request: TilingRequest) -> Tiling:
    """The tiling for all ranks. Where not even the smallest panels fit, it has these.

    Products from remainders need panels of whole units, and norms of whole columns and so no k-slabs. Where a tiling has none of
    that, the product is native.
    """
    if request.moduli and not request.slab_rows:
        tiling = _choose_tiling(replace(request, may_use_slabs=False))
        if _has_whole_units(request, tiling):
            return tiling
    return _choose_tiling(replace(request, moduli=0))


def _has_whole_units(r: TilingRequest, tiling: Tiling) -> bool:
    """Whether all panels but the last consist of whole units of rows, or columns."""
    sizes = ((r.rows, tiling.panel_rows), (r.problem.m, tiling.panel_columns))
    return all(panel % UNIT == 0 or length <= panel for length, panel in sizes)


def _choose_tiling(r: TilingRequest) -> Tiling:
    height, width = _panel_rows(r), _panel_columns(r)
    if r.moduli and r.links and r.nodes == 1:
        _, (height, width) = soonest(r)
    height, width = r.panel_rows or height, r.panel_columns or width
    row_panels, column_panels = _count(r.rows, height), _count(r.problem.m, width)
    resident = Tiling(height, width, row_panels, column_panels, rows_first=r.c_leaves, moduli=r.moduli)
    if not r.memory or layout_of(r.problem, r.rows, resident, r.device).bytes <= r.memory:
        return _with_slabs(r, resident) if r.may_use_slabs else resident
    tiling = OutOfCoreTiling(r).choose()
    if not r.may_use_slabs or tiling.stationary != "B" or (r.device == "cpu" and not r.slab_rows):
        return tiling
    slab_rows = r.slab_rows or _least_lines(r, r.model.least_slab_rows, r.problem.operand_bytes(1, tiling.panel_columns))
    return replace(tiling, slab_rows=slab_rows) if slab_rows < r.problem.l else tiling


def _with_slabs(r: TilingRequest, tiling: Tiling) -> Tiling:
    """The tiling with B in k-slabs instead of column panels, where there would be several slabs."""
    model, depth = r.model, r.problem.l
    if not r.slab_rows and (r.device == "cpu" or not r.links or r.panel_columns):
        return tiling
    least = max(model.least_slab_rows, model.least_panel_rows * r.links, depth // model.most_slabs)
    slab_rows = r.slab_rows or _least_lines(r, least, r.problem.operand_bytes(1, r.problem.m))
    if slab_rows >= depth:
        return tiling
    # The interleaved row panels must be high enough to keep the GPU busy while B is copied. But their rows of C are complete,
    # and can be copied back, only after the last slab, and that must not take longer than computing the other rows.
    # `rows_at_once`: the rows of C to which a kernel can add its products with one row of B while the link copies the next one.
    rows_at_once = model.multiply_adds_per_byte(r.problem.operand_dtype) * r.problem.operand_item_size
    busy = model.adding_speed * rows_at_once / max(1, r.links)
    in_time = r.rows * (1 - rows_at_once / depth)
    interleaved = max(1, round(min(busy, in_time) / tiling.panel_rows))
    return replace(tiling, slab_rows=slab_rows, interleaved=interleaved)


def _panel_rows(r: TilingRequest) -> int:
    p, model = r.problem, r.model
    if r.device == "cpu":
        rows = model.cpu_tile_work // max(1, p.l * _panel_columns(r))
        return max(rows, model.least_cpu_panel_rows, -(-r.rows // model.most_cpu_row_panels))
    if not r.links:
        return max(1, r.rows)
    return max(1, min(r.rows, _least_lines(r, model.least_panel_rows, p.operand_bytes(1, p.l) + p.bytes(1, p.m))))


def _panel_columns(r: TilingRequest) -> int:
    p, model = r.problem, r.model
    if r.device == "cpu" and r.nodes == 1:
        return max(1, p.m)  # a CPU reads B where it is
    column_panels = min(model.most_column_panels, max(1, p.operand_bytes(p.l, p.m) // model.least_column_panel_bytes))
    width = max(1, p.m if column_panels == 1 else -(-p.m // column_panels // KERNEL_TILE) * KERNEL_TILE)
    if r.device == "cpu" or not r.links:
        return width
    return max(width, _least_lines(r, model.panel_row_bytes // p.operand_item_size, p.operand_bytes(1, p.l) + p.bytes(1, r.rows)))


@lru_cache(maxsize=64)
def soonest(r: TilingRequest) -> tuple[float, tuple[int, int]]:
    """When a product without k-slabs is complete with the best panels, in the time in which a link copies a byte; and the rows
    and columns of these panels.

    In one panel the rows of B are copied whole, but nothing can be multiplied before all of it is there. High row panels need
    fewer launches, but the last one is copied back after all else.
    """
    p, model, least = r.problem, r.model, _panel_rows(r)

    def copied_out(panel: tuple[int, int]) -> float:
        sizes = zip((r.rows, p.m), panel, strict=True)
        row_panels, column_panels = (tuple(pieces(Span(0, length), size)) for length, size in sizes)
        order = arrivals(row_panels, column_panels, len(row_panels), len(column_panels))
        return forecast(p, order, model, r.speed, r.links, moduli=r.moduli).copied_out

    widths = {max(1, -(-p.m // count // KERNEL_TILE) * KERNEL_TILE) for count in range(1, model.most_column_panels + 1)}
    heights = {min(least * factor, max(1, r.rows)) for factor in (1, 2, 4)}
    panels = [(height, width) for width in sorted(widths, reverse=True) for height in sorted(heights)]
    return min((copied_out(panel), number, panel) for number, panel in enumerate(panels))[::2]


def _least_lines(r: TilingRequest, at_least: int, bytes_of_line: int) -> int:
    """The rows or columns of a panel that has at least so many, and whose copy is long enough for the link: each brings so many
    bytes."""
    return -(-max(at_least, r.model.least_panel_bytes // max(1, bytes_of_line)) // KERNEL_TILE) * KERNEL_TILE


def _count(length: int, size: int) -> int:
    """The number of panels of this size, at least one."""
    return max(1, -(-length // size))
