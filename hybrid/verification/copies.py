# SPDX-License-Identifier: MIT
"""Checksums of matrices that ranks have exchanged. A later check of the product uses the matrices as they arrived, so it cannot
find an error of the exchange itself.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from hybrid.arrays.sources import MatrixSource, RootMatrix
from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.devices.base import Device, Event, EventWait
from hybrid.emulation.build import build_plain, c_compiler
from hybrid.emulation.loaded_soon import LoadedSoon
from hybrid.errors import CheckFailed, DeviceUnavailable
from hybrid.host.memory import RowView
from hybrid.host.row_sums import WEIGHTED_ROWS, checksum_weights, mixed_total, row_checksums
from hybrid.host.threads import CALL_BYTES, Calls, on_threads, rows_of_about
from hybrid.plan.check_layout import Piece
from hybrid.plan.plan import Plan
from hybrid.plan.schedule import Arrival, Tile
from hybrid.ranks.team import Team
from hybrid.verification.check import CopiedPieces, InMemory, Place

# -------- row checksums library
# row_checksums.c, which sums rows of matrices by threads of its own: compiled, loaded, and its functions' types.

SOURCE = Path(__file__).resolve().parent / "row_checksums.c"
_FLAGS = ("-std=c11", "-O3", "-pthread")


class EventWaitInC(ctypes.Structure):
    """EventWait of row_pool.h."""

    _fields_: ClassVar[Any] = [("enter", ctypes.c_void_p), ("context", ctypes.c_void_p), ("wait", ctypes.c_void_p)]


def load() -> Any:
    """Compile and load row_checksums.c. None where bytes have another order than it expects.

    Raises HybridError if there is no C compiler, or if it does not compile.
    """
    if sys.byteorder != "little":
        return None
    path = str(build_plain(c_compiler(), SOURCE, _FLAGS))
    library: Any = ctypes.CDLL(path)
    address, number = ctypes.c_void_p, ctypes.c_int64
    library.put = ctypes.PyDLL(path).put  # with the GIL: to get it back would take longer than the call
    library.new_pool.restype = address
    library.new_batch.argtypes, library.new_batch.restype = [address, ctypes.c_int], address
    matrix: list[Any] = [address, number, number, number, number]
    after_event: list[Any] = [address, address, ctypes.c_int]
    library.put.argtypes = [address, address, *matrix, address, address, ctypes.c_uint64, address, ctypes.c_int, *after_event]
    for function in (library.complete, library.wait_for, library.drop):
        function.argtypes, function.restype = [address, address], None
    library.wait_for.restype = ctypes.c_int
    return library


# -------- row summing
# The threads that compute checksums of rows in host memory: in C where there is a C compiler, else with NumPy.

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


# -------- summing
# The two ways to make checksums of rows while copies are under way: by threads, of rows in host memory, or by the GPU whose
# memory the rows are in.

_BUSY_THREADS = 2  # which should keep their cores: the one that submits the copies, and the one that waits for them

# By rank, in its layout's order: the checksums of all rows of its pieces, and those of the pieces; 0 where not summed here.
Checksums = dict[int, tuple[np.ndarray, np.ndarray]]


class Summing(Protocol):
    """Makes checksums of rows, each when a copy that reads or writes them is complete."""

    keeps: bool  # whether the checksums of one product are still there in the next

    def begin(self, kept: Mapping[int, Sequence[int]]) -> None:
        """A product begins. `kept`: by rank, the numbers of the pieces whose checksums of the last product are kept."""

    def abandon(self) -> None:
        """The product has failed: sum nothing more. When this returns, no matrix is read."""

    def sum(self, rank: int, piece: Piece, part: Span, matrix: Any, first: int, event: Event) -> None:
        """Make the checksums of rows `part` of a piece after the event, once in a product. The piece's first row is row `first`
        of the matrix."""

    def complete(self) -> None:
        """To be called when `sum` has been called for all rows, and all copies are complete."""

    def wait(self) -> Checksums:
        """After `complete`: wait until all checksums are made, and return them."""


class _WhenCopied:
    """Hands rows on to be summed when their copies are complete. A thread of Python's waits for one event after the other."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._sums: RowSums | None = None
        self._awaited: SimpleQueue[tuple[RowsToSum, Event] | None] = SimpleQueue()
        self._abandoned = False
        self.failure: BaseException | None = None  # of the thread
        self._ended = threading.Event()
        self._ended.set()

    def begin(self, sums: RowSums) -> None:
        """A product begins, whose rows are handed on to `sums`. To be called after `end` or `abandon` of the last."""
        self._sums, self._abandoned, self.failure = sums, False, None

    def put(self, rows: RowsToSum, event: Event) -> None:
        if self._ended.is_set():
            self._awaited = SimpleQueue()
            self._ended.clear()
            try:
                _thread.start_new_thread(self._wait_for_each, ())  # unlike Thread.start, it does not wait until the thread runs
            except BaseException:
                self._ended.set()  # nobody else will: `abandon` would wait for ever
                raise
        self._awaited.put((rows, event))

    def end(self) -> None:
        """Wait until all rows have been handed on."""
        self._awaited.put(None)
        self._ended.wait()

    def raise_failure(self) -> None:
        """Raise what the thread has raised, once."""
        failure, self.failure = self.failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback refers to this frame: together they would keep the matrices

    def abandon(self) -> None:
        """Hand on no more rows, and wait until the thread has ended."""
        self._abandoned = True
        self.end()

    def _wait_for_each(self) -> None:
        assert self._sums is not None, "a product has begun"
        try:
            while (entry := self._awaited.get()) is not None:
                if not self._abandoned:
                    self._device.wait(entry[1])
                    self._sums.sum(entry[0])
        except BaseException as error:  # `raise_failure` raises it
            self.failure = error
        finally:
            self._ended.set()


