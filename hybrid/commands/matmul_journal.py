# SPDX-License-Identifier: MIT
"""The journal of a product in parts: lines of JSON, each of which is on the disk before the next part is begun.

The first line says what was asked for, every other one that a part is in the file. Who writes the journal holds its lock, which
the system gives back when the process ends, however it does. It belongs to its user alone, since its digests say which rows of
the file are taken as right. A process that is killed while it appends leaves a torn line. That is ignored, and so is everything
behind a line that cannot be read, as a machine may leave it whose power fails.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hybrid.core.installation import is_own
from hybrid.core.problem import record
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.host.files import flush_names, led_to
from hybrid.runs.files import write_whole

Line = dict[str, Any]
Facts = Mapping[str, str]

_MARK: Line = {"journal": "hybrid.matmul", "schema": 2}  # in the first line
ROWS_OF_A_PART = "rows of a part"  # one of the facts that are asked for


@record
class Written:
    """A part in the file. `exact`: its elements are integers, and so the same in any arithmetic."""

    digest: str
    exact: bool
    arithmetic: Facts


@record
class State:
    """What a journal says. `begun`: the byte at which the file's rows begin; `frame`: a digest of all bytes beside the rows."""

    asked: Facts
    rows: int  # of a part
    begun: int
    frame: str
    written: Mapping[Span, Written]

    @property
    def rows_there(self) -> int:
        return sum(map(len, self.written))

    def refuse_other(self, asked: Facts, arithmetic: Facts, files: str) -> None:
        """UsageError where now another product is asked for, or where some rows may have other bits than they would get now.

        `files`: the names of those that would have to be removed.
        """
        other = _differences(self.asked, asked)
        if len(other) == 1 and asked.get(ROWS_OF_A_PART) != self.asked.get(ROWS_OF_A_PART):
            raise UsageError(
                f"{files} were begun with parts of {self.rows} rows: leave out --resume-rows, or give --resume-rows {self.rows}",
                code="resume-other",
            )
        if other:
            raise UsageError(
                f"{files} are of another product ({'; '.join(other)}): remove them, or leave out --resume", code="resume-other"
            )
        for part in self.written.values():
            other = [] if part.exact else _differences(part.arithmetic, arithmetic)
            if len(other) > 1:  # the tiles differ because of the other facts, and their digest tells a user nothing
                other = [each for each in other if not each.startswith("tiles")]
            if other:
                raise UsageError(
                    f"{files} have rows whose last bits may be others than here ({'; '.join(other)}): "
                    "go on as they were computed, or remove them to begin anew",
                    code="resume-other",
                )


def state_of(lines: Sequence[Line], path: str) -> State | None:
    """What the journal's lines say together; None where it is empty. UsageError where they make no sense."""
    if not lines:
        return None
    first, *parts = lines
    try:
        written = {
            Span(*line["part"]): Written(line["digest"], bool(line["exact"]), dict(line["arithmetic"])) for line in parts
        }  # the last line of each counts
        state = State(dict(first["asked"]), int(first["rows"]), int(first["begun"]), str(first["frame"]), written)
        if state.rows < 1:
            raise ValueError(f"parts of {state.rows} rows")
        return state
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is malformed ({type(error).__name__}: {error}): remove it to begin anew", code="file-format"
        ) from None


def _differences(there: Facts, here: Facts) -> list[str]:
    """Each fact that is not the same, in words."""
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return [f"{name} {there.get(name, 'not known')} there, {here.get(name, 'not known')} here" for name in names]


def journal_of(path: str) -> str:
    """The name of the journal of parts, of the file to which `path` leads through symbolic links."""
    return f"{led_to(path)}.journal"


class Journal:
    """A journal that is open for writing, and locked. `lines`: what it says."""

    def __init__(self, path: str) -> None:
        """Open and lock the journal; make it where there is none. UsageError where another process has it, or the file is
        something else."""
        self._path = path
        self._file = _locked(path)
        try:
            self.lines, self._end = _lines(self._file, path)
            os.ftruncate(self._file, self._end)
        except BaseException:
            self.close()
            raise

    def begin(self, first: Line) -> None:
        """Forget all lines but for this new one."""
        os.ftruncate(self._file, 0)
        os.fsync(self._file)
        self.lines, self._end = [], 0
        self.append({**_MARK, **first})

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
        os.unlink(self._path)
        flush_names(os.path.dirname(self._path))
        self.close()

    def close(self) -> None:
        os.close(self._file)


def read_journal(path: str) -> State | None:
    """What a journal says, read without its lock. UsageError where the file is something else."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return state_of(_lines(descriptor, path)[0], path)
    finally:
        os.close(descriptor)


def _locked(path: str) -> int:
    """The journal's file, open and locked."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if not is_own(descriptor):
            os.close(descriptor)
            why = "belongs to another user, or others may write to it: it could name rows that no product has"
            raise UsageError(f"{path} {why}; remove it, or name another file", code="file-shared")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UsageError(f"{path} is locked: another job writes it", code="file-locked") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):  # a file system without locks
                os.close(descriptor)
                raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                flush_names(os.path.dirname(path))
                return descriptor
        os.close(descriptor)  # it was the journal of a job that has ended meanwhile, and removed it


def _lines(descriptor: int, path: str) -> tuple[list[Line], int]:
    """The lines up to the first one that cannot be read, and their bytes. UsageError where the first is not the one with which a
    journal begins."""
    lines: list[Line] = []
    end = 0
    *whole, torn = os.pread(descriptor, os.fstat(descriptor).st_size, 0).split(b"\n")
    for text in whole:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            break
        if not isinstance(line, dict):
            break
        lines.append(line)
        end += len(text) + 1
    begins = json.dumps(_MARK, ensure_ascii=False)[:-1].encode()
    if not (_MARK.items() <= lines[0].items() if lines else not whole and begins.startswith(torn[: len(begins)])):
        raise UsageError(
            f"{path} is there, and is no journal of this version of the program: remove it, or name another file",
            code="file-exists",
        )
    return lines, end
