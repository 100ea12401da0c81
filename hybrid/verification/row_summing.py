# SPDX-License-Identifier: MIT
"""The threads that compute checksums of rows in host memory: in C where there is a C compiler, else with NumPy."""

from __future__ import annotations

import ctypes
import os
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from hybrid.core.spans import Span
from hybrid.devices.base import Event, EventWait
from hybrid.emulation.loaded_soon import LoadedSoon
from hybrid.errors import DeviceUnavailable
from hybrid.host.call_queue import Calls
from hybrid.host.row_sums import WEIGHTED_ROWS, mixed_total, row_checksums
from hybrid.host.thread_map import rows_of_about
from hybrid.verification.row_checksums_library import EventWaitInC, load

# In C, for each link whose copies are summed: for one, 8 and 14 took as long as 12 on 16 cores, and copies want the memory, too;
# for two, 12 in all took 1.2 times as long as 20 on 32 cores.
_MOST_THREADS = 12
_LINKS = 8  # that have lines of their own: half of LINES in row_pool.h
# How much a thread sums in one call of NumPy. The calls are few, because between them a thread needs the GIL, which the thread
# that submits the copies needs again after each CUDA call; that it changes hands takes as long as to sum half a megabyte. Those
# of C are shorter: several threads shall sum the last tile together.
_CALL_BYTES = {"A": 32 << 20, "B": 32 << 20, "C": 16 << 20}
_AGAIN = 256  # one of so many rows of C is summed once more in the end, as row_checksums.c does


class RowsToSum(NamedTuple):
    """Rows and columns of a matrix in host memory, and where their checksums go.

    These are whole arrays and places in them, since slices of arrays would take longer to make than these numbers.
    """

    operand: str
    matrix: np.ndarray
    rows: Span
    columns: Span
    weights: np.ndarray  # of all columns
    checksums: np.ndarray
    first: int  # where among the checksums the first row's goes
    totals: np.ndarray
    place: int  # which of the totals the rows are added to, each checksum mixed with its row's number
    number: int  # of the first row in its matrix

    @property
    def elements(self) -> np.ndarray:
        return self.matrix[self.rows.slice, self.columns.slice]

    @property
    def of_rows(self) -> np.ndarray:
        """Where the rows' checksums go."""
        return self.checksums[self.first : self.first + len(self.rows)]


class RowSums(Protocol):
    """Makes the checksums of one product, as `row_checksums` computes them, in the background.

    No array that it was given may be freed before `wait` or `abandon` has returned.
    """

    def sum(self, rows: RowsToSum) -> None:
        """Have these rows summed soon."""

    def sum_after(self, rows: RowsToSum, event: Event, how: EventWait, link: int) -> bool:
        """Have these rows summed when the event is complete; it follows those that came before for the same link and direction.
        `how`: a thread waits for it. False where that cannot be: then nothing was done."""

    def complete(self) -> None:
        """To be called when all copies are complete and all rows were given to `sum`. When these have been summed, some rows of C
        are summed once more, which finds what was written over them since."""

    def wait(self) -> None:
        """After `complete`: wait until everything is summed."""

    def abandon(self) -> None:
        """Sum nothing more. When this returns, no array is read."""


