# SPDX-License-Identifier: MIT
"""Files that killed jobs leave in shared memory and in the temporary folder: how they are kept from staying, and removed.

MPICH keeps a named file in /dev/shm from MPI_Init to MPI_Finalize, and its launcher one in /tmp; nothing removes these where the
processes end by a signal.
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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hybrid.core.problem import record
from hybrid.errors import one_line
from hybrid.host.memory import kernel
from hybrid.ranks import launcher
from hybrid.ranks.launcher import children, launched

# -------- file use
# Whether some process uses a file.
#
# What /proc shows is not enough to tell, because /dev/shm and /tmp may be shared with containers whose processes are not seen
# from here. The kernel knows: it gives a lease for writing only to a process that alone has the file open.


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


# -------- session folders
# The folders that Open MPI makes in the folder for temporary files, and leaves there when its processes are killed.
#
# `ompi.PID` is mpirun's, `prted.PID` that of its daemon on another node. A process that no launcher has started makes an
# empty one, ompi.HOST.USER/jf.0/JOB, and leaves that even at an orderly end.

_OF_LAUNCHER = re.compile(r"(?:ompi|prte|prted|prterun)\.(\d+)")
_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "prte", "prted")
_SEGMENT = re.compile(r"(?:vader|sm)_segment\.(?P<host>.+)\.(?P<user>\d+)\.(?P<job>[0-9a-f]+)\.\d+")


def session_candidates(folder: Path) -> Iterator[Path]:
    """The folders in this one that are named as those of Open MPI on this machine are, whoever they belong to."""
    alone = f"ompi.{os.uname().nodename}.{os.geteuid()}"
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            named = entry.name == alone or (_OF_LAUNCHER.fullmatch(entry.name) and _is_of_this_machine(Path(entry)))
            if named and entry.is_dir(follow_symlinks=False):
                yield Path(entry)


def _is_of_this_machine(folder: Path) -> bool:
    """Whether the launcher that made it ran here. Machines may share the folder, and each knows its own processes only."""
    with suppress(OSError):
        return any(folder.glob(f"pmix.{os.uname().nodename.partition('.')[0]}.*"))
    return False


def made_by(folder: Path) -> int:
    """The number of the launcher's process that made it; 0 where none did."""
    found = _OF_LAUNCHER.fullmatch(folder.name)
    return int(found[1]) if found else 0


def session_may_be_used(folder: Path) -> bool:
    """Whether the launcher that made the folder runs, or a process has a file in it open, which may be another container's."""
    if (process := made_by(folder)) and _name(process) in _LAUNCHERS:
        return True
    return any(is_used(path) for path in _files_in(folder))


def bytes_in(folder: Path) -> int:
    """The bytes of all its files."""
    total = 0
    for path in _files_in(folder):
        with suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total


def folder_changed(folder: Path) -> float:
    """When it, or a folder or a file in it, was last changed."""
    found = [folder.lstat().st_mtime]
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            found.append(path.lstat().st_mtime)
    return max(found)


