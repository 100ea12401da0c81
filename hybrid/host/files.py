# SPDX-License-Identifier: MIT
"""Atomic writes of files and folders: under a temporary name in the same folder, then renamed. Checks before writing, and
complete reads and writes at offsets."""

from __future__ import annotations

import errno
import glob
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hybrid.core.text import readable
from hybrid.errors import DoesNotFit, HybridError, UsageError, one_line
from hybrid.host.memory import free_bytes_in, process_space


def led_to(path: str) -> str:
    """The absolute path of `path` with symbolic links resolved."""
    try:
        return os.path.realpath(path)
    except FileNotFoundError:
        raise UsageError(f"{path} cannot be found: the folder in which this was started is gone", code="file-missing") from None


@contextmanager
def atomic_write(path: str) -> Iterator[Path]:
    """A context that gives a temporary path to write to. At its end the file is renamed to `path`, or removed if the body
    raised."""
    temporary = temporary_name(path)
    with written_to(path, temporary):
        try:
            yield temporary
            publish(temporary, path)
        except BaseException:
            discard(temporary)
            raise


def write_text(path: str, text: str) -> None:
    """Write a file atomically, in UTF-8."""
    with atomic_write(path) as beside:
        beside.write_text(text, encoding="utf-8")


@contextmanager
def written_to(path: str, temporary: Path | None = None, size: int = 0) -> Iterator[None]:
    """A context in which an OSError becomes a HybridError that names `path`.

    On a full disk it tells the file's `size`, unless 0, and the free space, including that taken by `temporary`.
    """
    try:
        yield
    except OSError as error:
        parent = Path(led_to(path)).parent
        if not parent.is_dir():
            why, code = f"{parent} is no folder any more", "file-missing"
        else:
            code = "disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "file-unwritable"
            why = os.strerror(error.errno) if error.errno else one_line(error)  # libraries have more to say than one line
            if error.errno == errno.ENOSPC:
                takes = f"it takes {readable(size)}, " if size else ""
                why += f": {takes}{readable(free_bytes_in(parent) + allocated(temporary))} are free in {parent}"
        raise HybridError(f"{path} cannot be written: {why}", code=code) from error


def allocated(path: Path | None) -> int:
    """The disk space in bytes of a file, or of a folder with its contents; 0 if there is none."""
    try:
        return sum(512 * each.lstat().st_blocks for each in (path, *path.rglob("*"))) if path else 0
    except (FileNotFoundError, NotADirectoryError):
        return 0


def temporary_name(path: str) -> Path:
    """A new name in the folder of `path`, with symbolic links resolved.

    Removes temporary files of killed jobs of this machine and PID namespace: only there can it see whether a job still runs.
    """
    target = Path(led_to(path))
    here = f".{target.name}.{process_space()}-"
    for stale in target.parent.glob(f"{glob.escape(here)}*.part"):
        process = stale.name.removeprefix(here).partition("-")[0]
        if process.isdecimal() and not _is_alive(int(process)):
            with suppress(PermissionError):  # another user's
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
    """Flush a finished file or folder to disk, and rename it to `path`. A symbolic link at `path` stays and points to it. It gets
    the mode of a file that it replaces, and the owner if this process may change it."""
    target = led_to(path)
    with suppress(FileNotFoundError):
        replaced = os.stat(target)
        with suppress(PermissionError):
            os.chown(temporary, replaced.st_uid, replaced.st_gid)
        os.chmod(temporary, replaced.st_mode & 0o777)
    flush(temporary)
    os.replace(temporary, target)


def flush(path: Path) -> None:
    """Wait until a file, or a folder with its contents, is on disk."""
    for each in (*path.rglob("*"), path):
        flush_names(each)


def flush_names(path: Path | str) -> None:
    """Wait until a file's contents, or a folder's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard(temporary: Path) -> None:
    """Remove the file, or the folder with its contents, if it exists."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if temporary.is_dir() and not temporary.is_symlink():
            shutil.rmtree(temporary)
        else:
            temporary.unlink()


def refuse_unwritable(path: str, size: int = 1, *, folder: bool = False) -> None:
    """Before the work: raise UsageError if no file could be written at `path`, DoesNotFit if none of `size` bytes. `folder`: a
    folder of files is to be written there."""
    target = Path(led_to(path))
    try:
        if target.exists() and not target.is_file() and not folder:
            raise UsageError(f"{path} is not a regular file", code="file-unwritable")
        if not target.parent.is_dir():
            raise UsageError(f"there is no folder {target.parent} for {path}", code="file-missing")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {os.strerror(error.errno or 0)}", code="file-unwritable") from None
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"no files can be written in {target.parent}", code="file-unwritable")
    free = free_bytes_in(target.parent)
    if size > free:
        if not os.statvfs(target.parent).f_blocks:  # such as /proc
            raise UsageError(f"no files can be written in {target.parent}", code="file-unwritable")
        raise DoesNotFit(
            f"{path} takes {readable(size)}, {readable(free)} are free in {target.parent}: {readable(size - free)} are missing",
            code="disk-full",
        )


def refuse_same(paths: Mapping[str, str | None], may_replace: Mapping[str, Sequence[str]]) -> None:
    """UsageError if two options name the same file, unless they are --a and --b, or `may_replace[one]` lists the other."""
    seen: dict[str, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        other = seen.setdefault(led_to(path), option)
        if other != option and option not in may_replace.get(other, ()) and {option, other} != {"--a", "--b"}:
            raise UsageError(f"{other} and {option} name the same file, {path}", code="same-file")


def code_of_reading(error: OSError) -> str:
    """The error code for a failure to open or read a file."""
    return "file-missing" if isinstance(error, (FileNotFoundError, NotADirectoryError)) else "file-unreadable"


def write_whole(descriptor: int, data: bytes | memoryview, at: int) -> None:
    """Write all of `data` at offset `at`, even if pwrite takes it in parts."""
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, at)
        at, left = at + written, left[written:]


def read_whole(descriptor: int, into: memoryview, at: int) -> int:
    """Fill `into` from offset `at` on. Returns the number of bytes missing because the file ended."""
    while into and (count := os.preadv(descriptor, [into], at)):
        at, into = at + count, into[count:]
    return len(into)
