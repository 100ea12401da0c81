# SPDX-License-Identifier: MIT
"""Operands of real products that are computed from the elements of complex matrices, or of integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybrid.arrays.complex_matrices import write_expanded
from hybrid.arrays.elements import BYTES_AT_ONCE, Elements
from hybrid.arrays.integers import write_remainders
from hybrid.arrays.product_type import ProductType
from hybrid.arrays.sources import AnyRanksMatrix
from hybrid.core.spans import Span
from hybrid.host.thread_map import rows_of_about

Progress = Callable[[int], None]


class Expanded(AnyRanksMatrix):
    """B of a real product with a complex A: it has two rows for each of B."""

    def __init__(self, elements: Elements, types: ProductType) -> None:
        self._elements, self._type = elements, types.promoted
        self.shape = 2 * elements.shape[0], 2 * elements.shape[1]

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        width = self._elements.shape[1]
        own = Span(rows.lo // 2, -(-rows.hi // 2))
        for part in rows_of_about(BYTES_AT_ONCE, own, width * into.itemsize * 2):
            made = np.empty((len(part), width), self._type)
            self._elements.write(part, made, threads, lambda done: None)
            wanted = rows.common(Span(2 * part.lo, 2 * part.hi))  # the first or the last row may be half of an element's two
            first = Span(wanted.lo - 2 * part.lo, wanted.hi - 2 * part.lo)
            write_expanded(made, first, into[wanted.within(rows).slice], threads)
            progress(wanted.hi - rows.lo)


class Remainders(AnyRanksMatrix):
    """The remainders of integers modulo a prime."""

    def __init__(self, elements: Elements, prime: int) -> None:
        self._elements, self._prime, self.shape = elements, prime, elements.shape

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        width, dtype = self.shape[1], self._elements.dtype
        for part in rows_of_about(BYTES_AT_ONCE, rows, width * dtype.itemsize):
            made = np.empty((len(part), width), dtype)
            self._elements.write(part, made, threads, lambda done: None)
            write_remainders(made, self._prime, Span(0, len(part)), into[part.within(rows).slice], threads)
            progress(part.hi - rows.lo)
