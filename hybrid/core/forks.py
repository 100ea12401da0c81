# SPDX-License-Identifier: MIT
"""Calls that may not overlap: neither with those of another thread, nor with one another, nor with a fork of the process."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (loaded, with logging, before the functions below are registered for forks)
import os
import sys
import threading
from typing import Any

from hybrid.errors import UsageError

# Held by a thread while it computes a product, or loads the modules for one. A child that is forked meanwhile would have locks
# that nobody opens there, and OpenBLAS, which stops its threads before a fork, might not return from it. The number of BLAS
# threads is the whole process's, so calls from several Python threads take turns, too. A fork waits for it before it takes the
# locks of logging and of thread pools, for which the thread inside may wait: the functions registered last are called first.
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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=one_at_a_time.acquire, after_in_parent=one_at_a_time.release, after_in_child=_begin_in_child)


_RLock: Any = type(threading.RLock())  # in C


class Turn(_RLock):
    """A context for one thread at a time; others wait. An interrupt at any moment leaves it free: Python raises none before
    `__exit__` of a class in C.

    UsageError for a thread that is inside already: its inner call would wait for ever, or compute in the buffers of the outer
    one.
    """

    def __enter__(self) -> None:
        if self._is_owned():
            raise UsageError(
                "called from within another call that has not ended, as handlers of signals and __del__ may do: call it when "
                "that one has returned",
                code="reentered",
            )
        try:
            self.acquire()
        except BaseException:  # an interrupt, perhaps when it had been acquired
            if self._is_owned():
                self.release()
            raise
