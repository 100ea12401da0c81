# SPDX-License-Identifier: MIT
"""Which sums of a product that a device multiplied look wrong. They are read from the device only where some do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from hybrid.core.spans import Span
from hybrid.host.row_sums import NOT_INTEGRAL
from hybrid.plan.check_layout import CheckLayout
from hybrid.verification.check import MOST_SUSPECTS, Suspect
from hybrid.verification.rounding import errors_of_rows, rows_together, spread_beside, usual_largest
from hybrid.verification.wrong_parts import LARGE, WrongParts


def fractions_in(layout: CheckLayout, found: np.ndarray, largest: np.ndarray) -> dict[int, Span]:
    """In a product of integers whose sums are exact: the rows of C that hold fractions too small to show in the sums of a group,
    and in which columns. In `found` they become differences. `largest`: the largest magnitudes of all rows of pieces."""
    rows_of_c = {}
    for piece in (each for each in layout.pieces if each.operand == "C"):
        of_piece = largest[piece.offset : piece.offset + len(piece.rows)]
        for row in (piece.rows.lo + np.flatnonzero(of_piece >= NOT_INTEGRAL)).tolist():
            if not found[row, 2]:
                found[row, 1:4] = 1, NOT_INTEGRAL, piece.groups.lo
                rows_of_c[row] = piece.columns
    return rows_of_c


class WrongSums:
    """The sums of a product that differ by more than `limit` standard deviations, which is 0 where every sum is exact.

    `sizes_of(rows)`: the sums' differences, in units of the expected ones. `found`: what `compare_sums` of kernels/check.cu says
    of each row.
    """

    def __init__(self, layout: CheckLayout, sizes_of: Callable[[slice], np.ndarray], found: np.ndarray, limit: float) -> None:
        self._layout, self._sizes_of, self._found, self._limit = layout, sizes_of, found, limit
        self._errors = errors_of_rows(found)

    def suspects(self, fractions: dict[int, Span]) -> tuple[Suspect, ...]:
        """All sums that look wrong, if these are in few rows, else those of the worst rows. `fractions`: what `fractions_in`
        returns."""
        limit, errors, first = self._limit, self._errors, self._layout.share.rows.lo
        above = np.flatnonzero(errors > limit)
        worst = above[np.argsort(-errors[above])][:MOST_SUSPECTS].tolist()
        of_rows = {row: [(int(self._found[row, 3]), float(errors[row]))] for row in worst}
        if limit and len(worst) < MOST_SUSPECTS:
            of_rows = {row: self._above(row, float(errors[row])) for row in worst}
        entries = [(row, group, size) for row, of_row in of_rows.items() for group, size in of_row]
        return tuple(Suspect(first + row, fractions.get(row) or self._columns(group), size) for row, group, size in entries)

    def _above(self, row: int, error: float) -> list[tuple[int, float]]:
        """All groups of a row whose sums look wrong, and the sizes of these sums. `error`: the largest size of the row."""
        near, of_rows = self._near
        sizes = of_rows[row - near.lo]
        largest = int(np.nanargmax(sizes))
        with np.errstate(all="ignore"):
            sizes = sizes * (error / sizes[largest])
        return [(group, float(sizes[group])) for group in np.flatnonzero(sizes > self._limit).tolist()] or [(largest, error)]

    def mark(self, wrong: WrongParts, fractions: dict[int, Span]) -> None:
        """Mark the parts of C in which sums look wrong: the largest of each row that has any, and others, for which all rows near
        these are looked at again, since large errors hide small ones in rows whose spread is taken together. `fractions`: as for
        `suspects`."""
        of_share, groups_of_share, first = len(self._layout.share.rows), self._layout.groups, self._layout.share.rows.lo
        near, sizes = self._near
        usual = usual_largest(of_share * groups_of_share) if self._limit else 0.0
        least, rows = usual * spread_beside(sizes, usual), np.flatnonzero(self._errors > self._limit)
        look_wrong = sizes > least
        look_wrong[rows - near.lo, self._found[rows, 3].astype(np.intp)] = True
        where, groups = np.nonzero(look_wrong)
        large = sizes[where, groups] > LARGE * least
        for group in np.unique(groups).tolist():
            of_group = groups == group
            wrong.suspect(first + near.lo + where[of_group], self._columns(group), large[of_group])
        for row, columns in fractions.items():
            wrong.add(np.array([first + row]), columns)

    @cached_property
    def _near(self) -> tuple[Span, np.ndarray]:
        """The rows from the first with a wrong sum to the last, and so many beyond as are taken together; the sizes of their
        sums."""
        rows, together = np.flatnonzero(self._errors > self._limit), rows_together(self._found[:, 1].mean())
        near = Span(max(0, int(rows[0]) - together), min(len(self._errors), int(rows[-1]) + 1 + together))
        return near, self._sizes_of(near.slice)

    def _columns(self, group: int) -> Span:
        panels = zip(self._layout.share.column_panels, self._layout.panel_groups, strict=True)
        panel, groups = next(each for each in panels if each[1].lo <= group < each[1].hi)
        first = panel.lo + (group - groups.lo) * self._layout.group
        return Span(first, min(first + self._layout.group, panel.hi))
