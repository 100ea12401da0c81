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
from hybrid.errors import RankMissing, UsageError
from hybrid.ranks import arrival
from hybrid.ranks.arrival import Limits

STALL = 0.4


@pytest.fixture
def own(comm):
    """A communicator of this test's own, never freed: some of its messages stay unfinished."""
    return comm.Dup()


def product(own, **more):
    ones = np.ones((6, 6)) if own.rank == 0 else None
    c = hybrid.multiply(ones, ones, comm=own, **more)
    assert own.rank or np.array_equal(c, np.full((6, 6), 6.0))


def call_without(comm, own, late, call=product):
    """Every rank's RankMissing, as text, and the warnings that it gave; the rank `late` calls when the others have given up."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if comm.rank == late:
            time.sleep(Limits.of(STALL).fail + 0.5)
        with pytest.raises(RankMissing) as raised:
            call(own)
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


CALLS = {
    "multiply": product,
    "multiply RowBlocks": lambda own, **more: hybrid.multiply(*[hybrid.RowBlock(np.ones((1, own.size)))] * 2, comm=own, **more),
    "empty": lambda own, **more: hybrid.empty((2, 2), comm=own, **more),
    "scatter": lambda own, **more: hybrid.scatter(None if own.rank else np.ones((4, 4)), comm=own, **more),
    "gather": lambda own, **more: hybrid.gather(hybrid.RowBlock(np.ones((1, 3))), comm=own, **more),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("calls_before", [0, 1])
def test_the_keyword_wins_over_the_environment(comm, own, monkeypatch, name, calls_before):
    call, late = CALLS[name], comm.size - 1
    monkeypatch.setenv("HYBRID_STALL", "0")  # never
    for _ in range(calls_before):
        call(own)
    errors, said = call_without(comm, own, late, lambda own: call(own, stall=STALL))
    assert all(f"rank {late} did not call within" in error for error in errors[:late])
    assert [len(each) for each in said[:late]] == [1] + [0] * (late - 1)


@pytest.mark.mpi(min_size=2)
def test_the_keyword_is_of_one_call(comm, own, monkeypatch):
    monkeypatch.setenv("HYBRID_STALL", str(STALL))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # the first call on a communicator waits in a way of its own
            if comm.rank == comm.size - 1:
                time.sleep(Limits.of(STALL).fail + 0.5)
            product(own, stall=0)
    errors, _ = call_without(comm, own, 0)
    assert "rank 0 did not call" in errors[-1]


@pytest.mark.mpi
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("stall", "says"),
    [
        ("soon", "stall must be a number"),
        (-1, "stall must not be negative"),
        (float("inf"), "0 means never"),
        (True, "stall must be a"),
    ],
)
def test_what_is_no_number_of_seconds_is_refused_on_all_ranks(comm, own, name, stall, says):
    with pytest.raises(UsageError, match=says):
        CALLS[name](own, stall=stall)
    CALLS[name](own, stall=np.float32(9))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("calls_before", [0, 1])
def test_a_rank_that_is_late_is_named_and_waited_for_where_no_limit_is_set(comm, own, monkeypatch, calls_before):
    monkeypatch.setattr(Limits, "of", classmethod(lambda cls, stall: cls(STALL, math.inf)))
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


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_comes_too_late_without_a_limit_of_its_own_does_not_wait_for_ever(comm, own, monkeypatch):
    late = comm.rank == comm.size - 1
    monkeypatch.setattr(arrival, "_GIVEN_UP", STALL)
    if late:
        time.sleep(Limits.of(STALL).fail + 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RankMissing, match="another can"):
            product(own, **({} if late else {"stall": STALL}))


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
    assert Limits.of(environment={"HYBRID_STALL": value}) == Limits(warn, fail)
    assert Limits.of(7, {"HYBRID_STALL": value}) == Limits(7, 14)
