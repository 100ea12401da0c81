# SPDX-License-Identifier: MIT
"""Copies of tiles of C from a device to where they belong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hybrid.core.spans import Span
from hybrid.devices.base import Device, Event
from hybrid.host.row_sums import WEIGHTED_ROWS
from hybrid.plan.schedule import Arrival, Tile

_LEAST_BYTES = 4 << 20  # that a part has


def last_tile(order: Sequence[Arrival]) -> Tile | None:
    """The tile that is copied when all others are; None where there is none."""
    return next((tile for arrival in reversed(order) for tile in reversed(arrival.releases) if tile.completes), None)


def copy_out(
    device: Device, into: Any, source: Any, after: list[Event], told: Callable[[Span, Event], None] | None, *, is_last: bool
) -> Event:
    """Copy a tile, and call `told(rows, event)` for its rows when the copy is submitted.

    The last tile is copied in parts, each half as large as the one before, so that little is left to be summed when the product
    is complete.
    """
    rows = Span(0, len(source))
    if told is None or not is_last:
        event = device.copy_out(into, source, after)
        if told is not None:
            told(rows, event)
        return event
    for part in _halves(rows, source.shape[1] * source.itemsize):
        event = device.copy_out(into[part.slice], source[part.slice], after)  # copies out run one after the other
        told(part, event)
    return event


def _halves(rows: Span, row_bytes: int) -> Iterator[Span]:
    """The rows in parts, each of which has about half of those that are left."""
    first = rows.lo
    while (half := (rows.hi - first) // 2 // WEIGHTED_ROWS * WEIGHTED_ROWS) * row_bytes >= _LEAST_BYTES:
        yield Span(first, first + half)
        first += half
    yield Span(first, rows.hi)
