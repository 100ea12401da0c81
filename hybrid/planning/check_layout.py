# SPDX-License-Identifier: MIT
"""Freivalds' check and the copies' checksums on a rank's device: the pieces that are summed and compared, and their memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain, product

from hybrid.core.problem import Problem, record
from hybrid.core.spans import Span, consecutive
from hybrid.planning.schedule import Arrival, RankShare, Tile, Tiling

# Columns of C in a group, whose sum is compared: fewer find smaller errors, more take less time, and less of a short memory.
GROUP_COLUMNS, GROUP_COLUMNS_OUT_OF_CORE = 64, 512
NUMBERS_A_ROW = 5  # that the kernel `compare_sums` (kernels/check.cu) finds for each row of C
# From each ROWS_TOGETHER rows, not less than a thread-block tile has, it makes NUMBERS_TOGETHER sums.
ROWS_TOGETHER, NUMBERS_TOGETHER = 128, 4
NUMBERS_A_PIECE = 5  # the kernel `total_pieces` reads three of each piece and writes two
_LINKS = 64  # the most that bring parts of B
_MATRICES, _ALLOCATION = 14, 512  # matrices that the check allocates; the bytes of each are a multiple of the second
_MOST_OF_MEMORY = 8  # the check takes at most an eighth of a device's memory; else the host checks


Place = tuple[str, Span, Span]  # operand, rows and columns in the whole matrix


@record
class Piece:
    """Some rows and columns of A, B or C that one H2D or D2H copy moves. Each row has a checksum; these begin at `offset`."""

    operand: str  # "A", "B" or "C"
    rows: Span  # those of A and C are counted within the rank's row block, those of B in the whole matrix
    columns: Span
    groups: Span  # the groups of columns in it; in A there is one
    number: int
    offset: int


@record
class CheckLayout:
    """The pieces of one rank, as all ranks know them. The rank's checksums are a vector: one for each row of each piece, in the
    pieces' order. `parts_of_b`: the rows of a column panel that each link brings, where several do."""

    share: RankShare
    inner: int  # the columns of A
    columns: int  # the columns of B and C
    parts_of_b: tuple[Span, ...]
    group: int = GROUP_COLUMNS

    @cached_property
    def panel_groups(self) -> tuple[Span, ...]:
        """For each column panel its groups of columns; no group reaches into the next panel."""
        return tuple(consecutive(-(-len(panel) // self.group) for panel in self.share.column_panels))

    def columns_of(self, group: int) -> Span:
        panels = zip(self.share.column_panels, self.panel_groups, strict=True)
        panel, groups = next(each for each in panels if each[1].lo <= group < each[1].hi)
        first = panel.lo + (group - groups.lo) * self.group
        return Span(first, min(first + self.group, panel.hi))

    @property
    def groups(self) -> int:
        return self.panel_groups[-1].hi if self.panel_groups else 0

    @cached_property
    def by_arrival(self) -> tuple[tuple[tuple[Piece, ...], tuple[tuple[Piece, ...], ...]], ...]:
        """For each arrival its pieces of A or B, and for each tile that it releases the pieces of C that the tile completes."""
        number = offset = 0

        def pieces(operand: str, parts: Iterable[Span], places: Iterable[tuple[Span, Span]]) -> Iterator[Piece]:
            nonlocal number, offset
            for rows, (columns, groups) in product(filter(len, parts), places):
                yield Piece(operand, rows, columns, groups, number, offset)
                number, offset = number + 1, offset + len(rows)

        table = []
        for arrival in self.share.order:
            if arrival.operand == "A":
                own = tuple(pieces("A", [arrival.span], [(Span(0, self.inner), Span(0, 1))]))
            else:
                own = tuple(pieces("B", arrival.slab or self.parts_of_b, self._in_groups(arrival.span)))
            of_tiles = (
                tuple(pieces("C", [tile.rows], self._in_groups(tile.columns))) if tile.completes else ()
                for tile in arrival.releases
            )
            table.append((own, tuple(of_tiles)))
        return tuple(table)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """All pieces, by their offsets."""
        return tuple(piece for own, tiles in self.by_arrival for piece in (*own, *chain.from_iterable(tiles)))

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Where each piece lies in the whole matrix."""
        firsts = map(self.first_row, self.pieces)
        return tuple(
            (piece.operand, Span(first, first + len(piece.rows)), piece.columns)
            for piece, first in zip(self.pieces, firsts, strict=True)
        )

    def pieces_of(self, one: Arrival | Tile) -> tuple[Piece, ...]:
        """The pieces of an arrival of the share's order, or of a tile that one releases. A panel that comes several times has the
        pieces of the first time."""
        return self._by_identity[id(one)]

    @cached_property
    def _by_identity(self) -> dict[int, tuple[Piece, ...]]:
        """By the id of an arrival or tile, whose many numbers take longer to hash."""
        found: dict[int, tuple[Piece, ...]] = {}
        first: dict[tuple[str, Span, tuple[Span, ...]], tuple[Piece, ...]] = {}
        for arrival, (own, of_tiles) in zip(self.share.order, self.by_arrival, strict=True):
            found[id(arrival)] = first.setdefault((arrival.operand, arrival.span, arrival.slab), own)
            found.update(zip(map(id, arrival.releases), of_tiles, strict=True))
        return found

    def first_row(self, piece: Piece) -> int:
        """The number of the piece's first row in the whole matrix."""
        return piece.rows.lo + (0 if piece.operand == "B" else self.share.rows.lo)

    @property
    def checksums(self) -> int:
        """The number of checksums: one for each row of each piece."""
        return self.pieces[-1].offset + len(self.pieces[-1].rows) if self.pieces else 0

    def _in_groups(self, columns: Span) -> list[tuple[Span, Span]]:
        """The column panels in `columns`, each with its groups; neighbours are one where the groups between them are full."""
        runs: list[tuple[Span, Span]] = []
        for panel, groups in zip(self.share.column_panels, self.panel_groups, strict=True):
            if not panel.lies_in(columns):
                continue
            if runs and len(runs[-1][0]) % self.group == 0:
                run = runs.pop()
                panel, groups = Span(run[0].lo, panel.hi), Span(run[1].lo, groups.hi)
            runs.append((panel, groups))
        return runs


def group_columns(device_memory: int) -> int:
    """The columns in a group. `device_memory`: the bytes to which the plan is cut; 0 where memory is not short."""
    return GROUP_COLUMNS_OUT_OF_CORE if device_memory else GROUP_COLUMNS


def most_bytes_of_check(problem: Problem, rows: int, tiling: Tiling, device_memory: int) -> int:
    """The most bytes that the check takes on a device that multiplies `rows` rows."""
    group, panels = group_columns(device_memory), tiling.column_panels_in(problem.m)
    groups = -(-problem.m // group) + panels
    sums = groups * (2 * problem.l + 3 * rows + 1)
    # A stationary operand comes once, a streamed one once for each part of the stationary one.
    parts = -(-rows // (tiling.panel_rows * tiling.row_panels))
    checksums = problem.l * panels * parts + rows * (1 + panels) * max(1, -(-panels // tiling.column_panels))
    times_a, row_panels = max(1, -(-panels // tiling.column_panels)), -(-rows // tiling.panel_rows)
    of_b = min(problem.l, _LINKS * (-(-problem.l // tiling.slab_rows) if tiling.slab_rows else 1))
    pieces = row_panels * (times_a + panels) + panels * parts * of_b
    of_rows = rows * (NUMBERS_A_ROW + 2) + NUMBERS_TOGETHER * (rows // ROWS_TOGETHER + 1)
    in_all = sums + 2 * checksums + NUMBERS_A_PIECE * pieces + of_rows + 4 * problem.m + problem.l
    return 8 * in_all + _MATRICES * _ALLOCATION


def memory_for_check(problem: Problem, rows: int, device_memory: int) -> int:
    """The bytes of a device that panels leave to the check; 0 where the host checks instead."""
    groups = -(-problem.m // GROUP_COLUMNS_OUT_OF_CORE) + 1
    least = 8 * 2 * groups * (2 * problem.l + 3 * rows)
    return min(2 * least, device_memory // _MOST_OF_MEMORY) if least <= device_memory // _MOST_OF_MEMORY else 0
