"""The cut where a device cannot hold all: one operand stays, a part at a time, while the other passes by in small pieces.

Of all such cuts that fit, the one that is done soonest, which is mostly the one with the least to copy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf

from hybrid.core.problem import Problem
from hybrid.plan.buffer_layout import KERNEL_TILE, Tiling, layout_of

TILE_ELEMENTS = 2 << 20  # elements of C; with fewer some of a GPU's multiprocessors have nothing to do
PANEL_ROW_BYTES = 24 << 10  # at least, where there is a choice: at 32 KiB nothing of the link's rate is lost, at 16 a fifth
ROW_COSTS = 4 << 10  # bytes that the link could copy instead, at each row of a panel
LINE_COMPUTES = 512  # elements of C, for each byte of an element, while a row or column is copied: about an H200's
HALVING_COSTS = 1 / 8  # of the time, where strips are half as large: estimated
STATIONARY_PIECES = 4  # after a turn the first is multiplied while the others are on their way
STREAMED_AT_LEAST = 3  # held at once: one is multiplied, one waits, one is on its way
_STEPS = 8  # parts are tried that differ by an eighth


@dataclass(frozen=True)
class OutOfCoreTiling:
    """For row-blocks of up to `rows` rows in `memory` bytes. `panel_rows`, `panel_columns`: asked for, or 0."""

    problem: Problem
    rows: int
    device: str
    memory: int
    panel_rows: int
    panel_columns: int

    def choose(self) -> Tiling:
        """What does not fit even in the smallest pieces is cut into these; sizes asked for are halved where they must be."""
        for at_least in range(STREAMED_AT_LEAST, 0, -1):
            best, least = None, inf
            for halvings in range(TILE_ELEMENTS.bit_length()):
                dearer = 1 + halvings * HALVING_COSTS
                if least <= dearer * (self.rows + self.problem.m):
                    break
                for tiling, forwarder in self._cuts(halvings):
                    if forwarder >= at_least and dearer * self._time(tiling) < least:
                        best, least = tiling, dearer * self._time(tiling)
            if best:
                return best
        if max(self.panel_rows, self.panel_columns) > 1:
            return replace(self, panel_rows=-(-self.panel_rows // 2), panel_columns=-(-self.panel_columns // 2)).choose()
        return Tiling(1, 1, 1, 1)

    def _cuts(self, halvings: int) -> Iterator[tuple[Tiling, int]]:
        """Cuts that may fit, and how many passing pieces do; these are the smaller the more `halvings`."""
        for part in _parts(self.problem.m):
            yield self._b_stationary(part, halvings)
        for part in _parts(self.rows):
            yield self._a_stationary(part, halvings)

    def _b_stationary(self, part: int, halvings: int) -> tuple[Tiling, int]:
        width, column_panels = _pieces(part, self.panel_columns, self._panel_columns)
        stay = max(1, min(self.problem.m, column_panels * width))
        height = min(self.rows, self.panel_rows or _smaller(max(-(-TILE_ELEMENTS // stay), KERNEL_TILE), halvings))
        return self._with_most(
            stay, height, self.rows, lambda row_panels: Tiling(height, width, max(1, row_panels), column_panels, stationary="B")
        )

    def _a_stationary(self, part: int, halvings: int) -> tuple[Tiling, int]:
        height, row_panels = _pieces(part, self.panel_rows, KERNEL_TILE)
        stay = min(self.rows, row_panels * height)
        width = self.panel_columns or _smaller(max(-(-TILE_ELEMENTS // stay), self._panel_columns), halvings)
        width = max(1, min(self.problem.m, width))
        return self._with_most(
            stay,
            width,
            self.problem.m,
            lambda column_panels: Tiling(height, width, row_panels, max(1, column_panels), stationary="A"),
        )

    @property
    def _panel_columns(self) -> int:
        return PANEL_ROW_BYTES // self.problem.item_size

    def _with_most(self, stay: int, piece: int, length: int, cut_with: Callable[[int], Tiling]) -> tuple[Tiling, int]:
        """The cut that holds beside `stay` lines as many passing pieces as fit, of `piece` of `length` lines; and how many.

        Not all of them: what is held whole had better stay.
        """
        p = self.problem
        fitting = (self.memory // p.item_size - stay * p.l) // (piece * (p.l + stay))  # padding left aside
        fitting = max(0, min(fitting, -(-length // piece) - 1))
        counts = range(1, fitting + 1)
        fitting = bisect_right(counts, self.memory, key=lambda count: layout_of(p, self.rows, cut_with(count), self.device).bytes)
        return cut_with(fitting), fitting

    def _time(self, tiling: Tiling) -> float:
        """In rows of A and columns of B that a link copies, narrow panels more slowly; with what is waited for at each turn.

        Or the kernels' time, where that is longer: they work in tiles, and compute in vain where they get less.
        """
        rows, columns = self.rows, self.problem.m
        a, b = min(rows, tiling.row_panels * tiling.panel_rows), max(1, min(columns, tiling.column_panels * tiling.panel_columns))
        if tiling.stationary == "A":
            turns, piece = -(-rows // a) - 1, tiling.panel_rows
            columns += turns * (columns - b)
        else:
            turns, piece = -(-columns // b) - 1, tiling.panel_columns
            rows += turns * (rows - a)
        copied = rows + columns * (1 + ROW_COSTS / (tiling.panel_columns * self.problem.item_size)) + turns * piece
        computed = self.rows * self.problem.m / (LINE_COMPUTES * self.problem.item_size)
        return max(copied, computed * _in_vain(self.rows, tiling.panel_rows) * _in_vain(self.problem.m, tiling.panel_columns))


def _parts(length: int) -> Iterator[int]:
    """Parts of an operand that may stay: all, a half, a third, …"""
    stays = 1
    while stays < length:
        yield min(length, _tiles(-(-length // stays)))
        stays += -(-stays // _STEPS)
    yield 1


def _pieces(part: int, asked: int, at_least: int) -> tuple[int, int]:
    """The size of the pieces of what stays, and how many there are. Together they are as large as the part, or a bit larger."""
    size = asked or _tiles(-(-part // max(1, min(STATIONARY_PIECES, part // at_least))))
    return size, -(-part // size)


def _in_vain(length: int, piece: int) -> float:
    """How many times as much a kernel computes, where its tiles get pieces of a length that could fill them."""
    return max(1.0, min(KERNEL_TILE, length) / piece)


def _tiles(size: int) -> int:
    """As many whole tiles, where it is no less than one."""
    return -(-size // KERNEL_TILE) * KERNEL_TILE if size > KERNEL_TILE else size


def _smaller(size: int, halvings: int) -> int:
    return max(1, _tiles(size >> halvings))
