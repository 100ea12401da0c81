# SPDX-License-Identifier: MIT
"""Tiles of C from remainders, on a device that launches kernels: kernels/norms.cu, guard.cu, remainders.cu, products.cu or
products_mma.cu, and reconstruct.cu.

A panel that arrives is measured at once. When a tile is to be multiplied, what its panels' lines are like decides its arithmetic:
the host waits for a few numbers, while the device computes the tile before. A panel's remainders are made when a tile needs them
first, and serve all tiles until one needs others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hybrid.core.problem import Problem, padded
from hybrid.core.spans import Span, pieces
from hybrid.devices.base import Device, Event, KernelCall, KernelQueues
from hybrid.devices.buffers import Place, place_of
from hybrid.devices.remainder_memory import OperandMemory
from hybrid.kernels.catalogue import C_TYPES, Launch
from hybrid.kernels.remainders import (
    column_measuring,
    guarding,
    lacks_float64,
    line_kernel,
    magnitude_packing,
    products_of,
    reconstruction,
    remainder_packing,
    row_measuring,
    telling,
)
from hybrid.plan.arithmetic import UNIT, Arithmetic, Computed, Summary, choose, expected, integer_bits, joined, sampling
from hybrid.plan.rank_share import RankShare
from hybrid.plan.remainder_layout import GUARDS, SUMMARY_WORDS
from hybrid.plan.schedule import Arrival, Tile

_PREPARE, _PRODUCTS = "prepare", "products"  # queues of the device: a tile's numbers are computed beside another one's products
_MOST_PREPARED = 10_000
_MOST_PLACES = 4  # of a matrix that is used where it lies: results of one loop alternate between two
_NEARLY_ONE = 0x3F  # in each byte: a float of 0.75, where the search for the least ratio begins


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
        self._device, self._problem, self._fast, self._layout = device, problem, fast, layout
        self._queues: KernelQueues = device.kernel_queues()
        self._keeps_b = keeps_b and share.holds_all
        self._by_integers = by_integers or lacks_float64(self._queues.capability)
        self._element, self._inner = C_TYPES[problem.dtype], problem.l
        self._units = -(-problem.l // UNIT)
        self._sampled = -(-self._units // sampling(problem.l, problem.dtype))
        self._operands = {"A": OperandMemory(device, memory, layout.a), "B": OperandMemory(device, memory, layout.b)}
        self._slots = {"A": 0, "B": layout.a.lines // UNIT}  # of summaries
        count = (layout.a.lines + layout.b.lines) // UNIT
        self._summaries = device.matrix(memory, layout.summaries, count, SUMMARY_WORDS, "uint64")
        self._least = device.matrix(memory, layout.least, GUARDS, 4, "int32")[:, :1]
        self._found, self._least_found = (
            self._queues.host_memory((count, SUMMARY_WORDS), "uint64"),
            self._queues.host_memory((GUARDS, 4), "int32"),
        )
        self._products = device.matrix(memory, layout.products, 1, layout.end - layout.products, "uint8")
        self._panels: dict[tuple[str, int], _Panel] = {}
        self._before: dict[tuple[str, int], _Panel] = {}  # of B, in the product before, if it is to be kept
        self._guarded: dict[tuple[Span, Span], tuple[int, Event]] = {}  # by rows and columns: where and when the ratio is told
        self._asked, self._asks_ahead = 0, False
        # What products launch again and again, by the place of the matrix that may lie elsewhere in the next.
        self._prepared: dict[tuple[object, ...], dict[Place | None, KernelCall]] = {}
        self._queues.compile_ahead(self._usual_launches())

    def _usual_launches(self) -> list[Launch]:
        element, moduli = self._element, expected(self._problem.dtype, fast=self._fast).moduli
        packings = [magnitude_packing(side, element, 1, 1) for side in "AB"]
        packings += [remainder_packing(side, element, count, 1, 1) for count in (moduli, 1) for side in "AB"]
        products = [products_of(self._queues, "", 1, 1, moduli), products_of(self._queues, element, 1, 1, 1)]
        lines = [line_kernel(name, 1) for name in ("summarize", "scale_lines")]
        measuring = [row_measuring(element, 1, 1), column_measuring(element, 1, 1)]
        back = reconstruction(element, moduli, 1, 1, by_integers=self._by_integers)
        return [*measuring, *lines, telling(), guarding(1, 1), *packings, *products, back]

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
        lines = self._operands[arrival.operand].lines_of(arrival.slot, arrival.buffer_span)
        measure = self._once(("measure", arrival.operand, lines), lambda: self._measuring(arrival.operand, lines, matrix), matrix)
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
        return tile.buffer_rows, self._operands["B"].lines_of(tile.slot, tile.buffer_columns)

    def multiply(self, tile: Tile, a: Any, b: Any, c: Any, after: list[Event]) -> Event:
        """c = a · b, the tile's parts of the buffers."""
        rows, columns = self._lines_of(tile)
        of_a, of_b = self._panels_in("A", rows), self._panels_in("B", columns)
        summaries = self._summary_of(of_a), self._summary_of(of_b)
        ratio = partial(self._least_ratio, rows, columns)
        arithmetic, error = choose(*summaries, self._inner, self._problem.dtype, ratio, fast=self._fast)
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
                reducing = partial(self._reducing, panel, arithmetic)
                work.append(self._once(("remainders", panel.operand, panel.lines, arithmetic), reducing, panel.matrix))
        multiplying = partial(self._multiplying, rows, columns, c, arithmetic)
        work.append(self._once(("products", rows, columns, arithmetic), multiplying, c))
        return self._queues.enqueue(work, after, _PRODUCTS)

    def _once(self, key: tuple[object, ...], make: Callable[[], list[KernelCall]], matrix: Any = None) -> KernelCall:
        """Prepared at first, and anew where the matrix lies elsewhere than in the last products, which one in a buffer does not:
        views of device memory take longer to make than kernels to launch."""
        place = place_of(matrix) if matrix is not None else None
        if key not in self._prepared and len(self._prepared) >= _MOST_PREPARED:
            self._prepared.clear()
        by_place = self._prepared.setdefault(key, {})
        if place not in by_place:
            if len(by_place) >= _MOST_PLACES:
                by_place.clear()
            by_place[place] = self._queues.together(make())
        return by_place[place]

    def _panels_in(self, operand: str, lines: Span) -> list[_Panel]:
        return [panel for (name, _), panel in self._panels.items() if name == operand and panel.lines.lies_in(lines)]

    def _summary_of(self, panels: Sequence[_Panel]) -> Summary:
        whole = Summary(0.0, integral=True, in_range=True)
        for panel in panels:
            if panel.summary is None:
                self._device.wait(panel.summary_there)
                words = self._found[self._slots[panel.operand] + panel.lines.lo // UNIT]
                largest, least = words[:1].view(np.float64)[0], (~words[3:4]).view(np.float64)[0] if words[3] else np.inf
                panel.summary, panel.fingerprint = (
                    Summary(float(largest), not words[1], not words[2], float(least)),
                    int(words[4]),
                )
                panel.take_over(self._before.get((panel.operand, panel.lines.lo)))
            whole = whole.joined(panel.summary)
        return whole

    def _ask_guard(self, rows: Span, columns: Span) -> None:
        work: list[KernelCall] = []
        for panel in self._panels_in("A", rows) + self._panels_in("B", columns):
            if not panel.has_magnitudes:
                panel.has_magnitudes = True
                packing = partial(self._packing_magnitudes, panel)
                work.append(self._once(("magnitudes", panel.operand, panel.lines), packing, panel.matrix))
        number = self._asked % GUARDS
        work.append(self._once(("guard", rows, columns, number), partial(self._guarding, rows, columns, number)))
        self._guarded[rows, columns] = number, self._queues.enqueue(work, [], _PREPARE)
        self._asked += 1

    def _least_ratio(self, rows: Span, columns: Span) -> float:
        if (rows, columns) not in self._guarded:
            self._ask_guard(rows, columns)
        number, told = self._guarded.pop((rows, columns))
        self._device.wait(told)
        return float(self._least_found.view(np.float32)[number, 0])

    def _measuring(self, name: str, lines: Span, matrix: Any) -> list[KernelCall]:
        operand, number = self._operands[name], self._slots[name] + lines.lo // UNIT
        summary = self._summaries[number : number + 1]
        measures, numbers, steps = operand.measures_of(lines), operand.numbers[:, lines.slice], operand.steps[:, lines.slice]
        measuring = row_measuring if name == "A" else column_measuring
        summing_up = measures, numbers, steps, summary, np.float64(self._inner)
        return [
            self._queues.kernel(measuring(self._element, *matrix.shape), (matrix, measures)),
            self._queues.clearing(summary, 0),
            self._queues.kernel(line_kernel("summarize", len(lines)), summing_up),
            self._queues.kernel(telling(), (summary.view("uint32"), self._found[number : number + 1].view("uint32"))),
        ]

    def _packing_magnitudes(self, panel: _Panel) -> list[KernelCall]:
        operand, lines = self._operands[panel.operand], panel.lines
        packing = magnitude_packing(panel.operand, self._element, len(lines), self._sampled)
        into, every = operand.magnitudes_from(lines.lo, self._sampled), np.int32(sampling(self._inner, self._problem.dtype))
        return [self._queues.kernel(packing, (panel.matrix, operand.numbers[4:5, lines.slice], into, every))]

    def _guarding(self, rows: Span, columns: Span, number: int) -> list[KernelCall]:
        sides = [(self._operands["A"], rows), (self._operands["B"], columns)]
        magnitudes = [operand.magnitudes_from(lines.lo, self._sampled) for operand, lines in sides]
        steps = [operand.steps[:, lines.slice] for operand, lines in sides]
        least, found = (each[number : number + 1, :1] for each in (self._least, self._least_found))
        return [
            self._queues.clearing(least, _NEARLY_ONE),
            self._queues.kernel(guarding(len(rows), len(columns)), (*magnitudes, *steps, least)),
            self._queues.kernel(telling(), (least, found)),
        ]

    def _reducing(self, panel: _Panel, arithmetic: Arithmetic) -> list[KernelCall]:
        operand, lines = self._operands[panel.operand], panel.lines
        numbers = operand.numbers[:, lines.slice]
        limit, bits = np.float64(arithmetic.limit(self._inner)), np.int32(integer_bits(self._problem.dtype))
        packing = remainder_packing(panel.operand, self._element, arithmetic.moduli, len(lines), self._units)
        into = operand.planes_from(lines.lo, self._units, arithmetic.moduli)
        return [
            self._queues.kernel(line_kernel("scale_lines", len(lines)), (numbers, limit, bits)),
            self._queues.kernel(packing, (panel.matrix, numbers[2:3], into)),
        ]

    def _multiplying(self, rows: Span, columns: Span, c: Any, arithmetic: Arithmetic) -> list[KernelCall]:
        moduli, inner = arithmetic.moduli, np.int64(self._units * UNIT)
        a, b = (self._operands[name].planes_from(lines.lo, self._units, moduli) for name, lines in (("A", rows), ("B", columns)))
        if moduli == 1:
            return [self._queues.kernel(products_of(self._queues, self._element, len(rows), len(columns), 1), (a, b, c, inner))]
        work = []
        for part in pieces(columns, self._layout.chunk):
            b = self._operands["B"].planes_from(part.lo, self._units, moduli)
            height, width = len(rows), padded(len(part), 1)
            remainders = self._products[0, : moduli * height * width].reshape(moduli * height, width)
            scales = [self._operands[name].numbers[3:4, lines.slice] for name, lines in (("A", rows), ("B", part))]
            products = products_of(self._queues, "", height, len(part), moduli)
            back = reconstruction(self._element, moduli, height, len(part), by_integers=self._by_integers)
            work += [
                self._queues.kernel(products, (a, b, remainders, np.int64(height), inner)),
                self._queues.kernel(back, (remainders, *scales, c[:, part.within(columns).slice])),
            ]
        return work
