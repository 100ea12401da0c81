# SPDX-License-Identifier: MIT
"""H2D and D2H copies of whole arrays of any dtype, verified by checksums at both ends."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from hybrid.arrays.interop import broadcast
from hybrid.core.problem import Span, padded, pieces
from hybrid.devices.base import Event
from hybrid.devices.check_operations import check_kernel, check_matrices
from hybrid.devices.row_sums import ALL, SHARE, RowChecksums, RowsToSum, Sample, checksum_weights
from hybrid.errors import CheckFailed
from hybrid.host.memory import copy_rows
from hybrid.ranks.heartbeat import busy
from hybrid.transport.rank_device import RankDevice

# Checksums treat memory as rows of 64-bit words: `_WORDS` a row for arrays from `_LARGE` bytes on, else `_FEW_WORDS`.
_LARGE, _WORDS, _FEW_WORDS = 1 << 20, 1024, 16
_ROWS_AT_ONCE = 2048  # summed while the next rows are copied
_SAMPLED = 16 << 20  # bytes of all arrays: from this size on, only a sample of the rows is summed


class WholeCopies:
    """The copies of one product: `to_gpu` for each operand, the product, `to_host` for C, `verify`.

    Bytes behind the last row of words have no checksum; `verify` reads them back instead.
    """

    def __init__(
        self, rank_device: RankDevice, read: Sequence[np.ndarray], written: np.ndarray | None, threads: int, *, check: str
    ) -> None:
        """`read`, `written`: host arrays. `threads`: for copies and sums. `check`: as in the settings."""
        arrays = [*read] if written is None else [*read, written]
        device = self._device = rank_device.device
        assert rank_device.gpu is not None
        self._threads, self._where = threads, f"the device of {rank_device.team.host}, {rank_device.gpu.name}"
        self._overwrites = written is not None and any(np.may_share_memory(each, written) for each in read)
        self._slots = device.pin_again(arrays, threads)
        self._use_slots()
        if written is not None and any(each is written for each in self._slots):
            device.populate(written)
        sampled = check != "full" and sum(each.nbytes for each in arrays) >= _SAMPLED
        self._sample = Sample(SHARE, secrets.randbelow(SHARE)) if sampled else ALL
        self._sums = None if check == "off" else RowChecksums(threads, 1, self._sample)
        self._arriving: list[Event] = []  # of H2D copies
        self._summed: list[tuple[str, np.ndarray, Any]] = []  # message, the host's checksums, rows on the GPU
        self._ends: list[tuple[str, np.ndarray, Any]] = []  # message, bytes in host memory, bytes on the GPU

    def to_gpu(self, name: str, array: np.ndarray) -> Any:
        """The array on the GPU, in its own dtype; complete after `make_caller_wait`. DoesNotFit if GPU memory is short."""
        once = array[tuple(slice(1 if step == 0 and array.size else None) for step in array.strides)]  # copy broadcasts once
        turned = once.flags.f_contiguous and not once.flags.c_contiguous
        rows = once.T if turned else once
        if not (rows.flags.c_contiguous and rows.dtype.isnative and rows.ctypes.data % 8 == 0):
            rows = np.empty(rows.shape, rows.dtype.newbyteorder("="))
            copy_rows(rows, once.T if turned else once, self._threads)
        memory = self._device.reserve(padded(rows.nbytes, 1), shared=False)
        there = self._device.matrix(memory, 0, 1, rows.nbytes, "uint8")[0]
        self._copy(f"{name} reached {self._where} with other values than it has in memory", _bytes_of(rows), there, "A")
        made = there.view(rows.dtype).reshape(rows.shape)
        made = made.T if turned else made
        return made if made.shape == array.shape else broadcast(made, array.shape)

    def make_caller_wait(self) -> None:
        """Make the caller's stream wait for the H2D copies."""
        self._device.have_caller_follow(self._arriving)

    def to_host(self, source: Any, into: np.ndarray) -> None:
        """Copy a complete, contiguous C from the GPU; it has arrived when `verify` returns."""
        if self._overwrites and self._sums is not None:
            self._sums.wait()  # `into` may be the added C: finish its checksums first
        self._use_slots()
        text = f"C left {self._where} with other values than it has in memory"
        self._copy(text, _bytes_of(into), source.reshape(-1).view("uint8"), "C")

    def verify(self) -> None:
        """Wait until all copies are complete. CheckFailed if one arrived changed."""
        if self._sums is None:
            with busy():
                self._device.finish()
            return
        device, found, first, all_rows = self._device, [], 0, sum(len(rows) for *_, rows in self._summed)
        made = check_matrices(device, {"all": (3, all_rows), "weights": (1, _WORDS), "sample": (1, 2)})
        device.write(made["weights"], checksum_weights(_WORDS, 8)[None, :])
        device.write(made["sample"], self._sample.words)
        calls = [device.clearing(made["all"], 0)]
        for text, on_host, rows in self._summed:
            count, width = rows.shape
            part, first = slice(first, first + count), first + count
            checksums, largest, squares = (made["all"][row, part].reshape(-1, 1) for row in range(3))
            weights = made["weights"][:, :width]
            into = squares, squares, largest, checksums.view("uint64"), made["sample"]
            calls.append(check_kernel(device, "row_sums", rows, weights, weights, *into))
            found.append((text, on_host, part))
        device.launch(calls, [], "check")
        with busy():
            device.finish()
        self._sums.wait()
        there = device.read(made["all"][0].view("uint64"))
        compared = [(text, on_host, there[part]) for text, on_host, part in found]
        compared += [(text, on_host[0], device.read(end)[0]) for text, on_host, end in self._ends]
        for text, on_host, on_gpu in compared:
            if not np.array_equal(on_host, on_gpu):
                raise CheckFailed(f"the product is wrong: {text}", code="check-copy")

    def abandon(self) -> None:
        """Give up after a failure. When this returns, neither threads nor the GPU access host memory."""
        self._device.give_up()
        with suppress(Exception):  # the failure has been reported already
            self._device.finish()
        if self._sums is not None:
            self._sums.abandon()

    def _use_slots(self) -> None:
        self._device.use_slots(self._slots, self._threads, 1)

    def _copy(self, text: str, on_host: np.ndarray, there: Any, key: str) -> None:
        """Copy these bytes, then sum them on the host. `key`: "A": H2D, "C": D2H."""
        (rows, end), (rows_there, end_there) = _rows_of(on_host), _rows_of(there)
        count, width = rows.shape
        checksums, weights, total = np.zeros(count, np.uint64), checksum_weights(width, 8), np.zeros(1, np.uint64)
        for some in pieces(Span(0, count), _ROWS_AT_ONCE):
            event = self._copied(rows[some.slice], rows_there[some.slice], key)
            if self._sums is not None:
                to_sum = key, rows, some, Span(0, width), weights, checksums, some.lo, total, 0, some.lo
                self._sums.sum(RowsToSum(*to_sum), event, self._device)
        if count:
            self._summed.append((text, checksums, rows_there))
        if end.size:
            self._copied(end, end_there, key)
            self._ends.append((text, end.copy() if key == "A" else end, end_there))  # C may overwrite it

    def _copied(self, on_host: np.ndarray, there: Any, key: str) -> Event:
        if key == "C":
            return self._device.copy_out(on_host, there, [])
        self._arriving.append(self._device.copy_in(there, on_host, []))
        return self._arriving[-1]


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8)


def _rows_of(memory: Any) -> tuple[Any, Any]:
    """The bytes as rows of words, and the remaining bytes as one row."""
    words = _WORDS if memory.size >= _LARGE else _FEW_WORDS
    whole = memory.size // (8 * words) * 8 * words
    return memory[:whole].view("float64").reshape(whole // (8 * words), words), memory[None, whole:]
