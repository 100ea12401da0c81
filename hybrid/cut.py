"""How the operands are cut for the devices: the size of chunks and panels, and how many of them one device holds.

Everything is held at once where there is room; how it is cut where there is not is `tight`'s.
"""

from __future__ import annotations

from hybrid.layout import TILE, Cut, layout_of
from hybrid.problem import Problem
from hybrid.tight import TightCut

STRIP_WORK = 500_000_000_000  # multiply-adds of one strip on a CPU: progress shows now and then, and BLAS packs B seldom
MOST_STRIPS = 512
PIECE_BYTES = 16 << 20  # of a chunk or panel with what it adds to C; smaller ones take longer to hand over than to copy
PANEL_BYTES = 32 << 20  # of one that comes from another node
MOST_PANELS = 8
CHUNK_ROWS = 512  # with a GPU; fewer leave its multiprocessors idle in the kernel
PANEL_ROW_BYTES = 8 << 10  # narrower panels for a GPU are copied at less than two thirds of the link's rate while a kernel runs
LEAD_ROW_BYTES = 48 << 10  # of a first panel: from 32 KiB on nothing of the rate is lost
FEW_LINKS = 2  # more fill the host's memory: work must begin with less, and each rank has fewer strips


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
) -> Cut:
    """The cut for row-blocks of up to `rows` rows in `memory` bytes of each device (0: as much as it takes).

    `links`: how many of a node's operands cross at the same time; 0 where they lie on the devices already.
    `chunk_rows`, `panel_columns`: sizes asked for, or 0. What does not fit even in the smallest pieces is cut into these.
    """
    height = chunk_rows or _chunk_rows(problem, rows, device, links)
    width = panel_columns or _panel_columns(problem, rows, device, nodes, links)
    lead = 0 if panel_columns else _lead_columns(problem, width, device, links)
    whole = Cut(height, width, _count(rows, height), _count(problem.m - lead, width) + (lead > 0), lead)
    if not memory or layout_of(problem, rows, whole, device).bytes <= memory:
        return whole
    return TightCut(problem, rows, device, memory, chunk_rows, panel_columns).choose()


def _chunk_rows(problem: Problem, rows: int, device: str, links: int) -> int:
    if device == "cpu":
        return max(1, STRIP_WORK // max(1, problem.l * problem.m), -(-rows // MOST_STRIPS))
    if not links:
        return max(1, rows)
    side = CHUNK_ROWS if links <= FEW_LINKS else min(2 * CHUNK_ROWS, max(CHUNK_ROWS, rows // 2))
    return max(1, min(rows, _side(side, problem.bytes(1, problem.l + problem.m))))


def _panel_columns(problem: Problem, rows: int, device: str, nodes: int, links: int) -> int:
    if device == "cpu" and nodes == 1:
        return max(1, problem.m)  # a CPU takes B as it lies
    if device != "cpu" and links and not _several_panels(problem, links):
        return max(1, problem.m)
    panels = min(MOST_PANELS, max(1, problem.bytes(problem.l, problem.m) // PANEL_BYTES))
    width = max(1, problem.m if panels == 1 else -(-problem.m // panels // TILE) * TILE)
    if device == "cpu" or not links:
        return width
    return max(width, _side(PANEL_ROW_BYTES // problem.item_size, problem.bytes(1, problem.l + rows)))


def _several_panels(problem: Problem, links: int) -> bool:
    """For a GPU: whether there is enough of B beside a first panel."""
    return problem.bytes(1, problem.m) >= _lead_row_bytes(links) + PANEL_ROW_BYTES // 2


def _lead_columns(problem: Problem, width: int, device: str, links: int) -> int:
    lead = _lead_row_bytes(links) // problem.item_size
    return lead if device != "cpu" and links and _several_panels(problem, links) and width < lead else 0


def _lead_row_bytes(links: int) -> int:
    return LEAD_ROW_BYTES if links <= FEW_LINKS else LEAD_ROW_BYTES * 2 // 3


def _side(at_least: int, bytes_of_line: int) -> int:
    """Rows or columns of a strip, each of which brings so many bytes over the link."""
    return -(-max(at_least, PIECE_BYTES // max(1, bytes_of_line)) // TILE) * TILE


def _count(length: int, size: int) -> int:
    return max(1, -(-length // size))
