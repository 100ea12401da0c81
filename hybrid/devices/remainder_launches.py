# SPDX-License-Identifier: MIT
"""The launches for tiles of C from remainders: kernels/norms.cu, guard.cu, remainders.cu, products.cu or products_mma.cu, and
reconstruct.cu, with the views of memory that they work on. Each is prepared once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hybrid.core.problem import Problem, padded
from hybrid.core.spans import Span, pieces
from hybrid.devices.base import Device, KernelCall, KernelQueues
from hybrid.devices.buffers import MOST_PLACES, Place, place_of
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
from hybrid.plan.arithmetic import UNIT, Arithmetic, Summary, expected, integer_bits, sampling
from hybrid.plan.remainder_layout import GUARDS, SUMMARY_WORDS, RemainderLayout

_MOST_PREPARED = 10_000
_NEARLY_ONE = 0x3F  # in each byte: a float of 0.75, where the search for the least ratio begins


class RemainderLaunches:
    """One rank's launches. In its methods, `name` is the operand, "A" or "B"; `lines` are rows of A or columns of B, counted
    within the operand's buffers; and `matrix` is the panel that consists of them."""

    def __init__(
        self, device: Device, memory: Any, layout: RemainderLayout, problem: Problem, *, fast: bool, by_integers: bool
    ) -> None:
        """`memory`: the device's, with this layout. `fast`, `by_integers`: as of `ModularProduct`."""
        self._problem, self._fast, self._layout = problem, fast, layout
        self._queues: KernelQueues = device.kernel_queues()
        self._by_integers = by_integers or lacks_float64(self._queues.capability)
        self._element, self._inner = C_TYPES[problem.dtype], problem.l
        self._units = -(-problem.l // UNIT)
        self._sampled = -(-self._units // sampling(problem.l, problem.dtype))
        self.operands = {"A": OperandMemory(device, memory, layout.a), "B": OperandMemory(device, memory, layout.b)}
        self._slots = {"A": 0, "B": layout.a.lines // UNIT}  # of summaries
        count = (layout.a.lines + layout.b.lines) // UNIT
        self._summaries = device.matrix(memory, layout.summaries, count, SUMMARY_WORDS, "uint64")
        self._least = device.matrix(memory, layout.least, GUARDS, 4, "int32")[:, :1]
        self._found = self._queues.host_memory((count, SUMMARY_WORDS), "uint64")
        self._least_found = self._queues.host_memory((GUARDS, 4), "int32")
        self._products = device.matrix(memory, layout.products, 1, layout.end - layout.products, "uint8")
        # What products launch again and again, by the place of the matrix that may lie elsewhere in the next.
        self._prepared: dict[tuple[object, ...], dict[Place | None, KernelCall]] = {}
        self._queues.compile_ahead(self._usual_launches())

    def measure(self, name: str, lines: Span, matrix: Any) -> KernelCall:
        """Measure the lines, for `summary_of`."""
        return self._once(("measure", name, lines), partial(self._measuring, name, lines, matrix), matrix)

    def summary_of(self, name: str, lines: Span) -> tuple[Summary, int]:
        """What the lines are like, and a fingerprint of their elements. To be called when `measure` is complete."""
        words = self._found[self._slots[name] + lines.lo // UNIT]
        largest, least = words[:1].view(np.float64)[0], (~words[3:4]).view(np.float64)[0] if words[3] else np.inf
        return Summary(float(largest), not words[1], not words[2], float(least)), int(words[4])

    def pack_magnitudes(self, name: str, lines: Span, matrix: Any) -> KernelCall:
        """Write the lines' magnitudes as bytes, which the guard needs of both operands."""
        return self._once(("magnitudes", name, lines), partial(self._packing_magnitudes, name, lines, matrix), matrix)

    def guard(self, rows: Span, columns: Span, number: int) -> KernelCall:
        """Have the guard look at a tile, for `ratio`. `number`: where its result goes, below GUARDS."""
        return self._once(("guard", rows, columns, number), partial(self._guarding, rows, columns, number))

    def ratio(self, number: int) -> float:
        """What the guard of this number found, when it is complete: a lower bound of Σ|a·b| / (|row|·|column|) for all elements
        of the tile."""
        return float(self._least_found.view(np.float32)[number, 0])

    def reduce(self, name: str, lines: Span, matrix: Any, arithmetic: Arithmetic) -> KernelCall:
        """Make the lines' remainders."""
        reducing = partial(self._reducing, name, lines, matrix, arithmetic)
        return self._once(("remainders", name, lines, arithmetic), reducing, matrix)

    def multiply(self, rows: Span, columns: Span, c: Any, arithmetic: Arithmetic) -> KernelCall:
        """Compute c from the remainders of these rows and columns, which are there."""
        multiplying = partial(self._multiplying, rows, columns, c, arithmetic)
        return self._once(("products", rows, columns, arithmetic), multiplying, c)

    def _once(self, key: tuple[object, ...], make: Callable[[], list[KernelCall]], matrix: Any = None) -> KernelCall:
        """The call that `make` prepares, made once for each key and place of the matrix: views of device memory take longer to
        make than kernels to launch. A matrix in a buffer has always the same place; one that is used where it lies may have
        others."""
        place = place_of(matrix) if matrix is not None else None
        if key not in self._prepared and len(self._prepared) >= _MOST_PREPARED:
            self._prepared.clear()
        by_place = self._prepared.setdefault(key, {})
        if place not in by_place:
            if len(by_place) >= MOST_PLACES:
                by_place.clear()
            by_place[place] = self._queues.together(make())
        return by_place[place]

    def _usual_launches(self) -> list[Launch]:
        """A launch of each kernel that usual products need, to compile them together."""
        element, moduli = self._element, expected(self._problem.dtype, fast=self._fast).moduli
        packings = [magnitude_packing(side, element, 1, 1) for side in "AB"]
        packings += [remainder_packing(side, element, count, 1, 1) for count in (moduli, 1) for side in "AB"]
        products = [products_of(self._queues, "", 1, 1, moduli), products_of(self._queues, element, 1, 1, 1)]
        lines = [line_kernel(name, 1) for name in ("summarize", "scale_lines")]
        measuring = [row_measuring(element, 1, 1), column_measuring(element, 1, 1)]
        back = reconstruction(element, moduli, 1, 1, by_integers=self._by_integers)
        return [*measuring, *lines, telling(), guarding(self._queues, 1, 1), *packings, *products, back]

    def _measuring(self, name: str, lines: Span, matrix: Any) -> list[KernelCall]:
        operand, number = self.operands[name], self._slots[name] + lines.lo // UNIT
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

    def _packing_magnitudes(self, name: str, lines: Span, matrix: Any) -> list[KernelCall]:
        operand = self.operands[name]
        packing = magnitude_packing(name, self._element, len(lines), self._sampled)
        into, every = operand.magnitudes_from(lines.lo, self._sampled), np.int32(sampling(self._inner, self._problem.dtype))
        return [self._queues.kernel(packing, (matrix, operand.numbers[4:5, lines.slice], into, every))]

    def _guarding(self, rows: Span, columns: Span, number: int) -> list[KernelCall]:
        sides = [(self.operands["A"], rows), (self.operands["B"], columns)]
        magnitudes = [operand.magnitudes_from(lines.lo, self._sampled) for operand, lines in sides]
        steps = [operand.steps[:, lines.slice] for operand, lines in sides]
        least, found = (each[number : number + 1, :1] for each in (self._least, self._least_found))
        return [
            self._queues.clearing(least, _NEARLY_ONE),
            self._queues.kernel(guarding(self._queues, len(rows), len(columns)), (*magnitudes, *steps, least)),
            self._queues.kernel(telling(), (least, found)),
        ]

    def _reducing(self, name: str, lines: Span, matrix: Any, arithmetic: Arithmetic) -> list[KernelCall]:
        operand = self.operands[name]
        numbers = operand.numbers[:, lines.slice]
        limit, bits = np.float64(arithmetic.limit(self._inner)), np.int32(integer_bits(self._problem.dtype))
        packing = remainder_packing(name, self._element, arithmetic.moduli, len(lines), self._units)
        into = operand.planes_from(lines.lo, self._units, arithmetic.moduli)
        return [
            self._queues.kernel(line_kernel("scale_lines", len(lines)), (numbers, limit, bits)),
            self._queues.kernel(packing, (matrix, numbers[2:3], into)),
        ]

    def _multiplying(self, rows: Span, columns: Span, c: Any, arithmetic: Arithmetic) -> list[KernelCall]:
        moduli, inner = arithmetic.moduli, np.int64(self._units * UNIT)
        a, b = (self.operands[name].planes_from(lines.lo, self._units, moduli) for name, lines in (("A", rows), ("B", columns)))
        if moduli == 1:
            return [self._queues.kernel(products_of(self._queues, self._element, len(rows), len(columns), 1), (a, b, c, inner))]
        work = []
        for part in pieces(columns, self._layout.chunk):
            b = self.operands["B"].planes_from(part.lo, self._units, moduli)
            height, width = len(rows), padded(len(part), 1)
            remainders = self._products[0, : moduli * height * width].reshape(moduli * height, width)
            scales = [self.operands[name].numbers[3:4, lines.slice] for name, lines in (("A", rows), ("B", part))]
            products = products_of(self._queues, "", height, len(part), moduli)
            back = reconstruction(self._element, moduli, height, len(part), by_integers=self._by_integers)
            work += [
                self._queues.kernel(products, (a, b, remainders, np.int64(height), inner)),
                self._queues.kernel(back, (remainders, *scales, c[:, part.within(columns).slice])),
            ]
        return work
