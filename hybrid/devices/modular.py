# SPDX-License-Identifier: MIT
"""Tiles of C from remainders, on a device that launches kernels (remainder_launches.py): which arithmetic each takes, and when
what is made.

A panel that arrives is measured at once. When a tile is to be multiplied, what its panels' lines are like decides its arithmetic:
the host waits for a few numbers, while the device computes the tile before. A panel's remainders are made when a tile needs them
first, and serve all tiles until one needs others.
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
    """Rows of A or columns of B on the device. `lines`: counted within the operand's buffers."""

    operand: str
    lines: Span
    matrix: Any
    summary_there: Event
    held: Arithmetic | None = None  # whose remainders are there
    has_magnitudes: bool = False
    summary: Summary | None = None
    fingerprint: int | None = None  # of its elements

    def take_over(self, before: _Panel | None) -> None:
        """What was made of the panel that was here in the product before, if it had the same elements."""
        if before is not None and (before.lines, before.fingerprint) == (self.lines, self.fingerprint):
            self.held, self.has_magnitudes = before.held, before.has_magnitudes or self.has_magnitudes


class ModularProduct:
    """Of one rank, for any number of products. `memory` has the share's layout; `fast`: with as few moduli as are accurate.
    `by_integers`: C is put together by integers, as other ranks do it whose GPUs have little float64; or if this one has.
    `keeps_b`: what is made of B serves the next product, too, as long as B's elements are the same."""

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
        layout = share.layout.remainders
        assert layout is not None
        self.done: Computed = {}  # of the last product
        self._device, self._problem, self._fast = device, problem, fast
        self._queues: KernelQueues = device.kernel_queues()
        self._launches = RemainderLaunches(device, memory, layout, problem, fast=fast, by_integers=by_integers)
        self._keeps_b = keeps_b and share.holds_all
        self._panels: dict[tuple[str, int], _Panel] = {}
        self._before: dict[tuple[str, int], _Panel] = {}  # of B, in the product before, if it is to be kept
        self._guarded: dict[tuple[Span, Span], tuple[int, Event]] = {}  # by rows and columns: where and when the ratio is told
        self._asked, self._asks_ahead = 0, False

    def forget(self) -> None:
        """Something else was, or may have been, written to the memory."""
        self._panels.clear()

    def begin(self) -> None:
        """Before each product."""
        kept = self._panels.items() if self._keeps_b else ()
        self._before = {place: panel for place, panel in kept if panel.operand == "B" and panel.summary is not None}
        self._panels.clear()
        self._guarded.clear()
        self.done = {}
        self._asked = 0

    def end(self) -> None:
        """All tiles have been told. The panels may be arrays that their owner wants to free."""
        for panel in self._panels.values():
            panel.matrix = None

    def arrived(self, arrival: Arrival, matrix: Any, after: list[Event]) -> Event:
        """A panel is complete after these events. Returns when it has been measured."""
        lines = self._launches.operands[arrival.operand].lines_of(arrival.slot, arrival.buffer_span)
        measure = self._launches.measure(arrival.operand, lines, matrix)
        event = self._queues.enqueue([measure], after, _PREPARE)
        self._panels[arrival.operand, lines.lo] = _Panel(arrival.operand, lines, matrix, event)
        return event

    def ask_ahead(self, tile: Tile) -> None:
        """All panels of this tile have arrived: have the guard look at it, so that `multiply` need not wait for that. Not where
        the tiles before were of integers, which need no guard, nor where it was asked already."""
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
        unused = self._guarded.pop((rows, columns), None)  # asked ahead, but not needed: it still reads the panels
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
                panel.take_over(self._before.get((panel.operand, panel.lines.lo)))
            whole = whole.joined(panel.summary)
        return whole

    def _ask_guard(self, rows: Span, columns: Span) -> None:
        work: list[KernelCall] = []
        for panel in self._panels_in("A", rows) + self._panels_in("B", columns):
            if not panel.has_magnitudes:
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
