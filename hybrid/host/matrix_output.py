# SPDX-License-Identifier: MIT
"""What all formats have in common in which a matrix is written: one process begins the file, then several write rows of it."""

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
    """A file, or a folder, that is to hold a matrix."""

    path: str
    size: int  # the bytes that it takes, or a few KiB more

    def refuse(self, size: int) -> None:
        """UsageError where it could not be written, DoesNotFit where it could not with so many bytes: it is found before the
        work, not after it."""

    def begin(self, beside: Path) -> int:
        """Write all but the elements, under a temporary name, in one process. What it returns, the others pass to `write`."""

    def write(self, beside: Path, begun: int, matrix: np.ndarray, rows: Span, told: Callable[[], None]) -> None:
        """Write these rows of the whole `matrix`; other processes may write other rows meanwhile. `told` is called now and
        then."""


class Place(NamedTuple):
    """Some rows of a matrix, which lie in a file one after the other, from byte `at` on."""

    path: Path
    at: int
    rows: Span


class RawRows:
    """A format in which the matrix lies in a file as in memory, row after row, from byte `begun` on; or in several files so."""

    def places(self, beside: Path, begun: int, rows: Span, row_bytes: int) -> Iterator[Place]:
        """The places of these rows in the files."""
        yield Place(beside, begun + rows.lo * row_bytes, rows)

    def make_room(self, beside: Path, begun: int, rows_bytes: int) -> None:
        """Make room for so many bytes of rows, before any of them is written."""
        os.truncate(beside, max(os.path.getsize(beside), begun + rows_bytes))

    def around(self, beside: Path, begun: int, rows_bytes: int) -> Iterator[bytes]:
        """All bytes beside those of the rows."""
        with open(beside, "rb") as file:
            yield file.read(begun)
            file.seek(begun + rows_bytes)
            yield file.read()

    def write(self, beside: Path, begun: int, matrix: np.ndarray, rows: Span, told: Callable[[], None]) -> None:
        for place in self.places(beside, begun, rows, matrix.shape[1] * matrix.itemsize):
            write_rows(place, matrix[place.rows.slice], told)


def write_rows(place: Place, rows: np.ndarray, told: Callable[[], None]) -> None:
    """Write these rows at their place.

    They are not written through a memory map: so a full disk is an error and not a SIGBUS.
    """
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
        raise UsageError(
            f"{path}:/{name} names no dataset: a name is needed between slashes, and neither . nor ..", code="dataset-missing"
        )
    if not name.isprintable():
        raise UsageError(
            f"{path}:/{name} names no dataset: names in such files are UTF-8, without control characters", code="dataset-missing"
        )
