# SPDX-License-Identifier: MIT
"""The numbers that the check rests on: its random vectors show any two columns that change places, and errors that are the same
in all columns; a product is exact where nothing rounds, in it and in the check. A failure within the check reaches all ranks."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hybrid.arrays.integers import odd_words, times_words
from hybrid.core.problem import Problem
from hybrid.devices.row_sums import NOT_INTEGRAL
from hybrid.verification.check import is_exact, random_x, smallest_x

GROUPS = st.sampled_from([1, 64, 100, 512])
SEEDS = st.integers(0, 2**32)


def groups_of(x, widths, group):
    """Its parts for panels of these widths, whose columns are summed in groups of so many."""
    ends = np.cumsum(widths).tolist()
    return [x[a : min(a + group, end)] for end, width in zip(ends, widths, strict=True) for a in range(end - width, end, group)]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 300), max_size=5), GROUPS, SEEDS)
def test_x_are_integers_that_differ_within_a_group_and_do_not_cancel(widths, group, seed):
    x = random_x(np.random.default_rng(seed), widths, group)
    assert len(x) == sum(widths)
    assert (np.rint(x) == x).all()
    assert ((np.abs(x) >= smallest_x(group)) & (np.abs(x) < 2 * smallest_x(group))).all()
    for part in groups_of(x, widths, group):
        assert len(set(np.abs(part))) == len(part)
        assert abs(part.sum()) >= np.sqrt(np.square(part).sum()) * (1 - 1e-12)


@pytest.mark.parametrize("group", [64, 512])
def test_signs_of_x_are_random(group):
    signs = np.sign(np.stack([random_x(np.random.default_rng(seed), [group], group) for seed in range(400)]))
    assert 0.4 < (signs > 0).mean() < 0.6
    assert np.abs(signs.mean(axis=0)).max() < 0.3  # of each column, over 400 draws


EXACT = {  # type, terms, largest of A and of B: whether no sum is rounded, neither of the product nor of the check
    ("float32", 1, 2**12, 2**12): True,
    ("float32", 1, 2**12 + 1, 2**12): False,
    ("float32", 2, 2**11, 2**12): True,
    ("float32", 3, 2**11, 2**12): False,
    ("float64", 2**20, 2**10, 2**10): True,
    ("float64", 2**20, 2**10, 2**11): False,  # in the check: 2⁴¹ · 127 · 64 > 2⁵³
    ("float64", 1, NOT_INTEGRAL, 1): False,
    ("float64", 0, 2**40, 2**40): True,
}


def test_what_is_exact():
    for (dtype, terms, largest_a, largest_b), exact in EXACT.items():
        assert is_exact(Problem(3, terms, 3, dtype), 64, largest_a, largest_b) == exact, (dtype, terms, largest_a, largest_b)


@given(st.lists(st.integers(-(2**53), 2**53), min_size=1, max_size=30), SEEDS)
@example([2**53, 2**53 - 1, -(2**53), 1 - 2**53, 0], 0)
def test_products_modulo_a_power_of_two_differ_where_a_number_does(numbers, seed):
    x, row = odd_words(np.random.default_rng(seed), len(numbers)), np.array([numbers], np.float64)
    found = times_words(row, x, 2)
    assert found == times_words(row[:, ::-1], x[::-1], 2), "in any order"
    row[0, 0] = -row[0, 0] or 1
    assert found != times_words(row, x, 2)
