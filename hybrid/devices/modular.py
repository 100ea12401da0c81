# SPDX-License-Identifier: MIT
"""Tiles of C from remainders, on a device that launches kernels: kernels/norms.cu, guard.cu, remainders.cu, products.cu or
products_mma.cu, and reconstruct.cu.

A panel that arrives is measured at once. When a tile is to be multiplied, what its panels' lines are like decides its arithmetic:
the host waits for a few numbers, while the device computes the tile before. A panel's remainders are made when a tile needs them
first, and serve all tiles until one needs others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid.core.problem import Problem, padded
from hybrid.core.spans import Span, pieces
from hybrid.devices.base import Device, Event, KernelCall, KernelQueues
from hybrid.kernels.catalogue import C_TYPES
from hybrid.kernels.remainders import (
    column_measuring,
    guarding,
    line_kernel,
    magnitude_packing,
    products_of,
    reconstruction,
    remainder_packing,
    row_measuring,
)
from hybrid.plan.arithmetic import SAMPLED, UNIT, Arithmetic, Summary, choose, integer_bits
from hybrid.plan.rank_share import RankShare
from hybrid.plan.remainder_layout import CHUNK_ROWS, OperandRemainders
from hybrid.plan.schedule import Arrival, Tile

_PREPARE, _PRODUCTS = "prepare", "products"  # queues of the device: a tile's numbers are computed beside another one's products
_NEARLY_ONE = 0x3F  # in each byte: a float of 0.75, where the search for the least ratio begins


@dataclass
class _Panel:
    """Rows of A or columns of B on the device. `lines`: counted within the operand's buffers."""

    matrix: Any
    lines: Span
    summary_there: Event
    held: Arithmetic | None = None  # whose remainders are there
    has_magnitudes: bool = False
    summary: Summary | None = None


