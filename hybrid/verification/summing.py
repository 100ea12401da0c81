# SPDX-License-Identifier: MIT
"""The two ways to make checksums of rows while copies are under way: by threads in host memory, or by the GPU that has them."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from hybrid.devices.base import Device, Event
from hybrid.host.row_sums import row_checksums
from hybrid.plan.check_layout import Piece
from hybrid.verification.row_summing import RowSums, row_sums

_BUSY_THREADS = 2  # which should keep their cores: the one that submits the copies, and the one that waits for them
_ROWS_AGAIN = 256  # one of so many rows of C is summed again when all copies are complete: of each tile some, of most


class Summing(Protocol):
    keeps: bool  # the checksums of one product are still there in the next

    def begin(self) -> None:
        """A product begins."""

    def abandon(self) -> None:
        """It has failed: sum nothing more. When this returns, no matrix is read."""

    def sum(self, rank: int, piece: Piece, rows: Any, event: Event | None) -> None:
        """The checksums of a piece's rows, which are there after the event."""

    def wait(self) -> dict[int, np.ndarray]:
        """For each rank those of all rows of its pieces, when all are made."""


class ByThreads:
    """Of host memory."""

    keeps = True

    def __init__(self, device: Device, weights: Mapping[str, np.ndarray], sizes: Mapping[int, int], threads: int) -> None:
        self._device, self._weights, self._threads = device, weights, max(1, threads - _BUSY_THREADS)
        self._of_rows = {rank: np.zeros(size, np.uint64) for rank, size in sizes.items()}
        self._asked: SimpleQueue[tuple[Piece, np.ndarray, np.ndarray, Event | None] | None] = SimpleQueue()
        self._sums: RowSums | None = None
        self._stored: list[tuple[Piece, np.ndarray, np.ndarray]] = []  # the pieces of C in this product
        self._abandoned = False
        self._failure: BaseException | None = None  # of the thread that shares the work out
        self._shared_out = threading.Event()
        self._shared_out.set()

    def begin(self) -> None:
        self.abandon()
        self._asked, self._sums = SimpleQueue(), None
        self._stored.clear()
        self._abandoned, self._failure = False, None
        self._shared_out.clear()
        _thread.start_new_thread(self._share_out, ())  # unlike Thread.start, it does not wait until the thread runs

    def abandon(self) -> None:
        self._abandoned = True
        self._end_sharing()
        if self._sums is not None:
            self._sums.abandon()
        self._stored.clear()

    def sum(self, rank: int, piece: Piece, rows: np.ndarray, event: Event | None) -> None:
        checksums = self._of_rows[rank][piece.offset : piece.offset + len(rows)]
        if piece.operand == "C":
            self._stored.append((piece, rows, checksums))
        self._asked.put((piece, rows, checksums, event))

    def wait(self) -> dict[int, np.ndarray]:
        self._end_sharing()
        if self._sums is not None:
            self._sums.wait()
        if self._failure is not None:
            raise self._failure
        self._sum_again()
        return self._of_rows

    def _sum_again(self) -> None:
        """Some rows of C, now that all copies are complete: what one tile's copy wrote into another's place is found."""
        for piece, rows, checksums in self._stored:
            weights, some = self._weights["C"][piece.columns.slice], slice(min(1, len(rows) - 1), None, _ROWS_AGAIN)
            # The second row of a piece, unlike the first, has no weights, which would take longer than all the rest.
            row_checksums(rows[some], weights, checksums[some], slice(int(len(rows) == 1)))
        self._stored.clear()

    def _end_sharing(self) -> None:
        self._asked.put(None)
        self._shared_out.wait()

    def _share_out(self) -> None:
        """In a thread of its own, which waits for one event after the other."""
        try:
            self._sums = row_sums(self._threads)
            while (entry := self._asked.get()) is not None:
                if not self._abandoned:
                    self._share_out_piece(*entry)
        except BaseException as error:  # raised by `wait`
            self._failure = error
        finally:
            self._shared_out.set()

    def _share_out_piece(self, piece: Piece, rows: np.ndarray, checksums: np.ndarray, event: Event | None) -> None:
        if event is not None:
            self._device.wait(event)
        assert self._sums is not None, "a product has begun"
        self._sums.sum(piece.operand, rows, self._weights[piece.operand][piece.columns.slice], checksums)


class ByDevice:
    """Of arrays on the GPU that multiplies."""

    keeps = False  # the operation adds to what is there

    def __init__(self, device: Device, weights: Mapping[str, np.ndarray], sizes: Mapping[int, int]) -> None:
        self._operations = operations = device.check_operations()
        self._size, self._first = sum(sizes.values()), dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
        self._sizes = sizes
        made = operations.make({**{f"weights of {key}": (1, len(each)) for key, each in weights.items()}, "all": (3, self._size)})
        self._weights = {key: made[f"weights of {key}"] for key in weights}
        for key, each in weights.items():
            operations.write(self._weights[key], each[None, :])
        self._all = made["all"]
        self._clear = operations.clear(self._all)
        # Of each row its checksum, and what the same operation gives besides.
        self._checksums, self._largest, self._squares = (self._all[part].reshape(-1, 1) for part in range(3))
        self._checksums = self._checksums.view("uint64")

    def begin(self) -> None:
        self._clear([])

    def abandon(self) -> None:
        pass

    def sum(self, rank: int, piece: Piece, rows: Any, event: Event | None) -> None:
        first = self._first[rank] + piece.offset
        part = slice(first, first + len(rows))
        weights, squares = self._weights[piece.operand][:, piece.columns.slice], self._squares[part]
        operation = self._operations.row_sums(
            rows, weights, weights, 0, squares, squares, self._largest[part], self._checksums[part]
        )
        operation([] if event is None else [event])

    def wait(self) -> dict[int, np.ndarray]:
        checksums = self._operations.read(self._checksums)[:, 0]
        return {rank: checksums[first : first + self._sizes[rank]] for rank, first in self._first.items()}
