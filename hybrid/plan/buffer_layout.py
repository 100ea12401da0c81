"""How a device's memory is laid out for a cut: a chunk of A beside the other, panels of B, and the part of C where they meet."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.core.problem import Problem, padded
from hybrid.core.spans import Span, even_pieces, pieces

KERNEL_TILE = 128  # panels and chunks for a GPU are multiples of it where they can be: kernels work in such tiles
ALIGNMENT = 256  # bytes; as CUDA's own allocations


@dataclass(frozen=True)
class Tiling:
    """The same on every rank. `chunks` and `panels` are held at a time; the pieces of a dimension may be fewer."""

    panel_rows: int
    panel_columns: int
    row_panels: int
    column_panels: int
    apart: bool = False  # every panel is a matrix of its own: then its rows follow each other; all are held
    stationary: str = "A"  # or "B": what does not pass by, where not all is held
    slab_rows: int = 0  # of B, where it comes in slabs; or where panels that stay come in these
    interleaved: int = 0  # chunks that come in turn with the slabs, where all are held
    last_rows: int = 0  # of the last two chunks, where these are smaller: little is left to do when all is there

    def row_panels_of(self, rows: int, device: str) -> tuple[Span, ...]:
        even = device == "cpu" and self.row_panels * self.panel_rows >= rows
        small = self.last_rows if rows > self.panel_rows + 2 * self.last_rows else 0
        large = _pieces(Span(0, rows - 2 * small), self.panel_rows, even=even)
        return large + tuple(pieces(Span(rows - 2 * small, rows), small or 1))

    def column_panels_in(self, columns: int) -> int:
        return -(-columns // self.panel_columns)

    def loads(self, rows: int, columns: int) -> int:
        """How many chunks and panels come, those that come again counted again."""
        a, b = (-(-rows // self.panel_rows), self.row_panels), (self.column_panels_in(columns), self.column_panels)
        (stays, stay_held), (passes, pass_held) = (a, b) if self.stationary == "A" else (b, a)
        turns = max(0, -(-stays // stay_held) - 1)
        return stays + passes + turns * max(0, passes - pass_held)

    def column_panels_of(self, columns: int, device: str) -> tuple[Span, ...]:
        return _pieces(
            Span(0, columns), self.panel_columns, even=device == "cpu" and self.column_panels * self.panel_columns >= columns
        )


@dataclass(frozen=True)
class Region:
    """Matrices that follow each other in a block of memory."""

    start: int  # bytes, as all here
    each: int

    def begin_of(self, slot: int) -> int:
        return self.start + slot * self.each


@dataclass(frozen=True)
class Layout:
    """How a share's buffers lie in one block of memory: A (rows×l), then B (l×width), then C (rows×width).

    Where every panel is a matrix of its own, each has its slot in B and, for the part of C below it, in C.
    """

    rows: int
    slots: int
    width: int
    b: Region
    c: Region
    bytes: int


def layout_of(problem: Problem, rows: int, tiling: Tiling, device: str) -> Layout:
    """For a row-block of `rows` rows; nothing where there are none."""
    if not rows:
        return Layout(0, 0, 0, Region(0, 0), Region(0, 0), 0)
    height = min(rows, tiling.panel_rows * tiling.row_panels)
    slots, side_by_side = (tiling.column_panels_in(problem.m), 1) if tiling.apart else (1, tiling.column_panels)
    width = min(problem.m, tiling.panel_columns * side_by_side)

    def size(height: int, columns: int) -> int:
        return _aligned(problem.bytes(height, columns if device == "cpu" else padded(columns, problem.item_size)))

    b = Region(size(height, problem.l), size(problem.l, width))
    c = Region(b.begin_of(slots), size(height, width))
    return Layout(height, slots, width, b, c, c.begin_of(slots))


def _pieces(span: Span, size: int, *, even: bool) -> tuple[Span, ...]:
    """As equal as can be; or all of one size but the last, so that a GPU's kernels meet few broken tiles, and those that
    take each other's place fit there."""
    return even_pieces(span, size) if even else tuple(pieces(span, size))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