class ByNumPy:
    """Sums rows by threads with NumPy."""

    def __init__(self, threads: int) -> None:
        self._calls = Calls(threads)
        self._summed: list[RowsToSum] = []

    def sum(self, rows: RowsToSum) -> None:
        self._summed.append(rows)
        elements, weights, into = rows.elements, rows.weights[rows.columns.slice], rows.of_rows
        together = WEIGHTED_ROWS * elements.shape[1] * elements.itemsize
        for part in rows_of_about(_CALL_BYTES[rows.operand], Span(0, -(-len(elements) // WEIGHTED_ROWS)), together):
            some = slice(part.lo * WEIGHTED_ROWS, part.hi * WEIGHTED_ROWS)
            self._calls.soon(partial(row_checksums, elements[some], weights, into[some]))

    def sum_after(self, rows: RowsToSum, event: Event, how: EventWait, link: int) -> bool:
        return False

    def complete(self) -> None:
        pass  # `wait` does it

    def wait(self) -> None:
        self._calls.wait()
        while self._summed:
            rows = self._summed.pop()
            if rows.operand == "C" and len(rows.rows):
                # As rows_again in row_checksums.c.
                some = slice(min(1, len(rows.rows) - 1), None, _AGAIN)
                weighted = slice(int(len(rows.rows) == 1))
                row_checksums(rows.elements[some], rows.weights[rows.columns.slice], rows.of_rows[some], weighted)
            rows.totals[rows.place : rows.place + 1] += mixed_total(rows.of_rows, rows.number)  # modulo 2^64

    def abandon(self) -> None:
        self._calls.abandon()
        self._summed.clear()


class InC:
    """Sums rows by the threads of row_checksums.c.

    `library`: what `load` returns. `pool`: the address of its pool of threads, which serves any number of products.
    """

    def __init__(self, library: Any, pool: int, threads: int) -> None:
        self._library, self._process, self._pool = library, os.getpid(), pool
        self._arrays: dict[int, tuple[np.ndarray, int]] = {}  # by id, the arrays that the threads use, and their addresses
        self._events: list[Event] = []  # that the threads wait for
        self._of_transposed = ByNumPy(threads)
        self._batch = library.new_batch(pool, threads)
        if not self._batch:
            raise MemoryError("no thread for checksums")

    def __del__(self) -> None:
        self.abandon()

    def sum(self, rows: RowsToSum) -> None:
        if _is_transposed(rows.matrix):  # NumPy reads it in the order of its memory
            self._of_transposed.sum(rows)
        else:
            self._put(rows, None, 0, 0)

    def sum_after(self, rows: RowsToSum, event: Event, how: EventWait, link: int) -> bool:
        if _is_transposed(rows.matrix):
            return False
        self._events.append(event)
        self._put(rows, ctypes.byref(EventWaitInC(*how)), event.ptr, link % _LINKS)
        return True

    def _put(self, rows: RowsToSum, how: Any, event: int, link: int) -> None:
        matrix, columns, address = rows.matrix, rows.columns, self._address
        stride, item_size = matrix.strides[0], matrix.itemsize
        first = address(matrix) + rows.rows.lo * stride + columns.lo * item_size
        weights, checksums = address(rows.weights) + 8 * columns.lo, address(rows.checksums) + 8 * rows.first
        layout, total = (len(rows.rows), len(columns), stride, item_size), address(rows.totals) + 8 * rows.place
        of_c = rows.operand == "C"
        sums = weights, checksums, rows.number, total, of_c
        if self._library.put(self._pool, self._batch, first, *layout, *sums, how, event, 2 * link + of_c):
            raise MemoryError("no memory or no thread for checksums")

    def complete(self) -> None:
        if self._batch:
            self._library.complete(self._pool, self._batch)
        self._of_transposed.complete()

    def wait(self) -> None:
        if self._batch and (failure := self._library.wait_for(self._pool, self._batch)):
            raise DeviceUnavailable(f"a copy from or to the device failed (CUDA error {failure})", code="gpu-failed")
        self._of_transposed.wait()

    def abandon(self) -> None:
        self._of_transposed.abandon()
        batch, self._batch = self._batch, None
        if batch and self._process == os.getpid():  # a fork's child has no such threads
            self._library.drop(self._pool, batch)
        self._arrays.clear()
        self._events.clear()

    def _address(self, array: np.ndarray) -> int:
        known = self._arrays.get(id(array))
        if known is None:
            known = self._arrays[id(array)] = array, array.ctypes.data
        return known[1]


def _is_transposed(matrix: np.ndarray) -> bool:
    return matrix.strides[1] != matrix.itemsize


class _Loading(LoadedSoon):
    """Loads row_checksums.c in the background; until then NumPy sums."""

    def __init__(self) -> None:
        self._pool: int | None = None
        self._process = os.getpid()
        super().__init__(load)

    @property
    def pool(self) -> int | None:
        """The address of this process's pool of threads. A forked child makes its own: its parent's has no threads here, and
        perhaps a lock that is never released."""
        if self._pool is None or self._process != os.getpid():
            self._pool, self._process = self.loaded.new_pool(), os.getpid()
        return self._pool


_loading: _Loading | None = None


def row_sums(threads: int, links: int = 1) -> RowSums:
    """What sums the rows of a product that begins, by so many threads at most. `links`: of so many devices, whose copies bring
    them."""
    global _loading
    if _loading is None:
        _loading = _Loading()
    if _loading.loaded is None or (pool := _loading.pool) is None:
        return ByNumPy(threads)
    return InC(_loading.loaded, pool, min(threads, links * _MOST_THREADS))