class ByThreads:
    """Sums rows in host memory, by threads."""

    keeps = True

    def __init__(
        self, device: Device, weights: Mapping[str, np.ndarray], pieces: Mapping[int, CopiedPieces], threads: int
    ) -> None:
        self._device, self._weights, self._pieces = device, weights, pieces
        self._threads = max(1, threads - _BUSY_THREADS)
        self._made: Checksums = {
            rank: (np.zeros(each.layout.checksums, np.uint64), np.zeros(len(each.places), np.uint64))
            for rank, each in pieces.items()
        }
        self._sums: RowSums | None = None
        # Where threads in C do not wait for the copies. Apart, since each waits for one copy after the other, and copies of both
        # kinds run at the same time.
        self._copied_in, self._copied_out = _WhenCopied(device), _WhenCopied(device)

    def begin(self, kept: Mapping[int, Sequence[int]]) -> None:
        self.abandon()
        self._sums = row_sums(self._threads, len(self._pieces))
        for each in (self._copied_in, self._copied_out):
            each.begin(self._sums)
        for rank, (_, of_pieces) in self._made.items():
            kept_totals = of_pieces[kept[rank]]
            of_pieces[:] = 0
            of_pieces[kept[rank]] = kept_totals

    def abandon(self) -> None:
        for each in (self._copied_in, self._copied_out):
            each.abandon()
        if self._sums is not None:
            self._sums.abandon()

    def sum(self, rank: int, piece: Piece, part: Span, matrix: np.ndarray, first: int, event: Event) -> None:
        of_rows, of_pieces = self._made[rank]
        number = self._pieces[rank].layout.first_row(piece) + part.lo
        rows, weights = Span(first + part.lo, first + part.hi), self._weights[piece.operand]
        entry = RowsToSum(
            piece.operand, matrix, rows, piece.columns, weights, of_rows, piece.offset + part.lo, of_pieces, piece.number, number
        )
        how = self._device.event_wait
        if how is None or self._sums is None or not self._sums.sum_after(entry, event, how, rank):
            (self._copied_out if piece.operand == "C" else self._copied_in).put(entry, event)

    def complete(self) -> None:
        for each in (self._copied_in, self._copied_out):
            each.end()
        if self._sums is not None:
            self._sums.complete()

    def wait(self) -> Checksums:
        for each in (self._copied_in, self._copied_out):
            each.raise_failure()
        if self._sums is not None:
            self._sums.wait()
            self._sums.abandon()
        return {rank: (of_rows, of_pieces.copy()) for rank, (of_rows, of_pieces) in self._made.items()}


