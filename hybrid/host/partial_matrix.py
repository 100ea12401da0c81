# SPDX-License-Identifier: MIT
"""A matrix' file that is written part by part, under a name that a later job finds: <file>.part, and <file>.journal beside it.

Its rows lie one after the other, so that any rows can be written, and read again to see whether they are what the journal says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import numpy as np

from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.host.files import allocated, discard, flush_to_disk, journal_of, publish
from hybrid.host.matrix_output import MatrixOutput, RawRows
from hybrid.host.thread_map import rows_of_about

_GROUP_BYTES = 4 << 20  # of rows that have a digest of their own: several processes share the rows of a part by these
_DIGEST_BYTES = 16


@record
class Frame:
    """What the file has beside the rows. `begun`: the byte at which they begin; `digest`: of all bytes before and behind them."""

    size: int
    begun: int
    digest: str


class PartialMatrix:
    """The file of `output` while it is written: rows of `row_bytes` bytes each, `height` of them."""

    def __init__(self, output: MatrixOutput, height: int, row_bytes: int) -> None:
        """UsageError for a format whose rows do not lie one after the other."""
        if not isinstance(output, RawRows):
            raise UsageError(
                f"{output.path} cannot be written part by part: --resume writes .npy and .h5 files, "
                "in which the rows lie one after the other (a Zarr array has them in files of chunks, and a .mtx file is text); "
                "write one of these, and convert it when it is complete"
            )
        self._output, self._height, self._row_bytes = output, height, row_bytes
        self.target = Path(os.path.realpath(output.path))
        self.part = self.target.with_name(f"{self.target.name}.part")
        self.journal = journal_of(output.path)

    @property
    def name(self) -> str:
        """As in messages: beside the name that the user gave."""
        return f"{self._output.path}.part"

    @property
    def size(self) -> int:
        return self._output.size

    def refuse(self) -> None:
        """As its output does, but of the room what is written already has its own."""
        self._output.refuse(max(0, self.size - allocated(self.part)))

    def begin(self) -> Frame:
        """A new file without the rows, instead of one that is there."""
        discard(self.part)
        begun = self._output.begin(self.part)
        size = max(os.path.getsize(self.part), begun + self._height * self._row_bytes)
        os.truncate(self.part, size)
        flush_to_disk(self.part)
        flush_to_disk(self.part.parent)
        return Frame(size, begun, self._frame_digest(self.part, begun))

    def is_framed(self, path: Path, frame: Frame) -> bool:
        """Whether there is a file that has all but the rows as they were written."""
        with suppress(OSError):
            return os.path.getsize(path) == frame.size and self._frame_digest(path, frame.begun) == frame.digest
        return False

    def write(self, frame: Frame, part: Span, c: np.ndarray, groups: Sequence[Span], told: Callable[[], None]) -> None:
        """These groups of neighbouring rows of a part of C. `c`: the part, whose row 0 is row `part.lo` of C."""
        if groups:
            rows = Span(groups[0].lo, groups[-1].hi).within(part)
            self._output.write(self.part, frame.begun + part.lo * self._row_bytes, c, rows, told)

    def groups(self, part: Span) -> list[Span]:
        """The rows of a part that have a digest each: the same whoever writes them, and however many."""
        return list(rows_of_about(_GROUP_BYTES, part, self._row_bytes))

    def flush(self) -> None:
        flush_to_disk(self.part)

    def digests_on_disk(self, path: Path, frame: Frame, groups: Iterable[Span], told: Callable[[], None]) -> list[bytes]:
        """Of these groups as the file has them; of what it lacks, another one."""
        digests = []
        with open(path, "rb", buffering=0) as file:
            for group in groups:
                data = np.empty(len(group) * self._row_bytes, np.uint8)
                left = data.data
                file.seek(frame.begun + group.lo * self._row_bytes)
                while left and (count := file.readinto(left)):
                    left = left[count:]
                digests.append(b"" if left else _digest(data))
                told()
        return digests

    def publish(self) -> None:
        publish(self.part, str(self.target))
        flush_to_disk(self.target.parent)

    def _frame_digest(self, path: Path, begun: int) -> str:
        with open(path, "rb") as file:
            before = file.read(begun)
            file.seek(begun + self._height * self._row_bytes)
            return blake2b(before + file.read(), digest_size=_DIGEST_BYTES).hexdigest()


def digests_in_memory(part: Span, c: np.ndarray, groups: Iterable[Span], told: Callable[[], None]) -> list[bytes]:
    """Of groups of rows of C. `c`: the part of C, contiguous, whose row 0 is row `part.lo`."""
    digests = []
    for group in groups:
        digests.append(_digest(c[group.within(part).slice].reshape(-1).view(np.uint8)))
        told()
    return digests


def joined_digest(digests: Iterable[bytes]) -> str:
    """Of all groups of a part, in their order."""
    return blake2b(b"".join(digests), digest_size=_DIGEST_BYTES).hexdigest()


def _digest(data: np.ndarray) -> bytes:
    return blake2b(data.data, digest_size=_DIGEST_BYTES).digest()
