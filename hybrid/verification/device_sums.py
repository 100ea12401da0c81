# SPDX-License-Identifier: MIT
"""What the check of a rank's product keeps on its device, sums and checksums, and what they tell when the product is done."""

from __future__ import annotations

import secrets
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hybrid.core.problem import Problem, padded
from hybrid.core.spans import Span
from hybrid.devices.base import CheckOperations
from hybrid.devices.cpu_check import summary_of
from hybrid.host.row_sums import NOT_INTEGRAL, checksum_weights
from hybrid.plan.check_layout import NUMBERS_A_ROW, NUMBERS_TOGETHER, ROWS_TOGETHER, CheckLayout
from hybrid.verification.check import Suspect
from hybrid.verification.copied import piece_table
from hybrid.verification.rounding import Sums, comparison_numbers, is_exact, random_x

if TYPE_CHECKING:
    from hybrid.verification.expected_sums import ExpectedSums


class DeviceSums:
    """The matrices of a DeviceCheck, by name, and parts of them. The methods read them, and are called when the device is
    idle."""

    def __init__(self, operations: CheckOperations, layout: CheckLayout, problem: Problem) -> None:
        self._operations, self._layout, self._problem = operations, layout, problem
        self._of_operands = [[piece.number for piece in layout.pieces if piece.operand == operand] for operand in "ABC"]
        rows, groups, checksums, table = len(layout.share.rows), layout.groups, layout.checksums, piece_table(layout)
        summary, totals = NUMBERS_TOGETHER * -(-rows // ROWS_TOGETHER), 2 * len(table)
        ends = np.cumsum([rows, groups, checksums, checksums, rows * groups, summary, totals]).tolist()
        self.matrices = m = operations.make(
            {
                "x": (1, problem.m),
                "weights of A": (1, problem.l),
                "weights of B": (1, problem.m),
                "weights of C": (1, problem.m),
                "B·x": (problem.l, padded(groups, 8)),  # rows of whole vectors, in which it is copied to shared memory
                "squares of B": (problem.l, groups),
                "differences": (rows, groups),
                "squares of C": (rows, groups),
                "unused": (rows, 1),
                "numbers": (1, 4),
                "found": (rows, NUMBERS_A_ROW),
                "checksum table": table.shape,
                "to clear": (1, ends[-1]),
            }
        )
        m["B·x"] = m["B·x"][:, :groups]
        widths = [len(panel) for panel in layout.share.column_panels]
        self._x = random_x(np.random.default_rng(secrets.randbits(64)), widths, layout.group)
        operations.write(m["x"], self._x[None, :])
        of_operands, of_c = problem.operand_item_size, problem.item_size
        for name, columns, item in (("A", problem.l, of_operands), ("B", problem.m, of_operands), ("C", problem.m, of_c)):
            operations.write(m[f"weights of {name}"], checksum_weights(columns, item)[None, :])
        operations.write(m["numbers"], comparison_numbers(problem, layout.group)[None, :])
        operations.write(m["checksum table"], table)
        parts = [m["to clear"][:, lo:hi] for lo, hi in zip([0, *ends], ends, strict=False)]
        self.row_squares, self.column_squares = parts[0].reshape(-1, 1), parts[1]
        # The largest magnitudes and the checksums of all rows of pieces, in the layout's order.
        self.largest, self.of_rows = parts[2].reshape(-1, 1), parts[3].reshape(-1, 1).view("uint64")
        self.subtracted = parts[4].reshape(rows, groups)  # -A·(B·x)
        self.summary, self.totals = parts[5].reshape(-1, NUMBERS_TOGETHER), parts[6].reshape(-1, 2).view("uint64")
        told, self.tell = operations.told(m["to clear"][:, ends[4] :])
        self._summary_told, totals_told = told[0, : self.summary.size].reshape(-1, NUMBERS_TOGETHER), told[0, self.summary.size :]
        self._checksums_told, self._largest_told = totals_told[::2].view(np.uint64), totals_told[1::2]  # of pieces

    def checksums(self) -> np.ndarray:
        """The checksums of all rows of all pieces, in the layout's order."""
        return self._operations.read(self.of_rows)[:, 0]

    def checksums_of_pieces(self) -> np.ndarray:
        """One checksum for each piece, as `CopiedPieces.of_pieces` makes it."""
        return np.array(self._checksums_told)

    def compared(self, allowed: float) -> tuple[Sums, tuple[Suspect, ...], tuple[np.ndarray, ...] | None]:
        """What the comparison of C·x with A·(B·x) found.

        A sum looks wrong if it differs by more than `allowed` standard deviations, or at all where every sum is exact. Returned
        are a summary; the suspects, which are all sums that look wrong, or the worst if they are in many rows; and the parts of C
        with sums that look wrong, for `WrongParts.merge`. None instead of these if none does.
        """
        largest_a, largest_b, largest_c = self._largest_elements
        exact = is_exact(self._problem, self._layout.group, largest_a, largest_b)
        limit, has_fractions = 0.0 if exact else allowed, exact and largest_c >= NOT_INTEGRAL
        rows, groups = len(self._layout.share.rows), self._layout.groups
        sums = Sums.of(self._summary_told, rows, groups, largest_a, largest_b)
        if sums.error <= limit and not has_fractions:
            return sums, (), None
        from hybrid.verification.wrong_parts import WrongParts  # right products do without
        from hybrid.verification.wrong_sums import WrongSums, fractions_in

        found, fractions = np.array(self._operations.read(self.matrices["found"])), {}
        if exact:
            fractions = fractions_in(self._layout, found, self._operations.read(self.largest)[:, 0])
            sums = Sums.of(summary_of(found), rows, groups, largest_a, largest_b)
        wrong = WrongSums(self._layout, lambda rows: self._operations.read(self.matrices["differences"][rows]), found, limit)
        parts = WrongParts(self._problem.n, self._problem.m)
        wrong.mark(parts, fractions)
        return sums, wrong.suspects(fractions), parts.found()

    def expected(self, rows: Span, columns: Span) -> ExpectedSums | None:
        """The sums that this part of C, of this rank's rows, has to have; None where the part cuts groups of columns."""
        first, end = np.searchsorted(self._starts, [columns.lo, columns.hi]).tolist()
        whole = [*range(columns.lo, columns.hi, self._layout.group), columns.hi]
        if self._starts[first : end + 1].tolist() != whole:
            return None
        from hybrid.verification.expected_sums import ExpectedSums

        own, groups = rows.within(self._layout.share.rows).slice, slice(first, end)
        largest_a, largest_b, _ = self._largest_elements
        return ExpectedSums(
            rows,
            columns,
            self._layout.group,
            self._x[columns.slice],
            -self._operations.read(self.subtracted[own])[:, groups],
            self._operations.read(self.row_squares[own]),
            self._operations.read(self.column_squares)[:, groups],
            comparison_numbers(self._problem, self._layout.group),
            is_exact(self._problem, self._layout.group, largest_a, largest_b),
        )

    @cached_property
    def _starts(self) -> np.ndarray:
        """The first columns of all groups, and the end of the last. Groups are numbered from panel to panel."""
        panels = zip(self._layout.share.column_panels, self._layout.panel_groups, strict=True)
        starts = [panel.lo + number * self._layout.group for panel, groups in panels for number in range(len(groups))]
        return np.array([*starts, self._problem.m])

    @property
    def _largest_elements(self) -> list[float]:
        """The largest magnitudes of A, B and C on this device."""
        largest = self._largest_told.tolist()
        return [max([largest[number] for number in numbers], default=0.0) for numbers in self._of_operands]
