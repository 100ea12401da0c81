# SPDX-License-Identifier: MIT
"""The sums over a part of C that a device's check expects. With them the host checks that part after computing it again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.devices.cpu_check import compare
from hybrid.host.row_sums import NOT_INTEGRAL, row_sums
from hybrid.plan.check_layout import NUMBERS_A_ROW
from hybrid.verification.check import Check
from hybrid.verification.rounding import THRESHOLD


@record
class ExpectedSums:
    """A·(B·x) over whole groups of columns, and what `compare` needs beside it, as the device has summed them: a check by these
    reads neither A nor B."""

    rows: Span
    columns: Span
    group: int  # columns in a sum
    x: np.ndarray
    products: np.ndarray  # A·(B·x)
    row_squares: np.ndarray
    column_squares: np.ndarray
    numbers: np.ndarray
    exact: bool  # nothing is rounded

    def part(self, rows: Span, columns: Span) -> ExpectedSums | None:
        """The sums of a smaller part; None where it is not wholly within this one, or cuts groups of columns."""
        if not (rows.lies_in(self.rows) and columns.lies_in(self.columns)):
            return None
        lo, hi = columns.lo - self.columns.lo, columns.hi - self.columns.lo
        if lo % self.group or (hi % self.group and columns.hi != self.columns.hi):
            return None
        own, groups = rows.within(self.rows).slice, slice(lo // self.group, -(-hi // self.group))
        return replace(
            self,
            rows=rows,
            columns=columns,
            x=self.x[lo:hi],
            products=self.products[own, groups],
            row_squares=self.row_squares[own],
            column_squares=self.column_squares[:, groups],
        )

    def check(self, c: np.ndarray) -> Check:
        """Check `c`, the elements of this part of C."""
        found, largest = self._compared(c)
        if found[:, 4].any():
            return Check("none", 0.0, THRESHOLD, False)  # A·B may overflow, or holds NaN or infinities
        error, count = float(found[:, 2].max(initial=0.0)), float(found[:, 1].sum())
        if self.exact:
            return Check("exact", count, 0.0, not count and float(largest.max(initial=0.0)) < NOT_INTEGRAL)
        return Check("freivalds", error, THRESHOLD, error <= THRESHOLD)

    def most_wrong(self, c: np.ndarray) -> tuple[int, Span]:
        """The row of `c`, and the columns in it, whose sum differs most, in units of the rounding errors to be expected."""
        found, _ = self._compared(c)
        row = int(found[:, 2].argmax())
        first = int(found[row, 3]) * self.group
        return row, Span(first, min(first + self.group, c.shape[1]))

    def _compared(self, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What `compare` finds of each row of `c`, and the largest magnitudes of the rows."""
        sums, squares = np.empty_like(self.products), np.empty_like(self.products)
        largest, found = np.empty(len(c)), np.empty((len(c), NUMBERS_A_ROW))
        with np.errstate(all="ignore"):
            row_sums(c, self.x, self.group, sums, squares, largest)
            compare(sums - self.products, squares, self.row_squares, self.column_squares, self.numbers, found)
        return found, largest
