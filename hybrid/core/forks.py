# SPDX-License-Identifier: MIT
"""Calls that may not overlap: neither with those of another thread, nor with one another, nor with a fork of the process."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType

from hybrid.errors import UsageError

# Held by a thread while it computes a product, or loads the modules for one. A child that is forked meanwhile would have locks
# that nobody opens there, and OpenBLAS, which stops its threads before a fork, might not return from it. The number of BLAS
# threads is the whole process's, so calls from several Python threads take turns, too.
one_at_a_time = threading.RLock()
_mpi_of_parent = False


class _Forking(threading.local):
    """How often this thread holds the lock because it forks."""

    holds = 0


_forking = _Forking()


def forked_from_rank() -> bool:
    """Whether this process was forked from one in which MPI had started: it has the same connections, and may not use them."""
    return _mpi_of_parent


def _wait_for_turn() -> None:
    one_at_a_time.acquire()
    _forking.holds += 1


def _end_turn() -> None:
    """Not more often than the turn was waited for: while this thread waited, another may have registered these functions once
    more."""
    if _forking.holds:
        _forking.holds -= 1
        one_at_a_time.release()


def _begin_in_child() -> None:
    global _mpi_of_parent
    mpi = sys.modules.get("mpi4py.MPI")
    _mpi_of_parent = mpi is not None and mpi.Is_initialized()
    _end_turn()


def take_turn_before_forks() -> None:
    """Have a fork wait for `one_at_a_time` before it takes the locks of the modules that are loaded by now.

    The thread inside may wait for one of these locks. Of the functions that are registered for forks the last one registered is
    called first.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_wait_for_turn, after_in_parent=_end_turn, after_in_child=_begin_in_child)


take_turn_before_forks()


class Turn:
    """A context for one thread at a time; others wait.

    UsageError for a thread that is inside already: its inner call would wait for ever, or compute in the buffers of the outer
    one.
    """

    def __init__(self) -> None:
        self._lock, self._holder = threading.Lock(), 0

    def __enter__(self) -> None:
        here = threading.get_ident()
        if self._holder == here:
            raise UsageError(
                "called from within another call that has not ended, as handlers of signals and __del__ may do: call it when "
                "that one has returned",
                code="reentered",
            )
        self._lock.acquire()
        self._holder = here

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._holder = 0
        self._lock.release()
