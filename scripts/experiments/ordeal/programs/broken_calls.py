# SPDX-License-Identifier: MIT
"""Calls of hybrid in which one rank raises, or is interrupted, at a random line: mpirun python broken_calls.py SEED FIRST LAST

Rank 0 prints a JSON line for each trial: the call and the error, what every rank raised, and the result of the next call. A trial
that takes longer than LIMIT ends the job with the ranks' stack traces.
"""

import dis
import faulthandler
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress

import numpy as np
from mpi4py import MPI

import hybrid
from hybrid.errors import RankMissing

LIMIT = 40.0  # seconds, far more than twice HYBRID_STALL
PACKAGE = os.path.dirname(hybrid.__file__) + os.sep
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
_drawn = np.random.default_rng(1)
A, B = _drawn.standard_normal((90, 70)), _drawn.standard_normal((70, 50))
STACK = _drawn.standard_normal((5, 20, 30))
WHOLE = np.arange(90 * 70).reshape(90, 70) % 1000 - 500


class Product:
    """An operand that is itself a product."""

    def __array__(self, dtype=None, copy=None):
        return hybrid.multiply(A, np.eye(70))


# Calls: each returns this rank's result and the right one.
def at_root(a, b, by=hybrid.multiply, **options):
    def call(comm):
        given = (a, b) if comm.rank == 0 else (None, None)
        return by(*given, comm=comm, **options), np.asarray(a) @ np.asarray(b) if comm.rank == 0 else None

    return call


def in_parts(part):
    return lambda comm: (hybrid.multiply(part(A, comm), part(B, comm), comm=comm).array, part(A @ B, comm).array)


