# SPDX-License-Identifier: MIT
"""Serialises calls: with calls of other threads, with calls nested in one, and with forks of the process."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 (loaded, with logging, before the functions below are registered for forks)
import os
import sys
import threading
from typing import Any

from hybrid.errors import UsageError

# Held by a thread while it computes a product, or loads the modules for one. A child forked meanwhile would inherit locks that
# nobody releases, and OpenBLAS, which stops its threads before a fork, might not return from the fork. Calls of several Python
# threads take turns, too, since the number of BLAS threads is the process's. A fork acquires this lock before those of logging
# and of thread pools, for which the holder may wait: the functions registered last are called first.
one_at_a_time = threading.RLock()
_mpi_of_parent = False


def forked_from_rank() -> bool:
    """Whether this process was forked after MPI had started: it inherits the connections, and must not use them."""
    return _mpi_of_parent


def _begin_in_child() -> None:
    global _mpi_of_parent
    mpi = sys.modules.get("mpi4py.MPI")
    _mpi_of_parent = mpi is not None and mpi.Is_initialized()
    one_at_a_time.release()


os.register_at_fork(before=one_at_a_time.acquire, after_in_parent=one_at_a_time.release, after_in_child=_begin_in_child)


_RLock: Any = type(threading.RLock())  # in C


class Turn(_RLock):
    """A context for one thread at a time; others wait. An interrupt always leaves it free, since Python raises none before the
    `__exit__` of a C class.

    UsageError for a thread that is inside already: its inner call would deadlock, or overwrite the buffers of the outer one.
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
        except BaseException:  # an interrupt, perhaps after the acquisition
            if self._is_owned():
                self.release()
            raise
