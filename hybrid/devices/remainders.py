# SPDX-License-Identifier: MIT
"""Tiles of C from remainders modulo several moduli (Ozaki scheme II): each tile's arithmetic, the panels' remainders, their
memory, and the launches.

A panel is measured as soon as it arrives. The measures of a tile's panels decide its arithmetic: the host waits for a few numbers
while the device computes the tile before. A panel's remainders are made when a tile first needs them, and again when a tile needs
another arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hybrid.core.problem import Problem, Span, padded, pieces
from hybrid.devices.base import MOST_PLACES, Device, Event, KernelCall, Place, place_of
from hybrid.kernels.catalogue import (
    C_TYPES,
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
    usual_launches,
)
from hybrid.planning.arithmetic import (
    CHUNK_ROWS,
    GUARDS,
    INTEGER_BITS,
    MEASURE_BYTES,
    MEASURES,
    SUMMARY_WORDS,
    UNIT,
    Arithmetic,
    Computed,
    OperandRemainders,
    RemainderLayout,
    Summary,
    choose,
    expected,
    joined,
    sampling,
)
from hybrid.planning.schedule import Arrival, RankShare, Tile

_PREPARE, _PRODUCTS = "prepare", "products"  # device queues: measures of the next tile overlap with products
_MOST_PREPARED = 10_000
_NEARLY_ONE = 0x3F  # repeated in each byte, a float of 0.75: the initial value of the least ratio


class OperandMemory:
    """Views of the memory for an operand's lines: rows of A, or columns of B."""

    def __init__(self, device: Device, memory: Any, layout: OperandRemainders) -> None:
        self._device, self._memory, self._layout = device, memory, layout
        self._chunks = -(-layout.inner // CHUNK_ROWS) if layout.in_chunks else 1
        self.numbers = device.matrix(memory, layout.numbers, 5, layout.lines, "float64")
        self.steps = device.matrix(memory, layout.steps, 1, layout.lines, "float32")

    def lines_of(self, slot: int, span: Span) -> Span:
        """The line numbers, over all of the operand's buffers, of a span in one buffer."""
        first = slot * self._layout.slot_lines
        return Span(first + span.lo, first + span.hi)

    def measures_of(self, lines: Span) -> Any:
        """The measures of these lines: one row per line and chunk."""
        offset = self._layout.measures + MEASURE_BYTES * self._chunks * lines.lo
        return self._device.matrix(self._memory, offset, self._chunks * len(lines), MEASURES, "float64")

    def planes_from(self, line: int, units: int, count: int, lines_together: int = 1) -> Any:
        """The planes of remainders, one per row, from this line's unit on. `lines_together`: the number of lines packed as
        one."""
        size = self._layout.lines // lines_together * units * UNIT
        planes = self._device.matrix(self._memory, self._layout.planes, count, size, "uint8")
        return planes[:, line // lines_together // UNIT * units * UNIT * UNIT :]

    def magnitudes_of(self, lines: Span, units: int) -> Any:
        """The magnitudes, a byte each, of the units that hold these lines: one row per line."""
        first, end = lines.lo // UNIT * UNIT, -(-lines.hi // UNIT) * UNIT
        return self._device.matrix(
            self._memory, self._layout.magnitudes + first * units * UNIT, end - first, units * UNIT, "uint8"
        )


class RemainderLaunches:
    """One rank's launches for tiles of C from remainders: kernels/norms.cu, guard.cu, remainders.cu, products.cu or
    products_mma.cu, and reconstruct.cu, with their views of memory.

    In the methods, `name` is the operand, "A" or "B"; `lines` are its rows or columns, numbered over the operand's buffers;
    `matrix` is the panel with these lines. `once` caches the launches.
    """

    def __init__(
        self, device: Device, memory: Any, layout: RemainderLayout, problem: Problem, *, fast: bool, by_integers: bool
    ) -> None:
        """`memory`: of the device, with this layout. `fast`, `by_integers`: as for `ModularProduct`."""
        self._device, self._problem, self._fast, self._layout = device, problem, fast, layout
        self._by_integers = by_integers or lacks_float64(device.capability)
        self._element, self._inner = C_TYPES[problem.dtype], problem.l
        self._sampled = -(-problem.l // UNIT // sampling(problem.l, problem.dtype))
        self.operands = {"A": OperandMemory(device, memory, layout.a), "B": OperandMemory(device, memory, layout.b)}
        self._slots = {"A": 0, "B": layout.a.lines // UNIT}  # of summaries
        count = (layout.a.lines + layout.b.lines) // UNIT
        self._summaries = device.matrix(memory, layout.summaries, count, SUMMARY_WORDS, "uint64")
        self._least = device.matrix(memory, layout.least, GUARDS, 4, "int32")[:, :1]
        self._found = device.host_memory((count, SUMMARY_WORDS), "uint64")
        self._least_found = device.host_memory((GUARDS, 4), "int32")
        self._products = device.matrix(memory, layout.products, 1, layout.end - layout.products, "uint8")
        # Repeated launches, by method and arguments, and by the place of the matrix, which may change from product to product.
        self._prepared: dict[tuple[object, ...], dict[Place | None, KernelCall]] = {}
        moduli = expected(problem.dtype, fast=fast).moduli
        how = {"by_integers": self._by_integers, "is_complex": problem.is_complex}
        device.compile_ahead(usual_launches(device, self._element, moduli, **how))

    def once(self, prepare: Callable[..., list[KernelCall]], *of: Any, matrix: Any = None) -> KernelCall:
        """The call that a method of this object makes from these arguments, and the matrix if given, cached by the matrix's
        place: making views of device memory takes longer than launching kernels. A buffer has one place; matrices used in place
        may have several."""
        key, place = (prepare.__name__, *of), None if matrix is None else place_of(matrix)
        if key not in self._prepared and len(self._prepared) >= _MOST_PREPARED:
            self._prepared.clear()
        by_place = self._prepared.setdefault(key, {})
        if place not in by_place:
            if len(by_place) >= MOST_PLACES:
                by_place.clear()
            by_place[place] = self._device.together(prepare(*of) if matrix is None else prepare(*of, matrix))
        return by_place[place]

    def summary_of(self, name: str, lines: Span) -> Summary:
        """The lines' summary. Call it when `measure` is complete."""
        words = self._found[self._slots[name] + lines.lo // UNIT]
        largest, least = words[:1].view(np.float64)[0], (~words[3:4]).view(np.float64)[0] if words[3] else np.inf
        return Summary(float(largest), not words[1], not words[2], float(least))

    def ratio(self, number: int) -> float:
        """The result of the guard with this number, when it is complete: a lower bound of Σ|a·b| / (|row|·|column|) over the
        tile's elements."""
        return float(self._least_found.view(np.float32)[number, 0])

    def measure(self, name: str, lines: Span, matrix: Any) -> list[KernelCall]:
        """Measure the lines, for `summary_of` and the guard."""
        operand, number = self.operands[name], self._slots[name] + lines.lo // UNIT
        summary, kernel = self._summaries[number : number + 1], self._device.kernel
        measures, numbers, steps = operand.measures_of(lines), operand.numbers[:, lines.slice], operand.steps[:, lines.slice]
        measuring = row_measuring if name == "A" else column_measuring
        return [
            kernel(measuring(self._element, *matrix.shape), (matrix, measures)),
            self._device.clearing(summary, 0),
            kernel(line_kernel("summarize", len(lines)), (measures, numbers, steps, summary, np.float64(self._inner))),
            kernel(telling(), (summary.view("uint32"), self._found[number : number + 1].view("uint32"))),
        ]

    def pack_magnitudes(self, name: str, lines: Span, matrix: Any) -> list[KernelCall]:
        """Write the lines' magnitudes as bytes; the guard needs them for both operands."""
        operand = self.operands[name]
        packing = magnitude_packing(name, self._element, len(lines), self._sampled)
        into, every = operand.magnitudes_of(lines, self._sampled), np.int32(sampling(self._inner, self._problem.dtype))
        return [self._device.kernel(packing, (matrix, operand.numbers[4:5, lines.slice], into, every))]

    def guard(self, rows: Span, columns: Span, number: int) -> list[KernelCall]:
        """Run the guard on a tile, for `ratio`. `number`: the index of its result, below GUARDS."""
        sides = [(self.operands["A"], rows), (self.operands["B"], columns)]
        magnitudes = [operand.magnitudes_of(lines, self._sampled) for operand, lines in sides]
        steps = [operand.steps[:, lines.slice] for operand, lines in sides]
        least, found = (each[number : number + 1, :1] for each in (self._least, self._least_found))
        return [
            self._device.clearing(least, _NEARLY_ONE),
            self._device.kernel(guarding(self._device, len(rows), len(columns)), (*magnitudes, *steps, least)),
            self._device.kernel(telling(), (least, found)),
        ]

    def _parts_and_units(self, arithmetic: Arithmetic) -> tuple[int, int]:
        """The number of parts, and of units along k. There are two parts for remainders of complex numbers, with three products
        per modulus: re A · re B, im A · im B and (re A + im A) · (re B + im B); else one."""
        parts = 1 + (self._problem.is_complex and arithmetic.moduli > 1)
        return parts, -(-self._inner // parts // UNIT)

    def _planes(self, name: str, line: int, arithmetic: Arithmetic) -> Any:
        parts, units = self._parts_and_units(arithmetic)
        return self.operands[name].planes_from(line, units, (2 * parts - 1) * arithmetic.moduli, parts if name == "B" else 1)

    def reduce(self, name: str, lines: Span, arithmetic: Arithmetic, matrix: Any) -> list[KernelCall]:
        """Compute the lines' remainders."""
        operand = self.operands[name]
        numbers = operand.numbers[:, lines.slice]
        limit, bits = np.float64(arithmetic.limit(self._inner)), np.int32(INTEGER_BITS[self._problem.dtype])
        parts, units = self._parts_and_units(arithmetic)
        how = {"is_complex": parts > 1, "conjugates": parts > 1 and name == "A" and self._problem.conjugates}
        packing = remainder_packing(name, self._element, arithmetic.moduli, len(lines), units, **how)
        if parts > 1 and name == "B":
            matrix = matrix[::2]  # the complex numbers themselves; every other row is i times the one before
        return [
            self._device.kernel(line_kernel("scale_lines", len(lines)), (numbers, limit, bits)),
            self._device.kernel(packing, (matrix, numbers[2:3], self._planes(name, lines.lo, arithmetic))),
        ]

    def multiply(self, rows: Span, columns: Span, arithmetic: Arithmetic, c: Any) -> list[KernelCall]:
        """Compute c from the remainders of these rows and columns."""
        device, moduli, (parts, units) = self._device, arithmetic.moduli, self._parts_and_units(arithmetic)
        height, inner, a = len(rows), np.int64(units * UNIT), self._planes("A", rows.lo, arithmetic)
        if moduli == 1:
            b = self._planes("B", columns.lo, arithmetic)
            return [device.kernel(products_of(device, self._element, height, len(columns), 1), (a, b, c, inner))]
        work = []
        for part in pieces(columns, self._layout.chunk):
            b, elements = self._planes("B", part.lo, arithmetic), len(part) // parts
            width = padded(elements, 1)
            remainders = self._products[0, : len(a) * height * width].reshape(len(a) * height, width)
            for of in pieces(Span(0, len(a)), moduli):
                there = remainders[of.lo * height : of.hi * height]
                launch = products_of(device, "", height, elements, moduli)
                work.append(device.kernel(launch, (a[of.slice], b[of.slice], there, np.int64(height), inner)))
            scales = [self.operands[name].numbers[3:4, lines.slice] for name, lines in (("A", rows), ("B", part))]
            how = {"by_integers": self._by_integers, "is_complex": parts > 1}
            back = reconstruction(self._element, moduli, height, elements, **how)
            work.append(device.kernel(back, (remainders, *scales, c[:, part.within(columns).slice])))
        return work


@dataclass
class _Panel:
    """A panel on the device."""

    operand: str
    lines: Span  # rows of A or columns of B, numbered over the operand's buffers
    matrix: Any
    measured: Event
    held: Arithmetic | None = None  # the arithmetic of the remainders in memory
    has_magnitudes: bool = False
    summary: Summary | None = None


class ModularProduct:
    """One rank's products from remainders, one after the other, each from `begin` to `end`."""

    def __init__(
        self,
        device: Device,
        memory: Any,
        share: RankShare,
        problem: Problem,
        *,
        fast: bool,
        by_integers: bool = False,
    ) -> None:
        """`memory`: of the device, with the share's layout. `fast`: use fewer moduli, about as accurate. `by_integers`:
        reconstruct C by integers, as GPUs with slow float64 do, so that all ranks' results are alike."""
        layout = share.layout.remainders
        assert layout is not None
        self.done: Computed = {}  # the last product's elements, by arithmetic
        self._device, self._problem, self._fast = device, problem, fast
        self._launches = RemainderLaunches(device, memory, layout, problem, fast=fast, by_integers=by_integers)
        self._panels: dict[tuple[str, int], _Panel] = {}
        self._guarded: dict[tuple[Span, Span], tuple[int, Event]] = {}  # by rows and columns: the guard's number and event
        self._guards, self._guards_ahead = 0, False

    def begin(self) -> None:
        self._panels.clear()
        self._guarded.clear()
        self.done = {}
        self._guards = 0

    def end(self) -> None:
        """End a product, after `multiply` for all its tiles. Drops references to panels: their owner may want to free them."""
        self._panels.clear()

    def arrived(self, arrival: Arrival, matrix: Any, after: list[Event]) -> Event:
        """Measure a panel, which is complete after these events. Returns the event of the measurement."""
        lines = self._launches.operands[arrival.operand].lines_of(arrival.slot, arrival.buffer_span)
        measure = self._launches.once(self._launches.measure, arrival.operand, lines, matrix=matrix)
        event = self._device.launch([measure], after, _PREPARE)
        self._panels[arrival.operand, lines.lo] = _Panel(arrival.operand, lines, matrix, event)
        return event

    def ask_ahead(self, tile: Tile) -> None:
        """Start the guard for this tile, whose panels have all arrived, so that `multiply` need not wait for it. Does nothing if
        it has started, or if the tile before was of integers, which need no guard."""
        lines = self._lines_of(tile)
        if self._guards_ahead and lines not in self._guarded and len(self._guarded) < GUARDS - 1:
            self._start_guard(*lines)

    def _lines_of(self, tile: Tile) -> tuple[Span, Span]:
        return tile.buffer_rows, self._launches.operands["B"].lines_of(tile.slot, tile.buffer_columns)

    def multiply(self, tile: Tile, a: Any, b: Any, c: Any, after: list[Event]) -> Event:
        """c = a · b, for the tile's parts of the buffers."""
        rows, columns = self._lines_of(tile)
        of_a, of_b = self._panels_in("A", rows), self._panels_in("B", columns)
        summaries = self._summary_of(of_a), self._summary_of(of_b)
        ratio = partial(self._least_ratio, rows, columns)
        arithmetic, error = choose(*summaries, self._problem.l, self._problem.dtype, ratio, fast=self._fast)
        self._guards_ahead = arithmetic.scaled
        unused = self._guarded.pop((rows, columns), None)  # a guard started in vain still reads the panels
        if unused is not None:
            after = [*after, unused[1]]
        self.done = joined([self.done, {arithmetic: (len(rows) * len(columns), error)}])
        if not arithmetic.moduli:
            return self._device.multiply(a, b, c, after)
        work: list[KernelCall] = []
        launches = self._launches
        for panel in of_a + of_b:
            if panel.held != arithmetic:
                panel.held = arithmetic
                work.append(launches.once(launches.reduce, panel.operand, panel.lines, arithmetic, matrix=panel.matrix))
        work.append(launches.once(launches.multiply, rows, columns, arithmetic, matrix=c))
        return self._device.launch(work, after, _PRODUCTS)

    def _panels_in(self, operand: str, lines: Span) -> list[_Panel]:
        return [panel for (name, _), panel in self._panels.items() if name == operand and panel.lines.meets(lines)]

    def _summary_of(self, panels: Sequence[_Panel]) -> Summary:
        whole = Summary(0.0, integral=True, in_range=True)
        for panel in panels:
            if panel.summary is None:
                self._device.wait(panel.measured)
                panel.summary = self._launches.summary_of(panel.operand, panel.lines)
            whole = whole.joined(panel.summary)
        return whole

    def _start_guard(self, rows: Span, columns: Span) -> None:
        """Start the guard for a tile."""
        work: list[KernelCall] = []
        launches = self._launches
        for panel in self._panels_in("A", rows) + self._panels_in("B", columns):
            if not panel.has_magnitudes:
                panel.has_magnitudes = True
                work.append(launches.once(launches.pack_magnitudes, panel.operand, panel.lines, matrix=panel.matrix))
        number = self._guards % GUARDS
        work.append(launches.once(launches.guard, rows, columns, number))
        self._guarded[rows, columns] = number, self._device.launch(work, [], _PREPARE)
        self._guards += 1

    def _least_ratio(self, rows: Span, columns: Span) -> float:
        if (rows, columns) not in self._guarded:
            self._start_guard(rows, columns)
        number, told = self._guarded.pop((rows, columns))
        self._device.wait(told)
        return self._launches.ratio(number)
