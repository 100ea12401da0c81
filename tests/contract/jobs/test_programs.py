# SPDX-License-Identifier: MIT
"""Programs over hybrid.multiply: whatever goes wrong on one rank is raised on all of them, by its code, and the next call works;
and a rank that does not call is named instead of waited for for ever (docs/failures.md)."""

import numpy as np
import pytest
from support.selection import exhaustive

import hybrid
import hybrid.testing
from hybrid.errors import CheckFailed, HybridError, RankFailed, RankMissing, UsageError

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.exhaustive(above=2)]
HOW = {"raise": "rank-failed", "memory": "out-of-memory", "exit 3": "rank-left"}
PHASES = ["agree", "scatter", "multiply", "gather", "check"]


def product(comm, rows=9, sign=1, **more):
    """A right one, demanded at the root."""
    a = sign * np.arange(7.0 * rows).reshape(rows, 7) if comm.rank == 0 else None
    b = sign + np.arange(35.0).reshape(7, 5) if comm.rank == 0 else None
    c = hybrid.multiply(a, b, comm=comm, **more)
    assert comm.rank or np.array_equal(c, a @ b)


# In a product like the last one, `scatter` is part of `agree`, which the root enters again when it has written A, and then B.
CASES = [(phase, 0, how, rank) for phase in PHASES for how in HOW for rank in (0, -1)]
CASES += [("agree", entry, how, 0) for entry in (1, 2) for how in HOW]


@pytest.mark.parametrize(("phase", "entry", "how", "rank"), exhaustive(CASES[::5], CASES))
def test_an_error_of_one_rank_is_raised_on_all_and_the_next_call_works(comm, phase, entry, how, rank):
    rank %= comm.size
    product(comm)
    with (
        hybrid.testing.plant("rank", rank=rank, at=entry, phase=phase, how=how),
        pytest.raises(RankFailed) as raised,
    ):
        product(comm, rows=8 if phase == "scatter" else 9)
    assert isinstance(raised.value, HybridError)
    assert isinstance(raised.value, RuntimeError)
    assert set(comm.allgather((raised.value.code, str(raised.value)))) == {(HOW[how], str(raised.value))}
    assert f"rank {rank} " in str(raised.value)
    product(comm, sign=-1)


@pytest.mark.parametrize("of_rank", [0, -1])
def test_what_one_rank_refuses_all_ranks_refuse(comm, of_rank):
    wrong = comm.rank == of_rank % comm.size
    with pytest.raises(UsageError) as raised:
        product(comm, threads=-1 if wrong else 1)
    assert len(set(comm.allgather((raised.value.code, raised.value.on_all_ranks)))) == 1
    assert raised.value.on_all_ranks
    product(comm)


def test_a_product_that_is_wrong_is_refused_on_all_ranks(comm):
    with hybrid.testing.plant("multiply", rank=comm.size - 1), pytest.raises(CheckFailed) as raised:
        product(comm)
    assert set(comm.allgather(raised.value.code)) == {"check-product"}
    product(comm)


CALLS = {
    "multiply": product,
    "multiply RowBlocks": lambda comm, **more: hybrid.multiply(
        *[hybrid.RowBlock(np.ones((1, comm.size)))] * 2, comm=comm, **more
    ),
    "empty": lambda comm, **more: hybrid.empty((2, 2), comm=comm, **more),
    "scatter": lambda comm, **more: hybrid.scatter(None if comm.rank else np.ones((4, 4)), comm=comm, **more),
    "gather": lambda comm, **more: hybrid.gather(hybrid.RowBlock(np.ones((1, 3))), comm=comm, **more),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "late"), exhaustive([("multiply", -1)], [(name, late) for name in CALLS for late in (0, -1)]))
def test_a_rank_that_does_not_call_is_named_and_nobody_hangs(comm, name, late):
    """Nor does it hang itself when it calls after all, and another communicator works."""
    own, late = comm.Dup(), late % comm.size  # never freed: some of its messages stay unfinished
    CALLS[name](own)
    if comm.rank == late:
        comm.Barrier()  # until the others have given up
    with pytest.raises(RankMissing) as raised:
        CALLS[name](own, stall=2)
    if comm.rank != late:
        comm.Barrier()
    said = comm.allgather((raised.value.code, str(raised.value)))
    assert {code for code, _ in said} == {"rank-missing"}
    assert all(f"rank {late} " in text for _, text in said)
    with pytest.raises(RankMissing):
        product(own)
    product(comm.Dup())
