# SPDX-License-Identifier: MIT
"""Calls that may not be made at once: by several threads, within another one, or while the process is forking."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType

from hybrid.errors import UsageError

# Held by a thread while it computes a product, or loads what that takes: else the child would have its locks, which nobody opens
# there; and OpenBLAS, which stops its threads before a fork, may not return from it. The number of BLAS threads belongs to the
# whole process: so calls from several Python threads take turns.
one_at_a_time = threading.RLock()
_mpi_of_parent = False


def forked_from_rank() -> bool:
    """Whether this process was forked from one in which MPI had started: it has the same connections, and may not use them."""
    return _mpi_of_parent


def _begin_in_child() -> None:
    global _mpi_of_parent
    mpi = sys.modules.get("mpi4py.MPI")
    _mpi_of_parent = mpi is not None and mpi.Is_initialized()
    one_at_a_time.release()


def take_turn_before_forks() -> None:
    """Have a fork wait for `one_at_a_time` before it takes the locks of modules that have been loaded by now, for which the
    thread inside may wait: what is registered last is done first."""
    if hasattr(os, "register_at_fork"):
        release = one_at_a_time.release
        os.register_at_fork(before=one_at_a_time.acquire, after_in_parent=release, after_in_child=_begin_in_child)


take_turn_before_forks()


class Turn:
    """A context of one thread at a time; the others wait. UsageError for a thread that is within it already: it would never come
    to an end, or compute in the same buffers."""

    def __init__(self) -> None:
        self._lock, self._holder = threading.Lock(), 0

    def __enter__(self) -> None:
        here = threading.get_ident()
        if self._holder == here:
            raise UsageError(
                "called from within another call that has not ended, as handlers of signals and __del__ may do: call it when "
                "that one has returned"
            )
        self._lock.acquire()
        self._holder = here

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._holder = 0
        self._lock.release()
