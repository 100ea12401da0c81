# SPDX-License-Identifier: MIT
"""The journal of a file that is written in parts: lines of JSON, each of which is on the disk before the next part is begun.

Who writes a journal holds its lock, which the system gives back when the process ends, however it does. A process that is killed
while it appends leaves a torn line. That is ignored, and so is everything behind a line that cannot be read, as a machine may
leave it whose power fails.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hybrid.errors import UsageError
from hybrid.host.files import flush_to_disk, write_whole

Line = dict[str, Any]


class Locked(UsageError):
    """Another process writes this journal."""


class Journal:
    """A journal that is open for writing, and locked. `lines`: what it says; the first line is the one with the `mark`."""

    def __init__(self, path: str, mark: Mapping[str, Any]) -> None:
        """Open the journal, or make it where there is none. Locked where another process has it; UsageError where the file is
        something else."""
        self.path, self._mark = path, dict(mark)
        self._file = _locked(path)
        try:
            data = _all_of(self._file)
            self.lines = _lines(data, path, self._mark)
            self._end = _length(data, len(self.lines))
            os.ftruncate(self._file, self._end)
        except BaseException:
            self.close()
            raise

    def begin(self, first: Line) -> None:
        """Forget all lines but for this new one."""
        self.forget()
        self.append({**self._mark, **first})

    def forget(self) -> None:
        """Remove all lines."""
        os.ftruncate(self._file, 0)
        os.fsync(self._file)
        self.lines, self._end = [], 0

    def append(self, line: Line) -> None:
        """Append a line, and wait until it is on the disk."""
        # Names of files need not be UTF-8: "surrogatepass" is how the json module reads them again.
        data = (json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n").encode(errors="surrogatepass")
        write_whole(self._file, data, self._end)
        os.fsync(self._file)
        self.lines.append(line)
        self._end += len(data)

    def remove(self) -> None:
        """Remove the journal while it is locked: who opens it meanwhile finds that it is gone."""
        os.unlink(self.path)
        flush_to_disk(os.path.dirname(self.path))
        self.close()

    def close(self) -> None:
        os.close(self._file)


def read_journal(path: str, mark: Mapping[str, Any]) -> list[Line]:
    """The lines of a journal, read without its lock; none where there is no such file. UsageError where the file is something
    else."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        return _lines(_all_of(descriptor), path, mark)
    finally:
        os.close(descriptor)


def _locked(path: str) -> int:
    """The journal's file, open and locked."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(descriptor, path)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    flush_to_disk(os.path.dirname(path))
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was the journal of a job that has ended meanwhile, and removed it


def _lock(descriptor: int, path: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Locked(f"{path} is locked: another job writes it", code="file-locked") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):  # a file system without locks
            raise


def _all_of(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _lines(data: bytes, path: str, mark: Mapping[str, Any]) -> list[Line]:
    """The lines up to the first one that cannot be read. UsageError where the first is not the one with which a journal
    begins."""
    lines: list[Line] = []
    *whole, torn = data.split(b"\n")
    for text in whole:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            break
        if not isinstance(line, dict):
            break
        lines.append(line)
    begins = json.dumps(dict(mark), ensure_ascii=False)[:-1].encode()
    is_ours = mark.items() <= lines[0].items() if lines else not whole and begins.startswith(torn[: len(begins)])
    if not is_ours:
        raise UsageError(
            f"{path} is there, and is no journal of this version of the program: remove it, or name another file",
            code="file-exists",
        )
    return lines


def _length(data: bytes, lines: int) -> int:
    """The bytes of the first so many lines."""
    return sum(len(line) + 1 for line in data.split(b"\n")[:lines])
