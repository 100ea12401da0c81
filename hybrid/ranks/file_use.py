# SPDX-License-Identifier: MIT
"""Whether some process uses a file.

What /proc shows is not enough to tell, because /dev/shm and /tmp may be shared with containers whose processes are not seen from
here. The kernel knows: it gives a lease for writing only to a process that alone has the file open.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_used(path: Path) -> bool:
    """Whether the kernel says that a process has the file open or mapped."""
    try:
        with leased(path):
            return False
    except BlockingIOError:
        return True
    except (OSError, AttributeError):  # nobody can tell
        return False


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """A context in which this process has a lease on the file. BlockingIOError where another process has the file open or
    mapped; AttributeError on other systems than Linux."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # who opens it now must not end this process, as SIGIO would
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(descriptor)  # and gives the lease back