class ByDevice:
    """Sums rows of arrays that lie on the GPU, by that GPU."""

    keeps = False  # the operation adds to what is there

    def __init__(self, device: Device, weights: Mapping[str, np.ndarray], pieces: Mapping[int, CopiedPieces]) -> None:
        self._operations = operations = device.check_operations()
        sizes = {rank: each.layout.checksums for rank, each in pieces.items()}
        self._pieces, self._sizes = pieces, sizes
        self._first = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
        shapes = {f"weights of {key}": (1, len(each)) for key, each in weights.items()}
        made = operations.make({**shapes, "all": (3, sum(sizes.values()))})
        self._weights = {key: made[f"weights of {key}"] for key in weights}
        for key, each in weights.items():
            operations.write(self._weights[key], each[None, :])
        self._clear = operations.clear(made["all"])
        # For each row its checksum, and what the same operation computes besides.
        self._checksums, self._largest, self._squares = (made["all"][part].reshape(-1, 1) for part in range(3))
        self._checksums = self._checksums.view("uint64")
        self._summed: dict[int, list[int]] = {}

    def begin(self, kept: Mapping[int, Sequence[int]]) -> None:
        self._summed = {rank: [] for rank in self._pieces}
        self._clear([])

    def abandon(self) -> None:
        pass

    def sum(self, rank: int, piece: Piece, part: Span, matrix: Any, first: int, event: Event) -> None:
        self._summed[rank].append(piece.number)
        rows, begin = matrix[first + part.lo : first + part.hi, piece.columns.slice], self._first[rank] + piece.offset
        there = slice(begin + part.lo, begin + part.hi)
        weights, squares = self._weights[piece.operand][:, piece.columns.slice], self._squares[there]
        operation = self._operations.row_sums(
            rows, weights, weights, 0, squares, squares, self._largest[there], self._checksums[there]
        )
        operation([event])

    def complete(self) -> None:
        pass

    def wait(self) -> Checksums:
        of_all, found = self._operations.read(self._checksums)[:, 0], {}
        for rank, first in self._first.items():
            of_rows, summed = of_all[first : first + self._sizes[rank]], self._summed[rank]
            of_pieces = np.zeros(len(self._pieces[rank].places), np.uint64)
            of_pieces[summed] = self._pieces[rank].of_pieces(of_rows)[summed]
            found[rank] = of_rows, of_pieces
        return found


# -------- copy checksums
# Checksums of what copies read from memory and write to it, made while GPUs copy and multiply: threads sum what is in host
# memory, and a GPU sums the arrays that it holds.


