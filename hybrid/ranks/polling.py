# SPDX-License-Identifier: MIT
"""What a rank does between two polls for what another one does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
_SLOW_YIELD = 5e-4  # seconds: a sched_yield that takes longer means that another thread spins on this core
_SLEEP_FOR, _ONE_SLEEP = 0.02, 1e-5  # seconds: how long to sleep instead of yielding then, and each sleep
_crowded_until = 0.0


def let_others_run() -> None:
    """Called between two polls for what another rank does: give the core to other threads, yet be back soon.

    Beside threads that spin, as those of a BLAS do for a while after each call, a sched_yield returns only after a time slice
    of milliseconds. A thread that sleeps instead is woken at once.
    """
    global _crowded_until
    began = time.perf_counter()
    if began < _crowded_until:
        time.sleep(_ONE_SLEEP)
        return
    _give_way()
    if time.perf_counter() - began > _SLOW_YIELD:
        _crowded_until = began + _SLEEP_FOR