def remove(folder: Path) -> None:
    """OSError where that cannot be; nothing where it is gone."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def remove_of_launcher(process: int, environment: Mapping[str, str] = os.environ) -> None:
    """Remove the folder of this node's part of the launcher, which has started this process and is gone. `process`: its
    number."""
    folder = Path(environment.get("PMIX_SERVER_TMPDIR", ""))
    with suppress(OSError):  # another rank of the node removes it, too
        if made_by(folder) == process and folder.lstat().st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)


def remove_own(segments: list[str]) -> None:
    """Remove the folder of this process alone, which has started MPI and needs it no more. `segments`: its shared memory, whose
    name has the job's number.

    The folders above stay: another process may be about to make its own in them.
    """
    for path in segments:
        found = _SEGMENT.fullmatch(os.path.basename(path))
        if found is not None:
            with suppress(OSError):
                for above in Path(tempfile.gettempdir(), f"ompi.{found['host']}.{found['user']}").glob("jf.*"):
                    shutil.rmtree(above / str(int(found["job"], 16)), ignore_errors=True)


def _files_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _name(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text().strip()
    return ""


_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (where MPI libraries make their files)
_OURS = r"hybrid-([0-9a-f]{8})[0-9a-f]{8}-\d+-[0-9a-f]{16}"  # where shared memory must have a name
_OF_MPICH = re.compile(r"mpich_shm_[0-9a-f]+_\d+")
_OF_MPI = re.compile(rf"{_OF_MPICH.pattern}|(vader|sm)_segment\..+")  # or Open MPI's, which its ranks may open later
# UCX, on which both may be built, removes a file's name right after it has made the file: the name stays where a process is
# killed between the two.
_OF_UCX = r"ucx_shm_posix_[0-9a-f]+"
_IN_SHARED_MEMORY = re.compile(rf"{_OF_MPI.pattern}|{_OF_UCX}|{_OURS}")
_MAPPED_BY_MAKER = re.compile(rf"{_OF_MPICH.pattern}|{_OF_UCX}")
_IN_TEMPORARY_FOLDER = re.compile(rf"hydra_hwloc_xmlfile_\w{{6}}|{_OURS}")
_STARTED = 60.0  # seconds after which a job has started: it needs no file any more that none of its processes has open
_HYDRA_ON_NODE = "hydra_pmi_proxy"
_OUTSIDE_OF_CONTAINERS = f"pid:[{0xEFFFFFFC}]"  # Linux' PROC_PID_INIT_INO
_READ = 86400.0  # seconds after which each rank has read Hydra's file: it does at MPI_Init, and a program may do much before


def unname_files() -> None:
    """Remove the names of the files that MPICH and its launcher have made for this node's ranks, each of which has opened them
    by now.

    To be called on one rank of the node, after the first exchange. The memory then goes with the last process, and neither
    misses the names at its end.
    """
    if launched() is not None:
        remove_files([*segments_of("self", _OF_MPICH), *_topology_file()])


def remove_files_of(process: int | str) -> None:
    """Remove the names of the files that MPI has made for this process, and maybe for others here: of a job whose launcher is
    gone, or of a process alone."""
    remove_files(segments_of(process))


def remove_files_of_job(known: Iterable[str], since: float | None = None) -> None:
    """In a supervisor that is about to end its job, and whose launcher still runs: remove the files of all ranks here that still
    have a name.

    They have one while MPI starts, and with Open MPI as long as the job runs. `known`: the files of a worker that has ended.
    `since`: when a worker began that may have made others.
    """
    supervisors = children(os.getppid())
    seen = [path for one in supervisors for worker in children(one) for path in segments_of(worker)]
    remove_files([*known, *seen, *_topology_file()])
    if since is not None:
        _remove_unused_since(since)


def _remove_unused_since(began: float) -> None:
    """Remove MPICH's and UCX' files that were made since then and that nobody has mapped.

    Who makes such a file has it mapped until MPI ends, so these are of processes that have been killed.
    """
    for path in candidates():
        with suppress(FileNotFoundError):
            status = path.lstat()
            if _MAPPED_BY_MAKER.fullmatch(path.name) and status.st_uid == os.geteuid() and status.st_mtime >= began:
                _removed(path)


def _topology_file() -> list[str]:
    """The file that Hydra has made for this node, in a list; empty where there is none."""
    path = launcher.topology_file() or ""
    return [path] if _IN_TEMPORARY_FOLDER.fullmatch(os.path.basename(path)) else []


def segments_of(process: int | str, names: re.Pattern[str] = _OF_MPI) -> list[str]:
    """The files of MPI that the process has mapped; none where there is no /proc, as on other systems than Linux."""
    with suppress(OSError):
        files = (Path(path) for path in _mapped(process))
        return [str(path) for path in files if str(path.parent) == _SHARED_MEMORY and names.fullmatch(path.name)]
    return []


def remove_files(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError, PermissionError):
            os.unlink(path)


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
            is_folder = stat.S_ISDIR(status.st_mode)
            size = bytes_in(path) if is_folder else status.st_size
            changed = folder_changed(path) if is_folder else status.st_mtime
            needed, old = (_READ, "a day") if path.name.startswith("hydra") and _may_be_read() else (_STARTED, "a minute")
            if changed >= time.time() - needed:
                if not may_be_used(path):
                    why = f"a job that is starting may need it; it goes when it is {old} old"
                    found.append(Leftover(path, size, why, young=True))
                continue
            kept = _folder_removed(path) if is_folder else _removed(path)
            if kept is not None:
                found.append(Leftover(path, size, kept))
    return found


def may_be_used(path: Path) -> bool:
    """Whether a process may use this file or folder, which is one of `candidates`."""
    return session_may_be_used(path) if path.is_dir() else is_used(path)


def _may_be_read() -> bool:
    """Whether ranks may want to read a file of Hydra's yet: while a Hydra runs on this node, which may have made it. From
    within a container not all processes are seen."""
    with suppress(OSError):
        if os.readlink("/proc/self/ns/pid") == _OUTSIDE_OF_CONTAINERS:
            return _runs(_HYDRA_ON_NODE)
    return True


def _runs(name: str) -> bool:
    """Whether a process of this name runs."""
    for its_name in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # it has ended meanwhile
            if its_name.read_text().strip() == name:
                return True
    return False


def _folder_removed(folder: Path) -> str | None:
    """As of `_removed`."""
    if session_may_be_used(folder):
        return None
    try:
        remove(folder)
    except OSError as error:
        return error.strerror or one_line(error)
    return ""


def _removed(path: Path) -> str | None:
    """Remove the file unless a process has it open or mapped. Returns "" if it was removed, why it could not be, or None if it
    is used."""
    made_by = re.fullmatch(_OURS, path.name)
    if made_by and made_by[1] != kernel():
        return "it was made on another machine, or before this one was last started"
    try:
        with leased(path):
            path.unlink()
    except FileNotFoundError:
        raise
    except BlockingIOError:
        return None
    except (OSError, AttributeError) as error:  # AttributeError: not Linux
        if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return error.strerror
        return f"whether a process uses it cannot be seen here ({one_line(error)})"
    return ""


def candidates(shared_memory: str | None = None) -> Iterator[Path]:
    """The files and folders that are named as those of jobs are, whoever they belong to.

    `shared_memory`: the folder, where it is another than this process's.
    """
    folders = {Path(shared_memory or _SHARED_MEMORY): _IN_SHARED_MEMORY, Path("/tmp"): _IN_TEMPORARY_FOLDER}  # noqa: S108 (Hydra's)
    with suppress(FileNotFoundError):  # there is none that can be written to
        folders.setdefault(Path(tempfile.gettempdir()), _IN_TEMPORARY_FOLDER)
    for folder, names in folders.items():
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            yield from (Path(entry) for entry in entries if names.fullmatch(entry.name) and entry.is_file(follow_symlinks=False))
        if names is _IN_TEMPORARY_FOLDER:
            yield from session_candidates(folder)


def _mapped(process: int | str) -> set[str]:
    """The names of the files that the process has mapped."""
    with open(f"/proc/{process}/maps", errors="replace") as maps:
        return {parts[5].rstrip("\n") for line in maps if len(parts := line.split(maxsplit=5)) == 6}
