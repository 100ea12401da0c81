# SPDX-License-Identifier: MIT
"""Views of a device's memory in which the remainders of one operand lie, and the measures of its lines."""

from __future__ import annotations

from typing import Any

from hybrid.core.spans import Span
from hybrid.devices.base import Device
from hybrid.plan.arithmetic import UNIT
from hybrid.plan.remainder_layout import CHUNK_ROWS, MEASURE_BYTES, MEASURES, OperandRemainders


class OperandMemory:
    """The memory for the lines of an operand: A's are rows, B's are columns. It has the operand's layout."""

    def __init__(self, device: Device, memory: Any, layout: OperandRemainders) -> None:
        self._device, self._memory, self._layout = device, memory, layout
        self._chunks = -(-layout.inner // CHUNK_ROWS) if layout.in_chunks else 1
        self.numbers = device.matrix(memory, layout.numbers, 5, layout.lines, "float64")
        self.steps = device.matrix(memory, layout.steps, 1, layout.lines, "float32")

    def lines_of(self, slot: int, span: Span) -> Span:
        """The lines of a span in a buffer, counted over all of the operand's buffers."""
        first = slot * self._layout.slot_lines
        return Span(first + span.lo, first + span.hi)

    def measures_of(self, lines: Span) -> Any:
        """The measures of these lines: a row for each line and chunk of it."""
        offset = self._layout.measures + MEASURE_BYTES * self._chunks * lines.lo
        return self._device.matrix(self._memory, offset, self._chunks * len(lines), MEASURES, "float64")

    def planes_from(self, line: int, units: int, moduli: int) -> Any:
        """The planes of remainders, one row for each modulus, from this line's unit on."""
        planes = self._device.matrix(self._memory, self._layout.planes, moduli, self._layout.plane_bytes, "uint8")
        return planes[:, line // UNIT * units * UNIT * UNIT :]

    def magnitudes_from(self, line: int, units: int) -> Any:
        """The magnitudes from this line's unit on, as one row of as many bytes as a line has."""
        offset = self._layout.magnitudes + line // UNIT * units * UNIT * UNIT
        return self._device.matrix(self._memory, offset, 1, units * UNIT, "uint8")
