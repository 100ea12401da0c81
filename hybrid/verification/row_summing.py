# SPDX-License-Identifier: MIT
"""Who computes the checksums of rows in host memory: threads in C where there is a C compiler, else threads with NumPy."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hybrid.core.spans import Span
from hybrid.emulation.build import build_plain, c_compiler
from hybrid.errors import HybridError
from hybrid.host.call_queue import Calls
from hybrid.host.row_sums import WEIGHTED_ROWS, row_checksums
from hybrid.host.thread_map import rows_of_about

SOURCE = Path(__file__).resolve().parent / "row_checksums.c"
_FLAGS = ("-std=c11", "-O3", "-pthread")
_MOST_THREADS = 12  # in C: 8 and 14 took as long on 16 cores, and copies want the memory, too
# Of one thread's call of NumPy. The calls are few, because between them a thread needs the GIL, which the thread that submits the
# copies needs again after each CUDA call; that it changes hands takes as long as to sum half a megabyte. Those of C are shorter:
# several threads shall sum the last tile together.
_CALL_BYTES = {"A": 32 << 20, "B": 32 << 20, "C": 16 << 20}


class RowSums(Protocol):
    """One product's, as `row_checksums` has them. No array that was given may be freed before `wait` or `abandon` returns."""

    def sum(self, operand: str, rows: np.ndarray, weights: np.ndarray, into: np.ndarray) -> None:
        """Of each of these rows, soon."""

    def wait(self) -> None:
        """Until all have been summed."""

    def abandon(self) -> None:
        """Sum nothing more. When this returns, nothing is read."""


class ByNumPy:
    def __init__(self, threads: int) -> None:
        self._calls = Calls(threads)

    def sum(self, operand: str, rows: np.ndarray, weights: np.ndarray, into: np.ndarray) -> None:
        together = WEIGHTED_ROWS * rows.shape[1] * rows.itemsize
        for part in rows_of_about(_CALL_BYTES[operand], Span(0, -(-len(rows) // WEIGHTED_ROWS)), together):
            some = slice(part.lo * WEIGHTED_ROWS, part.hi * WEIGHTED_ROWS)
            self._calls.soon(partial(row_checksums, rows[some], weights, into[some]))

    def wait(self) -> None:
        self._calls.wait()

    def abandon(self) -> None:
        self._calls.abandon()


class InC:
    """By threads of row_checksums.c, as which `library` has been loaded."""

    def __init__(self, library: Any, threads: int) -> None:
        self._library, self._process, self._queue = library, os.getpid(), library.new_queue(threads)
        if not self._queue:
            raise MemoryError("no thread for checksums")
        self._arrays: list[tuple[np.ndarray, ...]] = []  # which the threads use

    def __del__(self) -> None:
        self._end(drop=True)

    def sum(self, operand: str, rows: np.ndarray, weights: np.ndarray, into: np.ndarray) -> None:
        self._arrays.append((rows, weights, into))
        first, of_columns, sums = (each.ctypes.data for each in (rows, weights, into))
        layout = *rows.shape, rows.strides[0], rows.itemsize
        if self._library.put(self._queue, first, *layout, of_columns, WEIGHTED_ROWS, sums):
            raise MemoryError

    def wait(self) -> None:
        self._end(drop=False)

    def abandon(self) -> None:
        self._end(drop=True)

    def _end(self, *, drop: bool) -> None:
        queue, self._queue = self._queue, None
        if queue and self._process == os.getpid():  # a fork's child has no such threads
            self._library.end_queue(queue, drop)
        self._arrays.clear()


def load() -> Any:
    """The library of row_checksums.c. HybridError without a C compiler, or if it does not compile."""
    library = ctypes.CDLL(str(build_plain(c_compiler(), SOURCE, _FLAGS)))
    queue, address, number = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
    library.new_queue.restype = queue
    library.put.argtypes = [queue, address, number, number, number, number, address, number, address]
    library.end_queue.argtypes, library.end_queue.restype = [queue, ctypes.c_int], None
    return library


class _Loading:
    """In a thread of its own, since the first product shall not wait for a compiler: NumPy sums until then."""

    def __init__(self) -> None:
        self.loaded: Any = None
        threading.Thread(target=self._load, name="hybrid-compile", daemon=True).start()

    def _load(self) -> None:
        if sys.byteorder == "little":
            with suppress(HybridError, OSError):  # NumPy sums the same, slower
                self.loaded = load()


_loading: _Loading | None = None


def row_sums(threads: int) -> RowSums:
    """Of a product that begins, by so many threads."""
    global _loading
    if _loading is None:
        _loading = _Loading()
    library = _loading.loaded
    return ByNumPy(threads) if library is None else InC(library, min(threads, _MOST_THREADS))
