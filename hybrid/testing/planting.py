# SPDX-License-Identifier: MIT
"""Plants faults in written data, ranks, disks and clocks; fixes the check's random numbers; counts operations."""

from __future__ import annotations

import errno
import itertools
import os
import random
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hybrid.testing.operations import Listener, listening, rank, replace

if TYPE_CHECKING:
    from hybrid.testing.spoils import Spoil

_DATA = {
    "multiply": ("devices",), "copy in": ("devices",), "copy out": ("devices",), "arrive": ("devices", "messages"),
}  # fmt: skip
_OF_DISKS = ("full", "killed before", "killed amid", "killed after")
_FILLING = ("pwrite", "fsync", "ftruncate", "truncate")


class Planted(Listener):
    """A planted fault, and its effect on this rank.

    Attributes
    ----------
    seen : int
        Operations of the fault's kind so far, on the ranks where it is planted. With ``times=0`` they are only counted.
    done : bool
        The fault has changed something: a value of a matrix, a clock, a file operation; or it has made a rank fail.
    """

    def __init__(self, kind: str, of_rank: int | None, at: int, times: int | None) -> None:
        self.kind, self.seen, self.done = kind, 0, False
        self._rank, self._first, self._times = of_rank, at, times
        self._counting = threading.Lock()
        self.told: Callable[[Planted], object] = lambda planted: None  # called once, when `done` becomes true

    def __repr__(self) -> str:
        return f"<a fault in {self.kind!r}: {self.seen} seen, {'done' if self.done else 'nothing changed'}>"

    def _next_is_meant(self) -> bool:
        if self._rank not in (None, rank()):
            return False
        with self._counting:
            number, self.seen = self.seen, self.seen + 1
        return number >= self._first and (self._times is None or number < self._first + self._times)

    def _note_done(self) -> None:
        if not self.done:
            self.done = True
            self.told(self)


class _Spoiling(Planted):
    def __init__(self, kind: str, how: str | Spoil, *where: Any) -> None:
        super().__init__(kind, *where)
        self._how, self.groups = how, _DATA[kind]

    def begins(self, kind: str, into: Any, source: Any = None) -> bool:
        return kind == self.kind and self._next_is_meant()

    def ends(self, into: Any, source: Any, before: Any) -> None:
        from hybrid.testing.spoils import spoiled

        if spoiled(into, source, before, self._how):
            self._note_done()


class _FailingRank(Planted):
    def __init__(self, how: str | Callable[[], object], phase: str, *where: Any) -> None:
        super().__init__("rank", *where)
        self._how, self._phase = how, phase

    def begins(self, kind: str, into: Any, source: Any = None) -> bool:
        if kind == "rank" and into == self._phase and self._next_is_meant():
            self._note_done()
            _fail(self._how)
        return False


def _fail(how: str | Callable[[], object]) -> None:
    if callable(how):
        how()
    elif how.startswith("exit "):
        sys.exit(int(how.removeprefix("exit ")))
    elif how.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[how])
    elif how == "memory":
        bytearray(1 << 62)  # more than any address space has: a MemoryError of Python's own
    else:
        raise ValueError("planted")


