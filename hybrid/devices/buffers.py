# SPDX-License-Identifier: MIT
"""A rank's device buffers: matrix views of one memory block for its row panels of A, column panels of B, and C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.devices.base import Device
from hybrid.kernels.catalogue import storage
from hybrid.plan.layout import Region
from hybrid.plan.schedule import Arrival, RankShare, Tile

_MOST_CACHED_TILES = 10_000
# Prepared operations are kept for so many places of a matrix that is used where it lies: in a loop of products the results
# alternate between two.
MOST_PLACES = 4

Place = tuple[int, int]  # address and row stride in bytes: all that kernels know of a matrix beside its sizes


def place_of(matrix: Any) -> Place:
    """Where a matrix lies: CuPy's in device memory, or NumPy's in host memory."""
    return matrix.ctypes.data if isinstance(matrix, np.ndarray) else matrix.data.ptr, matrix.strides[0]


def row_stride(matrix: Any) -> int:
    """The row stride in bytes (CUDA's pitch). NumPy and CuPy may give a single row, whose stride is unused, any value."""
    rows, columns = matrix.shape
    stride: int = matrix.strides[0] if rows > 1 else columns * matrix.itemsize
    return stride


class Buffers:
    """The views that `device` has of a share's memory, which may be another rank's, opened by its IPC handle.

    `in_place`: matrices that are used where they lie, by operand; they take the place of their buffers.
    """

    def __init__(
        self, device: Device, memory: Any, share: RankShare, problem: Problem, in_place: Mapping[str, Any] | None = None
    ) -> None:
        layout, there, of_operands = share.layout, in_place or {}, storage(problem.operand_dtype).name

        def matrices(operand: str, region: Region, rows: int, dtype: str) -> list[Any]:
            if operand in there:
                return [there[operand]]
            return [device.matrix(memory, region.offset_of(slot), rows, layout.width, dtype) for slot in range(layout.slots)]

        self._a = there["A"] if "A" in there else device.matrix(memory, 0, layout.rows, problem.l, of_operands)
        self._b = matrices("B", layout.b, problem.l, of_operands)
        self._c = matrices("C", layout.c, layout.rows, problem.dtype)
        self.in_place = frozenset(there)
        self.places = tuple(place_of(each) for each in (self._a, *self._b, *self._c))
        self._operands: dict[Tile, tuple[Any, Any, Any]] = {}  # cached: slicing a CuPy array takes microseconds

    def destination(self, arrival: Arrival) -> Any:
        """Where a panel is copied to. A k-slab is copied to the same rows of it as it has in B."""
        return (
            self._a[arrival.buffer_span.slice] if arrival.operand == "A" else self._b[arrival.slot][:, arrival.buffer_span.slice]
        )

    def rows_of_a(self, buffer_rows: Span) -> Any:
        """These rows of A's buffer."""
        return self._a[buffer_rows.slice]

    def operands(self, tile: Tile) -> tuple[Any, Any, Any]:
        """The parts of A, B and C of one multiplication."""
        if tile not in self._operands:
            if len(self._operands) >= _MOST_CACHED_TILES:
                self._operands.clear()
            rows, columns = tile.buffer_rows.slice, tile.buffer_columns.slice
            inner = tile.inner.slice if tile.inner else slice(None)
            self._operands[tile] = self._a[rows, inner], self._b[tile.slot][inner, columns], self._c[tile.slot][rows, columns]
        return self._operands[tile]