def rows(matrix, comm):
    first, last = (len(matrix) * each // comm.size for each in (comm.rank, comm.rank + 1))
    return hybrid.RowBlock(matrix[first:last])


def of_transposed_rows(comm):
    product = hybrid.multiply(rows(A, comm), rows(A, comm), transpose_a=True, comm=comm)
    return product.array, (A.T @ A)[product.rows[0][0] :][: len(product.array)]


def block(matrix, comm):
    """This rank's block on a grid of one row of ranks."""
    first, last = (matrix.shape[1] * each // comm.size for each in (comm.rank, comm.rank + 1))
    return hybrid.Block2D(matrix[:, first:last], matrix.shape, [(0, len(matrix))], [(first, last)])


def in_shared_memory(comm):
    made = [hybrid.empty(each.shape, comm=comm) for each in (A, B)]
    if comm.rank == 0:
        for into, each in zip(made, (A, B), strict=True):
            into[:] = each
    return hybrid.multiply(*(made if comm.rank == 0 else (None, None)), comm=comm), A @ B if comm.rank == 0 else None


def there_and_back(comm):
    whole = A if comm.rank == 0 else None
    return hybrid.gather(hybrid.scatter(whole, comm=comm), comm=comm), whole


CALLS = {
    "root": at_root(A, B),
    "host check": at_root(A, B, check="host"),
    "repair": at_root(A, B, on_fault="repair"),
    "integers": at_root(WHOLE, WHOLE.T),
    "complex": at_root(A + 1j * A, B),
    "stack": at_root(STACK, STACK.transpose(0, 2, 1)),
    "nested": at_root(Product(), B),
    "rows": in_parts(rows),
    "transposed rows": of_transposed_rows,
    "blocks": in_parts(block),
    "shared": in_shared_memory,
    "scatter": there_and_back,
    "plan": at_root(A, B, lambda *operands, comm: hybrid.plan(*operands, comm=comm).run(*operands)),
}
if os.environ.get("HYBRID_DEVICE") == "cuda":
    del CALLS["nested"]  # the root computes it alone, and refuses a nested call
PANELS = {"HYBRID_STAGED": "1", "HYBRID_PANEL_ROWS": "20"}
NODES = {"HYBRID_RANKS_PER_NODE": "1"}
SETTINGS = [{}, PANELS, NODES, PANELS | NODES]
KINDS = ("first", "warm", "other")  # call on a new communicator, the same call again, a different call
ERRORS = {each.__name__: each for each in (MemoryError, KeyboardInterrupt, ValueError, OSError, SystemExit)}
SIGINTS = ("SIGINT at a line", "SIGINT at a time")


class Lines:
    """Counts the package's lines that this thread runs, or calls `fail` at one of them."""

    def __init__(self, site=None, number=0, fail=None):
        self.seen, self._site, self._left, self._fail, self.failed_at = Counter(), site, number, fail, ""

    def __enter__(self):
        sys.settrace(lambda frame, event, argument: self._runs if frame.f_code.co_filename.startswith(PACKAGE) else None)
        return self

    def __exit__(self, *failure):
        sys.settrace(None)

    def _runs(self, frame, event, argument):
        if event == "line":
            site = frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_lineno
            if self._site is None:
                self.seen[site] += 1
            elif site == self._site and not self.failed_at and not never_raises(frame):
                self._left -= 1
                if self._left < 0:
                    self.failed_at = f"{site[0]}:{site[1]} {frame.f_code.co_name}"
                    self._fail()
        return self._runs


def never_raises(frame):
    """Whether the line does nothing, or calls a context's `__exit__`: only under tracing can Python raise there, and it then
    leaves the context open."""
    instructions = (each for each in dis.get_instructions(frame.f_code) if each.offset >= frame.f_lasti)
    following = [(each.opname, each.argval) for each in itertools.islice(instructions, 3)]
    return following == [("LOAD_CONST", None)] * 3 or following[0][0] in ("NOP", "SWAP", "PUSH_EXC_INFO", "WITH_EXCEPT_START")


OUTSIDE = WORLD.Dup()  # not used by the package


def told(mine):
    """An Allgather in which ranks wait without using their cores."""
    all_have_come = OUTSIDE.Ibarrier()
    while not all_have_come.Test():
        time.sleep(1e-4)
    return OUTSIDE.allgather(mine)


def outcome(call, comm):
    """What is wrong with a call; empty if it is right."""
    try:
        got, wanted = call(comm)
    except RankMissing as lost:
        return f"lost: {lost}"
    except BaseException as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    right = (got is None) == (wanted is None) and (got is None or (got.shape == wanted.shape and np.allclose(got, wanted)))
    return "" if right else "wrong"


def broken(call, comm, error, sites, dice):
    """The outcome of a call that fails on this rank, and the line where it failed. `sites`: lines, and how often each runs."""

    def fail():
        if error in ERRORS:
            raise ERRORS[error]("planted")
        os.kill(os.getpid(), signal.SIGINT)

    if error != SIGINTS[1]:
        site, times = dice.choice(sites)
        with Lines(site, dice.choice([0, dice.randrange(times)]), fail) as lines:
            said = outcome(call, comm)
        return said, lines.failed_at
    said, timer = "", threading.Timer(dice.uniform(0, 0.03), fail)
    with suppress(KeyboardInterrupt):  # after the call
        timer.start()
        said = outcome(call, comm)
        timer.join()
        time.sleep(0.001)
    timer.join()
    return said, ""


def counted(call, comm):
    """The lines of a call without a fault, and how often each runs."""
    before, os.environ["HYBRID_STALL"] = os.environ["HYBRID_STALL"], "0"  # tracing is slow
    with Lines() as lines:
        said = outcome(call, comm)
    os.environ["HYBRID_STALL"] = before
    assert not said, said
    return sorted(lines.seen.items())


def main():
    seed, first, last = map(int, sys.argv[1:])
    comm, before, known = None, None, {}
    handler = signal.getsignal(signal.SIGINT)
    for number in range(first, last):
        dice = random.Random(f"{seed} {number}")  # noqa: S311 (no secret)
        victim, name, settings = dice.randrange(SIZE), dice.choice(list(CALLS)), dice.choice(SETTINGS)
        error, kind, call = dice.choice([*ERRORS, *SIGINTS]), dice.choice(KINDS), CALLS[name]
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        for variable in PANELS | NODES:
            os.environ.pop(variable, None)
        os.environ.update(settings)
        kind = "first" if comm is None else kind
        if kind == "first":
            comm = WORLD.Dup()
        if kind == "warm" and before != (name, settings):
            counted(call, comm)
        if (place := (name, kind, str(settings))) not in known:
            known[place] = counted(call, WORLD.Dup() if kind == "first" else comm)
        told(None)
        of_ranks = told(broken(call, comm, error, known[place], dice) if victim == RANK else (outcome(call, comm), ""))
        afterwards = told(outcome(call, comm))
        comm, before = None if any(afterwards) else comm, (name, settings)
        signal.signal(signal.SIGINT, handler)
        faulthandler.cancel_dump_traceback_later()
        if RANK == 0:
            said, places = zip(*of_ranks, strict=True)
            about = {"number": number, "ranks": SIZE, "victim": victim, "call": name, "kind": kind, "settings": settings}
            print(json.dumps(about | {"error": error, "at": places[victim], "said": said, "next": afterwards}), flush=True)


main()
