# SPDX-License-Identifier: MIT
"""What all formats have in common that a matrix is written in: one process begins the file, then several write rows of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from hybrid.core.spans import Span, pieces
from hybrid.errors import UsageError
from hybrid.host.files import write_whole

BYTES_AT_ONCE = 32 << 20


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


class RawRows:
    """Where a file has the matrix as it lies in memory, row after row, from byte `begun` on."""

    def write(self, beside: Path, begun: int, matrix: np.ndarray, rows: Span, told: Callable[[], None]) -> None:
        # Not through a memory map: a full disk is then an error and not a SIGBUS.
        descriptor = os.open(beside, os.O_WRONLY)
        try:
            at = begun + rows.lo * matrix.shape[1] * matrix.itemsize
            data = memoryview(matrix[rows.slice].reshape(-1).view(np.uint8).data)
            for part in pieces(Span(0, len(data)), BYTES_AT_ONCE):
                write_whole(descriptor, data[part.slice], at + part.lo)
                told()
        finally:
            os.close(descriptor)


def refuse_name(path: str, name: str) -> None:
    """UsageError for a name that no dataset can have in its file."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise UsageError(f"{path}:/{name} names no dataset: a name is needed between slashes, and neither . nor ..")
    if not name.isprintable():
        raise UsageError(f"{path}:/{name} names no dataset: names in such files are UTF-8, without control characters")
