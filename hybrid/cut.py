"""How the operands are cut for the devices: the size of chunks and panels, and how many of them one device holds.

Everything is held at once where there is room. Where there is not, the largest square of C whose operands fit beside it
is worked on: the longer its sides, the more is computed for each byte that crosses the link.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from hybrid.problem import Problem, padded

STRIP_WORK = 500_000_000_000  # multiply-adds of one strip on a CPU: progress shows now and then, and BLAS packs B seldom
MOST_STRIPS = 512
PANEL_BYTES = 32 << 20  # on a GPU, smaller panels lose more in the kernel than their overlap wins
MOST_PANELS = 8
TILE = 128  # panels and chunks for a GPU are multiples of it where they can be: kernels work in such tiles
ALIGNMENT = 256  # bytes; as CUDA's own allocations
CHUNKS_AT_LEAST, PANELS_AT_LEAST = 2, 4  # held at once where not everything fits: while some are used, others arrive


@dataclass(frozen=True)
class Cut:
    """The same on every rank. `chunks` and `panels` are held at a time; the pieces of a dimension may be fewer."""

    chunk_rows: int
    panel_columns: int
    chunks: int
    panels: int


def choose_cut(
    problem: Problem,
    rows: int,
    *,
    device: str,
    ranks: int,
    nodes: int,
    memory: int,
    chunk_rows: int,
    panel_columns: int,
) -> Cut:
    """The cut for row-blocks of up to `rows` rows in `memory` bytes of each device (0: as much as it takes).

    `chunk_rows`, `panel_columns`: sizes asked for, or 0. What does not fit even in the smallest pieces is cut into these.
    """
    height = chunk_rows or _chunk_rows(problem, rows, device, ranks)
    width = panel_columns or _panel_columns(problem, device, nodes)
    whole = Cut(height, width, _count(rows, height), _count(problem.m, width))
    if not memory or layout_of(problem, rows, whole, device).bytes <= memory:
        return whole
    side = _side_of_square(problem, memory)
    if not chunk_rows:
        height = _tiles(min(-(-rows // CHUNKS_AT_LEAST) + TILE - 1, side // CHUNKS_AT_LEAST))
    if not panel_columns:
        width = _tiles(min(-(-problem.m // PANELS_AT_LEAST) + TILE - 1, side // PANELS_AT_LEAST))
    return _largest(problem, rows, height, width, device, memory)


@dataclass(frozen=True)
class Layout:
    """How a share's buffers lie in one block of memory: A (rows×l), then the panels of B (each l×width), then for each
    panel the part of C (rows×width) above it."""

    rows: int
    width: int
    panels: int
    b: int  # the byte where they begin
    c: int
    bytes: int


def layout_of(problem: Problem, rows: int, cut: Cut, device: str) -> Layout:
    """For a row-block of `rows` rows; nothing where there are none."""
    if not rows:
        return Layout(0, 0, 0, 0, 0, 0)
    height, width = min(rows, cut.chunk_rows * cut.chunks), min(problem.m, cut.panel_columns)
    panels = min(cut.panels, _count(problem.m, cut.panel_columns))
    wide = (lambda columns: columns) if device == "cpu" else (lambda columns: padded(columns, problem.item_size))
    b = _aligned(problem.bytes(height, wide(problem.l)))
    c = b + _aligned(panels * problem.bytes(problem.l, wide(width)))
    return Layout(height, width, panels, b, c, c + panels * problem.bytes(height, wide(width)))


def _largest(problem: Problem, rows: int, height: int, width: int, device: str, memory: int) -> Cut:
    """As many chunks and panels of this size as fit, about a square of them; smaller ones where one of each does not."""

    def fits(cut: Cut) -> bool:
        return layout_of(problem, rows, cut, device).bytes <= memory

    while not fits(Cut(height, width, 1, 1)) and height * width > 1:
        if height >= width:
            height = max(1, height // 2)
        else:
            width = max(1, width // 2)
    cut = Cut(height, width, 1, 1)
    while True:
        more_rows = Cut(height, width, cut.chunks + 1, cut.panels) if cut.chunks * height < rows else None
        more_columns = Cut(height, width, cut.chunks, cut.panels + 1) if cut.panels * width < problem.m else None
        wanted = [more_rows, more_columns] if cut.chunks * height < cut.panels * width else [more_columns, more_rows]
        larger = next((larger for larger in wanted if larger is not None and fits(larger)), None)
        if larger is None:
            return cut
        cut = larger


def _side_of_square(problem: Problem, memory: int) -> int:
    """s with s·l + l·s + s·s elements in `memory`."""
    elements = memory // problem.item_size
    return max(1, isqrt(problem.l**2 + elements) - problem.l)


def _chunk_rows(problem: Problem, rows: int, device: str, ranks: int) -> int:
    if device != "cpu":
        # One GPU: a second chunk only makes the kernel's strips smaller. Several: B takes longer than a chunk to arrive.
        return max(1, rows if ranks == 1 else -(-rows // 2 // TILE) * TILE)
    return max(1, STRIP_WORK // max(1, problem.l * problem.m), -(-rows // MOST_STRIPS))


def _panel_columns(problem: Problem, device: str, nodes: int) -> int:
    cut = device != "cpu" or nodes > 1  # a CPU takes B as it lies, but need not wait for all of it to come from other nodes
    panels = min(MOST_PANELS, max(1, problem.bytes(problem.l, problem.m) // PANEL_BYTES)) if cut else 1
    return max(1, problem.m if panels == 1 else -(-problem.m // panels // TILE) * TILE)


def _tiles(size: int) -> int:
    """Whole tiles, but for less than one."""
    return size // TILE * TILE or max(1, size)


def _count(length: int, size: int) -> int:
    return max(1, -(-length // size))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
