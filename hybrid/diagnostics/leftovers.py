# SPDX-License-Identifier: MIT
"""Files that MPI makes in shared memory and in the temporary folder, and leaves there when a job is killed.

MPICH has a file in /dev/shm from MPI_Init to MPI_Finalize, its launcher one in /tmp; Open MPI files in /dev/shm as long as a job
runs, and folders in the temporary folder. `doctor --clean` removes those of ended jobs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hybrid.core.problem import record
from hybrid.errors import one_line
from hybrid.host.memory import kernel

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (where MPI libraries make their files)
_OURS = re.compile(r"hybrid-([0-9a-f]{8})[0-9a-f]{8}-\d+-[0-9a-f]{16}")  # where shared memory must have a name
_OF_MPICH = re.compile(r"mpich_shm_[0-9a-f]+_\d+")
_OF_OPEN_MPI = re.compile(r"(?:vader|sm)_segment\..+\.\d+\.[0-9a-f]+\.\d+")
# UCX, on which both may be built, removes a file's name right after it has made the file: the name stays where a process is
# killed between the two.
_OF_UCX = re.compile(r"ucx_shm_posix_[0-9a-f]+")
_OF_HYDRA = re.compile(r"hydra_hwloc_xmlfile_\w{6}")
# The folders of Open MPI's launchers: `ompi.PID` is mpirun's, `prted.PID` that of its daemon on another node. A process that no
# launcher has started makes an empty one, ompi.HOST.USER/jf.0/JOB, and leaves that even at an orderly end.
_OF_LAUNCHER = re.compile(r"(?:ompi|prte|prted|prterun)\.(\d+)")
_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "prte", "prted")
_STARTED = 60.0  # seconds after which a job has started: it needs no file any more that none of its processes has open
_READ = 86400.0  # seconds after which each rank has read Hydra's file: it does at MPI_Init, and a program may do much before


@record
class Leftover:
    """A file of a job that has ended. `kept`: why it was not removed; empty if it was. `young`: a job that is starting may need
    it."""

    path: Path
    bytes: int
    kept: str
    young: bool = False


def remove_leftovers() -> list[Leftover]:
    """Remove this user's files and folders of ended jobs: those that no process has open, and that are so old that no job needs
    their names any more."""
    found = []
    for path in sorted(candidates()):
        with suppress(FileNotFoundError):  # gone by now
            if path.lstat().st_uid != os.geteuid():
                continue
            parts = [status for _, status in _parts(path)]
            size = sum(status.st_size for status in parts if stat.S_ISREG(status.st_mode))
            needed, old = (_READ, "a day") if _OF_HYDRA.fullmatch(path.name) else (_STARTED, "a minute")
            if max(status.st_mtime for status in parts) >= time.time() - needed:
                if not may_be_used(path):
                    why = f"a job that is starting may need it; it goes when it is {old} old"
                    found.append(Leftover(path, size, why, young=True))
            elif (kept := _removed(path)) is not None:
                found.append(Leftover(path, size, kept))
    return found


def candidates() -> Iterator[Path]:
    """The files and folders that are named as those of jobs on this machine are, whoever they belong to."""
    folders = {Path(_SHARED_MEMORY), Path("/tmp")}  # noqa: S108 (Hydra's)
    with suppress(FileNotFoundError):  # there is none that can be written to
        folders.add(Path(tempfile.gettempdir()))
    for folder in folders:
        is_shared = folder == Path(_SHARED_MEMORY)
        files = (_OF_MPICH, _OF_OPEN_MPI, _OF_UCX, _OURS) if is_shared else (_OF_HYDRA, _OURS)
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    if any(names.fullmatch(entry.name) for names in files):
                        yield Path(entry)
                elif entry.is_dir(follow_symlinks=False) and not is_shared and _is_of_open_mpi(Path(entry)):
                    yield Path(entry)


def _is_of_open_mpi(folder: Path) -> bool:
    """Whether Open MPI has made it here. Machines may share the folder it is in, and each knows its own processes only."""
    host = os.uname().nodename
    if not made_by(folder):
        return folder.name == f"ompi.{host}.{os.geteuid()}"
    with suppress(OSError):
        return any(folder.glob(f"pmix.{host.partition('.')[0]}.*"))
    return False


def made_by(folder: Path) -> int:
    """The number of the launcher's process that made it; 0 where none did."""
    found = _OF_LAUNCHER.fullmatch(folder.name)
    return int(found[1]) if found else 0


def may_be_used(path: Path) -> bool:
    """Whether a process has this file open or mapped, or one in this folder; or the launcher that made the folder runs.

    The kernel tells, and not /proc, because /dev/shm and /tmp may be shared with containers whose processes are not seen here.
    """
    with suppress(OSError):
        if (process := made_by(path)) and Path(f"/proc/{process}/comm").read_text().strip() in _LAUNCHERS:
            return True
    for part, status in _parts(path):
        if stat.S_ISREG(status.st_mode):
            try:
                with _leased(part):
                    pass
            except BlockingIOError:
                return True
            except (OSError, AttributeError):  # nobody can tell
                pass
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


def _parts(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The file; or the folder, and all that is in it."""
    for part in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):
            yield part, part.lstat()


def _removed(path: Path) -> str | None:
    """Remove the file or folder unless a process uses it. Returns "" if it was removed, why it could not be, or None if it is
    used."""
    ours = _OURS.fullmatch(path.name)
    if ours and ours[1] != kernel():
        return "it was made on another machine, or before this one was last started"
    try:
        if path.is_dir():
            if may_be_used(path):
                return None
            shutil.rmtree(path)
        else:
            with _leased(path):
                path.unlink()
    except FileNotFoundError:
        raise
    except BlockingIOError:
        return None
    except (OSError, AttributeError) as error:  # AttributeError: not Linux
        if isinstance(error, OSError) and (error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) or path.is_dir()):
            return error.strerror or one_line(error)
        return f"whether a process uses it cannot be seen here ({one_line(error)})"
    return ""
