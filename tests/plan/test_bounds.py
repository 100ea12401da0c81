# SPDX-License-Identifier: MIT
"""What nodes must exchange at least, and how near the grids come to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.core.problem import Problem
from hybrid.plan.bounds import least_received, least_received_with
from hybrid.plan.grid import candidates, received_where_it_suits

sizes = st.integers(1, 10_000)


def best(problem: Problem, nodes: int) -> float:
    return min(received_where_it_suits(grid, problem) for grid in candidates(nodes))


@given(st.builds(Problem, sizes, sizes, sizes), st.integers(1, 64))
def test_no_grid_receives_less_than_is_proven(problem, nodes):
    if nodes <= min(problem.n, problem.l, problem.m):
        assert best(problem, nodes) >= least_received(problem, nodes) * (1 - 1e-9)


@pytest.mark.parametrize("problem", [Problem(100_000, 100_000, 100_000), Problem(1_000_000, 10_000, 10_000)])
def test_from_4_to_1024_nodes_the_best_grid_receives_little_more(problem):
    for power in range(2, 11):
        assert best(problem, 2**power) <= 1.15 * least_received(problem, 2**power)


@pytest.mark.parametrize(
    ("sizes", "nodes", "least"),
    [
        ((80, 8, 4), 4, 8 * 4 * (1 - 1 / 4)),
        ((100, 100, 4), 4, 2 * 100 * 4 / 2 - 2 * 400 / 4),
        ((64, 64, 64), 8, 3 * 1024 - 3 * 512),
    ],
)
def test_boxes_with_one_two_and_three_faces_to_exchange(sizes, nodes, least):
    assert least_received(Problem(*sizes), nodes) == pytest.approx(least)
    assert least_received(Problem(*sizes[::-1]), nodes) == pytest.approx(least)


def test_with_little_memory_more_must_be_exchanged():
    problem = Problem(10_000, 10_000, 10_000)
    assert least_received_with(problem, 64, 100_000) > least_received(problem, 64) > least_received_with(problem, 64, 10**9)
    assert least_received(Problem(0, 5, 5), 4) == 0.0