class ModularProduct:
    """Of one rank. `memory` has the share's layout; `fast`: as few moduli as native accuracy allows."""

    def __init__(self, device: Device, memory: Any, share: RankShare, problem: Problem, *, fast: bool) -> None:
        layout = share.layout.remainders
        assert layout is not None
        self.done: Counter[Arithmetic] = Counter()  # elements of C, by arithmetic
        self._device, self._problem, self._fast, self._layout = device, problem, fast, layout
        self._queues: KernelQueues = device.kernel_queues()
        self._element, self._inner = C_TYPES[problem.dtype], problem.l
        self._units = -(-problem.l // UNIT)
        self._sampled = -(-self._units // SAMPLED)
        self._operands = {"A": _Operand(device, memory, layout.a), "B": _Operand(device, memory, layout.b)}
        self._slots = {"A": 0, "B": layout.a.lines // UNIT}  # of summaries
        count = (layout.a.lines + layout.b.lines) // UNIT
        self._summaries = device.matrix(memory, layout.summaries, count + 1, 4, "uint64")
        self._least = device.matrix(memory, layout.summaries + 32 * count, 1, 4, "int32")[:, :1]
        self._found, self._least_found = self._queues.host_memory((count, 4), "uint64"), self._queues.host_memory((1, 1), "int32")
        self._products = device.matrix(memory, layout.products, 1, layout.end - layout.products, "uint8")
        self._panels: dict[tuple[str, int], _Panel] = {}

    def begin(self) -> None:
        """Before each product."""
        self._panels.clear()
        self.done.clear()

    def arrived(self, arrival: Arrival, matrix: Any, after: list[Event]) -> Event:
        """A panel is complete after these events. Returns when it has been measured."""
        operand, span = self._operands[arrival.operand], arrival.buffer_span
        lines = operand.lines_of(arrival.slot, span)
        number = self._slots[arrival.operand] + lines.lo // UNIT
        summary, inner = self._summaries[number : number + 1], np.float64(self._inner)
        measures, numbers, guard = operand.measures_of(lines), operand.numbers[:, lines.slice], operand.guard[:, lines.slice]
        measuring = row_measuring if arrival.operand == "A" else column_measuring
        work = [
            self._queues.kernel(measuring(self._element, *matrix.shape), (matrix, measures)),
            self._queues.clearing(summary, 0),
            self._queues.kernel(line_kernel("summarize", len(lines)), (measures, numbers, guard, summary, inner)),
            self._queues.reading(self._found[number : number + 1], summary),
        ]
        event = self._queues.enqueue(work, after, _PREPARE)
        self._panels[arrival.operand, lines.lo] = _Panel(matrix, lines, event)
        return event

    def multiply(self, tile: Tile, a: Any, b: Any, c: Any, after: list[Event]) -> Event:
        """c = a · b, the tile's parts of the buffers."""
        rows, columns = tile.buffer_rows, self._operands["B"].lines_of(tile.slot, tile.buffer_columns)
        of_a, of_b = self._panels_in("A", rows), self._panels_in("B", columns)
        summaries = self._summary_of("A", of_a), self._summary_of("B", of_b)
        arithmetic = choose(
            *summaries,
            self._inner,
            self._problem.dtype,
            lambda: self._least_ratio(rows, columns, of_a, of_b),
            fast=self._fast,
        )
        self.done[arithmetic] += len(rows) * len(columns)
        if not arithmetic.moduli:
            return self._device.multiply(a, b, c, after)
        work = [call for panel in of_a for call in self._remainders("A", panel, arithmetic)]
        work += [call for panel in of_b for call in self._remainders("B", panel, arithmetic)]
        work += self._tile_products(rows, columns, c, arithmetic)
        return self._queues.enqueue(work, after, _PRODUCTS)

    def _panels_in(self, operand: str, lines: Span) -> list[_Panel]:
        return [panel for (name, _), panel in self._panels.items() if name == operand and panel.lines.lies_in(lines)]

    def _summary_of(self, operand: str, panels: Sequence[_Panel]) -> Summary:
        whole = Summary(0.0, integral=True, in_range=True)
        for panel in panels:
            if panel.summary is None:
                self._device.wait(panel.summary_there)
                words = self._found[self._slots[operand] + panel.lines.lo // UNIT]
                panel.summary = Summary(float(words[:1].view(np.float64)[0]), not words[1], not words[2])
            whole = whole.joined(panel.summary)
        return whole

    def _least_ratio(self, rows: Span, columns: Span, of_a: Sequence[_Panel], of_b: Sequence[_Panel]) -> float:
        work = [call for name, panels in (("A", of_a), ("B", of_b)) for panel in panels for call in self._magnitudes(name, panel)]
        magnitudes = [
            self._operands[name].magnitudes_from(lines.lo, self._sampled) for name, lines in (("A", rows), ("B", columns))
        ]
        steps = [self._operands[name].guard[1:2, lines.slice] for name, lines in (("A", rows), ("B", columns))]
        work += [
            self._queues.clearing(self._least, _NEARLY_ONE),
            self._queues.kernel(guarding(len(rows), len(columns)), (*magnitudes, *steps, self._least)),
            self._queues.reading(self._least_found, self._least),
        ]
        self._device.wait(self._queues.enqueue(work, [], _PREPARE))
        return float(self._least_found.view(np.float32)[0, 0])

    def _magnitudes(self, name: str, panel: _Panel) -> list[KernelCall]:
        if panel.has_magnitudes:
            return []
        panel.has_magnitudes = True
        operand = self._operands[name]
        packing = magnitude_packing(name, self._element, len(panel.lines), self._sampled)
        every = np.int32(min(SAMPLED, self._units))
        into = operand.magnitudes_from(panel.lines.lo, self._sampled)
        return [self._queues.kernel(packing, (panel.matrix, operand.guard[:1, panel.lines.slice], into, every))]

    def _remainders(self, name: str, panel: _Panel, arithmetic: Arithmetic) -> list[KernelCall]:
        if panel.held == arithmetic:
            return []
        panel.held = arithmetic
        operand = self._operands[name]
        numbers = operand.numbers[:, panel.lines.slice]
        limit, bits = np.float64(arithmetic.limit(self._inner)), np.int32(integer_bits(self._problem.dtype))
        packing = remainder_packing(name, self._element, arithmetic.moduli, len(panel.lines), self._units)
        into = operand.planes_from(panel.lines.lo, self._units, arithmetic.moduli)
        return [
            self._queues.kernel(line_kernel("scale_lines", len(panel.lines)), (numbers, limit, bits)),
            self._queues.kernel(packing, (panel.matrix, numbers[2:3], into)),
        ]

    def _tile_products(self, rows: Span, columns: Span, c: Any, arithmetic: Arithmetic) -> list[KernelCall]:
        work, moduli, inner = [], arithmetic.moduli, np.int64(self._units * UNIT)
        a = self._operands["A"].planes_from(rows.lo, self._units, moduli)
        for part in pieces(columns, self._layout.chunk if moduli > 1 else max(1, len(columns))):
            b = self._operands["B"].planes_from(part.lo, self._units, moduli)
            of_c = c[:, part.within(columns).slice]
            launch = products_of(self._queues, self._element if moduli == 1 else "", len(rows), len(part), moduli)
            if moduli == 1:
                work.append(self._queues.kernel(launch, (a, b, of_c, inner)))
                continue
            width = padded(len(part), 1)
            remainders = self._products[0, : moduli * len(rows) * width].reshape(moduli * len(rows), width)
            scales = [self._operands[name].numbers[3:4, lines.slice] for name, lines in (("A", rows), ("B", part))]
            work += [
                self._queues.kernel(launch, (a, b, remainders, np.int64(len(rows)), inner)),
                self._queues.kernel(reconstruction(self._element, moduli, len(rows), len(part)), (remainders, *scales, of_c)),
            ]
        return work


class _Operand:
    """Views of what lies in the device's memory for the lines of A, or of B."""

    def __init__(self, device: Device, memory: Any, layout: OperandRemainders) -> None:
        self._device, self._memory, self._layout = device, memory, layout
        self._chunks = -(-layout.inner // CHUNK_ROWS) if layout.in_chunks else 1
        self.numbers = device.matrix(memory, layout.numbers, 4, layout.lines, "float64")
        self.guard = device.matrix(memory, layout.guard, 2, layout.lines, "float32")

    def lines_of(self, slot: int, span: Span) -> Span:
        first = slot * self._layout.slot_lines
        return Span(first + span.lo, first + span.hi)

    def measures_of(self, lines: Span) -> Any:
        offset = self._layout.measures + 32 * self._chunks * lines.lo
        return self._device.matrix(self._memory, offset, self._chunks * len(lines), 4, "float64")

    def planes_from(self, line: int, units: int, moduli: int) -> Any:
        """A row for each plane, from this line's unit on."""
        planes = self._device.matrix(self._memory, self._layout.planes, moduli, self._layout.plane_bytes, "uint8")
        return planes[:, line // UNIT * units * UNIT * UNIT :]

    def magnitudes_from(self, line: int, units: int) -> Any:
        """One row from this line's unit on, of as many bytes as each line has."""
        offset = self._layout.magnitudes + line // UNIT * units * UNIT * UNIT
        return self._device.matrix(self._memory, offset, 1, units * UNIT, "uint8")
