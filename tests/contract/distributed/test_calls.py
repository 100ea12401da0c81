# SPDX-License-Identifier: MIT
"""docs/python.md, Calls: threads of ranks take turns; a call from within another one is refused; an interrupt is never lost. What
holds of one process, and of forked ones, is in tests/contract/products/test_calls.py."""

import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support.commands import own_lines, start

import hybrid
from hybrid.errors import UsageError

A = np.arange(900.0).reshape(30, 30) % 11


def right(comm=None, **how):
    c = hybrid.multiply(*((A, A) if comm is None or comm.rank == 0 else (None, None)), comm=comm, **how)
    return c is None if comm is not None and comm.rank else np.array_equal(c, A @ A)


def in_threads(work, count=3):
    found = []
    threads = [threading.Thread(target=lambda number=number: found.append(work(number))) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.mark.mpi(min_size=2)
def test_threads_of_ranks_take_turns_with_one_communicator_and_with_several(comm):
    own = [comm.Dup() for _ in range(3)]
    assert in_threads(lambda number: all(right(own[number]) for _ in range(5))) == [True] * 3
    assert in_threads(lambda number: all(right(comm) for _ in range(5))) == [True] * 3, "the same product by all"
    for each in own:
        each.Free()


def _call_within(comm, seen):
    try:
        right(comm)
    except UsageError as error:
        seen.append(error.code)


@pytest.mark.mpi
def test_a_call_from_within_another_is_refused_and_the_outer_one_goes_on(comm):
    """As from the handler of a signal, or an array that multiplies when it is read."""
    right(comm)
    seen = []
    with hybrid.testing.plant("rank", phase="multiply", how=lambda: _call_within(comm, seen)):
        assert right(comm)
    with hybrid.testing.plant("rank", phase="agree", how=lambda: _call_within(None, seen)):
        assert right(comm)
    assert seen[:1] == ["reentered"]
    assert set(seen) <= {"reentered"}

    class Multiplies:
        def __array__(self, dtype=None, copy=None):
            _call_within(comm, seen)
            return A

    seen.clear()
    if comm.rank == 0:
        c = hybrid.multiply(Multiplies(), A, comm=comm)
        assert (seen, np.array_equal(c, A @ A)) == (["reentered"], True)
    else:
        hybrid.multiply(None, None, comm=comm)
    handler = signal.signal(signal.SIGUSR2, lambda *_: _call_within(comm, seen))
    seen.clear()
    with hybrid.testing.plant("rank", phase="multiply", how=lambda: signal.raise_signal(signal.SIGUSR2)):
        assert right(comm)
    signal.signal(signal.SIGUSR2, handler)
    assert seen == ["reentered"]


# Interrupts


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_within_a_product_of_one_process_is_raised_and_the_next_works():
    for phase in ("agree", "multiply", "check"):
        with hybrid.testing.plant("rank", phase=phase, how=interrupt), pytest.raises(KeyboardInterrupt):
            right()
        assert right()


@pytest.mark.needs("compiler")
def test_an_interrupt_of_an_emulated_kernel_waits_until_it_has_stopped():
    done = start([sys.executable, Path(__file__).with_name("programs") / "interrupted_kernel.py"])
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr[-2000:]


@pytest.mark.mpi(min_size=2)
def test_the_programs_own_handler_is_called_once_and_stays(comm):
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(1))
    try:
        for phase in ("multiply", "wait"):
            with hybrid.testing.plant("rank", phase=phase, how=interrupt):
                assert right(comm)
            assert came == [1]
            interrupt()
            assert came == [1, 1]
            came.clear()
    finally:
        signal.signal(signal.SIGINT, before)


WAITS = """
from mpi4py import MPI
import os, signal, sys, threading, numpy, hybrid
comm = MPI.COMM_WORLD
ones = numpy.ones((5, 5)) if comm.rank == 0 else None
hybrid.multiply(ones, ones, comm=comm)
if comm.rank == 1:
    comm.recv(source=0)
    os._exit(0)
waiting = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
waiting.start()
try:
    hybrid.multiply(ones, ones, comm=comm)
except KeyboardInterrupt:
    try:
        hybrid.multiply(ones, ones, comm=comm)
    except hybrid.errors.RankMissing as error:
        print("alone", error.code, flush=True)
comm.send(None, dest=1)
os._exit(0)
"""


@pytest.mark.launcher
def test_an_interrupt_waits_a_second_for_the_others_and_then_the_communicator_is_lost(tmp_path):
    program = tmp_path / "waits.py"
    program.write_text(WAITS)
    done = start([sys.executable, program], ranks=2)
    assert "alone rank-missing" in done.stdout, done.stdout + done.stderr


FAILING = """
from mpi4py import MPI
import numpy, hybrid
comm = MPI.COMM_WORLD
hybrid.multiply(numpy.ones((3, 4)), numpy.ones((3, 4)), comm=comm)
"""


@pytest.mark.launcher
def test_a_program_that_catches_nothing_ends_all_ranks_when_mpi4py_runs_it(tmp_path):
    """docs/python.md: `python -m mpi4py program.py`."""
    program = tmp_path / "fails.py"
    program.write_text(FAILING)
    done = start([sys.executable, "-m", "mpi4py", program], ranks=2)
    assert done.returncode != 0
    assert "UsageError" in done.stderr
    assert not own_lines(done.stdout)
