"""How a device's memory is laid out for a cut: a chunk of A beside the other, panels of B, and the part of C where they meet."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.partition import Span, even_pieces, pieces
from hybrid.problem import Problem, padded

TILE = 128  # panels and chunks for a GPU are multiples of it where they can be: kernels work in such tiles
ALIGNMENT = 256  # bytes; as CUDA's own allocations


@dataclass(frozen=True)
class Cut:
    """The same on every rank. `chunks` and `panels` are held at a time; the pieces of a dimension may be fewer."""

    chunk_rows: int
    panel_columns: int
    chunks: int
    panels: int
    lead_columns: int = 0  # of the first panel, where it is wider than the others: then all are held
    apart: bool = False  # every panel is a matrix of its own: then its rows follow each other; all are held
    staying: str = "A"  # or "B": what does not pass by, where not all is held

    def chunks_of(self, rows: int, device: str) -> tuple[Span, ...]:
        return _pieces(Span(0, rows), self.chunk_rows, even=device == "cpu" and self.chunks * self.chunk_rows >= rows)

    def panels_in(self, columns: int) -> int:
        lead = min(self.lead_columns, columns)
        return (lead > 0) + -(-(columns - lead) // self.panel_columns)

    def loads(self, rows: int, columns: int) -> int:
        """How many chunks and panels come, those that come again counted again."""
        a, b = (-(-rows // self.chunk_rows), self.chunks), (self.panels_in(columns), self.panels)
        (stays, stay_held), (passes, pass_held) = (a, b) if self.staying == "A" else (b, a)
        turns = max(0, -(-stays // stay_held) - 1)
        return stays + passes + turns * max(0, passes - pass_held)

    def panels_of(self, columns: int, device: str) -> tuple[Span, ...]:
        lead = Span(0, min(self.lead_columns, columns))
        even = device == "cpu" and self.panels * self.panel_columns >= columns
        rest = _pieces(Span(lead.hi, columns), self.panel_columns, even=even)
        return (lead, *rest) if len(lead) else rest


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
    """How a share's buffers lie in one block of memory: A (rows×l), then B (l×width), then C (rows×width).

    Where every panel is a matrix of its own, each has its slot in B and, for the part of C below it, in C.
    """

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
    height, width, slots = min(rows, cut.chunk_rows * cut.chunks), cut.panel_columns, 1
    lead = problem.m if cut.panels >= cut.panels_in(problem.m) else min(problem.m, width * cut.panels)
    if cut.apart:
        slots, lead = cut.panels_in(problem.m), min(problem.m, cut.lead_columns or width)

    def size(height: int, columns: int) -> int:
        return _aligned(problem.bytes(height, columns if device == "cpu" else padded(columns, problem.item_size)))

    def region(start: int, height: int) -> Region:
        return Region(start, size(height, lead), size(height, min(problem.m, width)))

    b = region(size(height, problem.l), problem.l)
    c = region(b.begin_of(slots), height)
    return Layout(height, slots, lead, width, b, c, c.begin_of(slots))


def _pieces(span: Span, size: int, *, even: bool) -> tuple[Span, ...]:
    """As equal as can be; or all of one size but the last, so that a GPU's kernels meet few broken tiles, and those that
    take each other's place fit there."""
    return even_pieces(span, size) if even else tuple(pieces(span, size))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
