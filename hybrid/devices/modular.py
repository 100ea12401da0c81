# SPDX-License-Identifier: MIT
"""Tiles of C from remainders: which arithmetic each tile takes, and when its panels' remainders are made. What is launched for
that is in remainder_launches.py.

A panel is measured as soon as it arrives. When a tile is to be multiplied, these measures decide its arithmetic: the host waits
for a few numbers, while the device computes the tile before. A panel's remainders are made when a tile first needs them, and
serve all tiles until one needs those of another arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.devices.base import Device, Event, KernelCall, KernelQueues
from hybrid.devices.remainder_launches import RemainderLaunches
from hybrid.plan.arithmetic import Arithmetic, Computed, Summary, choose, joined
from hybrid.plan.rank_share import RankShare
from hybrid.plan.remainder_layout import GUARDS
from hybrid.plan.schedule import Arrival, Tile

_PREPARE, _PRODUCTS = "prepare", "products"  # queues of the device: a tile's numbers are computed beside another one's products


@dataclass
class _Panel:
    """A panel on the device: rows of A or columns of B, its lines."""

    operand: str
    lines: Span  # counted within the operand's buffers
    matrix: Any
    summary_there: Event
    held: Arithmetic | None = None  # the one whose remainders are there
    before: _Panel | None = None  # the panel that was here in the product before, if what was made of it is kept
    has_magnitudes: bool = False
    assumed: bool = False  # the guard was asked about the magnitudes of `before`
    summary: Summary | None = None
    fingerprint: int | None = None  # of its elements

    def take_over(self, before: _Panel) -> bool:
        """Keep what was made of the panel that was here in the product before, if it had the same elements. Returns whether it
        had."""
        if (before.lines, before.fingerprint) != (self.lines, self.fingerprint):
            return False
        self.held, self.has_magnitudes = before.held, before.has_magnitudes or self.has_magnitudes
        return True


class ModularProduct:
    """One rank's products from remainders, any number of them, each from `begin` to `end`."""

    def __init__(
        self,
        device: Device,
        memory: Any,
        share: RankShare,
        problem: Problem,
        *,
        fast: bool,
        by_integers: bool = False,
        keeps_b: bool = False,
    ) -> None:
        """`memory`: the device's, with the share's layout. `fast`: take fewer moduli, which are about as accurate.
        `by_integers`: put C together by integers, as ranks do whose GPUs have little float64, so that all ranks' results are
        alike. `keeps_b`: what is made of B serves the next product, too, as long as B's elements are the same."""
        layout = share.layout.remainders
        assert layout is not None
        self.done: Computed = {}  # by which arithmetic the last product's elements were computed
        self._device, self._problem, self._fast = device, problem, fast
        self._queues: KernelQueues = device.kernel_queues()
        self._launches = RemainderLaunches(device, memory, layout, problem, fast=fast, by_integers=by_integers)
        self._keeps_b = keeps_b and share.holds_all
        self._panels: dict[tuple[str, int], _Panel] = {}
        self._before: dict[tuple[str, int], _Panel] = {}  # B's panels of the product before, if they are to be kept
        self._guarded: dict[tuple[Span, Span], tuple[int, Event]] = {}  # by rows and columns: the guard's number, and its event
        self._asked, self._asks_ahead = 0, False
        self._b_stays = True  # as far as is known, from product to product

    def forget(self) -> None:
        """Keep nothing: something else was, or may have been, written to the memory."""
        self._panels.clear()

    def begin(self) -> None:
        """A product begins."""
        kept = self._panels.items() if self._keeps_b else ()
        self._before = {place: panel for place, panel in kept if panel.operand == "B" and panel.summary is not None}
        self._panels.clear()
        self._guarded.clear()
        self.done = {}
        self._asked = 0

    def end(self) -> None:
        """`multiply` was called for all tiles. No panel is referred to any more: it may be an array that its owner wants to
        free."""
        for panel in self._panels.values():
            panel.matrix = None

    def arrived(self, arrival: Arrival, matrix: Any, after: list[Event]) -> Event:
        """Measure a panel, which is complete after these events. Returns the event of having measured it."""
        lines = self._launches.operands[arrival.operand].lines_of(arrival.slot, arrival.buffer_span)
        measure = self._launches.measure(arrival.operand, lines, matrix)
        event = self._queues.enqueue([measure], after, _PREPARE)
        place = arrival.operand, lines.lo
        self._panels[place] = _Panel(arrival.operand, lines, matrix, event, before=self._before.get(place))
        return event

    def ask_ahead(self, tile: Tile) -> None:
        """Have the guard look at this tile, whose panels have all arrived, so that `multiply` need not wait for it. Does nothing
        where the tiles before were of integers, which need no guard, or where the guard was asked already."""
        lines = self._lines_of(tile)
        if self._asks_ahead and lines not in self._guarded and len(self._guarded) < GUARDS - 1:
            self._ask_guard(*lines)

    def _lines_of(self, tile: Tile) -> tuple[Span, Span]:
        return tile.buffer_rows, self._launches.operands["B"].lines_of(tile.slot, tile.buffer_columns)

    def multiply(self, tile: Tile, a: Any, b: Any, c: Any, after: list[Event]) -> Event:
        """c = a · b, the tile's parts of the buffers."""
        rows, columns = self._lines_of(tile)
        of_a, of_b = self._panels_in("A", rows), self._panels_in("B", columns)
        summaries = self._summary_of(of_a), self._summary_of(of_b)
        ratio = partial(self._least_ratio, rows, columns)
        arithmetic, error = choose(*summaries, self._problem.l, self._problem.dtype, ratio, fast=self._fast)
        self._asks_ahead = arithmetic.scaled
        unused = self._guarded.pop((rows, columns), None)  # a guard that was asked ahead in vain still reads the panels
        if unused is not None:
            after = [*after, unused[1]]
        self.done = joined([self.done, {arithmetic: (len(rows) * len(columns), error)}])
        if not arithmetic.moduli:
            return self._device.multiply(a, b, c, after)
        work: list[KernelCall] = []
        for panel in of_a + of_b:
            if panel.held != arithmetic:
                panel.held = arithmetic
                work.append(self._launches.reduce(panel.operand, panel.lines, panel.matrix, arithmetic))
        work.append(self._launches.multiply(rows, columns, c, arithmetic))
        return self._queues.enqueue(work, after, _PRODUCTS)

    def _panels_in(self, operand: str, lines: Span) -> list[_Panel]:
        return [panel for (name, _), panel in self._panels.items() if name == operand and panel.lines.lies_in(lines)]

    def _summary_of(self, panels: Sequence[_Panel]) -> Summary:
        whole = Summary(0.0, integral=True, in_range=True)
        for panel in panels:
            if panel.summary is None:
                self._device.wait(panel.summary_there)
                panel.summary, panel.fingerprint = self._launches.summary_of(panel.operand, panel.lines)
                if panel.before is not None:
                    self._b_stays = panel.take_over(panel.before)
                    panel.before = None
                if panel.assumed and not panel.has_magnitudes:
                    self._guarded.clear()  # it looked at other elements
            whole = whole.joined(panel.summary)
        return whole

    def _ask_guard(self, rows: Span, columns: Span) -> None:
        """Have the guard look at a tile. Where nothing is known yet of B's elements, they most likely are what they were in the
        product before, if they were in that, too: then their magnitudes are there."""
        work: list[KernelCall] = []
        for panel in self._panels_in("A", rows) + self._panels_in("B", columns):
            if self._b_stays and panel.before is not None and panel.before.has_magnitudes:
                panel.assumed = True
            elif not panel.has_magnitudes:
                panel.has_magnitudes = True
                work.append(self._launches.pack_magnitudes(panel.operand, panel.lines, panel.matrix))
        number = self._asked % GUARDS
        work.append(self._launches.guard(rows, columns, number))
        self._guarded[rows, columns] = number, self._queues.enqueue(work, [], _PREPARE)
        self._asked += 1

    def _least_ratio(self, rows: Span, columns: Span) -> float:
        if (rows, columns) not in self._guarded:
            self._ask_guard(rows, columns)
        number, told = self._guarded.pop((rows, columns))
        self._device.wait(told)
        return self._launches.ratio(number)