class CopyChecksums:
    """The checksums of what this rank copies. One is made for a plan and used for one product after the other, each from `begin`
    to `results` or `abandon`."""

    def __init__(
        self,
        problem: Problem,
        pieces: Mapping[int, CopiedPieces],
        device: Device,
        own: Mapping[int, Container[int]],
        matrices: tuple[Any, RowView, Any],
        origin: int,
        threads: int,
    ) -> None:
        """`pieces`: by rank, the pieces of those for which this rank copies: itself, or all ranks where the root copies its own
        arrays to their devices. `own`: by rank, the numbers of the pieces of A and B to sum here; pieces of B, which several
        ranks copy, are divided among these. `matrices`: A, B and C as `RankMatrices` has them. `origin`: the number of the first
        row of A and C there. `threads`: how many this rank has."""
        self._pieces, self._own, self._matrices, self._origin = pieces, own, matrices, origin
        of_operands, of_c = problem.operand_item_size, problem.item_size
        widths = {"A": (problem.l, of_operands), "B": (problem.m, of_operands), "C": (problem.m, of_c)}
        self._weights = weights = {matrix: checksum_weights(width, item) for matrix, (width, item) in widths.items()}
        a, b, c = matrices
        on_host = {isinstance(matrix, np.ndarray) for matrix in (a, b.array, c)}  # of row blocks on GPUs, B may be gathered there
        self._summing: dict[bool, Summing] = {}
        if True in on_host:
            self._summing[True] = ByThreads(device, weights, pieces, threads)
        if False in on_host:
            self._summing[False] = ByDevice(device, weights, pieces)
        self._summed: dict[int, dict[int, Piece]] = {rank: {} for rank in pieces}  # by rank and number, the pieces summed here
        self._begun = self._complete = False  # this product's sums; the last product's checksums were all made
        self._of_rows: dict[int, np.ndarray] = {}  # by rank, the checksums of all rows of its pieces

    def begin(self) -> None:
        """A product begins. The operands are the same as before. What that takes is done when first copies were submitted."""
        self._begun = False

    def _begin_once(self) -> None:
        if self._begun:
            return
        self._begun = True
        keeps = self._complete and all(each.keeps for each in self._summing.values())
        for rank, summed in self._summed.items():
            self._summed[rank] = {number: piece for number, piece in summed.items() if keeps and piece.operand != "C"}
        self._complete = False
        for each in self._summing.values():
            each.begin({rank: list(summed) for rank, summed in self._summed.items()})

    def abandon(self) -> None:
        """The product has failed. When this returns, no matrix is read any more."""
        self._complete = False
        for each in self._summing.values():
            each.abandon()

    def loaded(self, rank: int, arrival: Arrival, event: Event) -> None:
        """Sum what arrives on a rank's device, which is in memory already, when the copy is complete (after the event): while it
        runs, summing would make it take longer, since it would read what a core has in its cache."""
        self._begin_once()
        summed, own = self._summed[rank], self._own[rank]
        for piece in self._pieces[rank].layout.pieces_of_arrival(arrival):
            if piece.number in own and piece.number not in summed:
                self._sum(rank, piece, Span(0, len(piece.rows)), event)

    def stored(self, rank: int, tile: Tile, part: Span, event: Event) -> None:
        """Sum these rows of a rank's tile, which are in memory after the event. The first is a multiple of WEIGHTED_ROWS."""
        self._begin_once()
        for piece in self._pieces[rank].layout.pieces_of_tile(tile):
            self._sum(rank, piece, part, event)

    def complete(self) -> None:
        """To be called when `loaded` and `stored` have been called for all copies, and these are complete."""
        self._begin_once()
        for each in self._summing.values():
            each.complete()

    def results(self) -> dict[int, tuple[list[int], np.ndarray]]:
        """After `complete`: by rank, the numbers of its pieces that were summed here, and the checksums of all its pieces, in
        which the others' are 0."""
        found = [each.wait() for each in self._summing.values()]
        self._complete = True
        results = {}
        for rank in self._pieces:
            of_rows, of_pieces = found[0][rank]
            for more_rows, more_pieces in (other[rank] for other in found[1:]):  # each has zeros where the other has summed
                of_rows, of_pieces = of_rows + more_rows, of_pieces + more_pieces
            self._of_rows[rank] = of_rows
            results[rank] = (list(self._summed[rank]), of_pieces)
        return results

    def rows_of(self, place: Place) -> np.ndarray | None:
        """After `results`, the checksums of the rows of a place; None where it was not summed here."""
        rank, piece = self._piece_at(place)
        return self._of_rows[rank][piece.offset : piece.offset + len(piece.rows)] if piece is not None else None

    def was_written(self, place: Place) -> bool:
        """Whether a place in host memory that was summed here holds other values now than it did then."""
        rank, piece = self._piece_at(place)
        rows = self._rows_of(rank, piece) if piece is not None else None
        if piece is None or not isinstance(rows, np.ndarray):
            return False
        now = np.empty(len(rows), np.uint64)
        row_checksums(rows, self._weights[piece.operand][piece.columns.slice], now)
        return bool((now != self._of_rows[rank][piece.offset : piece.offset + len(rows)]).any())

    def _piece_at(self, place: Place) -> tuple[int, Piece | None]:
        for rank, summed in self._summed.items():
            for number, piece in summed.items():
                if self._pieces[rank].places[number] == place:
                    return rank, piece
        return 0, None

    def _sum(self, rank: int, piece: Piece, part: Span, event: Event) -> None:
        self._summed[rank][piece.number] = piece
        matrix, first = self._matrix_of(rank, piece)
        self._summing[isinstance(matrix, np.ndarray)].sum(rank, piece, part, matrix, first, event)

    def _rows_of(self, rank: int, piece: Piece) -> Any:
        matrix, first = self._matrix_of(rank, piece)
        return matrix[first : first + len(piece.rows), piece.columns.slice]

    def _matrix_of(self, rank: int, piece: Piece) -> tuple[Any, int]:
        """The array in which a piece lies, and which of the array's rows is the piece's first."""
        a, b, c = self._matrices
        if piece.operand == "B":
            return b.array, piece.rows.lo - b.rows.lo
        return (a if piece.operand == "A" else c), self._pieces[rank].layout.first_row(piece) - self._origin


