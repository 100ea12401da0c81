"""How the operands are cut for the devices: the size of chunks and panels, and how many of them one device holds.

Everything is held at once where there is room; how it is cut where there is not is `tight`'s.
"""

from __future__ import annotations

from dataclasses import replace

from hybrid.core.problem import Problem
from hybrid.plan.buffer_layout import KERNEL_TILE, Tiling, layout_of
from hybrid.plan.out_of_core import LINE_COMPUTES, OutOfCoreTiling

TILE_WORK = 500_000_000_000  # multiply-adds of one strip on a CPU: progress shows now and then, and BLAS packs B seldom
MOST_TILES = 512
PIECE_BYTES = 16 << 20  # of a chunk or panel with what it adds to C; smaller ones take longer to hand over than to copy
PANEL_BYTES = 32 << 20  # of one that comes from another node
MOST_PANELS = 8
PANEL_ROWS = 512  # with a GPU; fewer leave its multiprocessors idle in the kernel
PANEL_ROW_BYTES = 16 << 10  # narrower panels for a GPU are copied at less than four fifths of the link's rate while a kernel runs
SLAB_ROWS = 1024  # at least: a kernel that adds to C reads it for each slab
MOST_SLABS = 16
ADDING = 0.85  # of a kernel's speed, when it adds to C


def choose_tiling(
    problem: Problem,
    rows: int,
    *,
    device: str,
    nodes: int,
    links: int,
    memory: int,
    panel_rows: int,
    panel_columns: int,
    slab_rows: int = 0,
    slabs: bool = False,
) -> Tiling:
    """The cut for row-blocks of up to `rows` rows in `memory` bytes of each device (0: as much as it takes).

    `links`: how many of a node's operands cross at the same time; 0 where they lie on the devices already.
    `panel_rows`, `panel_columns`, `slab_rows`: sizes asked for, or 0. `slabs`: B may come in these. What does not fit even in
    the smallest pieces is cut into them.
    """
    height = panel_rows or _panel_rows(problem, rows, device, links)
    width = panel_columns or _panel_columns(problem, rows, device, nodes, links)
    whole = Tiling(height, width, _count(rows, height), _count(problem.m, width))
    if not memory or layout_of(problem, rows, whole, device).bytes <= memory:
        return _in_slabs(problem, rows, whole, device, links, panel_columns, slab_rows) if slabs else whole
    tight = OutOfCoreTiling(problem, rows, device, memory, panel_rows, panel_columns).choose()
    if not slabs or tight.stationary != "B" or (device == "cpu" and not slab_rows):
        return tight
    of_slab = slab_rows or _side(SLAB_ROWS, problem.bytes(1, tight.panel_columns))
    return replace(tight, slab_rows=of_slab) if of_slab < problem.l else tight


def _in_slabs(problem: Problem, rows: int, tiling: Tiling, device: str, links: int, panel_columns: int, slab_rows: int) -> Tiling:
    """The cut with slabs, where there shall be several."""
    if not slab_rows and (device == "cpu" or not links or panel_columns):
        return tiling
    height = slab_rows or _side(max(SLAB_ROWS, PANEL_ROWS * links, problem.l // MOST_SLABS), problem.bytes(1, problem.m))
    if height >= problem.l:
        return tiling
    # The foundation's rows shall keep a GPU busy while B comes. But none of theirs of C goes home before all of B is there, and
    # that shall not take longer than computing the rest.
    row_computes = LINE_COMPUTES * problem.item_size  # while it is copied, in rows of B
    busy, in_time = ADDING * row_computes / max(1, links), rows * (1 - row_computes / problem.l)
    interleaved = max(1, round(min(busy, in_time) / tiling.panel_rows))
    tiling = replace(tiling, slab_rows=height, interleaved=interleaved, last_rows=_tiles_of_half(tiling.panel_rows))
    return replace(tiling, row_panels=max(1, len(tiling.row_panels_of(rows, device))))


def _panel_rows(problem: Problem, rows: int, device: str, links: int) -> int:
    if device == "cpu":
        return max(1, TILE_WORK // max(1, problem.l * problem.m), -(-rows // MOST_TILES))
    if not links:
        return max(1, rows)
    return max(1, min(rows, _side(PANEL_ROWS, problem.bytes(1, problem.l + problem.m))))


def _panel_columns(problem: Problem, rows: int, device: str, nodes: int, links: int) -> int:
    if device == "cpu" and nodes == 1:
        return max(1, problem.m)  # a CPU takes B as it lies
    column_panels = min(MOST_PANELS, max(1, problem.bytes(problem.l, problem.m) // PANEL_BYTES))
    width = max(1, problem.m if column_panels == 1 else -(-problem.m // column_panels // KERNEL_TILE) * KERNEL_TILE)
    if device == "cpu" or not links:
        return width
    return max(width, _side(PANEL_ROW_BYTES // problem.item_size, problem.bytes(1, problem.l + rows)))


def _tiles_of_half(rows: int) -> int:
    """Half of them, in whole tiles; 0 where there are none in it."""
    return rows // 2 // KERNEL_TILE * KERNEL_TILE


def _side(at_least: int, bytes_of_line: int) -> int:
    """Rows or columns of a strip, each of which brings so many bytes over the link."""
    return -(-max(at_least, PIECE_BYTES // max(1, bytes_of_line)) // KERNEL_TILE) * KERNEL_TILE


def _count(length: int, size: int) -> int:
    return max(1, -(-length // size))
