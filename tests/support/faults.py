# SPDX-License-Identifier: MIT
"""Faults planted into the copies and multiplications of a CPU that works as a GPU does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hybrid.devices.cpu import CpuDevice

Spoil = Callable[[np.ndarray, np.ndarray, np.ndarray], None]  # (into, source, what was in `into` before)


def element(into: np.ndarray, source: np.ndarray, before: np.ndarray) -> None:
    into[len(into) // 2, into.shape[1] // 3] += 1


def lowest_bit(into: np.ndarray, source: np.ndarray, before: np.ndarray) -> None:
    at = len(into) - 1, into.shape[1] - 1
    into[at] = np.nextafter(into[at], into.dtype.type(np.inf))


def sign(into: np.ndarray, source: np.ndarray, before: np.ndarray) -> None:
    into[0, -1] = -into[0, -1]


def stale_row(into: np.ndarray, source: np.ndarray, before: np.ndarray) -> None:
    into[-1] = before[-1]


def rows_exchanged(into: np.ndarray, source: np.ndarray, before: np.ndarray) -> None:
    into[[0, -1]] = into[[-1, 0]]


def columns_exchanged(into: np.ndarray, source: np.ndarray, before: np.ndarray) -> None:
    into[:, [0, -1]] = into[:, [-1, 0]]


def a_row_further(into: np.ndarray, source: np.ndarray, before: np.ndarray) -> None:
    into[...] = np.roll(source, 1, axis=0)


def a_column_further(into: np.ndarray, source: np.ndarray, before: np.ndarray) -> None:
    into[...] = np.roll(source, 1, axis=1)


def nothing(into: np.ndarray, source: np.ndarray, before: np.ndarray) -> None:
    into[...] = before


def rows_wrong(rows: int) -> Spoil:
    """So many rows, from the seventh on every other one, each in a column of its own, 70 columns further than the last."""

    def spoil(into: np.ndarray, source: np.ndarray, before: np.ndarray) -> None:
        into[7 + 2 * np.arange(rows), 3 + 70 * np.arange(rows)] *= 1 + 2**16 * np.finfo(into.dtype).eps

    return spoil


SPOILS = [
    element,
    lowest_bit,
    sign,
    stale_row,
    rows_exchanged,
    columns_exchanged,
    a_row_further,
    a_column_further,
    nothing,
]
OF_PRODUCTS = [element, sign, stale_row, rows_exchanged, columns_exchanged, nothing]  # the others round, or have no source


class Planted:
    """Spoils a call of a device's method, or `always` all from there on: number `which` of those that `chosen(into, source)`."""

    def __init__(
        self,
        monkeypatch: Any,
        method: str,
        spoil: Spoil,
        which: int = 0,
        chosen: Callable[[np.ndarray, np.ndarray], bool] = lambda into, source: True,
        *,
        always: bool = False,
    ) -> None:
        self.seen = 0
        self.done = False  # something was changed
        self.into = self.source = np.empty((0, 0))  # of the call that is spoiled
        original = getattr(CpuDevice, method)

        def spoiling(device: CpuDevice, *arguments: Any, **more: Any) -> Any:
            into, source = (arguments[2], arguments[0]) if method == "multiply" else arguments[:2]
            if not (into.size and chosen(into, source)):
                return original(device, *arguments, **more)
            self.seen += 1
            if self.seen != which + 1 and not (always and self.seen > which + 1 > 0):
                return original(device, *arguments, **more)
            before = into.copy()
            event = original(device, *arguments, **more)
            right = into.copy()
            for held in (before, np.zeros_like(before)):  # where the same rows lay there before, missing them does no harm
                if into.tobytes() == right.tobytes():
                    spoil(into, source, held)
            self.into, self.source = into, source
            self.done = self.done or into.tobytes() != right.tobytes()
            return event

        monkeypatch.setattr(CpuDevice, method, spoiling)


def place_in(part: np.ndarray, whole: np.ndarray) -> tuple[int, int, int, int]:
    """First row and its end, first column and its end of a part of a contiguous matrix."""
    first = (part.ctypes.data - whole.ctypes.data) // whole.itemsize
    row, column = divmod(first, whole.shape[1])
    return row, row + part.shape[0], column, column + part.shape[1]
