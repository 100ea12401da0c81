# SPDX-License-Identifier: MIT
"""What the ranks of a team send each other, large and small."""

from __future__ import annotations

import pytest

from hybrid.errors import RankFailed
from hybrid.ranks.messages import _SLOT
from hybrid.ranks.team import Team

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture
def team(comm):
    own = comm.Dup()
    made = Team(own)
    yield made
    made.free()
    own.Free()


@pytest.mark.parametrize("size", [*range(_SLOT - 50, _SLOT), 100_000])
def test_an_object_of_one_rank_alone_may_be_larger_than_those_that_are_sent_at_once(team, size):
    for large in range(team.size):
        with team.phase("exchange") as phase:
            phase.mine = bytes(size) if team.rank == large else team.rank
        assert phase.all == [bytes(size) if rank == large else rank for rank in range(team.size)]


def test_an_error_may_be_larger_than_what_is_sent_at_once(team):
    with pytest.raises(Exception, match=5000 * "x"), team.phase("exchange"):
        raise ValueError("x" * 5000 if team.rank == 0 else "short")
    with team.phase("exchange") as phase:
        phase.mine = team.rank
    assert phase.all == list(range(team.size))


def test_what_cannot_be_sent_is_the_ranks_failure_and_keeps_nobody_waiting(team):
    with pytest.raises(RankFailed, match=r"rank 0 .*lambda.*when it was pickled"), team.phase("exchange") as phase:
        phase.mine = (lambda: None) if team.rank == 0 else team.rank
    with team.phase("exchange") as phase:
        phase.mine = team.rank
    assert phase.all == list(range(team.size))


def test_an_interrupt_of_which_c_code_has_made_another_error_is_called_one(team, monkeypatch):
    monkeypatch.setattr("hybrid.ranks.team.interrupted", lambda: team.rank == 0)
    with pytest.raises(RankFailed, match=r"rank 0 on \S+, read: interrupted$"), team.phase("read"):
        int("no number" if team.rank == 0 else "1")
