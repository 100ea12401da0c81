# SPDX-License-Identifier: MIT
"""Comparing C·x with A·(B·x) on the host: how large the differences are, in units of the rounding errors to be expected.

A difference in these units is called a size: 1 is what rounding errors are expected to make, at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.devices.cpu_check import MOST_IN_TOTAL
from hybrid.host.row_sums import NOT_INTEGRAL
from hybrid.plan.check_layout import GROUP_COLUMNS
from hybrid.verification.check import Suspect
from hybrid.verification.group_sums import Integers, are_integers, over_rows, summed
from hybrid.verification.rounding import FEW, comparison_numbers, spread_of

MOST_SUSPECTS = 16
_LARGEST_KEPT = 1e30  # fits into float32


@dataclass(frozen=True)
class Expected:
    """The sums of C·x that A and B let expect, for some rows of C and some groups of columns."""

    columns: Span  # of C, which the groups cover
    x: np.ndarray  # its elements for these columns
    sums: np.ndarray  # A·(B·x)
    norms_a: np.ndarray  # of A's rows
    norms_b: np.ndarray  # of all of B, for each group
    integral: bool  # A and B, as far as is known here


@dataclass(frozen=True)
class Totals:
    """What the comparison of many sums amounts to."""

    total: float  # of the sizes, each counted as MOST_IN_TOTAL at most
    count: int  # of sizes that are not 0
    worst: float  # the largest size
    not_judged: int  # sums where A·B may overflow, or holds NaN or infinities
    judged: int

    @property
    def spread(self) -> float:
        """The standard deviation of the sizes; 1, which is what is expected at most, where there are too few to tell."""
        return float(spread_of(self.total, self.count)) if self.count >= FEW else 1.0

    @property
    def error(self) -> float:
        """The largest difference, in standard deviations of this product's."""
        return self.worst / self.spread


@dataclass(frozen=True)
class Compared:
    """The comparison of some rows and groups of columns."""

    sums: Totals
    worst: list[tuple[float, int, int]]  # the largest size of each of the worst rows, as (size, row, group)


class Comparison:
    """Compares sums of one problem's products with those expected."""

    def __init__(self, problem: Problem, scale: float) -> None:
        """`scale`: the elements of x are integers times this."""
        variance, per_term, flushed, _ = comparison_numbers(problem, GROUP_COLUMNS).tolist()
        self._deviation, self._per_term, self._flushed = variance**0.5, per_term, flushed * scale
        self._overflow = float(np.finfo(problem.dtype).max) / 4

    def suspects(
        self, c: np.ndarray, first_row: int, expected: Expected, threads: int, keep: np.ndarray | None = None
    ) -> tuple[Totals, list[Suspect]]:
        """Compare the rows `c` of C: the totals of their sums, and the worst sums, one of a row.

        `first_row`: the number in C of `c`'s first row. `keep`: an array with a column for each group of C's columns, into which
        all sizes are written.
        """
        groups = slice(expected.columns.lo // GROUP_COLUMNS, -(-expected.columns.hi // GROUP_COLUMNS))
        kept = keep[:, groups] if keep is not None else None

        def compare(where: slice, rows: np.ndarray) -> list[Compared]:
            integers, found = Integers() if expected.integral else None, []
            for part, values, sums, norms in summed(rows[:, expected.columns.slice], expected.x, GROUP_COLUMNS, integers):
                here, differences = slice(where.start + part.start, where.start + part.stop), sums
                differences -= expected.sums[here]
                if integers is not None and not integers.integral:
                    mark_fractions(differences, values)
                found.append(self._compare(differences, norms, here, expected, kept))
            return found

        parts = [part for each in over_rows(c, threads, compare) for part in each]
        worst = sorted((entry for part in parts for entry in part.worst), reverse=True)[:MOST_SUSPECTS]
        return together([part.sums for part in parts]), [
            Suspect(first_row + row, columns_of(group, expected.columns), size) for size, row, group in worst
        ]

    def _compare(
        self, differences: np.ndarray, norms: np.ndarray, where: slice, expected: Expected, kept: np.ndarray | None
    ) -> Compared:
        """`differences`: of these rows' sums from those expected. They are overwritten, as are the `norms` of their groups."""
        sizes, counted, judged = self.sizes(differences, norms, expected.norms_a[where, None], expected.norms_b, expected.x)
        if kept is not None:
            kept[where] = np.minimum(sizes, _LARGEST_KEPT)
        not_judged, of_all = int(judged.size - judged.sum()), float(np.minimum(sizes, MOST_IN_TOTAL).sum())
        found = Totals(of_all, int(counted.sum()), float(sizes.max(initial=0.0)), not_judged, int(judged.sum()))
        groups = sizes.argmax(axis=1)
        of_rows = sizes[np.arange(len(sizes)), groups]
        rows = np.argsort(-of_rows)[:MOST_SUSPECTS]
        entries = zip(of_rows[rows].tolist(), (where.start + rows).tolist(), groups[rows].tolist(), strict=True)
        return Compared(found, [entry for entry in entries if entry[0]])

    def sizes(
        self, differences: np.ndarray, norms: np.ndarray, norms_a: np.ndarray, norms_b: np.ndarray, x: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The sizes of these differences, which of them are not 0, and which can be judged.

        The formula is that of `compare_sums` in kernels/check.cu, with norms in place of their squares, which may overflow or
        underflow. `norms`: of C's rows within each group; `norms_a` and `norms_b` are broadcast to their shape. `differences` and
        `norms` are overwritten.
        """
        with_b = norms_a * norms_b
        if not np.isfinite(with_b).all():  # 0 times what overflowed is 0
            with_b[(norms_a == 0) & (norms_b <= np.inf) | (norms_a <= np.inf) & (norms_b == 0)] = 0
        judged = with_b < self._overflow  # else A·B may overflow, or holds NaN or infinities
        norms /= with_b
        np.fmin(norms, 1.0, out=norms)  # no part of C is larger, unless it is wrong
        norms *= norms
        norms += self._per_term
        np.sqrt(norms, out=norms)
        norms *= with_b
        norms *= self._deviation * _root_mean_square(x)
        norms += self._flushed * (1 + norms_a + norms_b)
        sizes = np.abs(differences, out=differences)
        counted = (sizes != 0) & judged
        sizes = np.divide(sizes, norms, out=np.zeros_like(sizes), where=counted)
        sizes[~(sizes <= NOT_INTEGRAL)] = NOT_INTEGRAL
        return sizes, counted, judged


def mark_fractions(differences: np.ndarray, values: np.ndarray) -> None:
    """Where the product is one of integers: make the differences of all groups with a fraction as large as those of errors."""
    if not are_integers(values):
        starts = np.arange(0, values.shape[1], GROUP_COLUMNS)
        differences[np.logical_or.reduceat(np.rint(values) != values, starts, axis=1)] = NOT_INTEGRAL


def together(sums: Sequence[Totals]) -> Totals:
    """The totals of all these sums."""
    return Totals(
        sum(each.total for each in sums),
        sum(each.count for each in sums),
        max((each.worst for each in sums), default=0.0),
        sum(each.not_judged for each in sums),
        sum(each.judged for each in sums),
    )


def _root_mean_square(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x * x)))


def columns_of(group: int, columns: Span) -> Span:
    """The columns of a group, counted from the first of `columns`."""
    first = columns.lo + group * GROUP_COLUMNS
    return Span(first, min(first + GROUP_COLUMNS, columns.hi))
