# SPDX-License-Identifier: MIT
"""Calls of hybrid in which one rank raises, or is interrupted, at a random line: mpirun python broken_calls.py SEED FIRST LAST

Rank 0 prints a JSON line for each trial: what was done, what every rank raised, and what came of the next call. Every rank writes
where it stands to the file HANGS.RANK when a trial takes longer than LIMIT.
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

LIMIT = 12.0  # seconds, far more than twice HYBRID_STALL
PACKAGE = os.path.dirname(hybrid.__file__) + os.sep
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
_dice = np.random.default_rng(1)
A, B = _dice.standard_normal((90, 70)), _dice.standard_normal((70, 50))
STACK = _dice.standard_normal((5, 20, 30))
WHOLE = np.arange(90 * 70).reshape(90, 70) % 1000 - 500


class Nested:
    """An operand that is itself a product."""

    def __array__(self, dtype=None, copy=None):
        return hybrid.multiply(A, np.eye(70))


def at_root(a, b, **options):
    def call(comm):
        given = (a, b) if comm.rank == 0 else (None, None)
        return hybrid.multiply(*given, comm=comm, **options), np.asarray(a) @ np.asarray(b) if comm.rank == 0 else None

    return call


def rows(matrix, comm):
    first, last = (len(matrix) * each // comm.size for each in (comm.rank, comm.rank + 1))
    return hybrid.RowBlock(matrix[first:last])


def of_rows(comm):
    return hybrid.multiply(rows(A, comm), rows(B, comm), comm=comm).array, rows(A @ B, comm).array


def of_transposed_rows(comm):
    product = hybrid.multiply(rows(A, comm), rows(A, comm), transpose_a=True, comm=comm)
    return product.array, (A.T @ A)[product.first_row :][: len(product.array)]


def block(matrix, comm):
    """Of a grid of one row of ranks."""
    first, last = (matrix.shape[1] * each // comm.size for each in (comm.rank, comm.rank + 1))
    return hybrid.Block2D(matrix[:, first:last], matrix.shape, [(0, len(matrix))], [(first, last)])


def of_blocks(comm):
    return hybrid.multiply(block(A, comm), block(B, comm), comm=comm).array, block(A @ B, comm).array


def in_shared_memory(comm):
    made = [hybrid.empty(each.shape, comm=comm) for each in (A, B)]
    if comm.rank == 0:
        for into, each in zip(made, (A, B), strict=True):
            into[:] = each
    return hybrid.multiply(*(made if comm.rank == 0 else (None, None)), comm=comm), A @ B if comm.rank == 0 else None


def back_and_forth(comm):
    part = hybrid.scatter(A if comm.rank == 0 else None, comm=comm)
    return hybrid.gather(part, comm=comm), A if comm.rank == 0 else None


def by_plan(comm):
    given = (A, B) if comm.rank == 0 else (None, None)
    return hybrid.plan(*given, comm=comm).run(*given), A @ B if comm.rank == 0 else None


CALLS = {
    "root": at_root(A, B),
    "host check": at_root(A, B, check="host"),
    "repair": at_root(A, B, on_fault="repair"),
    "integers": at_root(WHOLE, WHOLE.T),
    "complex": at_root(A + 1j * A, B),
    "stack": at_root(STACK, STACK.transpose(0, 2, 1)),
    "nested": at_root(Nested(), B),
    "rows": of_rows,
    "transposed rows": of_transposed_rows,
    "blocks": of_blocks,
    "shared": in_shared_memory,
    "scatter": back_and_forth,
    "plan": by_plan,
}
PLACES = {
    "": {},
    "staged": {"HYBRID_STAGED": "1", "HYBRID_PANEL_ROWS": "20"},
    "nodes": {"HYBRID_RANKS_PER_NODE": "1"},
    "staged nodes": {"HYBRID_STAGED": "1", "HYBRID_PANEL_ROWS": "20", "HYBRID_RANKS_PER_NODE": "1"},
}
KINDS = ("first", "warm", "other")  # of a new communicator, the same call once more, another call
ERRORS = {each.__name__: each for each in (MemoryError, KeyboardInterrupt, ValueError, OSError, SystemExit)}
SIGINTS = ("SIGINT", "SIGINT later")


class Lines:
    """The lines of the package that this thread runs: counted, or one of them fails."""

    def __init__(self, site=None, number=0, fail=None):
        self.seen, self._site, self._left, self._fail, self.failed_at = Counter(), site, number, fail, ""

    def __enter__(self):
        sys.settrace(self._enters)
        return self

    def __exit__(self, *failure):
        sys.settrace(None)

    def _enters(self, frame, event, argument):
        name = frame.f_code.co_filename
        return self._runs if name.startswith(PACKAGE) else None

    def _runs(self, frame, event, argument):
        if event == "line":
            site = frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_lineno
            if self._site is None:
                self.seen[site] += 1
            elif site == self._site and not self.failed_at and not _leaves_context(frame):
                self._left -= 1
                if self._left < 0:
                    self.failed_at = f"{site[0]}:{site[1]} {frame.f_code.co_name}"
                    self._fail()
        return self._runs


def _leaves_context(frame):
    """Whether `__exit__` of a context is called next: only where lines are traced does Python raise there, and then leaves it
    out."""
    following = itertools.islice((each for each in dis.get_instructions(frame.f_code) if each.offset >= frame.f_lasti), 3)
    return [(each.opname, each.argval) for each in following] == [("LOAD_CONST", None)] * 3


class Ranks:
    """What all ranks tell each other outside of the package, on a communicator of its own."""

    def __init__(self):
        self._comm, self._number = WORLD.Dup(), 0

    def tell(self, mine):
        self._number += 1
        sent = [self._comm.isend(mine, each, self._number % 30000) for each in range(SIZE) if each != RANK]
        got = {}
        while len(got) < SIZE - 1:
            for each in range(SIZE):
                if each != RANK and each not in got and self._comm.iprobe(each, self._number % 30000):
                    got[each] = self._comm.recv(source=each, tag=self._number % 30000)
            time.sleep(1e-4)
        for request in sent:
            request.wait()
        return [mine if each == RANK else got[each] for each in range(SIZE)]


def outcome(call, comm):
    """ "" where the call is right, else what is wrong."""
    try:
        got, wanted = call(comm)
    except RankMissing as lost:
        return f"lost: {lost}"
    except BaseException as error:
        everywhere = getattr(error, "on_all_ranks", None)
        return f"{type(error).__name__}{'' if everywhere is None else '*' if everywhere else '?'}: {' '.join(str(error).split())}"
    right = (got is None) == (wanted is None) and (got is None or (got.shape == wanted.shape and np.allclose(got, wanted)))
    return "" if right else "WRONG"


def main():
    seed, first, last = map(int, sys.argv[1:4])
    only = dict(word.split("=") for word in sys.argv[4:])
    hangs = open(f"HANGS.{RANK}", "w")
    faulthandler.enable(hangs)
    ranks, comm, before, known = Ranks(), None, None, {}
    handler = signal.getsignal(signal.SIGINT)
    for number in range(first, last):
        dice = random.Random(f"{seed} {number}")
        victim, name, kind = dice.randrange(SIZE), dice.choice(list(CALLS)), dice.choice(KINDS)
        place, error = dice.choice(list(PLACES)), dice.choice([*ERRORS, *SIGINTS])
        name, kind, place, error = (
            only.get("name", name),
            only.get("kind", kind),
            only.get("place", place),
            only.get("error", error),
        )
        for each in {key for pairs in PLACES.values() for key in pairs}:
            os.environ.pop(each, None)
        os.environ.update(PLACES[place])
        faulthandler.dump_traceback_later(LIMIT, repeat=False, file=hangs)
        kind = "first" if comm is None else kind
        if kind == "first":
            comm, before = WORLD.Dup(), None
        if kind == "warm" and before != (name, place):
            for _ in range(2):
                bad = outcome(CALLS[name], comm)
                if bad:
                    print(f"UNEXPECTED before trial {number} on rank {RANK}: {bad}", flush=True)
            ranks.tell(None)
        if (name, place, kind) not in known:  # count its lines on this rank
            of_count = comm
            if kind == "first":
                of_count = WORLD.Dup()
            with Lines() as lines:
                bad = outcome(CALLS[name], of_count)
            if bad:
                print(f"UNEXPECTED in count {number} on rank {RANK}: {bad}", flush=True)
            known[name, place, kind] = sorted(lines.seen.items())
            ranks.tell(None)
        said, raised, failed_at, timer = "", None, "", None
        began = time.monotonic()
        if RANK == victim:
            sites = known[name, place, kind]
            site, times = dice.choice(sites)
            if "site" in only:
                site = [each for each, _ in sites if f"{each[0]}:{each[1]}" == only["site"]][0]
                times = dict(sites)[site]
            at = dice.choice([0, dice.randrange(times)])

            def fail():
                if error in ERRORS:
                    raise ERRORS[error]("planted")
                os.kill(os.getpid(), signal.SIGINT)

            try:
                if error == "SIGINT later":
                    timer = threading.Timer(dice.uniform(0, 0.02 if kind == "warm" else 0.05), fail)
                    timer.start()
                    said = outcome(CALLS[name], comm)
                else:
                    with Lines(site, at, fail) as lines:
                        said = outcome(CALLS[name], comm)
                    failed_at = lines.failed_at
            except BaseException as late:  # outside of the call
                said = said or f"after: {type(late).__name__}"
            if timer is not None:
                for _ in range(3):
                    with suppress(KeyboardInterrupt):
                        timer.join()
                        time.sleep(0.001)
                        break
        else:
            said = outcome(CALLS[name], comm)
        took = time.monotonic() - began
        told = ranks.tell((said, failed_at, took))
        restored = signal.getsignal(signal.SIGINT) is handler
        afterwards = ranks.tell((outcome(CALLS[name], comm), restored))
        if any(state for state, _ in afterwards):
            comm, before = None, None
        else:
            before = name, place
        signal.signal(signal.SIGINT, handler)
        faulthandler.cancel_dump_traceback_later()
        if RANK == 0:
            line = {
                "number": number,
                "victim": victim,
                "call": name,
                "kind": kind,
                "place": place,
                "error": error,
                "at": told[victim][1],
                "seconds": round(max(each[2] for each in told), 2),
                "said": [each[0] for each in told],
                "next": [each[0] for each in afterwards],
                "unrestored": [each for each in range(SIZE) if not afterwards[each][1]],
            }
            print(json.dumps(line), flush=True)


main()
