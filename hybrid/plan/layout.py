# SPDX-License-Identifier: MIT
"""How a rank's product is tiled, and where its row panels, its column panels and its part of C lie in one block of device
memory.
"""

from __future__ import annotations

from hybrid.core.problem import Problem, padded, record
from hybrid.core.spans import Span, even_pieces, pieces
from hybrid.plan.arithmetic import UNIT, sampling

# -------- remainder layout
# Where the remainders of a rank's panels and of its part of C lie in a block of device memory, and the numbers that are kept
# of each row of A and column of B.

PAIR = 2 * UNIT  # lines that a cluster of thread blocks computes together, and columns of a tile
CHUNK_ROWS = 512  # rows of B of which a thread block of kernels/norms.cu adds up the norms
_ALIGNMENT = 256  # bytes; as CUDA's own allocations
MEASURES, MEASURE_BYTES = 5, 48  # the numbers that kernels/norms.cu finds for a line, and the bytes that they take
SUMMARY_WORDS = 6  # words of 64 bits in a summary; one is not used
GUARDS = 16  # tiles for which the guard may be asked before the first one is multiplied
_MOST_BYTES_OF_PRODUCTS = 512 << 20  # that C's remainders take at a time: more columns at once are no faster


@record
class OperandRemainders:
    """What is kept for all rows in a device's buffer of A, or all columns in its buffer of B, which are called lines here.

    Offsets are in bytes. Each of the regions has one entry for a line, or a row of them.
    """

    lines: int  # in all slots of the buffer
    inner: int
    in_chunks: bool  # k is added up in chunks
    slot_lines: int  # in a slot, padded
    planes: int  # offset of the packed remainders, a plane for each modulus
    plane_bytes: int
    magnitudes: int
    magnitude_bytes: int
    measures: int  # MEASURE_BYTES for each line and chunk of k
    numbers: int  # five rows: norm, largest magnitude, power of two, its inverse, and what brings the mean magnitude to 8
    steps: int  # of each line's magnitudes, relative to its norm: float32
    end: int

    @classmethod
    def starting_at(
        cls, offset: int, length: int, slots: int, inner: int, dtype: str, moduli: int, *, in_chunks: bool
    ) -> OperandRemainders:
        """The regions from byte `offset` on. `length`: lines in a slot; `inner`: the elements of a line."""
        slot_lines = -(-length // PAIR) * PAIR
        lines, units = slots * slot_lines, -(-inner // UNIT)
        plane_bytes, magnitude_bytes = lines * units * UNIT, lines * -(-units // sampling(inner, dtype)) * UNIT
        chunks = -(-inner // CHUNK_ROWS) if in_chunks else 1
        # A cluster reads two units of lines, so from an odd one at the end one more.
        sizes = (
            moduli * plane_bytes + UNIT * units * UNIT,
            magnitude_bytes + UNIT * -(-units // sampling(inner, dtype)) * UNIT,
            MEASURE_BYTES * lines * chunks,
            40 * lines,
            4 * lines,
        )
        offsets = [offset]
        for size in sizes:
            offsets.append(offsets[-1] + aligned(size))
        planes, magnitudes, measures, numbers, steps, end = offsets
        return cls(
            lines, inner, in_chunks, slot_lines, planes, plane_bytes, magnitudes, magnitude_bytes, measures, numbers, steps, end
        )


@record
class RemainderLayout:
    """The regions of both operands and of the products of remainders. `chunk`: columns of C whose remainders exist at a time."""

    moduli: int
    a: OperandRemainders
    b: OperandRemainders
    summaries: int  # SUMMARY_WORDS for each unit of lines, with which a panel may begin: A's, then B's
    least: int  # what the guard finds: least ratios, each of them 16 bytes behind the one before
    products: int
    chunk: int
    end: int


def remainder_layout(offset: int, rows: int, inner: int, width: int, slots: int, dtype: str, moduli: int) -> RemainderLayout:
    """The layout from byte `offset` on. `width`: the columns in a slot of B."""
    a = OperandRemainders.starting_at(offset, rows, 1, inner, dtype, moduli, in_chunks=False)
    b = OperandRemainders.starting_at(a.end, width, slots, inner, dtype, moduli, in_chunks=True)
    summaries = b.end
    least = summaries + 8 * SUMMARY_WORDS * ((a.lines + b.lines) // UNIT)
    products = aligned(least + 16 * GUARDS)
    most = max(PAIR, _MOST_BYTES_OF_PRODUCTS // (moduli * max(1, rows)) // PAIR * PAIR)
    chunk = min(-(-width // PAIR) * PAIR, most)
    return RemainderLayout(moduli, a, b, summaries, least, products, chunk, products + moduli * rows * chunk)


def aligned(size: int) -> int:
    """The size, rounded up so that what follows in a block of device memory is aligned as CUDA's own allocations are."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


KERNEL_TILE = 128  # rows and columns of the kernels' thread-block tiles: panels for a GPU are multiples of it where they can be


@record
class Tiling:
    """The sizes of the panels, and how many of them are on a device at a time: the same on every rank, though a rank may have
    fewer or more panels than that."""

    panel_rows: int
    panel_columns: int
    row_panels: int
    column_panels: int
    separate_panels: bool = False  # each column panel is a matrix of its own, its rows without gaps; then all are resident
    stationary: str = "A"  # or "B": the stationary operand, where not all fits on the device
    slab_rows: int = 0  # rows of a k-slab, in which all of B comes, or each panel of a stationary B; 0: no slabs
    interleaved: int = 0  # row panels that come in turn with the k-slabs; 0 where B comes in column panels
    rows_first: bool = False  # all row panels come before the second column panel: those of C are complete one by one
    moduli: int = 0  # planes of remainders beside the buffers; 0: products are native

    def row_panels_of(self, rows: int, device: str) -> tuple[Span, ...]:
        """The row panels of a row block of so many rows."""
        even = device == "cpu" and self.row_panels * self.panel_rows >= rows
        return _panels(Span(0, rows), self.panel_rows, even=even)

    def column_panels_in(self, columns: int) -> int:
        """The number of column panels in so many columns."""
        return -(-columns // self.panel_columns)

    def column_panels_of(self, columns: int, device: str) -> tuple[Span, ...]:
        """The column panels of a B of so many columns."""
        even = device == "cpu" and self.column_panels * self.panel_columns >= columns
        return _panels(Span(0, columns), self.panel_columns, even=even)

    def loads(self, rows: int, columns: int) -> int:
        """How many panels are copied to the device; one that is copied twice counts twice."""
        a, b = (-(-rows // self.panel_rows), self.row_panels), (self.column_panels_in(columns), self.column_panels)
        (stationary, stationary_resident), (streamed, streamed_resident) = (a, b) if self.stationary == "A" else (b, a)
        reversals = max(0, -(-stationary // stationary_resident) - 1)
        return stationary + streamed + reversals * max(0, streamed - streamed_resident)


@record
class Region:
    """Slots of equal size that follow each other in a block of memory, each with a matrix."""

    offset: int  # bytes, as all here
    slot_bytes: int

    def offset_of(self, slot: int) -> int:
        """The byte at which a slot begins."""
        return self.offset + slot * self.slot_bytes


@record
class Layout:
    """How a rank's buffers lie in one block of memory: A (rows × l), then B (l × width), then C (rows × width).

    With separate panels each column panel has a slot in B, and its part of C has a slot in C.
    """

    rows: int
    slots: int
    width: int
    b: Region
    c: Region
    bytes: int
    remainders: RemainderLayout | None = None  # behind the buffers


def layout_of(problem: Problem, rows: int, tiling: Tiling, device: str) -> Layout:
    """The layout for a row block of so many rows; an empty one where there are none."""
    if not rows:
        return Layout(0, 0, 0, Region(0, 0), Region(0, 0), 0)
    height = min(rows, tiling.panel_rows * tiling.row_panels)
    slots, side_by_side = (tiling.column_panels_in(problem.m), 1) if tiling.separate_panels else (1, tiling.column_panels)
    width = min(problem.m, tiling.panel_columns * side_by_side)

    def size(height: int, columns: int, item: int) -> int:
        return aligned(height * item * (columns if device == "cpu" else padded(columns, item)))

    of_operand = problem.operand_item_size
    b = Region(size(height, problem.l, of_operand), size(problem.l, width, of_operand))
    c = Region(b.offset_of(slots), size(height, width, problem.item_size))
    end = c.offset_of(slots)
    if not tiling.moduli:
        return Layout(height, slots, width, b, c, end)
    remainders = remainder_layout(end, height, problem.l, width, slots, problem.dtype, tiling.moduli)
    return Layout(height, slots, width, b, c, remainders.end, remainders)


def _panels(span: Span, size: int, *, even: bool) -> tuple[Span, ...]:
    """The span in panels of this size at most.

    With `even`, they are as equal as can be. Else all but the last have this size: a GPU's kernels then get few incomplete
    thread-block tiles, and any panel fits where another one was.
    """
    return even_pieces(span, size) if even else tuple(pieces(span, size))
