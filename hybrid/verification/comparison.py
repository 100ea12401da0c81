# SPDX-License-Identifier: MIT
"""C·x against A·(B·x) on the host: how large the differences are, in units of the rounding errors to be expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.host.row_sums import NOT_INTEGRAL
from hybrid.plan.check_layout import GROUP_COLUMNS
from hybrid.verification.check import Suspect
from hybrid.verification.group_sums import are_integers, in_cache, over_rows, sums_and_norms
from hybrid.verification.rounding import FEW, LEAST_SPREAD, MEAN_OF_NORMAL, of_product

MOST_SUSPECTS = 16
_LARGEST_KEPT = 1e30  # in float32
_MOST = 4.0  # a size counts at most as this in the sum of all


@dataclass(frozen=True)
class Expected:
    """What A and B say of some rows of C and some groups of columns. `columns` are those of C that the groups cover."""

    columns: Span
    x: np.ndarray
    sums: np.ndarray  # A·(B·x)
    norms_a: np.ndarray  # of A's rows
    norms_b: np.ndarray  # of all of B, for each group
    integral: bool  # A and B, as far as is known here


@dataclass(frozen=True)
class Totals:
    """Of many sums; the sizes are of differences that are not 0, in units of those expected."""

    total: float  # of the sizes, each at most 4
    count: int
    worst: float
    not_judged: int  # sums where A·B may overflow, or holds NaN or infinities
    judged: int

    @property
    def spread(self) -> float:
        """The standard deviation of the sizes, where there are enough to tell; at most 1, which is what is expected."""
        if self.count < FEW:
            return 1.0
        return min(1.0, max(LEAST_SPREAD, self.total / self.count / MEAN_OF_NORMAL))

    @property
    def error(self) -> float:
        """The largest difference, in standard deviations."""
        return self.worst / self.spread


@dataclass(frozen=True)
class Compared:
    """Of some rows and groups: the sums' sizes, and the worst of each row as (size, row, group)."""

    sums: Totals
    worst: list[tuple[float, int, int]]


class Comparison:
    """Of the rows of C that one rank looks at."""

    def __init__(self, problem: Problem, scale: float) -> None:
        """`scale`: of the elements of x, which are integers but for it."""
        variance, per_term, flushed, _ = of_product(problem, GROUP_COLUMNS).tolist()
        self._deviation, self._per_term, self._flushed = variance**0.5, per_term, flushed * scale
        self._overflow = float(np.finfo(problem.dtype).max) / 4

    def suspects(
        self, c: np.ndarray, first_row: int, expected: Expected, threads: int, keep: np.ndarray | None = None
    ) -> tuple[Totals, list[Suspect]]:
        """What the sums are like, and which are the worst, of each row one. `first_row`: of c, in C. `keep`: takes the sizes of
        all differences, a column for each group of the matrix."""
        groups = slice(expected.columns.lo // GROUP_COLUMNS, -(-expected.columns.hi // GROUP_COLUMNS))
        kept = keep[:, groups] if keep is not None else None

        def compare(where: slice, rows: np.ndarray) -> list[Compared]:
            return [
                self._compare(values, slice(where.start + part.start, where.start + part.stop), expected, kept)
                for part, values in in_cache(rows[:, expected.columns.slice])
            ]

        parts = [part for each in over_rows(c, threads, compare) for part in each]
        worst = sorted((entry for part in parts for entry in part.worst), reverse=True)[:MOST_SUSPECTS]
        return together([part.sums for part in parts]), [
            Suspect(first_row + row, columns_of(group, expected.columns), size) for size, row, group in worst
        ]

    def _compare(self, values: np.ndarray, where: slice, expected: Expected, kept: np.ndarray | None) -> Compared:
        sums, norms = sums_and_norms(values, expected.x, GROUP_COLUMNS)
        differences = sums - expected.sums[where]
        if expected.integral and not are_integers(values):
            starts = np.arange(0, values.shape[1], GROUP_COLUMNS)
            differences[np.logical_or.reduceat(np.rint(values) != values, starts, axis=1)] = NOT_INTEGRAL
        sizes, counted, judged = self.sizes(differences, norms, expected.norms_a[where, None], expected.norms_b, expected.x)
        if kept is not None:
            kept[where] = np.minimum(sizes, _LARGEST_KEPT)
        not_judged, of_all = int(judged.size - judged.sum()), float(np.minimum(sizes, _MOST).sum())
        found = Totals(of_all, int(counted.sum()), float(sizes.max(initial=0.0)), not_judged, int(judged.sum()))
        groups = sizes.argmax(axis=1)
        of_rows = sizes[np.arange(len(sizes)), groups]
        rows = np.argsort(-of_rows)[:MOST_SUSPECTS]
        entries = zip(of_rows[rows].tolist(), (where.start + rows).tolist(), groups[rows].tolist(), strict=True)
        return Compared(found, [entry for entry in entries if entry[0]])

    def sizes(
        self, differences: np.ndarray, norms: np.ndarray, norms_a: np.ndarray, norms_b: np.ndarray, x: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The sizes; which are of differences that are not 0; which can be judged. As `compare_sums` in kernels/check.cu, but
        of norms, whose squares may overflow or underflow. `norms`: of C's parts; those of A and B are broadcast to them."""
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
        norms *= self._deviation * _size_of(x)
        norms += self._flushed * (1 + norms_a + norms_b)
        sizes = np.abs(differences, out=differences)
        counted = (sizes != 0) & judged
        sizes = np.divide(sizes, norms, out=np.zeros_like(sizes), where=counted)
        sizes[~(sizes <= NOT_INTEGRAL)] = NOT_INTEGRAL
        return sizes, counted, judged


def together(sums: Sequence[Totals]) -> Totals:
    """Of all of these."""
    return Totals(
        sum(each.total for each in sums),
        sum(each.count for each in sums),
        max((each.worst for each in sums), default=0.0),
        sum(each.not_judged for each in sums),
        sum(each.judged for each in sums),
    )


def _size_of(x: np.ndarray) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(x * x)))


def columns_of(group: int, columns: Span) -> Span:
    first = columns.lo + group * GROUP_COLUMNS
    return Span(first, min(first + GROUP_COLUMNS, columns.hi))
