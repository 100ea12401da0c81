"""How the operands are cut for the devices: the size of chunks and panels, and how many of them one device holds.

Everything is held at once where there is room. Where there is not, the largest square of C whose operands fit beside it
is worked on: the longer its sides, the more is computed for each byte that crosses the link.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from hybrid.partition import Span, even_pieces, pieces
from hybrid.problem import Problem, padded

STRIP_WORK = 500_000_000_000  # multiply-adds of one strip on a CPU: progress shows now and then, and BLAS packs B seldom
MOST_STRIPS = 512
PIECE_BYTES = 16 << 20  # of a chunk or panel with what it adds to C; smaller ones take longer to hand over than to copy
PANEL_BYTES = 32 << 20  # of one that comes from another node
MOST_PANELS = 8
CHUNK_ROWS = 512  # with a GPU; fewer leave its multiprocessors idle in the kernel
PANEL_ROW_BYTES = 8 << 10  # narrower panels for a GPU are copied at less than two thirds of the link's rate while a kernel runs
LEAD_ROW_BYTES = 48 << 10  # of a first panel: from 32 KiB on nothing of the rate is lost
FEW_LINKS = 2  # more fill the host's memory: work must begin with less, and each rank has fewer strips
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
    lead_columns: int = 0  # of the first panel, where it is wider than the others: then all are held
    apart: bool = False  # every panel is a matrix of its own, also where all are held: then its rows follow each other

    def chunks_of(self, rows: int, device: str) -> tuple[Span, ...]:
        return _pieces(Span(0, rows), self.chunk_rows, device)

    def panels_in(self, columns: int) -> int:
        lead = min(self.lead_columns, columns)
        return (lead > 0) + -(-(columns - lead) // self.panel_columns)

    def panels_of(self, columns: int, device: str) -> tuple[Span, ...]:
        lead = Span(0, min(self.lead_columns, columns))
        rest = _pieces(Span(lead.hi, columns), self.panel_columns, device)
        return (lead, *rest) if len(lead) else rest


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
    side = _side_of_square(problem, memory)
    if not chunk_rows:
        height = _tiles(min(-(-rows // CHUNKS_AT_LEAST) + TILE - 1, side // CHUNKS_AT_LEAST))
    if not panel_columns:
        width = _tiles(min(-(-problem.m // PANELS_AT_LEAST) + TILE - 1, side // PANELS_AT_LEAST))
    return _largest(problem, rows, height, width, device, memory)


@dataclass(frozen=True)
class Region:
    """Matrices that follow each other in a block of memory: the first as wide as the first slot, the others alike."""

    start: int  # bytes, as all here
    first: int
    each: int

    def begin_of(self, slot: int) -> int:
        return self.start + (self.first + (slot - 1) * self.each if slot else 0)


@dataclass(frozen=True)
class Layout:
    """How a share's buffers lie in one block of memory: A (rows×l), then the slots for panels of B (each l×its width), then
    for each slot the part of C (rows×width) below it. Where everything is held, side by side, there is one as wide as B."""

    rows: int
    slots: int
    lead: int  # columns of the first slot, which is the widest
    width: int  # of the others
    b: Region
    c: Region
    bytes: int

    def width_of(self, slot: int) -> int:
        return self.width if slot else self.lead


def layout_of(problem: Problem, rows: int, cut: Cut, device: str) -> Layout:
    """For a row-block of `rows` rows; nothing where there are none."""
    if not rows:
        return Layout(0, 0, 0, 0, Region(0, 0, 0), Region(0, 0, 0), 0)
    height, width = min(rows, cut.chunk_rows * cut.chunks), min(problem.m, cut.panel_columns)
    lead = min(problem.m, cut.lead_columns) or width
    slots = min(cut.panels, cut.panels_in(problem.m))
    if height == rows and slots == cut.panels_in(problem.m) and not cut.apart:
        slots, lead = 1, problem.m

    def size(height: int, columns: int) -> int:
        return _aligned(problem.bytes(height, columns if device == "cpu" else padded(columns, problem.item_size)))

    def region(start: int, height: int) -> Region:
        return Region(start, size(height, lead), size(height, width))

    b = region(size(height, problem.l), problem.l)
    c = region(b.begin_of(slots), height)
    return Layout(height, slots, lead, width, b, c, c.begin_of(slots))


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


def _chunk_rows(problem: Problem, rows: int, device: str, links: int) -> int:
    if device == "cpu":
        return max(1, STRIP_WORK // max(1, problem.l * problem.m), -(-rows // MOST_STRIPS))
    if not links:
        return max(1, rows)
    side = CHUNK_ROWS if links <= FEW_LINKS else 2 * CHUNK_ROWS
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


def _pieces(span: Span, size: int, device: str) -> tuple[Span, ...]:
    """For a CPU as equal as can be; a GPU's kernels work in tiles, of which only the last piece shall have a broken one."""
    return even_pieces(span, size) if device == "cpu" else tuple(pieces(span, size))


def _tiles(size: int) -> int:
    """Whole tiles, but for less than one."""
    return size // TILE * TILE or max(1, size)


def _count(length: int, size: int) -> int:
    return max(1, -(-length // size))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
