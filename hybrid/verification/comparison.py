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
from hybrid.verification.group_loops import FOUND, NOT_COMPARED, can_sum, compare
from hybrid.verification.group_loops import Comparison as LoopComparison
from hybrid.verification.group_sums import are_integers, in_cache, over_rows, sums_and_norms
from hybrid.verification.rounding import FEW, comparison_numbers, spread_of

MOST_SUSPECTS = 16
_LARGEST_KEPT = 1e30  # fits into float32
_TOTAL, _WORST, _GROUP = 0, 2, 3  # places in what is found of a row


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
        rows = c[:, expected.columns.slice]
        if can_sum(rows):
            found = self._found_by_loops(rows, expected, threads, kept)
            if (found[:, _TOTAL] == NOT_COMPARED).any():
                self._find(found, rows, expected, threads, kept)
        else:
            found = np.full((len(rows), FOUND), NOT_COMPARED)
            self._find(found, rows, expected, threads, kept)
        return _totals(found, len(expected.norms_b)), [
            Suspect(first_row + row, columns_of(int(found[row, _GROUP]), expected.columns), float(found[row, _WORST]))
            for row in _worst_rows(found[:, _WORST])
        ]

    def _found_by_loops(self, rows: np.ndarray, expected: Expected, threads: int, kept: np.ndarray | None) -> np.ndarray:
        """What is found of each row of C: see `compare` of group_loops.py."""
        arrays = [np.ascontiguousarray(each) for each in (expected.sums, expected.norms_a, expected.norms_b)]
        factor = self._deviation * _root_mean_square(expected.x)
        numbers = factor, self._per_term, self._flushed, self._overflow, expected.integral
        into = (kept.ctypes.data, kept.strides[0] // kept.itemsize) if kept is not None else (None, 0)
        wanted = LoopComparison(*(each.ctypes.data for each in arrays), *numbers, *into)
        return compare(rows, expected.x, GROUP_COLUMNS, threads, wanted)

    def _find(self, found: np.ndarray, c: np.ndarray, expected: Expected, threads: int, kept: np.ndarray | None) -> None:
        """The same with NumPy, for all rows of `found` that are not compared yet."""

        def find(where: slice, rows: np.ndarray) -> None:
            left = np.flatnonzero(found[where, _TOTAL] == NOT_COMPARED)
            for part, values in in_cache(rows if len(left) == len(rows) else rows[left]):
                some = where.start + left[part]
                differences, norms = sums_and_norms(values, expected.x, GROUP_COLUMNS)
                differences -= expected.sums[some]
                if expected.integral:
                    mark_fractions(differences, values)
                sizes, counted, judged = self.sizes(
                    differences, norms, expected.norms_a[some, None], expected.norms_b, expected.x
                )
                if kept is not None:
                    kept[some] = np.minimum(sizes, _LARGEST_KEPT)
                totals = np.minimum(sizes, MOST_IN_TOTAL).sum(axis=1), counted.sum(axis=1), sizes.max(axis=1)
                found[some] = np.stack([*totals, sizes.argmax(axis=1), (~judged).sum(axis=1)], axis=1)

        for _ in over_rows(c, threads, find):
            pass

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


def _totals(found: np.ndarray, groups: int) -> Totals:
    """The totals of what is found of rows with so many groups."""
    total, count, _, _, not_judged = found.sum(axis=0).tolist()
    worst, unjudged = float(found[:, _WORST].max(initial=0.0)), int(not_judged)
    return Totals(total, int(count), worst, unjudged, len(found) * groups - unjudged)


def _worst_rows(sizes: np.ndarray) -> list[int]:
    """The rows with the largest sizes, those that are not 0."""
    few = min(MOST_SUSPECTS, len(sizes))
    least = np.partition(sizes, len(sizes) - few)[len(sizes) - few] if few else 0.0
    rows = np.flatnonzero((sizes >= least) & (sizes > 0))
    return [int(row) for row in rows[np.argsort(-sizes[rows], kind="stable")][:few]]


def mark_fractions(differences: np.ndarray, values: np.ndarray) -> None:
    """Where the product is one of integers: make the differences of all groups with a fraction infinite."""
    if not are_integers(values):
        starts = np.arange(0, values.shape[1], GROUP_COLUMNS)
        differences[np.logical_or.reduceat(np.rint(values) != values, starts, axis=1)] = np.inf


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
