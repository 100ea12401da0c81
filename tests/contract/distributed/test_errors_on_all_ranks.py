# SPDX-License-Identifier: MIT
"""docs/failures.md, Exceptions: an error on one rank is raised on all of them, with the same class, code and one line that names
the rank; and the next call works. All agree on settings before any data moves."""

import os
import signal
from contextlib import nullcontext

import numpy as np
import pytest
from support.distributed import rows_of

import hybrid
from hybrid.errors import HybridError, RankFailed

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.exhaustive(above=2)]
ONES = np.ones((40, 40))


def product(comm, **how):
    c = hybrid.multiply(*((ONES, ONES) if comm.rank == 0 else (None, None)), comm=comm, **how)
    assert (c == 40).all() if comm.rank == 0 else c is None


CALLS = {
    "root arrays": product,
    "row blocks": lambda comm: hybrid.multiply(rows_of(comm, ONES), rows_of(comm, ONES), comm=comm),
    "stacks": lambda comm: hybrid.multiply(*(np.ones((9, 4, 4)) if comm.rank == 0 else None for _ in "ab"), comm=comm),
    "complex": lambda comm: hybrid.multiply(*(ONES * 1j if comm.rank == 0 else None for _ in "ab"), comm=comm),
    "integers": lambda comm: hybrid.multiply(*(ONES.astype(int) if comm.rank == 0 else None for _ in "ab"), comm=comm),
    "scatter": lambda comm: hybrid.scatter(ONES if comm.rank == 0 else None, comm=comm),
    "gather": lambda comm: hybrid.gather(rows_of(comm, ONES), comm=comm),
    "empty": lambda comm: hybrid.empty((3, 3), comm=comm),
}
HOW = {"raise": "rank-failed", "memory": "out-of-memory", "exit 5": "rank-left"}
# Amid messages between nodes, too: large ones, which wait for their receiver, and small ones, which are sent before.
NODES = [{}, {"ranks_per_node": 1, "message_bytes": 100_000}, {"ranks_per_node": 1, "message_bytes": 1000}]
PHASES = [(phase, 0) for phase in ("agree", "allocate", "prepare", "scatter", "multiply", "gather", "check")]
PHASES += [("agree", 1), ("agree", 2)]  # where a rank enters it again


@pytest.mark.parametrize("settings", NODES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_whatever_one_rank_raises_all_ranks_raise_and_the_next_call_works(comm, name, settings):
    """In every phase that the call has."""
    call = CALLS[name]
    with hybrid.testing.pretend(**settings):
        raised_by_all(comm, call)


def raised_by_all(comm, call):
    call(comm)
    met = 0
    for number, (phase, at) in enumerate(PHASES):
        how = [*HOW][number % 3]
        rank = number % comm.size
        error = None
        with hybrid.testing.plant("rank", rank=rank, phase=phase, at=at, how=how) as planted:
            try:
                call(comm)
            except HybridError as raised:
                error = raised
        errors = comm.allgather((type(error), str(error), getattr(error, "code", "")))
        assert len(set(errors)) == 1, "the same on all ranks"
        planted_there = any(comm.allgather(planted.done))
        assert planted_there == (error is not None)
        if error is not None:
            assert isinstance(error, RuntimeError)
            assert f"rank {rank} on " in str(error)
            assert "\n" not in str(error)
            assert error.code == HOW[how]
        met += planted_there
        call(comm)
    assert met >= 1


def test_an_interrupt_of_one_rank_waits_for_the_others_and_is_raised_on_all(comm):
    """docs/failures.md, Ctrl-C: all raise RankFailed, which names the rank; the communicator is used again."""
    for phase in ("agree", "multiply", "wait"):
        rank = comm.size - 1 if phase != "wait" else 0
        interrupted = hybrid.testing.plant("rank", rank=rank, phase=phase, how=lambda: os.kill(os.getpid(), signal.SIGINT))
        with interrupted, pytest.raises(RankFailed) as found:
            product(comm)
        assert f"rank {rank} " in str(found.value)
        assert len(set(comm.allgather((found.value.code, str(found.value))))) == 1
        product(comm)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_in_the_last_exchange_of_a_call_is_raised_on_its_rank_alone(comm):
    """The call has ended on the others by then: nobody is out of step."""
    product(comm)
    with hybrid.testing.plant("rank", rank=0, phase="wait", times=0, how="raise") as waits:
        product(comm)
    last = comm.bcast(waits.seen) - 1
    how = hybrid.testing.plant("rank", rank=0, phase="wait", at=last, how=lambda: os.kill(os.getpid(), signal.SIGINT))
    with how, pytest.raises(KeyboardInterrupt) if comm.rank == 0 else nullcontext():
        product(comm)
    with hybrid.testing.plant("rank", rank=comm.size - 1, phase="multiply", how="raise"), pytest.raises(RankFailed):
        product(comm)
    product(comm)
