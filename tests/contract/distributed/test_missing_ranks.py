# SPDX-License-Identifier: MIT
"""docs/python.md, Calls: a rank that does not call is named in a warning, and with `stall` or HYBRID_STALL by RankMissing on
those that wait and on those that call later. The communicator is lost then, a duplicate is not. Nobody hangs."""

import re
import time
import warnings

import numpy as np
import pytest
from support.cases import refused
from support.distributed import rows_of
from support.selection import exhaustive

import hybrid
from hybrid.errors import RankMissing, UsageError

pytestmark = [pytest.mark.mpi, pytest.mark.exhaustive(above=2)]
STALL = 1  # and after as many seconds more the call fails
several = pytest.mark.mpi(min_size=2)


def product(comm, **how):
    ones = np.ones((6, 6)) if comm.rank == 0 else None
    c = hybrid.multiply(ones, ones, comm=comm, **how)
    assert comm.rank or (c == 6).all()


CALLS = {
    "multiply": product,
    "row blocks": lambda own, **how: hybrid.multiply(*[hybrid.RowBlock(np.ones((1, own.size)))] * 2, comm=own, **how),
    "empty": lambda own, **how: hybrid.empty((2, 2), comm=own, **how),
    "operator": lambda own, **how: rows_of(own, np.eye(4), known=True) @ rows_of(own, np.eye(4)),
    "scatter": lambda own, **how: hybrid.scatter(None if own.rank else np.ones((4, 4)), comm=own, **how),
    "gather": lambda own, **how: hybrid.gather(rows_of(own, np.ones((4, 4))), comm=own, **how),
}


@pytest.fixture
def own(comm):
    """A communicator of this test's own, never freed: some of its messages stay unfinished."""
    return comm.Dup()


def meet(comm):
    """A barrier that leaves the core to others."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.01)


def call_without(comm, own, late, call=product, **how):
    """One rank calls when the others have given up. Whether each rank's error names it, and how many warnings it gave."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if comm.rank == late:
            meet(comm)
        with refused(RankMissing, "rank-missing") as raised:
            call(own, **how)
        if comm.rank != late:
            meet(comm)
    assert "\n" not in str(raised.value)
    named = comm.allgather(bool(re.search(rf"ranks? [\d, ]*\b{late}\b", str(raised.value))))
    return named, comm.allgather(sum(f"rank {late} " in str(one.message) for one in seen))


@several
@pytest.mark.parametrize("calls_before", exhaustive([2], [0, 2]))
def test_the_missing_rank_is_named_and_the_communicator_is_lost_but_no_duplicate(comm, own, calls_before):
    late = comm.size - 1 if calls_before else 0
    with hybrid.testing.pretend(stall=STALL):
        for _ in range(calls_before):
            product(own)
        named, warned = call_without(comm, own, late)
        present = [rank for rank in range(comm.size) if rank != late]
        assert all(named[rank] for rank in present)
        assert warned[present[0]] == 1
        with refused(RankMissing, "rank-missing"):
            product(own)
        product(comm.Dup())
    product(comm)


@several
@pytest.mark.parametrize("name", exhaustive(["row blocks", "scatter"], CALLS))
def test_every_call_can_miss_a_rank_and_the_keyword_goes_before_the_environment(comm, own, name):
    late, by_keyword = comm.size - 1, name != "operator"
    product(own)
    with hybrid.testing.pretend(stall=0 if by_keyword else STALL):
        named, _ = call_without(comm, own, late, CALLS[name], **({"stall": STALL} if by_keyword else {}))
    assert all(named[:late])


@several
def test_without_a_limit_ranks_are_waited_for_and_with_stall_0_without_a_word(comm, own):
    for _ in range(2):  # the first call on a communicator waits in a way of its own
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if comm.rank == comm.size - 1:
                time.sleep(2 * STALL + 0.5)
            with hybrid.testing.pretend(stall=STALL):
                product(own, stall=0)


@several
def test_a_rank_that_is_late_but_not_missing_is_named_and_waited_for(comm, own, monkeypatch):
    """Rank 0 warns, and then the last rank calls: seconds before the limit."""
    product(own)
    late, said = comm.size - 1, []
    if comm.rank == 0:
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_: (said.append(str(message)), comm.send(None, dest=late)))
    elif comm.rank == late:
        while not comm.iprobe(source=0):
            time.sleep(0.01)
        comm.recv(source=0)
    product(own, stall=4)
    product(own)
    assert len(said) == (comm.rank == 0)
    assert all(f"rank {late} " in each for each in said)


@several
@pytest.mark.exhaustive
def test_one_that_makes_its_first_call_after_the_others_have_given_up_learns_of_it(comm, own):
    """After 30 seconds, without a limit of its own."""
    if comm.rank == comm.size - 1:
        meet(comm)
    with refused(RankMissing, "rank-missing"):
        product(own, **({} if comm.rank == comm.size - 1 else {"stall": STALL}))
    if comm.rank != comm.size - 1:
        meet(comm)
    meet(comm)  # half a minute later


def test_what_is_no_number_of_seconds_is_refused_on_all_ranks(comm, own, monkeypatch):
    for name, call in CALLS.items():
        if name != "operator":
            for wrong in ("soon", -1, float("inf"), float("nan"), True):
                with refused(UsageError, "setting"):
                    call(own, stall=wrong)
            call(own, stall=np.float32(9))
    for wrong in ("x", "-3", "nan"):
        monkeypatch.setenv("HYBRID_STALL", wrong)
        with pytest.raises(UsageError):
            product(own)
