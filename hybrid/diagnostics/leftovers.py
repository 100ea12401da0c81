# SPDX-License-Identifier: MIT
"""Files that MPI makes in shared memory, and leaves there when a job is killed: `doctor --clean` removes them.

MPICH has a file in /dev/shm from MPI_Init to MPI_Finalize, Open MPI files as long as a job runs. UCX, on which both may be built,
removes a file's name right after it has made the file: the name stays where a process is killed between the two.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hybrid.core.problem import record
from hybrid.errors import one_line

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (where MPI libraries make their files)
_OF_MPI = re.compile(r"mpich_shm_[0-9a-f]+_\d+|(?:vader|sm)_segment\..+\.\d+\.[0-9a-f]+\.\d+|ucx_shm_posix_[0-9a-f]+")
_STARTED = 60.0  # seconds after which a job has started: it needs no file any more that none of its processes has open


@record
class Leftover:
    """A file of a job that has ended. `kept`: why it was not removed; empty if it was. `young`: a job that is starting may need
    it."""

    path: Path
    bytes: int
    kept: str
    young: bool = False


def remove_leftovers() -> list[Leftover]:
    """Remove this user's files of ended jobs: those that no process has open, and that are so old that no job needs their names
    any more."""
    found = []
    for path in sorted(candidates()):
        with suppress(FileNotFoundError):  # gone by now
            status = path.lstat()
            if status.st_uid != os.geteuid():
                continue
            if status.st_mtime >= time.time() - _STARTED:
                if not may_be_used(path):
                    why = "a job that is starting may need it; it goes when it is a minute old"
                    found.append(Leftover(path, status.st_size, why, young=True))
            elif (kept := _removed(path)) is not None:
                found.append(Leftover(path, status.st_size, kept))
    return found


def candidates() -> Iterator[Path]:
    """The files that are named as those of jobs on this machine are, whoever they belong to."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(_SHARED_MEMORY) as entries:
        for entry in entries:
            if _OF_MPI.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                yield Path(entry)


def may_be_used(path: Path) -> bool:
    """Whether a process has this file open or mapped.

    The kernel tells, and not /proc, because /dev/shm may be shared with containers whose processes are not seen here.
    """
    try:
        with _leased(path):
            return False
    except BlockingIOError:
        return True
    except (OSError, AttributeError):  # nobody can tell
        return False


@contextmanager
def _leased(path: Path) -> Iterator[None]:
    """A context in which this process has a lease to write the file, which the kernel gives only to a process that alone has it
    open. BlockingIOError where another has it open or mapped; AttributeError on other systems than Linux."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # who opens it now must not end this process, as SIGIO would
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(descriptor)  # and gives the lease back


def _removed(path: Path) -> str | None:
    """Remove the file unless a process uses it. Returns "" if it was removed, why it could not be, or None if it is used."""
    try:
        with _leased(path):
            path.unlink()
    except FileNotFoundError:
        raise
    except BlockingIOError:
        return None
    except (OSError, AttributeError) as error:  # AttributeError: not Linux
        if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return error.strerror or one_line(error)
        return f"whether a process uses it cannot be seen here ({one_line(error)})"
    return ""
