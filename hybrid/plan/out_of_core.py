# SPDX-License-Identifier: MIT
"""The tiling where a device cannot hold both operands. One is stationary: as many of its panels as fit are on the device at a
time. The other is streamed past them in small panels, in alternating direction.

Of all such tilings that fit, the search takes the one that should take the least time, which is mostly the one with the least to
copy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

from hybrid.core.record import record
from hybrid.plan.buffer_layout import KERNEL_TILE, Tiling, layout_of
from hybrid.plan.request import TilingRequest

_STEPS = 8  # the search tries parts of the stationary operand that differ by about an eighth


@record
class OutOfCoreTiling:
    """The search, for row blocks of up to `request.rows` rows on devices of `request.memory` bytes."""

    request: TilingRequest

    def choose(self) -> Tiling:
        """The best tiling. Panel sizes that the request asks for are halved where they do not fit; where even the smallest
        panels do not, these are taken."""
        r, model = self.request, self.request.model
        for least_streamed in range(model.least_streamed_panels, 0, -1):
            best, least = None, inf
            for halvings in range(model.least_tile_elements.bit_length()):
                factor = 1 + halvings * model.half_tile_cost
                if least <= factor * (r.rows + r.problem.m):
                    break  # what is halved again cannot take less, even if every row and column is copied only once
                for tiling, streamed in self.candidates(halvings):
                    if streamed >= least_streamed and factor * self._time(tiling) < least:
                        best, least = tiling, factor * self._time(tiling)
            if best:
                return best
        if max(r.panel_rows, r.panel_columns) > 1:
            halved = replace(r, panel_rows=-(-r.panel_rows // 2), panel_columns=-(-r.panel_columns // 2))
            return replace(self, request=halved).choose()
        return Tiling(1, 1, 1, 1)

    def candidates(self, halvings: int) -> Iterator[tuple[Tiling, int]]:
        """Tilings that may fit, each with the number of streamed panels that do. With `halvings` the tiles are halved so many
        times from the best size."""
        for part in _parts(self.request.problem.m):
            yield self._b_stationary(part, halvings)
        for part in _parts(self.request.rows):
            yield self._a_stationary(part, halvings)

    def _b_stationary(self, columns: int, halvings: int) -> tuple[Tiling, int]:
        r = self.request
        width, column_panels = self._stationary_panels(columns, r.panel_columns, self._least_panel_columns)
        stationary = max(1, min(r.problem.m, column_panels * width))
        height = r.panel_rows or _smaller(max(-(-r.model.least_tile_elements // stationary), KERNEL_TILE), halvings)
        height = min(r.rows, height)

        def tiling(row_panels: int) -> Tiling:
            return Tiling(height, width, max(1, row_panels), column_panels, stationary="B", moduli=r.moduli)

        return self._with_most_streamed(stationary, height, r.rows, tiling)

    def _a_stationary(self, rows: int, halvings: int) -> tuple[Tiling, int]:
        r = self.request
        height, row_panels = self._stationary_panels(rows, r.panel_rows, KERNEL_TILE)
        stationary = min(r.rows, row_panels * height)
        width = r.panel_columns or _smaller(
            max(-(-r.model.least_tile_elements // stationary), self._least_panel_columns), halvings
        )
        width = max(1, min(r.problem.m, width))

        def tiling(column_panels: int) -> Tiling:
            return Tiling(height, width, row_panels, max(1, column_panels), stationary="A", moduli=r.moduli)

        return self._with_most_streamed(stationary, width, r.problem.m, tiling)

    @property
    def _least_panel_columns(self) -> int:
        return max(1, self.request.model.streamed_panel_row_bytes // self.request.problem.operand_item_size)

    def _stationary_panels(self, part: int, asked: int, at_least: int) -> tuple[int, int]:
        """The size and the number of the stationary panels, which together are as large as `part`, or a bit larger."""
        size = asked or _in_tiles(-(-part // max(1, min(self.request.model.most_stationary_panels, part // at_least))))
        return size, -(-part // size)

    def _with_most_streamed(
        self, stationary: int, size: int, length: int, tiling_with: Callable[[int], Tiling]
    ) -> tuple[Tiling, int]:
        """The tiling that holds beside `stationary` rows or columns as many streamed panels as fit, and their number.

        Each streamed panel has `size` of the `length` rows or columns of its operand. Not all of them are taken: an operand that
        can be resident as a whole had better be the stationary one.
        """
        r, p = self.request, self.request.problem
        of_streamed = p.operand_bytes(size, p.l) + p.bytes(size, stationary)
        fitting = (r.memory - p.operand_bytes(stationary, p.l)) // of_streamed  # padding left aside
        fitting = max(0, min(fitting, -(-length // size) - 1))
        counts = range(1, fitting + 1)
        fitting = bisect_right(counts, r.memory, key=lambda count: layout_of(p, r.rows, tiling_with(count), r.device).bytes)
        return tiling_with(fitting), fitting

    def _time(self, tiling: Tiling) -> float:
        """The time of a tiling: the larger of the link's and the kernels', where the unit is a row of A or a column of B copied
        at full rate.

        Narrow column panels are copied more slowly, and at each reversal the kernels wait for the first stationary panel.
        Kernels compute whole thread-block tiles, so one that is not full takes as long as a full one.
        """
        p, model = self.request.problem, self.request.model
        rows, columns = self.request.rows, p.m
        a, b = min(rows, tiling.row_panels * tiling.panel_rows), max(1, min(columns, tiling.column_panels * tiling.panel_columns))
        if tiling.stationary == "A":
            reversals, waited_for = -(-rows // a) - 1, tiling.panel_rows
            columns += reversals * (columns - b)
        else:
            reversals, waited_for = -(-columns // b) - 1, tiling.panel_columns
            rows += reversals * (rows - a)
        slowdown = 1 + model.panel_row_overhead_bytes / (tiling.panel_columns * p.operand_item_size)
        copied = rows + columns * slowdown + reversals * waited_for
        computed = self.request.rows * p.m / (model.multiply_adds_per_byte(p.operand_dtype) * p.operand_item_size)
        unused = _tile_excess(self.request.rows, tiling.panel_rows) * _tile_excess(p.m, tiling.panel_columns)
        return max(copied, computed * unused)


def _parts(length: int) -> Iterator[int]:
    """The sizes of the part of an operand that may be stationary at a time: all of it, a half, a third, …"""
    parts = 1
    while parts < length:
        yield min(length, _in_tiles(-(-length // parts)))
        parts += -(-parts // _STEPS)
    yield 1


def _tile_excess(length: int, panel: int) -> float:
    """How many times as much a kernel computes as is wanted, where panels are smaller than a thread-block tile."""
    return max(1.0, min(KERNEL_TILE, length) / panel)


def _in_tiles(size: int) -> int:
    """The size, rounded up to whole thread-block tiles; unchanged where it is less than one."""
    return -(-size // KERNEL_TILE) * KERNEL_TILE if size > KERNEL_TILE else size


def _smaller(size: int, halvings: int) -> int:
    """The size halved so many times, in whole thread-block tiles where it has any."""
    return max(1, _in_tiles(size >> halvings))
