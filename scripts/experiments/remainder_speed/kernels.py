# SPDX-License-Identifier: MIT
"""Products from remainders on one device, kernel by kernel, as hybrid.devices.remainders launches them, in an arithmetic that is
given: nobody waits for what the guard found."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from hybrid.core.problem import padded
from hybrid.core.spans import Span, pieces
from hybrid.devices.base import KernelCall, KernelDevice
from hybrid.devices.remainders import OperandMemory
from hybrid.kernels import remainders
from hybrid.kernels.catalogue import C_TYPES, Launch
from hybrid.planning.arithmetic import (
    INTEGER_BITS,
    PAIR,
    SUMMARY_WORDS,
    UNIT,
    Arithmetic,
    RemainderLayout,
    remainder_layout,
    sampling,
)

_NEARLY_ONE = 0x3F

Stages = dict[str, list[KernelCall]]


def kept_with(owner: object, call: KernelCall) -> KernelCall:
    """Launches know addresses alone: whose memory these are of must live as long as they may be made."""
    return lambda stream, owner=owner: call(stream)  # type: ignore[misc]


class Emulation:
    """C = A · B of matrices on the device, by so many moduli; with one by signed bytes."""

    def __init__(self, device: KernelDevice, a: Any, b: Any, c: Any, moduli: int) -> None:
        self._device, self._a, self._b, self._c = device, a, b, c
        (self._rows, self._inner), self._columns, self._moduli = a.shape, b.shape[1], moduli
        self._dtype, self._element, self._units = a.dtype.name, C_TYPES[a.dtype.name], -(-self._inner // UNIT)
        self._layout: RemainderLayout = remainder_layout(0, self._rows, self._inner, self._columns, 1, self._dtype, moduli)
        self._memory = device.reserve(self._layout.end, shared=False)
        self._of = {
            name: OperandMemory(device, self._memory, layout) for name, layout in (("A", self._layout.a), ("B", self._layout.b))
        }
        self._lines = {"A": Span(0, self._rows), "B": Span(0, self._columns)}
        # Read by the products as if they were written: bytes beyond the last lines.
        device.poison(self._memory)

    def whole(self, *, b_ready: bool = False, by_integers: bool | None = None) -> KernelCall:
        """All kernels of a product. `b_ready`: what is made of B alone is there from a product before."""
        stages = self.stages(by_integers=by_integers)
        calls = [call for name, of_stage in stages.items() for call in of_stage if not (b_ready and name.endswith(" of B"))]
        return kept_with(self, self._device.together(calls))

    @property
    def numbers(self) -> list[Any]:
        """Of A's rows, and of B's columns: what is known of each of these lines, and its power of two and the inverse."""
        return [self._of[name].numbers[:, self._lines[name].slice] for name in "AB"]

    def scaling(self, limit: float, bits: int) -> list[KernelCall]:
        """Measures all lines, and finds their powers of two."""
        found = [call for calls in self._norms.values() for call in calls]
        for numbers in self.numbers:
            launch = remainders.line_kernel("scale_lines", numbers.shape[1])
            found.append(self._kernel(launch, numbers, np.float64(limit), np.int32(bits)))
        return found

    def stages(self, *, by_integers: bool | None = None) -> Stages:
        """Each stage's launches, in their order."""
        if self._moduli == 1:
            return self._norms | self._reductions | {"products": [self._byte_product]}
        return self._norms | self._guard | self._reductions | self._products(by_integers)

    def _kernel(self, launch: Launch, *arguments: Any) -> KernelCall:
        return self._device.kernel(launch, arguments)

    @cached_property
    def _norms(self) -> Stages:
        found: Stages = {}
        for number, (name, matrix, measuring) in enumerate(
            (("A", self._a, remainders.row_measuring), ("B", self._b, remainders.column_measuring))
        ):
            operand, lines = self._of[name], self._lines[name]
            measures, numbers, steps = operand.measures_of(lines), operand.numbers[:, lines.slice], operand.steps[:, lines.slice]
            summary = self._device.matrix(
                self._memory, self._layout.summaries + 8 * SUMMARY_WORDS * number, 1, SUMMARY_WORDS, "uint64"
            )
            summing_up = remainders.line_kernel("summarize", len(lines))
            found[f"norms of {name}"] = [
                self._kernel(measuring(self._element, *matrix.shape), matrix, measures),
                self._device.clearing(summary, 0),
                self._kernel(summing_up, measures, numbers, steps, summary, np.float64(self._inner)),
            ]
        return found

    @cached_property
    def _guard(self) -> Stages:
        every = sampling(self._inner, self._dtype)
        units = -(-self._units // every)
        found: Stages = {}
        magnitudes, steps = [], []
        for name, matrix in (("A", self._a), ("B", self._b)):
            operand, lines = self._of[name], self._lines[name]
            packing, into = (
                remainders.magnitude_packing(name, self._element, len(lines), units),
                operand.magnitudes_from(0, units),
            )
            packed = self._kernel(packing, matrix, operand.numbers[4:5, lines.slice], into, np.int32(every))
            found[f"magnitudes of {name}"] = [packed]
            magnitudes.append(into)
            steps.append(operand.steps[:, lines.slice])
        least = self._device.matrix(self._memory, self._layout.least, 1, 4, "int32")[:, :1]
        guarding = self._kernel(remainders.guarding(self._device, self._rows, self._columns), *magnitudes, *steps, least)
        return found | {"guard": [self._device.clearing(least, _NEARLY_ONE), guarding]}

    @cached_property
    def _reductions(self) -> Stages:
        found: Stages = {}
        limit = Arithmetic(self._moduli, scaled=self._moduli > 1).limit(self._inner)
        for name, matrix in (("A", self._a), ("B", self._b)):
            operand, lines = self._of[name], self._lines[name]
            numbers = operand.numbers[:, lines.slice]
            scaling, packing = (
                remainders.line_kernel("scale_lines", len(lines)),
                remainders.remainder_packing(name, self._element, self._moduli, len(lines), self._units),
            )
            found[f"remainders of {name}"] = [
                self._kernel(scaling, numbers, np.float64(limit), np.int32(INTEGER_BITS[self._dtype])),
                self._kernel(packing, matrix, numbers[2:3], operand.planes_from(0, self._units, self._moduli)),
            ]
        return found

    def _planes(self, name: str, line: int = 0) -> Any:
        return self._of[name].planes_from(line, self._units, self._moduli)

    @cached_property
    def _byte_product(self) -> KernelCall:
        launch = remainders.products_of(self._device, self._element, self._rows, self._columns, 1)
        return self._kernel(launch, self._planes("A"), self._planes("B"), self._c, np.int64(self._units * UNIT))

    def _products(self, by_integers: bool | None) -> Stages:
        """In as many columns at a time as the runner takes: `products` and `reconstruction`, and for more columns both again."""
        if by_integers is None:
            by_integers = remainders.lacks_float64(self._device.capability)
        room = self._device.matrix(self._memory, self._layout.products, 1, self._layout.end - self._layout.products, "uint8")
        found: Stages = {}
        for number, part in enumerate(pieces(self._lines["B"], self._layout.chunk)):
            width = padded(len(part), 1)
            of_c = room[0, : self._moduli * self._rows * width].reshape(self._moduli * self._rows, width)
            product = remainders.products_of(self._device, "", self._rows, len(part), self._moduli)
            back = remainders.reconstruction(self._element, self._moduli, self._rows, len(part), by_integers=by_integers)
            a, b, inner = self._planes("A"), self._planes("B", part.lo), np.int64(self._units * UNIT)
            scales = [self._of[name].numbers[3:4, lines.slice] for name, lines in (("A", self._lines["A"]), ("B", part))]
            again = f", part {number + 1}" if number else ""
            found[f"products{again}"] = [self._kernel(product, a, b, of_c, np.int64(self._rows), inner)]
            found[f"reconstruction{again}"] = [self._kernel(back, of_c, *scales, self._c[:, part.slice])]
        return found


class BytesAlone:
    """int8 · int8 = int32 of packed bytes, by products.cu or products_mma.cu. `a`, `b`: of small integers, in float32."""

    def __init__(self, device: KernelDevice, a: Any, b: Any) -> None:
        (n, l), m = a.shape, b.shape[1]
        units = -(-l // UNIT)
        sizes = [-(-lines // PAIR) * PAIR * units * UNIT for lines in (n, m)]
        of_c, longest = 4 * n * padded(m, 4), 8 * max(n, m)
        memory = device.reserve(sum(sizes) + of_c + longest, shared=False)
        device.poison(memory)
        planes = [device.matrix(memory, offset, 1, size, "uint8") for offset, size in zip((0, sizes[0]), sizes, strict=True)]
        self.c = device.matrix(memory, sum(sizes), n, m, "int32")
        ones = device.matrix(memory, sum(sizes) + of_c, 1, max(n, m), "float64")
        device.copy_in(ones, np.ones(ones.shape), [])
        list(device.finish())
        packing = []
        for name, matrix, plane, lines in (("A", a, planes[0], n), ("B", b, planes[1], m)):
            launch = remainders.remainder_packing(name, "float", 1, lines, units)
            packing.append(device.kernel(launch, (matrix, ones[:, :lines], plane)))
        device.launch(packing, [], "products")
        list(device.finish())
        launch = remainders.products_of(device, "int", n, m, 1)
        self.product = device.kernel(launch, (*planes, self.c, np.int64(units * UNIT)))
