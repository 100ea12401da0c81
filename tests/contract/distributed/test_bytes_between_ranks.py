# SPDX-License-Identifier: MIT
"""docs/algorithm.md: which bytes travel. On one node none of the matrices; between nodes what the distribution makes necessary
and no more, as the plan counts it; elements are computed without messages."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.distributed import dealt, rows_of

import hybrid

pytestmark = pytest.mark.mpi(min_size=2)
N = 240  # rows and columns, a multiple of all numbers of ranks
MATRIX = 8 * N * N
A = np.ones((N, N))
TALK = 0.02  # of a matrix: what ranks tell each other of options and results


def sent(comm: Any, call: Callable[[], object], **settings: Any) -> tuple[np.ndarray, int]:
    """The matrices that each rank sends in a call that is not the first, and how often this rank takes part in an exchange."""
    with hybrid.testing.pretend(device="cpu", check="off", **settings):
        call()
        with hybrid.testing.count() as counts:
            call()
    return np.array(comm.allgather(counts.bytes_sent / MATRIX)), counts.exchanges


def of_root(comm, root=0):
    return lambda: hybrid.multiply(*((A, A) if comm.rank == root else (None, None)), comm=comm, root=root)


def of_rows(comm):
    return lambda: hybrid.multiply(rows_of(comm, A), rows_of(comm, A), comm=comm)


def test_on_one_node_no_element_goes_from_rank_to_rank(comm):
    for call in (of_root(comm), of_root(comm, comm.size - 1), of_rows(comm)):
        amounts, exchanges = sent(comm, call)
        assert (amounts < TALK).all()
        assert exchanges < 20


def test_between_nodes_with_whole_rows_b_travels_once_and_of_a_and_c_what_is_elsewhere(comm):
    p = comm.size
    other_nodes = {"ranks_per_node": 1, "grid": "rows"}
    amounts, _ = sent(comm, of_root(comm), **other_nodes)
    np.testing.assert_allclose(amounts, [1 + (p - 1) / p, *[1 / p] * (p - 1)], atol=TALK)  # B and rows of A; rows of C
    amounts, _ = sent(comm, of_rows(comm), **other_nodes)
    np.testing.assert_allclose(amounts, (p - 1) / p, atol=TALK)  # its rows of B to all others


def test_on_grids_the_parts_of_a_b_and_c_travel_that_the_plan_counts(comm):
    p = comm.size
    part, twice = (p - 1) / p, (p - 1) / p**2
    grids = {f"1x{p}": part + 2 * twice, f"1x1x{p}": twice + part}  # A, B and C; A and terms of C
    grids |= {"2x2": 3 / 4} if p == 4 else {}
    for grid, amount in grids.items():
        amounts, _ = sent(comm, of_rows(comm), ranks_per_node=1, grid=grid)
        np.testing.assert_allclose(amounts, amount, atol=TALK, err_msg=grid)


def test_of_blocks_on_their_own_grid_no_c_travels_and_half_of_the_rows_and_columns(comm):
    """On r×c ranks each needs the rest of its rows of A and of its columns of B."""
    rows, columns = (2, comm.size // 2) if comm.size % 2 == 0 else (1, comm.size)
    blocks = N // rows, N // columns
    a = dealt(comm, A, (rows, columns), blocks)
    amounts, _ = sent(comm, lambda: hybrid.multiply(a, a, comm=comm), ranks_per_node=1)
    of_a, of_b = (1 / rows) * (1 - 1 / columns), (1 / columns) * (1 - 1 / rows)
    np.testing.assert_allclose(amounts, of_a + of_b, atol=TALK)


def test_messages_are_as_small_as_they_are_asked_to_be(comm):
    """The same bytes, in more exchanges."""
    for call in (of_root(comm), of_rows(comm)):
        (large, few), (small, many) = (
            sent(comm, call, ranks_per_node=1, grid="rows", message_bytes=size) for size in (1 << 28, MATRIX // 30)
        )
        np.testing.assert_allclose(small, large, atol=TALK)
        assert many >= few + 20