# -------- other nodes
# Checksums, made on the root's node, of the pieces that other nodes' ranks copy: of the operands that were sent to them, and
# of C as it was gathered. Compared with theirs, they show whether sending and gathering changed anything.


def sums_of_other_nodes(
    team: Team,
    plan: Plan,
    operands: tuple[MatrixSource, MatrixSource],
    views: Mapping[str, RowView],
    threads: int,
    pieces: Sequence[CopiedPieces],
) -> InMemory:
    """By rank of another node, the numbers of its pieces that this rank sums, and their checksums.

    The root sums the pieces that it sent from its own arrays. The ranks of its node divide among them the pieces of C, and of B
    where it is gathered there. Ranks of other nodes sum nothing here. `views`: by "A", "B" and "C", the rows in the node's
    memory.
    """
    found: dict[int, tuple[list[int], np.ndarray]] = {}
    if team.node != plan.root_node:
        return found
    sources = dict(zip("AB", operands, strict=True))
    done: set[Place] = {place for rank in team.node_ranks for place in pieces[rank].places if not _is_sent(sources, place)}
    for rank in range(team.size):
        if rank in team.node_ranks:
            continue
        of_rank = pieces[rank]
        of_rows, mine = np.zeros(of_rank.layout.checksums, np.uint64), []
        for piece, place in zip(of_rank.layout.pieces, of_rank.places, strict=True):
            if place in done:
                continue
            done.add(place)
            rows = _rows_here(team, plan, sources, views, piece, place)
            if rows is not None:
                weights = checksum_weights(plan.problem.l if place[0] == "A" else plan.problem.m, plan.problem.item_size)
                _sum(rows, weights[piece.columns.slice], of_rows[piece.offset :][: len(piece.rows)], plan.problem.dtype, threads)
                mine.append(piece.number)
        found[rank] = mine, of_rank.of_pieces(of_rows)
    return found


def _is_sent(sources: Mapping[str, MatrixSource], place: Place) -> bool:
    """Whether the root sends this place to other nodes, from an array of its own."""
    return isinstance(sources.get(place[0]), RootMatrix)


def _rows_here(
    team: Team, plan: Plan, sources: Mapping[str, MatrixSource], views: Mapping[str, RowView], piece: Piece, place: Place
) -> np.ndarray | None:
    """The elements of a piece that a rank of another node copies, as they are here; None where another rank sums them, or where
    this node does not have them."""
    operand, rows, columns = place
    source = sources.get(operand)
    if isinstance(source, RootMatrix):
        return source.array[rows.slice, columns.slice] if team.rank == plan.root else None
    view = views[operand]
    if not rows.lies_in(view.rows) or team.node_ranks[piece.number % len(team.node_ranks)] != team.rank:
        return None
    matrix: np.ndarray = view[rows][:, columns.slice]
    return matrix


def _sum(rows: np.ndarray, weights: np.ndarray, checksums: np.ndarray, dtype: str, threads: int) -> None:
    """Write the rows' checksums, of their elements as `dtype`, to `checksums`."""

    def add(part: slice) -> None:
        some = rows[part]
        if some.dtype != dtype or not some.dtype.isnative or not some.flags.aligned or some.strides[1] != some.itemsize:
            some = np.ascontiguousarray(some, dtype)
        row_checksums(some, weights, checksums[part])

    for _ in on_threads(threads, add, _parts(rows)):
        pass


