# SPDX-License-Identifier: MIT
"""Files that MPI makes in shared memory and in the temporary folder, and leaves there when a job is killed.

MPICH keeps a named file in /dev/shm from MPI_Init to MPI_Finalize, and its launcher one in /tmp. Open MPI has files in /dev/shm
as long as a job runs, and folders in the temporary folder. Supervisors remove those of their job, `doctor --clean` those of ended
jobs.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hybrid.core.problem import record
from hybrid.errors import one_line
from hybrid.host.memory import kernel
from hybrid.ranks import launcher
from hybrid.ranks.launcher import children, launched

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (where MPI libraries make their files)
_OURS = re.compile(r"hybrid-([0-9a-f]{8})[0-9a-f]{8}-\d+-[0-9a-f]{16}")  # where shared memory must have a name
_OF_MPICH = re.compile(r"mpich_shm_[0-9a-f]+_\d+")
_OF_OPEN_MPI = re.compile(r"(?:vader|sm)_segment\.(?P<host>.+)\.(?P<user>\d+)\.(?P<job>[0-9a-f]+)\.\d+")
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


# --- of this job


def unname_files() -> None:
    """Remove the names of the files that MPICH and its launcher have made for this node's ranks, each of which has opened them
    by now.

    To be called on one rank of the node, after the first exchange. The memory then goes with the last process, and neither
    misses the names at its end.
    """
    if launched() is not None:
        _remove([*_mapped("self", _OF_MPICH), *_topology_file()])


def remove_files_of(process: int | str) -> None:
    """Remove the names of the files that MPI has made for this process, and maybe for others here: of a job whose launcher is
    gone, or of a process alone."""
    _remove(_mapped(process, _OF_MPICH, _OF_OPEN_MPI))


def remove_files_of_process_alone() -> None:
    """Remove the files and the folder of this process, which no launcher has started, and whose MPI has started.

    The folders above stay: another process may be about to make its own in them.
    """
    for path in _mapped("self", _OF_OPEN_MPI):
        if found := _OF_OPEN_MPI.fullmatch(path.name):
            for above in Path(tempfile.gettempdir(), f"ompi.{found['host']}.{found['user']}").glob("jf.*"):
                shutil.rmtree(above / str(int(found["job"], 16)), ignore_errors=True)
    remove_files_of("self")


def remove_files_of_job(began: float = math.inf) -> None:
    """In a process that is about to end its job, and whose launcher still runs: remove the files of all ranks here that still
    have a name, and those of `remove_unused`."""
    for supervisor in children(os.getppid()):
        for worker in children(supervisor):
            remove_files_of(worker)
    _remove(_topology_file())
    remove_unused(began)


def remove_unused(began: float) -> None:
    """Remove the files of MPI that were made since then and that nobody has mapped.

    Who makes such a file has it mapped until MPI ends, so these are of processes that have been killed.
    """
    for path in candidates() if began < math.inf else ():
        with suppress(FileNotFoundError):
            status, names = path.lstat(), (_OF_MPICH, _OF_OPEN_MPI, _OF_UCX)
            if any(name.fullmatch(path.name) for name in names) and status.st_uid == os.geteuid() and status.st_mtime >= began:
                _removed(path)


def remove_of_launcher(process: int, environment: Mapping[str, str] = os.environ) -> None:
    """Remove the folder of this node's part of the launcher, which has started this process and is gone. `process`: its
    number."""
    folder = Path(environment.get("PMIX_SERVER_TMPDIR", ""))
    with suppress(OSError):  # another rank of the node removes it, too
        if made_by(folder) == process and folder.lstat().st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)


def _topology_file() -> list[Path]:
    """The file that Hydra has made for this node, in a list; empty where there is none."""
    path = Path(launcher.topology_file() or "")
    return [path] if _OF_HYDRA.fullmatch(path.name) else []


def _mapped(process: int | str, *names: re.Pattern[str]) -> list[Path]:
    """The files in shared memory, of such names, that the process has mapped; none where there is no /proc."""
    found: set[Path] = set()
    with suppress(OSError), open(f"/proc/{process}/maps", errors="replace") as maps:
        found = {Path(parts[5].rstrip("\n")) for line in maps if len(parts := line.split(maxsplit=5)) == 6}
    return [path for path in found if str(path.parent) == _SHARED_MEMORY and any(name.fullmatch(path.name) for name in names)]


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(FileNotFoundError, PermissionError):
            path.unlink()


# --- of ended jobs


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
