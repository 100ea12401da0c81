# SPDX-License-Identifier: MIT
"""Which squares of C are said to be wrong, from the sums that differ."""

from __future__ import annotations

import numpy as np
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.plan.check_layout import check_layout
from hybrid.verification.rounding import THRESHOLD
from hybrid.verification.wrong_parts import WrongParts
from hybrid.verification.wrong_sums import WrongSums

ROWS, COLUMNS = 512, 1280
GROUPS = COLUMNS // 64


def wrong_sums(sizes):
    layout = check_layout(planned(Problem(ROWS, 50, COLUMNS, "float64"), Topology(((0,),)), staged=True, check="on"), 0)
    assert sizes.shape == (len(layout.share.rows), layout.groups)
    none = np.zeros(ROWS)
    found = np.stack([sizes.sum(axis=1), none + GROUPS, sizes.max(axis=1), sizes.argmax(axis=1), none], axis=1)
    return WrongSums(layout, lambda rows: sizes[rows], found, THRESHOLD)


def marked(sums, fractions=None):
    parts = WrongParts(ROWS, COLUMNS)
    sums.mark(parts, fractions or {})
    found = zip(("small", "large", "known"), parts.found(), strict=True)
    return {(*square, how) for how, squares in found for square in squares.tolist()}


def test_the_squares_of_all_suspects_are_named_though_sums_nearby_are_less_accurate():
    """Otherwise nothing would be known to be wrong of a product that looks wrong."""
    sizes = np.full((ROWS, GROUPS), 0.9)
    sizes[:128] = 0.1
    sizes[127, 7] = 2.5
    found = wrong_sums(sizes)
    assert [(each.row, each.columns.lo) for each in found.suspects({})] == [(127, 7 * 64)]
    assert marked(found) == {(1, 7, "small")}


def test_smaller_differences_beside_large_ones_are_found():
    sizes = np.full((ROWS, GROUPS), 0.3)
    sizes[100, 3], sizes[101, 3], sizes[200, 19] = 1e6, 1e3, 20
    assert marked(wrong_sums(sizes)) == {(1, 3, "large"), (3, 19, "small")}


def test_all_columns_in_which_a_fraction_may_be_are_marked():
    sizes = np.full((ROWS, GROUPS), 0.3)
    sizes[100, 3] = 20
    fractions = {(4, across, "known") for across in range(3, 7)}
    assert marked(wrong_sums(sizes), {300: Span(200, 400)}) == {(1, 3, "small"), *fractions}


def test_what_is_wrong_far_down_is_marked_there():
    sizes = np.full((ROWS, GROUPS), 0.3)
    sizes[500, 3], sizes[490, 5] = 20, 1e6
    assert marked(wrong_sums(sizes)) == {(7, 3, "small"), (7, 5, "large")}
