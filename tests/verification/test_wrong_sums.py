# SPDX-License-Identifier: MIT
"""Which squares of C are said to be wrong, from the sums that differ."""

from __future__ import annotations

import numpy as np
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.plan.check_layout import check_layout
from hybrid.verification.rounding import THRESHOLD
from hybrid.verification.wrong_sums import WrongSums

ROWS, COLUMNS = 512, 1280
GROUPS = COLUMNS // 64


def wrong_sums(sizes):
    layout = check_layout(planned(Problem(ROWS, 50, COLUMNS, "float64"), Topology(((0,),)), staged=True, check="on"), 0)
    assert sizes.shape == (len(layout.share.rows), layout.groups)
    none = np.zeros(ROWS)
    found = np.stack([sizes.sum(axis=1), none + GROUPS, sizes.max(axis=1), sizes.argmax(axis=1), none], axis=1)
    return WrongSums(layout, lambda rows: sizes[rows], found, THRESHOLD)


def test_the_squares_of_all_suspects_are_named_though_sums_nearby_are_less_accurate():
    """Otherwise nothing would be known to be wrong of a product that looks wrong."""
    sizes = np.full((ROWS, GROUPS), 0.9)
    sizes[:128] = 0.1
    sizes[127, 7] = 2.5
    found = wrong_sums(sizes)
    assert [(each.row, each.columns.lo) for each in found.suspects({})] == [(127, 7 * 64)]
    assert found.squares({}).tolist() == [[1, 7, 0]]


def test_smaller_differences_beside_large_ones_are_found():
    sizes = np.full((ROWS, GROUPS), 0.3)
    sizes[100, 3], sizes[101, 3], sizes[200, 19] = 1e6, 1e3, 20
    assert wrong_sums(sizes).squares({}).tolist() == [[1, 3, 1], [3, 19, 0]]


def test_all_columns_in_which_a_fraction_may_be_are_named():
    sizes = np.zeros((ROWS, GROUPS))
    sizes[100, 3] = 20
    squares = wrong_sums(sizes).squares({300: Span(200, 400)})
    assert squares.tolist() == [[1, 3, 0], [4, 3, 1], [4, 4, 1], [4, 5, 1], [4, 6, 1]]
