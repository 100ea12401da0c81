# SPDX-License-Identifier: MIT
"""Who computes the checksums of rows in host memory: threads in C where there is a C compiler, else threads with NumPy."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hybrid.core.spans import Span
from hybrid.emulation.build import build_plain, c_compiler
from hybrid.errors import HybridError
from hybrid.host.call_queue import Calls
from hybrid.host.row_sums import WEIGHTED_ROWS, mixed_total, row_checksums
from hybrid.host.thread_map import rows_of_about

SOURCE = Path(__file__).resolve().parent / "row_checksums.c"
_FLAGS = ("-std=c11", "-O3", "-pthread")
_MOST_THREADS = 12  # in C: 8 and 14 took as long on 16 cores, and copies want the memory, too
# Of one thread's call of NumPy. The calls are few, because between them a thread needs the GIL, which the thread that submits the
# copies needs again after each CUDA call; that it changes hands takes as long as to sum half a megabyte. Those of C are shorter:
# several threads shall sum the last tile together.
_CALL_BYTES = {"A": 32 << 20, "B": 32 << 20, "C": 16 << 20}
_AGAIN = 256  # of so many rows one is summed again
_NEVER = 1 << 61  # rows until the first, or the next, that is weighted


@dataclass
class PieceOfRows:
    """Rows in host memory, and where their checksums go. Their total, each mixed with its row's number, is added to `total`."""

    operand: str
    rows: np.ndarray
    weights: np.ndarray  # of the columns
    checksums: np.ndarray
    total: np.ndarray  # of one element
    number: int  # of the first row

    @property
    def again(self) -> slice:
        """Some of the rows of a tile of C, to be summed once more: so what another tile's copy wrote there later is found.

        Not the first row, unlike which the second has no weights: those would take longer than all the rest.
        """
        return slice(min(1, len(self.rows) - 1), None, _AGAIN)


class RowSums(Protocol):
    """One product's, as `row_checksums` has them. No array that was given may be freed before `wait` or `abandon` returns."""

    def sum(self, piece: PieceOfRows) -> None:
        """Of each of the rows, soon."""

    def wait(self) -> None:
        """Until all have been summed, and then some rows of C once more. To be called when all copies are complete."""

    def abandon(self) -> None:
        """Sum nothing more. When this returns, nothing is read."""


class ByNumPy:
    def __init__(self, threads: int) -> None:
        self._calls = Calls(threads)
        self._pieces: list[PieceOfRows] = []

    def sum(self, piece: PieceOfRows) -> None:
        self._pieces.append(piece)
        rows, weights, into = piece.rows, piece.weights, piece.checksums
        together = WEIGHTED_ROWS * rows.shape[1] * rows.itemsize
        for part in rows_of_about(_CALL_BYTES[piece.operand], Span(0, -(-len(rows) // WEIGHTED_ROWS)), together):
            some = slice(part.lo * WEIGHTED_ROWS, part.hi * WEIGHTED_ROWS)
            self._calls.soon(partial(row_checksums, rows[some], weights, into[some]))

    def wait(self) -> None:
        self._calls.wait()
        while self._pieces:
            piece = self._pieces.pop()
            if piece.operand == "C" and len(piece.rows):
                some, weighted = piece.again, slice(int(len(piece.rows) == 1))
                row_checksums(piece.rows[some], piece.weights, piece.checksums[some], weighted)
            piece.total += mixed_total(piece.checksums, piece.number)

    def abandon(self) -> None:
        self._calls.abandon()
        self._pieces.clear()


class InC:
    """By threads of row_checksums.c, as which `library` has been loaded. Those of its `pool` serve any number of products."""

    def __init__(self, library: Any, pool: int, threads: int) -> None:
        self._library, self._process, self._pool = library, os.getpid(), pool
        self._batch = library.new_batch(pool, threads)
        if not self._batch:
            raise MemoryError("no thread for checksums")
        self._pieces: list[PieceOfRows] = []  # whose arrays the threads use

    def __del__(self) -> None:
        self.abandon()

    def sum(self, piece: PieceOfRows) -> None:
        self._pieces.append(piece)
        if piece.operand == "C":
            self._put(piece, piece.again, (0 if len(piece.rows) == 1 else _NEVER, 2 * _NEVER), _AGAIN)
        self._put(piece, slice(None), (0, WEIGHTED_ROWS), 1)

    def wait(self) -> None:
        if self._batch:
            self._library.wait_for(self._pool, self._batch)

    def abandon(self) -> None:
        batch, self._batch = self._batch, None
        if batch and self._process == os.getpid():  # a fork's child has no such threads
            self._library.drop(self._pool, batch)
        self._pieces.clear()

    def _put(self, piece: PieceOfRows, some: slice, weighted: tuple[int, int], step: int) -> None:
        rows, sums = piece.rows[some], piece.checksums[some]
        first, weights, of_rows, total = (each.ctypes.data for each in (rows, piece.weights, sums, piece.total))
        layout = *rows.shape, rows.strides[0], rows.itemsize
        number = piece.number + (some.start or 0)
        if self._library.put(self._pool, self._batch, first, *layout, weights, *weighted, of_rows, step, number, total):
            raise MemoryError


def load() -> Any:
    """The library of row_checksums.c. HybridError without a C compiler, or if it does not compile."""
    library = ctypes.CDLL(str(build_plain(c_compiler(), SOURCE, _FLAGS)))
    address, number = ctypes.c_void_p, ctypes.c_int64
    library.new_pool.restype = address
    library.new_batch.argtypes, library.new_batch.restype = [address, ctypes.c_int], address
    layout = [address, number, number, number, number]
    library.put.argtypes = [address, address, *layout, address, number, number, address, number, ctypes.c_uint64, address]
    library.wait_for.argtypes, library.wait_for.restype = [address, address], None
    library.drop.argtypes, library.drop.restype = [address, address], None
    return library


class _Loading:
    """In a thread of its own, since the first product shall not wait for a compiler: NumPy sums until then."""

    def __init__(self) -> None:
        self.loaded: Any = None
        self._pool: int | None = None
        self._process = os.getpid()
        threading.Thread(target=self._load, name="hybrid-compile", daemon=True).start()

    def _load(self) -> None:
        if sys.byteorder == "little":
            with suppress(HybridError, OSError):  # NumPy sums the same, slower
                self.loaded = load()

    @property
    def pool(self) -> int | None:
        """Of this process: that of its parent has no threads here, and perhaps a lock that nobody opens."""
        if self._pool is None or self._process != os.getpid():
            self._pool, self._process = self.loaded.new_pool(), os.getpid()
        return self._pool


_loading: _Loading | None = None


def row_sums(threads: int) -> RowSums:
    """Of a product that begins, by so many threads."""
    global _loading
    if _loading is None:
        _loading = _Loading()
    if _loading.loaded is None or (pool := _loading.pool) is None:
        return ByNumPy(threads)
    return InC(_loading.loaded, pool, min(threads, _MOST_THREADS))