class _FaultyDisk(Planted):
    groups = ("files",)

    def __init__(self, how: str, *where: Any) -> None:
        super().__init__("disk", *where)
        self._how = how

    def file_operation(self, name: str, given: tuple[Any, ...], run: Callable[[], Any]) -> Callable[[], Any]:
        if not self._next_is_meant() or (self._how == "full" and name not in _FILLING):
            return run

        def faulty() -> Any:
            self._note_done()
            if self._how == "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._how == "killed amid" and name == "pwrite":
                descriptor, data, at = given
                os.pwrite(descriptor, memoryview(data).cast("B")[: memoryview(data).nbytes // 2], at)
            elif self._how != "killed before":
                run()
            os.kill(os.getpid(), signal.SIGKILL)

        return faulty


class _FaultyClock(Planted):
    """A clock by which a rank's multiplications take a second in each product, or on a slow rank a multiple."""

    groups = ("clocks",)

    def __init__(self, how: str, *where: Any) -> None:
        super().__init__("clock", *where)
        self._factor = 1.0 if how == "even" else float(how.removeprefix("slow "))

    def timed(self, timings: Any) -> Iterator[tuple[str, float, float]]:
        factor = self._factor if self._next_is_meant() else 1.0
        listed = sorted(timings, key=lambda timing: timing[1])
        own = [timing for timing in listed if timing[0] == "multiply"]
        yield from (timing for timing in listed if timing[0] != "multiply")
        for number, (phase, _, _) in enumerate(own):
            self._note_done()
            begin = own[0][1] + number * factor / len(own)
            yield phase, begin, begin + factor / len(own)


@contextmanager
def plant(
    kind: str,
    rank: int | None = None,
    at: int = 0,
    times: int | None = 1,
    how: str | Callable[..., object] | None = None,
    *,
    phase: str = "multiply",
) -> Iterator[Planted]:
    """Plant a fault in this context. Several can be planted at once.

    Parameters
    ----------
    kind
        ``"multiply"``: the result of a device's multiplication, in place or staged, each matrix of a stack by itself;
        ``"copy in"`` and ``"copy out"``: copies to and from a device with its own memory (``HYBRID_STAGED=1``, or a GPU);
        ``"arrive"``: a matrix, or part of one, received from another rank or its device;
        ``"rank"``: a rank that enters a phase; ``"disk"``: a file operation; ``"clock"``: the times of multiplications.
    rank
        The rank in the communicator of the call, or in the job before the first call; None: every rank. All ranks may plant it.
    at, times
        The first affected operation of this kind on that rank, from 0, and their number; None: all from there on. A clock is
        wrong in all products from the first on.
    how
        For data ``"element"`` (the default: off by the largest magnitude), ``"lowest bit"``, ``"sign"``, ``"zero"``, ``"nan"``,
        ``"stale row"``, ``"rows swapped"``, ``"columns swapped"``, ``"shifted row"``, ``"shifted column"``, ``"nothing"`` (not
        written), ``"lost k"`` (a term of each sum of a multiplication), or a function of ``into``, ``source`` and the elements
        ``before``, as NumPy matrices; a multiplication's source is ``(a, b)``. If a fault changes no value, such as swapped
        rows of a single row, one element is changed instead.
        For a rank ``"raise"`` (a ValueError), ``"exit N"``, a signal such as ``"SIGKILL"``, ``"memory"`` (a MemoryError), or a
        function without arguments.
        For a disk ``"full"``, or ``"killed before"``, ``"killed amid"`` or ``"killed after"`` the operation.
        For a clock ``"even"``: all multiplications of a product take a second on each rank; ``"slow 4"``: four on this one.
    phase
        For ``"rank"``: the phase as an error's message names it, such as ``"agree"``, ``"scatter"``, ``"multiply"``,
        ``"gather"`` or ``"check"``; in commands also ``"start"``, and ``"MPI start"`` before it; or ``"wait"``, a wait for
        other ranks. A product like the previous one may have no ``"scatter"``: A and B then come with ``"agree"``.

    Yields
    ------
    Planted
        Counts the operations, and says whether the fault has changed something.

    Raises
    ------
    ValueError
        There is no such fault.
    """
    planted = _made(kind, how, phase, (rank, at, times))
    with listening(planted):
        yield planted


def _made(kind: str, how: Any, phase: str, where: tuple[int | None, int, int | None]) -> Planted:
    if kind in _DATA:
        from hybrid.testing.spoils import SPOILS

        how = "element" if how is None else how
        if callable(how) or how in SPOILS:
            return _Spoiling(kind, how, *where)
    elif kind == "rank":
        how = "raise" if how is None else how
        known = callable(how) or how in ("raise", "memory") or how in signal.Signals.__members__
        if known or (how.startswith("exit ") and how[5:].isdecimal()):
            return _FailingRank(how, phase, *where)
    elif kind == "disk" and how in _OF_DISKS:
        return _FaultyDisk(how, *where)
    elif kind == "clock" and isinstance(how, str) and (how == "even" or how.startswith("slow ")):
        return _FaultyClock(how, where[0], where[1], None)
    raise ValueError(f"no fault is known as {kind!r}, how={how!r}")


_DRAWING = ("hybrid.verification.", "hybrid.execution.rank_run", "hybrid.diagnostics.acceptance")


@contextmanager
def seed(number: int) -> Iterator[None]:
    """Derive the check's random vectors from `number`, in the order in which the context draws them.

    This includes the seed of an acceptance test's matrices. Other random numbers, such as names of temporary files, stay random.
    """
    drawn = itertools.count()

    def draw(by: Callable[[random.Random, Any], Any], original: Callable[[Any], Any], of: Any) -> Any:
        if not sys._getframe(2).f_globals.get("__name__", "").startswith(_DRAWING):
            return original(of)
        return by(random.Random(f"{number} {next(drawn)}"), of)  # noqa: S311 (nothing is kept secret)

    with ExitStack() as stack:
        replace(stack, secrets, "randbits", partial(draw, random.Random.getrandbits))
        replace(stack, secrets, "randbelow", partial(draw, random.Random.randrange))
        replace(stack, secrets, "choice", partial(draw, random.Random.choice))
        yield


@dataclass
class Counts(Listener):
    """This rank's operations in the context.

    Attributes
    ----------
    exchanges : int
        Rounds of messages among ranks in which this rank took part.
    bytes_sent : int
        Bytes that it passed to MPI for them: objects as pickles, a broadcast matrix once.
    copied_in, copied_out : int
        Bytes copied from host memory to a device with its own memory, and back.
    multiplications : int
        Calls of a device's multiplication, and matrices of stacks.
    """

    exchanges: int = 0
    bytes_sent: int = 0
    copied_in: int = 0
    copied_out: int = 0
    multiplications: int = 0

    groups = ("devices", "messages")

    def begins(self, kind: str, into: Any, source: Any = None) -> bool:
        if kind == "copy in" and not hasattr(source, "__cuda_array_interface__"):
            self.copied_in += into.nbytes
        elif kind == "copy out" and not hasattr(into, "__cuda_array_interface__"):
            self.copied_out += into.nbytes
        self.multiplications += kind == "multiply"
        return False

    def sends(self, size: int) -> None:
        self.exchanges += 1
        self.bytes_sent += size


@contextmanager
def count() -> Iterator[Counts]:
    """Count this rank's operations in the context.

    Yields
    ------
    Counts
        They increase in the context and keep their values afterwards.
    """
    counts = Counts()
    with listening(counts):
        yield counts
