"""How the operands are cut for the devices: the size of chunks and panels, and how many of them one device holds.

Everything is held at once where there is room; how it is cut where there is not is `tight`'s.
"""

from __future__ import annotations

from dataclasses import replace

from hybrid.core.problem import Problem
from hybrid.plan.buffer_layout import TILE, Cut, layout_of
from hybrid.plan.out_of_core import LINE_COMPUTES, TightCut

STRIP_WORK = 500_000_000_000  # multiply-adds of one strip on a CPU: progress shows now and then, and BLAS packs B seldom
MOST_STRIPS = 512
PIECE_BYTES = 16 << 20  # of a chunk or panel with what it adds to C; smaller ones take longer to hand over than to copy
PANEL_BYTES = 32 << 20  # of one that comes from another node
MOST_PANELS = 8
CHUNK_ROWS = 512  # with a GPU; fewer leave its multiprocessors idle in the kernel
PANEL_ROW_BYTES = 16 << 10  # narrower panels for a GPU are copied at less than four fifths of the link's rate while a kernel runs
SLAB_ROWS = 1024  # at least: a kernel that adds to C reads it for each slab
MOST_SLABS = 16
ADDING = 0.85  # of a kernel's speed, when it adds to C


def choose_cut(
    problem: Problem,
    rows: int,
    *,
    device: str,
    nodes: int,
    links: int,
    memory: int,
    chunk_rows: int,
    panel_columns: int,
    slab_rows: int = 0,
    slabs: bool = False,
) -> Cut:
    """The cut for row-blocks of up to `rows` rows in `memory` bytes of each device (0: as much as it takes).

    `links`: how many of a node's operands cross at the same time; 0 where they lie on the devices already.
    `chunk_rows`, `panel_columns`, `slab_rows`: sizes asked for, or 0. `slabs`: B may come in these. What does not fit even in
    the smallest pieces is cut into them.
    """
    height = chunk_rows or _chunk_rows(problem, rows, device, links)
    width = panel_columns or _panel_columns(problem, rows, device, nodes, links)
    whole = Cut(height, width, _count(rows, height), _count(problem.m, width))
    if not memory or layout_of(problem, rows, whole, device).bytes <= memory:
        return _in_slabs(problem, rows, whole, device, links, panel_columns, slab_rows) if slabs else whole
    tight = TightCut(problem, rows, device, memory, chunk_rows, panel_columns).choose()
    if not slabs or tight.staying != "B" or (device == "cpu" and not slab_rows):
        return tight
    of_slab = slab_rows or _side(SLAB_ROWS, problem.bytes(1, tight.panel_columns))
    return replace(tight, slab_rows=of_slab) if of_slab < problem.l else tight


def _in_slabs(problem: Problem, rows: int, cut: Cut, device: str, links: int, panel_columns: int, slab_rows: int) -> Cut:
    """The cut with slabs, where there shall be several."""
    if not slab_rows and (device == "cpu" or not links or panel_columns):
        return cut
    height = slab_rows or _side(max(SLAB_ROWS, CHUNK_ROWS * links, problem.l // MOST_SLABS), problem.bytes(1, problem.m))
    if height >= problem.l:
        return cut
    # The foundation's rows shall keep a GPU busy while B comes. But none of theirs of C goes home before all of B is there, and
    # that shall not take longer than computing the rest.
    row_computes = LINE_COMPUTES * problem.item_size  # while it is copied, in rows of B
    busy, in_time = ADDING * row_computes / max(1, links), rows * (1 - row_computes / problem.l)
    foundation = max(1, round(min(busy, in_time) / cut.chunk_rows))
    cut = replace(cut, slab_rows=height, foundation=foundation, last_rows=_tiles_of_half(cut.chunk_rows))
    return replace(cut, chunks=max(1, len(cut.chunks_of(rows, device))))


def _chunk_rows(problem: Problem, rows: int, device: str, links: int) -> int:
    if device == "cpu":
        return max(1, STRIP_WORK // max(1, problem.l * problem.m), -(-rows // MOST_STRIPS))
    if not links:
        return max(1, rows)
    return max(1, min(rows, _side(CHUNK_ROWS, problem.bytes(1, problem.l + problem.m))))


def _panel_columns(problem: Problem, rows: int, device: str, nodes: int, links: int) -> int:
    if device == "cpu" and nodes == 1:
        return max(1, problem.m)  # a CPU takes B as it lies
    panels = min(MOST_PANELS, max(1, problem.bytes(problem.l, problem.m) // PANEL_BYTES))
    width = max(1, problem.m if panels == 1 else -(-problem.m // panels // TILE) * TILE)
    if device == "cpu" or not links:
        return width
    return max(width, _side(PANEL_ROW_BYTES // problem.item_size, problem.bytes(1, problem.l + rows)))


def _tiles_of_half(rows: int) -> int:
    """Half of them, in whole tiles; 0 where there are none in it."""
    return rows // 2 // TILE * TILE


def _side(at_least: int, bytes_of_line: int) -> int:
    """Rows or columns of a strip, each of which brings so many bytes over the link."""
    return -(-max(at_least, PIECE_BYTES // max(1, bytes_of_line)) // TILE) * TILE


def _count(length: int, size: int) -> int:
    return max(1, -(-length // size))
