# SPDX-License-Identifier: MIT
"""A rank that does not call: the others name it and go on, and so does it when it comes too late."""

from __future__ import annotations

import math
import time
import warnings
from itertools import product as product_of

import numpy as np
import pytest
from support.selection import exhaustive

import hybrid
from hybrid.errors import RankMissing
from hybrid.ranks.arrival import Limits

STALL = 0.4


@pytest.fixture
def own(comm):
    """A communicator of this test's own, never freed: some of its messages stay unfinished."""
    return comm.Dup()


def product(own):
    ones = np.ones((6, 6)) if own.rank == 0 else None
    c = hybrid.multiply(ones, ones, comm=own)
    assert own.rank or np.array_equal(c, np.full((6, 6), 6.0))


def call_without(comm, own, late):
    """Every rank's RankMissing, as text, and the warnings that it gave; the rank `late` calls when the others have given up."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if comm.rank == late:
            time.sleep(Limits.of().fail + 0.5)
        with pytest.raises(RankMissing) as raised:
            product(own)
    assert isinstance(raised.value, hybrid.errors.HybridError)
    return comm.allgather(str(raised.value)), comm.allgather([str(one.message) for one in seen])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("calls_before", "late"), exhaustive([(0, -1), (2, 0)], product_of([0, 2], [0, -1])))
def test_the_missing_rank_is_named_once_and_nobody_hangs(comm, own, monkeypatch, calls_before, late):
    monkeypatch.setenv("HYBRID_STALL", str(STALL))
    for _ in range(calls_before):
        product(own)
    late %= comm.size
    errors, said = call_without(comm, own, late)
    for rank, error in enumerate(errors):
        assert f"rank {late} did not call" in error or (rank == late and not calls_before), error
        assert "\n" not in error
        assert "cannot be used any more, another can: comm.Dup()" in error
    present = [rank for rank in range(comm.size) if rank != late]
    assert [len(said[rank]) for rank in present] == [1] + [0] * (len(present) - 1)
    assert f"rank {late} did not call" in said[present[0]][0]
    with pytest.raises(RankMissing, match="cannot be used any more"):
        product(own)
    product(comm.Dup())


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("calls_before", [0, 1])
def test_a_rank_that_is_late_is_named_and_waited_for_where_no_limit_is_set(comm, own, monkeypatch, calls_before):
    monkeypatch.setattr(Limits, "of", classmethod(lambda cls: cls(STALL, math.inf)))
    for _ in range(calls_before):
        product(own)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if comm.rank == comm.size - 1:
            time.sleep(STALL + 1)
        product(own)
    assert [str(one.message) for one in seen if "did not call" not in str(one.message)] == []
    assert len(seen) == (comm.rank == 0)
    product(own)


@pytest.mark.mpi(min_size=3)
def test_ranks_that_come_one_after_the_other_are_not_missed(comm, own, monkeypatch):
    product(own)
    monkeypatch.setenv("HYBRID_STALL", str(STALL))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        time.sleep(comm.rank * 0.1)
        product(own)


@pytest.mark.parametrize(
    ("value", "warn", "fail"),
    [
        ("", 60, math.inf),
        ("5", 5, 10),
        ("0", math.inf, math.inf),
        ("x", 60, math.inf),
        ("-3", 60, math.inf),
        ("nan", 60, math.inf),
    ],
)
def test_the_limits_that_the_environment_sets(value, warn, fail):
    assert Limits.of({"HYBRID_STALL": value}) == Limits(warn, fail)
