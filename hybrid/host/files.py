# SPDX-License-Identifier: MIT
"""Files that appear whole or not at all: written under a temporary name in the same folder, then renamed."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hybrid.errors import UsageError


@contextmanager
def atomic_write(path: str) -> Iterator[Path]:
    """A temporary path to write to: renamed to `path` at the end of the body, removed if the body raises."""
    temporary = temporary_name(path)
    try:
        yield temporary
        publish(temporary, path)
    except BaseException:
        discard(temporary)
        raise


def temporary_name(path: str) -> Path:
    """A new name in the folder of the file that `path` leads to, through symbolic links."""
    target = Path(os.path.realpath(path))
    here = f".{target.name}.{os.uname().nodename}-"
    for stale in target.parent.glob(f"{glob.escape(here)}*.part"):  # of a job on this machine that was killed
        process = stale.name.removeprefix(here).partition("-")[0]
        if process.isdecimal() and not _is_alive(int(process)):
            discard(stale)
    return target.with_name(f"{here}{os.getpid()}-{os.urandom(4).hex()}.part")


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def publish(temporary: Path, path: str) -> None:
    """Rename a finished file once it is on the disk. A symbolic link at `path` stays and leads to it."""
    with open(temporary, "rb") as written:
        os.fsync(written.fileno())
    os.replace(temporary, os.path.realpath(path))


def discard(temporary: Path) -> None:
    with suppress(FileNotFoundError):
        temporary.unlink()


def refuse_unwritable(path: str) -> None:
    """UsageError if no file could be written at `path`: found before the work, not after it."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise UsageError(f"{path} is not a regular file")
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent} for {path}")
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"no files can be written in {target.parent}")


def refuse_same(paths: Mapping[str, str | None], may_replace: Mapping[str, Sequence[str]]) -> None:
    """UsageError if two options name the same file, unless `may_replace[one]` lists the other."""
    seen: dict[str, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        other = seen.setdefault(os.path.realpath(path), option)
        if other != option and option not in may_replace.get(other, ()) and {option, other} != {"--a", "--b"}:
            raise UsageError(f"{other} and {option} name the same file, {path}")


def write_whole(descriptor: int, data: bytes | memoryview, at: int) -> None:
    """Write all of `data` at offset `at`, also where pwrite takes it in parts."""
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, at)
        at, left = at + written, left[written:]
