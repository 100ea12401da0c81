# SPDX-License-Identifier: MIT
"""The file of a matrix that is written part by part, under a name that a later job finds: <file>.part, with <file>.journal
beside it.

Each row has its place in the file, so that any rows can be written, and read again to see whether they are what the journal
says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import numpy as np

from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.host.files import allocated, discard, flush_to_disk, journal_of, publish
from hybrid.host.matrix_output import MatrixOutput, Place, RawRows, write_rows
from hybrid.host.thread_map import rows_of_about

_GROUP_BYTES = 4 << 20  # of the rows that have a digest together: by such groups several processes share the rows of a part
_DIGEST_BYTES = 16


@record
class Frame:
    """What the file has beside the rows. `begun`: the byte at which they begin. `digest`: of all bytes before and behind
    them."""

    size: int
    begun: int
    digest: str


class PartialMatrix:
    """The file of `output` while it is written: `height` rows of `row_bytes` bytes each."""

    def __init__(self, output: MatrixOutput, height: int, row_bytes: int) -> None:
        """UsageError for a format in which rows have no place before they are written."""
        if not isinstance(output, RawRows):
            raise UsageError(
                f"{output.path} cannot be written part by part: --resume writes .npy, .h5 and .zarr, "
                "in which rows have their place before they are known (a .mtx file is text)",
                code="file-kind",
            )
        self._output, self._height, self._row_bytes = output, height, row_bytes
        self.target = Path(os.path.realpath(output.path))
        self.part = self.target.with_name(f"{self.target.name}.part")
        self.journal = journal_of(output.path)

    @property
    def name(self) -> str:
        """The file's name for messages, with the name that the user gave."""
        return f"{self._output.path}.part"

    @property
    def size(self) -> int:
        """The bytes that the file takes."""
        return self._output.size

    def refuse(self) -> None:
        """Refuse what the output refuses. What is written already needs no further room."""
        self._output.refuse(max(0, self.size - allocated(self.part)))

    def begin(self) -> Frame:
        """Make a new file without the rows, in place of one that is there."""
        discard(self.part)
        begun = self._output.begin(self.part)
        self._output.make_room(self.part, begun, self._height * self._row_bytes)
        self.flush()
        flush_to_disk(self.part.parent)
        return Frame(_size_of(self.part), begun, self._frame_digest(self.part, begun))

    def is_framed(self, path: Path, frame: Frame) -> bool:
        """Whether the file is there, and has all but the rows as it was written."""
        with suppress(OSError):
            return _size_of(path) == frame.size and self._frame_digest(path, frame.begun) == frame.digest
        return False

    def write(self, frame: Frame, part: Span, c: np.ndarray, groups: Sequence[Span], told: Callable[[], None]) -> None:
        """Write these groups of neighbouring rows of a part of C. `c`: the part, whose row 0 is row `part.lo` of C."""
        if groups:
            for place in self._places(self.part, frame, Span(groups[0].lo, groups[-1].hi)):
                write_rows(place, c[place.rows.within(part).slice], told)

    def _places(self, path: Path, frame: Frame, rows: Span) -> Iterator[Place]:
        return self._output.places(path, frame.begun, rows, self._row_bytes)

    def groups(self, part: Span) -> list[Span]:
        """The groups of rows of a part, each of which has a digest. They are the same whoever writes them, and however many
        do."""
        return list(rows_of_about(_GROUP_BYTES, part, self._row_bytes))

    def flush(self) -> None:
        """Wait until the file is on the disk."""
        for each in (*self.part.rglob("*"), self.part):
            flush_to_disk(each)

    def digests_on_disk(self, path: Path, frame: Frame, groups: Iterable[Span], told: Callable[[], None]) -> list[bytes]:
        """The digests of these groups as the file has them; of a group that it lacks, another one."""
        digests = []
        for group in groups:
            data = np.empty(len(group) * self._row_bytes, np.uint8)
            read = all(_read_into(data, place, group, self._row_bytes) for place in self._places(path, frame, group))
            digests.append(_digest(data) if read else b"")
            told()
        return digests

    def publish(self) -> None:
        """Give the finished file its name."""
        publish(self.part, str(self.target))
        flush_to_disk(self.target.parent)

    def _frame_digest(self, path: Path, begun: int) -> str:
        around = b"".join(self._output.around(path, begun, self._height * self._row_bytes))
        return blake2b(around, digest_size=_DIGEST_BYTES).hexdigest()


def _size_of(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    return sum(each.stat().st_size for each in (path.rglob("*") if path.is_dir() else [path]) if each.is_file())


def _read_into(data: np.ndarray, place: Place, group: Span, row_bytes: int) -> bool:
    """Read the rows at this place into their part of a group's data. Whether all of them are there."""
    rows = place.rows.within(group)
    left = data.data[rows.lo * row_bytes : rows.hi * row_bytes]
    with open(place.path, "rb", buffering=0) as file:
        file.seek(place.at)
        while left and (count := file.readinto(left)):
            left = left[count:]
    return not left


def digests_in_memory(part: Span, c: np.ndarray, groups: Iterable[Span], told: Callable[[], None]) -> list[bytes]:
    """The digests of groups of rows of C. `c`: the part of C to which they belong, contiguous, whose row 0 is row `part.lo`."""
    digests = []
    for group in groups:
        digests.append(_digest(c[group.within(part).slice].reshape(-1).view(np.uint8)))
        told()
    return digests


def joined_digest(digests: Iterable[bytes]) -> str:
    """One digest from those of all groups of a part, in their order."""
    return blake2b(b"".join(digests), digest_size=_DIGEST_BYTES).hexdigest()


def _digest(data: np.ndarray) -> bytes:
    return blake2b(data.data, digest_size=_DIGEST_BYTES).digest()
