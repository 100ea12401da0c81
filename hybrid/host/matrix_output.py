# SPDX-License-Identifier: MIT
"""What all formats have in common that a matrix is written in: one process begins the file, then several write rows of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from hybrid.core.spans import Span, pieces
from hybrid.errors import UsageError
from hybrid.host.files import write_whole

BYTES_AT_ONCE = 32 << 20  # that one call reads or writes, before progress is told


class MatrixOutput(Protocol):
    """A file, or a folder, that a matrix becomes."""

    path: str
    size: int  # bytes it takes, at most a few KiB too many

    def refuse(self, size: int) -> None:
        """UsageError where it could not be written, DoesNotFit where not with so many bytes: found before the work, not after."""

    def begin(self, beside: Path) -> int:
        """All but the elements, under a temporary name: by one process. What it returns, the others need to `write`."""

    def write(self, beside: Path, begun: int, matrix: np.ndarray, rows: Span, told: Callable[[], None]) -> None:
        """These rows of the whole `matrix`; other processes may write other rows meanwhile. `told` is called now and then."""


class Place(NamedTuple):
    """Some rows of a matrix, which lie one after the other in a file, from a byte on."""

    path: Path
    at: int
    rows: Span


class RawRows:
    """Where the matrix lies in a file as in memory, row after row, from byte `begun` on; or in several files."""

    def places(self, beside: Path, begun: int, rows: Span, row_bytes: int) -> Iterator[Place]:
        """Of these rows."""
        yield Place(beside, begun + rows.lo * row_bytes, rows)

    def make_room(self, beside: Path, begun: int, rows_bytes: int) -> None:
        """For so many bytes of rows, none of which is written yet."""
        os.truncate(beside, max(os.path.getsize(beside), begun + rows_bytes))

    def around(self, beside: Path, begun: int, rows_bytes: int) -> Iterator[bytes]:
        """All that there is beside the rows."""
        with open(beside, "rb") as file:
            yield file.read(begun)
            file.seek(begun + rows_bytes)
            yield file.read()

    def write(self, beside: Path, begun: int, matrix: np.ndarray, rows: Span, told: Callable[[], None]) -> None:
        for place in self.places(beside, begun, rows, matrix.shape[1] * matrix.itemsize):
            write_rows(place, matrix[place.rows.slice], told)


def write_rows(place: Place, rows: np.ndarray, told: Callable[[], None]) -> None:
    """Not through a memory map: a full disk is then an error and not a SIGBUS."""
    descriptor = os.open(place.path, os.O_WRONLY)
    try:
        data = memoryview(rows.reshape(-1).view(np.uint8).data)
        for part in pieces(Span(0, len(data)), BYTES_AT_ONCE):
            write_whole(descriptor, data[part.slice], place.at + part.lo)
            told()
    finally:
        os.close(descriptor)


def refuse_name(path: str, name: str) -> None:
    """UsageError for a name that no dataset can have in its file."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise UsageError(f"{path}:/{name} names no dataset: a name is needed between slashes, and neither . nor ..")
    if not name.isprintable():
        raise UsageError(f"{path}:/{name} names no dataset: names in such files are UTF-8, without control characters")
