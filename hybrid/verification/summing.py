# SPDX-License-Identifier: MIT
"""The two ways to make checksums of rows while copies are under way: by threads, of rows in host memory, or by the GPU whose
memory the rows are in."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from hybrid.core.spans import Span
from hybrid.devices.base import Device, Event
from hybrid.plan.check_layout import Piece
from hybrid.verification.copied import CopiedPieces
from hybrid.verification.row_summing import RowsToSum, RowSums, row_sums

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
