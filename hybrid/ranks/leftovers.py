# SPDX-License-Identifier: MIT
"""Files that killed jobs leave in shared memory and in the temporary folder: how they are kept from staying, and removed.

MPICH keeps a named file in /dev/shm from MPI_Init to MPI_Finalize, and its launcher one in /tmp; nothing removes these where the
processes end by a signal.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from hybrid.core.record import record
from hybrid.errors import one_line
from hybrid.host.process_space import kernel
from hybrid.ranks import hydra, session_folders
from hybrid.ranks.file_use import is_used, leased
from hybrid.ranks.job_end import children
from hybrid.ranks.launcher import launched

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
    path = hydra.topology_file() or ""
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
            size = session_folders.bytes_in(path) if is_folder else status.st_size
            changed = session_folders.changed(path) if is_folder else status.st_mtime
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
    return session_folders.may_be_used(path) if path.is_dir() else is_used(path)


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
    if session_folders.may_be_used(folder):
        return None
    try:
        session_folders.remove(folder)
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
            yield from session_folders.candidates(folder)


def _mapped(process: int | str) -> set[str]:
    """The names of the files that the process has mapped."""
    with open(f"/proc/{process}/maps", errors="replace") as maps:
        return {parts[5].rstrip("\n") for line in maps if len(parts := line.split(maxsplit=5)) == 6}
