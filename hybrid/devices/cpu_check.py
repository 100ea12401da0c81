# SPDX-License-Identifier: MIT
"""The check's operations where a CPU stands in for a GPU: NumPy computes what kernels/check.cu does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hybrid.devices.base import Event, Operation
from hybrid.host.row_sums import NOT_INTEGRAL, add_squares, mixed_total, row_checksums, row_sums
from hybrid.kernels.elements import numbers_of
from hybrid.plan.check_layout import ROWS_TOGETHER

VARIANCE, PER_TERM, FLUSHED, LARGEST_SQUARE = range(4)  # the places of these numbers among those that `compare` takes
MOST_IN_TOTAL = 4.0  # a size counts at most as this in the total of many, which a single large one would else determine


class CpuCheckOperations:
    """The check's operations, each of which is complete when its call returns, so its event is None."""

    def __init__(self, do: Callable[[str, Callable[[], None]], Event]) -> None:
        """`do(phase, work)`: does the work, and notes its time as one of this phase."""
        self._do = do

    def compile_ahead(self, dtype: str, operand_dtype: str, group: int) -> None:
        pass  # nothing is compiled

    def make(self, shapes: Mapping[str, tuple[int, int]]) -> dict[str, np.ndarray]:
        return {name: np.empty(shape, word_type(name)) for name, shape in shapes.items()}

    def write(self, into: np.ndarray, values: np.ndarray) -> None:
        into[...] = values

    def read(self, matrix: np.ndarray) -> np.ndarray:
        return matrix

    def clear(self, matrix: np.ndarray) -> Operation:
        return self._operation(lambda: matrix.fill(0))

    def row_sums(
        self,
        matrix: np.ndarray,
        x: np.ndarray,
        weights: np.ndarray,
        group: int,
        sums: np.ndarray,
        squares: np.ndarray,
        largest: np.ndarray,
        checksums: np.ndarray,
    ) -> Operation:
        def work() -> None:
            if group:
                row_sums(matrix, x[0], group, sums, squares, largest[:, 0])
            else:
                add_squares(matrix, squares[:, 0], largest[:, 0])
            row_checksums(matrix, weights[0], checksums[:, 0])

        return self._operation(work)

    def column_totals(self, matrix: np.ndarray, totals: np.ndarray) -> Operation:
        def work() -> None:
            totals[0] += matrix.sum(axis=0)

        return self._operation(work)

    def subtract_product(
        self, a: np.ndarray, y: np.ndarray, difference: np.ndarray, row_squares: np.ndarray, largest: np.ndarray
    ) -> Operation:
        def work() -> None:
            difference[...] -= numbers_of(a).astype(np.float64, copy=False) @ y
            if len(row_squares):
                add_squares(a, row_squares[:, 0], largest[:, 0])

        return self._operation(work)

    def compare(
        self,
        differences: np.ndarray,
        subtracted: np.ndarray,
        squares: np.ndarray,
        row_squares: np.ndarray,
        column_squares: np.ndarray,
        numbers: np.ndarray,
        found: np.ndarray,
        summary: np.ndarray,
    ) -> Operation:
        def work() -> None:
            differences[...] += subtracted
            compare(differences, squares, row_squares, column_squares, numbers[0], found)
            summary[...] = summary_of(found)

        return self._operation(work)

    def total_pieces(self, checksums: np.ndarray, largest: np.ndarray, pieces: np.ndarray, totals: np.ndarray) -> Operation:
        def work() -> None:
            for (first, count, number), of_piece in zip(pieces.tolist(), totals, strict=True):
                rows = slice(first, first + count)
                of_piece[0] = mixed_total(checksums[rows, 0], number)
                of_piece[1] = largest[rows].max(initial=0.0).view(np.uint64)

        return self._operation(work)

    def told(self, matrix: np.ndarray) -> tuple[np.ndarray, Operation]:
        there = np.empty_like(matrix)
        return there, self._operation(lambda: np.copyto(there, matrix))

    def together(self, operations: Sequence[Operation], *, beside: bool) -> Operation:
        return lambda after: [operation(after) for operation in operations][-1]

    def _operation(self, work: Callable[[], None]) -> Operation:
        def enqueue(after: Sequence[Event]) -> Event:
            with np.errstate(all="ignore"):
                return self._do("check", work)

        return enqueue


def word_type(name: str) -> str:
    """The type of the elements of a matrix of the check, by the matrix's name."""
    return "uint64" if name.startswith(("checksum", "weights")) else "float64"


def compare(
    differences: np.ndarray,
    squares: np.ndarray,
    row_squares: np.ndarray,
    column_squares: np.ndarray,
    numbers: np.ndarray,
    found: np.ndarray,
) -> None:
    """As `compare_sums` of kernels/check.cu: replace the differences by their sizes, and write what is found of each row."""
    norms = row_squares * column_squares
    variance = numbers[VARIANCE] * (np.fmin(squares, norms) + norms * numbers[PER_TERM])
    lost = numbers[FLUSHED] * (1 + np.sqrt(row_squares) + np.sqrt(column_squares))
    open_ = ~(norms < numbers[LARGEST_SQUARE])
    sizes = np.abs(differences)
    counted = (sizes != 0) & ~open_
    sizes = np.where(counted, sizes / (np.sqrt(variance) + lost), 0.0)
    sizes = np.where(sizes <= NOT_INTEGRAL, sizes, NOT_INTEGRAL)
    differences[...] = sizes
    results = np.minimum(sizes, MOST_IN_TOTAL).sum(axis=1), counted.sum(axis=1), sizes.max(axis=1, initial=0.0)
    where = sizes.argmax(axis=1) if sizes.shape[1] else np.zeros(len(sizes))
    found[...] = np.stack([*results, where, open_.sum(axis=1)], axis=1)


def summary_of(found: np.ndarray) -> np.ndarray:
    """The summary that `compare_sums` makes of each ROWS_TOGETHER rows, from what is found of each row."""
    starts = np.arange(0, len(found), ROWS_TOGETHER)
    together = [np.add, np.add, np.maximum, np.add]
    columns = zip(together, (0, 1, 2, 4), strict=True)
    return (
        np.stack([add.reduceat(found[:, column], starts) for add, column in columns], axis=1) if len(found) else np.zeros((0, 4))
    )
