# SPDX-License-Identifier: MIT
"""Series of MPI's non-blocking collectives: columns of matrices between some ranks, and failures while they are under way."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.core.spans import Span
from hybrid.errors import RankFailed
from hybrid.ranks.collectives import exchange, row_allgather, row_broadcast
from hybrid.ranks.team import Team

pytestmark = pytest.mark.mpi(min_size=2)
ROWS, COLUMNS, PANEL = 37, 50, 20
PANELS = [slice(first, first + PANEL) for first in range(0, COLUMNS, PANEL)]


@pytest.fixture
def team(comm):
    made = Team(comm)
    yield made
    made.free()


@pytest.fixture
def right(comm, rng):
    return comm.bcast(rng.random((ROWS, COLUMNS)))


def series(team, ranks, make, kind="panels"):
    team.connect(kind, ranks)
    with team.phase("prepare"):
        return team.messages.collectives.series(kind, ranks, [make(columns) for columns in PANELS])


def test_panels_are_broadcast_in_place_and_nothing_beside_them_is_written(comm, team, right):
    ranks = list(range(comm.size))[::-1]
    matrix = right.copy() if team.rank == ranks[1] else np.full_like(right, -1.0)
    made = series(team, ranks, lambda columns: row_broadcast(matrix[:, columns], 1))
    with team.phase("multiply"):
        made.start(2)
        made.wait_for(0)
        while not made.is_complete(1):
            pass
    assert made.started == 2
    np.testing.assert_array_equal(matrix[:, : 2 * PANEL], right[:, : 2 * PANEL])
    assert team.rank == ranks[1] or (matrix[:, 2 * PANEL :] == -1.0).all()


def test_parts_of_matrices_are_exchanged_and_nothing_beside_them_is_written(comm, team, right):
    """Each rank sends rank r the r-th part of the rows of some columns, and gets its own part from all."""
    ranks = range(comm.size)
    parts = [Span(0, ROWS).part(comm.size, rank).slice for rank in ranks]
    mine = right + team.rank
    gathered = np.full((comm.size, ROWS, COLUMNS), -1.0)

    def make(columns):
        sends = {rank: [mine[parts[rank], columns]] for rank in ranks}
        return exchange(sends, {rank: [gathered[rank, parts[team.rank], columns]] for rank in ranks}, team.rank)

    made = series(team, ranks, make, "parts")
    with team.phase("multiply"):
        made.wait_until_complete()
    assert made.started == len(PANELS)
    for rank in ranks:
        np.testing.assert_array_equal(gathered[rank, parts[team.rank]], right[parts[team.rank]] + rank)
    gathered[:, parts[team.rank]] = -1.0
    assert (gathered == -1.0).all()


def test_who_has_nothing_to_exchange_takes_part_all_the_same(team, right):
    matrix = np.full_like(right, -1.0)
    top, bottom = slice(0, 5), slice(5, ROWS)
    sends = {1: [right[top], right[bottom]]} if team.rank == 0 else {}
    receives = {0: [matrix[top], matrix[bottom]]} if team.rank == 1 else {}
    collectives = team.messages.collectives
    collectives.connect("parts", range(team.size))
    with team.phase("multiply"):
        made = collectives.series("parts", range(team.size), [exchange(sends, receives, team.rank)])
        made.wait_until_complete()
    np.testing.assert_array_equal(matrix, right if team.rank == 1 else -1.0)


def test_rows_of_all_are_gathered_on_all_also_where_some_have_none(comm, team, right):
    ends = [0, *(ROWS * rank // (comm.size - 1) for rank in range(1, comm.size)), ROWS] if comm.size > 2 else [0, 0, ROWS]
    rows = [Span(*ends[rank : rank + 2]) for rank in range(comm.size)]
    matrix = np.full_like(right, np.nan)
    own = rows[team.rank].slice
    matrix[own] = right[own]
    made = series(team, range(comm.size), lambda columns: row_allgather(matrix[:, columns], rows))
    with team.phase("multiply"):
        for number in range(len(PANELS)):
            made.wait_for(number)
    np.testing.assert_array_equal(matrix, right)


def test_ranks_that_do_not_take_part_have_no_series(comm, team, right):
    ranks = [0, 1]
    matrix = right.copy()
    for _ in range(2):  # the communicator is made once
        made = series(team, ranks, lambda columns: row_broadcast(matrix[:, columns], 0))
        assert (made is None) == (team.rank not in ranks)
        with team.phase("multiply"):
            if made is not None:
                made.wait_for(len(PANELS) - 1)


@pytest.mark.parametrize(("started", "failing"), [(0, 0), (1, 1), (3, 1), (0, 1), (1, 0)])
def test_after_a_failure_all_that_was_started_ends_and_the_team_goes_on(comm, team, right, started, failing):
    matrix = right.copy() if team.rank == 0 else np.zeros_like(right)
    made = series(team, range(comm.size), lambda columns: row_broadcast(matrix[:, columns], 0))

    def fail():
        with team.phase("multiply"):
            made.start(started if team.rank == failing else 2)
            if team.rank == failing:
                raise ValueError("planted")
            made.wait_for(2)

    with pytest.raises(RankFailed, match=rf"rank {failing} on .*, multiply: ValueError: planted"):
        fail()
    if team.rank == 0:
        matrix *= 2  # other than what was under way
    again = series(team, range(comm.size), lambda columns: row_broadcast(matrix[:, columns], 0))
    with team.phase("multiply"):
        for number in range(len(PANELS)):
            again.wait_for(number)
    np.testing.assert_array_equal(matrix, 2 * right)
