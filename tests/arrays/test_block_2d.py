# SPDX-License-Identifier: MIT
"""Where blocks of two dimensions lie, as the plan sees it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

import hybrid
from hybrid.arrays.blocks_of_product import Blocks, problem_of_2d
from hybrid.core.spans import Topology
from hybrid.plan.grid import choose, received

sizes, blocks = st.integers(0, 50), st.integers(1, 9)


def dealt(shape, block, grid, rank):
    process = divmod(rank, grid[1])
    of = [
        [index for index in range(length) if index // each % processes == mine]
        for length, each, processes, mine in zip(shape, block, grid, process, strict=True)
    ]
    descriptor = (1, 0, *shape, *block, 0, 0, max(1, len(of[0])))
    return hybrid.Block2D.from_scalapack(np.empty((len(of[0]), len(of[1]))), descriptor, grid, process)


def placed(shape_a, columns, block_a, block_b, grid):
    ranks = range(grid[0] * grid[1])
    of_a = [dealt(shape_a, block_a, grid, rank) for rank in ranks]
    of_b = [dealt((shape_a[1], columns), block_b, grid, rank) for rank in ranks]
    return problem_of_2d([Blocks.of(a, b, "", lambda: 1) for a, b in zip(of_a, of_b, strict=True)])


@examples(60)
@given(
    sizes, sizes, sizes, st.tuples(blocks, blocks), st.tuples(blocks, blocks), st.sampled_from([(1, 1), (2, 2), (1, 3), (3, 2)])
)
def test_numbered_anew_every_element_still_has_one_place(n, l, m, block_a, block_b, grid):
    problem, placement = placed((n, l), m, block_a, block_b, grid)
    for parts, shape in ((placement.a, (n, l)), (placement.b, (l, m)), (placement.c, (n, m))):
        owners = np.zeros(shape, int)
        for part in parts:
            for rows in part.rows:
                for columns in part.columns:
                    owners[rows.slice, columns.slice] += 1
        np.testing.assert_array_equal(owners, 1)
    assert (problem.n, problem.l, problem.m) == (n, l, m)


@pytest.mark.parametrize("block", [8, 10, 128])
@pytest.mark.parametrize("grid", [(2, 2), (2, 3)])
def test_what_scalapack_has_dealt_costs_no_more_than_scalapacks_own_product(block, grid):
    """Each rank receives the rest of its rows of A and of its columns of B, and nothing of C."""
    n = l = m = 960
    problem, placement = placed((n, l), m, (block, block), (block, block), grid)
    topology = Topology.of_equal_nodes(grid[0] * grid[1], 1)
    chosen = choose(problem, topology, placement, 1 << 60)
    assert (chosen.rows, chosen.columns, chosen.layers) == (*grid, 1)
    for rank in range(topology.size):
        a, b = placement.a[rank], placement.b[rank]
        of_rank = a.shape[0] * (l - a.shape[1]) + (l - b.shape[0]) * b.shape[1]
        assert received(chosen, rank, problem, topology, placement) == of_rank


def test_a_shape_may_be_any_pair_of_whole_numbers():
    elements, spans = np.ones((2, 3)), ([(0, 2)], [(0, 3)])
    listed, numpys = (hybrid.Block2D(elements, shape, *spans) for shape in ([2, 3], np.array([2, 3])))
    assert listed.shape == numpys.shape == (2, 3)
    np.testing.assert_array_equal((listed + hybrid.Block2D(elements, (2, 3), *spans)).array, 2)
    np.testing.assert_array_equal(hybrid.gather(listed), elements)
