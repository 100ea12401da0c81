# SPDX-License-Identifier: MIT
"""The folders that Open MPI makes in the folder for temporary files, and leaves there when its processes are killed.

`ompi.PID` is mpirun's, `prted.PID` that of its daemon on another node. A process that no launcher has started makes an empty one,
ompi.HOST.USER/jf.0/JOB, and leaves that even at an orderly end.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hybrid.ranks.file_use import is_used

_OF_LAUNCHER = re.compile(r"(?:ompi|prte|prted|prterun)\.(\d+)")
_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "prte", "prted")
_SEGMENT = re.compile(r"(?:vader|sm)_segment\.(?P<host>.+)\.(?P<user>\d+)\.(?P<job>[0-9a-f]+)\.\d+")


def candidates(folder: Path) -> Iterator[Path]:
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


def may_be_used(folder: Path) -> bool:
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


def changed(folder: Path) -> float:
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
