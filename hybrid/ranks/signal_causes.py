# SPDX-License-Identifier: MIT
"""What to say of a process that a signal has killed: the signal, and its likely cause."""

from __future__ import annotations

import resource
import signal

from hybrid.core.text import readable
from hybrid.ranks.launcher import free_shared_bytes

_LITTLE_SHARED = 64 << 20  # bytes of /dev/shm


def killed_by(signum: int, shared_before: int, *, starting: bool) -> str:
    """The end of a sentence that begins with the process. `shared_before`: bytes of /dev/shm that were free when the process
    began. `starting`: MPI had not started."""
    try:
        name = signal.Signals(signum).name
    except ValueError:
        name = f"signal {signum}"
    return f"was killed by {name}{_likely(signum, shared_before, starting)}"


def _likely(signum: int, shared_before: int, starting: bool) -> str:
    if signum == signal.SIGKILL:
        seconds, _ = resource.getrlimit(resource.RLIMIT_CPU)
        limit = (
            "" if seconds == resource.RLIM_INFINITY else f", or beyond the {seconds} s of processor time that ulimit -t allows"
        )
        return f" (out of memory{limit}?)"
    free = free_shared_bytes()
    if signum == signal.SIGBUS or (signum == signal.SIGSEGV and starting):  # MPICH dies of SIGSEGV where /dev/shm is nearly full
        if free is not None and min(free, shared_before) < _LITTLE_SHARED:
            return f" (is /dev/shm full? {readable(free)} are free, {readable(shared_before)} were at the start)"
        if signum == signal.SIGBUS:
            return " (a file that it had mapped became shorter, or the memory is faulty; /dev/shm is not full)"
    return ""