def _parts(rows: np.ndarray) -> Iterator[slice]:
    """Some rows at a time; the first of each part is a multiple of WEIGHTED_ROWS."""
    together = WEIGHTED_ROWS * rows.shape[1] * rows.itemsize
    for part in rows_of_about(CALL_BYTES, Span(0, -(-len(rows) // WEIGHTED_ROWS)), together):
        yield slice(part.lo * WEIGHTED_ROWS, part.hi * WEIGHTED_ROWS)


# -------- transfers
# Checksums of operands' rows that were sent between nodes. The check of the product uses the rows as they arrived, so it
# cannot find an error of sending them.


def verify_transfer(team: Team, plan: Plan, key: str, operand: RootMatrix, view: RowView, threads: int) -> None:
    """Raise CheckFailed on all ranks if a rank's rows of the operand, in `view`, differ from the root's.

    `key`: "A" or "B".
    """

    def rows_of(rank: int) -> Span:
        share = plan.shares[rank]
        return share.rows if key == "A" else share.b_rows

    with team.phase("check") as received:
        received.mine = checksums(view[rows_of(team.rank)], plan.problem.dtype, threads)
    with team.phase("check") as comparing:
        if team.rank == plan.root:
            sent = checksums(operand.array, plan.problem.dtype, threads)
            comparing.mine = [rank for rank, sums in enumerate(received.all) if (sums != sent[rows_of(rank).slice]).any()]
    for rank in comparing.all[plan.root]:
        raise CheckFailed(
            f"rows {rows_of(rank)} of {key} did not reach rank {rank} as they are at the root: check the network and MPI",
            code="check-exchange",
        )


def verify_gathered(team: Team, rows: Span, own: np.ndarray, view: RowView, threads: int) -> None:
    """Raise CheckFailed on all ranks if some rank's `own` rows of B differ from those in its node's shared memory."""
    with team.phase("check") as comparing:
        sums = (checksums(matrix, own.dtype.name, threads) for matrix in (own, view[rows]))
        comparing.mine = rows if np.not_equal(*sums).any() else None
    for rank, wrong in enumerate(comparing.all):
        if wrong is not None:
            raise CheckFailed(
                f"rows {wrong} of B did not reach the memory of its node as rank {rank} has them", code="check-exchange"
            )


def checksums(matrix: np.ndarray, dtype: str, threads: int) -> np.ndarray:
    """For each row, of its elements converted to `dtype`, the sum of their bits, weighted with odd numbers, modulo 2^64."""
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(dtype).itemsize]
    weights = 2 * np.arange(matrix.shape[1], dtype=np.uint64) + 1
    sums = np.empty(len(matrix), np.uint64)

    def add(rows: Span) -> None:
        part = np.ascontiguousarray(matrix[rows.slice], dtype).view(bits)
        np.sum(part * weights, axis=1, out=sums[rows.slice])

    for _ in on_threads(threads, add, rows_of_about(CALL_BYTES, Span(0, len(matrix)), 8 * matrix.shape[1])):
        pass
    return sums


def verify_exchange(
    team: Team, name: str, sent: Mapping[int, Sequence[np.ndarray]], received: Mapping[int, Sequence[np.ndarray]], threads: int
) -> None:
    """Raise CheckFailed on all ranks if what a rank has received differs from what another rank has sent it.

    `name`: of the matrix, for the message. `sent`, `received`: by the number of the other rank, the blocks in the order in which
    they were sent.
    """
    with team.phase("check") as comparing:
        comparing.mine = _checksums_by_rank(sent, threads), _checksums_by_rank(received, threads)
    for to, (_, of_receiver) in enumerate(comparing.all):
        for source, checksum in of_receiver.items():
            if comparing.all[source][0].get(to) != checksum:
                raise CheckFailed(
                    f"what rank {source} sent of {name} did not reach rank {to}: check the network and MPI", code="check-exchange"
                )


def _checksums_by_rank(matrices: Mapping[int, Sequence[np.ndarray]], threads: int) -> dict[int, int]:
    return {rank: _checksum(of_rank, threads) for rank, of_rank in matrices.items() if of_rank}


def _checksum(matrices: Sequence[np.ndarray], threads: int) -> int:
    """One checksum of all matrices, which is another one where the same elements come in another order."""
    total = 0
    for matrix in matrices:
        of_rows = checksums(matrix, matrix.dtype.name, threads)
        weights = 2 * np.arange(len(of_rows), dtype=np.uint64) + 1
        total = (3 * total + int(np.sum(of_rows * weights))) % (1 << 64)
    return total
