# SPDX-License-Identifier: MIT
"""The protocol of a transport: how operands reach a rank's device, and how C is copied back to the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from hybrid.core.problem import record
from hybrid.core.spans import Span
from hybrid.devices.base import Device, Event, Timings
from hybrid.host.memory import RowView
from hybrid.host.row_sums import WEIGHTED_ROWS
from hybrid.plan.schedule import Arrival, Tile


@record
class RankMatrices:
    """The memory that a rank's copies read and write: its row block of A, rows of B, and its row block of C, in host or GPU
    memory.

    Of B it has at least the rows that the rank's transport reads.
    """

    a: Any
    b: RowView
    c: Any


class CopyObserver(Protocol):
    """Is told of the copies from and to the memory in which the operands and C lie."""

    def loaded(self, rank: int, arrival: Arrival, event: Event) -> None:
        """What a rank's device gets by this arrival is in memory, and has been copied when the event is complete. This may be
        told more than once."""

    def stored(self, rank: int, tile: Tile, part: Span, event: Event) -> None:
        """The rows `part` of a rank's tile are in memory when the event is complete. They begin at a multiple of
        WEIGHTED_ROWS."""


class ArrivingPanels(Protocol):
    """Column panels of B that come to host memory while others are multiplied, by their number in the rank's share."""

    def arrived(self, index: int) -> bool:
        """Whether the panel is in host memory, without waiting."""

    def wait_for(self, index: int) -> None:
        """Wait until the panel is in host memory. PhaseEnded if a rank fails meanwhile."""


class LeavingPanels(Protocol):
    """Column panels of C that are sent to where they are kept while others are multiplied."""

    def will_be_stored(self, tile: Tile, event: Event) -> None:
        """Note that a tile of this rank is in host memory when the event is complete."""

    def advance(self) -> None:
        """Note which tiles are stored by now, and send what is computed, without waiting."""

    def wait_for_stored(self) -> None:
        """Wait until all tiles that were announced are stored. PhaseEnded if a rank fails meanwhile."""


class Transport(Protocol):
    """Submits a rank's copies to its devices. It is made once for a plan, and used for any number of products, each from `begin`
    to `finish`."""

    def begin(self, order: Sequence[Arrival]) -> None:
        """Begin a product, on all ranks. `order`: the arrivals that this rank will load."""

    def ready(self, arrival: Arrival) -> bool:
        """Whether `load` would return without waiting for other ranks."""

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event | None:
        """Copy to the device a row panel, or of a column panel or k-slab the rows that this rank loads. None where nothing needs
        to be copied."""

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        """Copy the other rows of a column panel or k-slab from the devices of the ranks that loaded them."""

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        """Copy a tile of C from the device to where it belongs."""

    def advance(self) -> None:
        """Go on with other ranks' copies, as far as that is possible without waiting."""

    def finish(self) -> Timings:
        """Wait for the copies on other devices than the rank's own, when all tiles are submitted."""


# -------- tile copies
# Copies of tiles of C from a device to where they belong.

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


# -------- told later
# Tells the check of the copies that bring operands, after more of them have been submitted.

_AT_ONCE = 4  # copies


class ToldLater:
    """The copies of which an observer is still to be told. That takes longer than to submit a copy, for which a link, or another
    rank, may be waiting. `observer`: None where nobody wants to know."""

    def __init__(self, observer: CopyObserver | None) -> None:
        self._observer = observer
        self._copies: deque[tuple[int, Arrival, Event]] = deque()

    def forget(self) -> None:
        """A product begins; the one before may have failed."""
        self._copies.clear()

    def add(self, rank: int, arrival: Arrival, event: Event) -> None:
        """A rank's device has got this arrival when the event is complete."""
        if self._observer is not None:
            self._copies.append((rank, arrival, event))

    def tell_some(self) -> None:
        self._tell(_AT_ONCE)

    def tell_all(self) -> None:
        self._tell(len(self._copies))

    def _tell(self, copies: int) -> None:
        for _ in range(min(copies, len(self._copies))):
            assert self._observer is not None
            self._observer.loaded(*self._copies.popleft())


# -------- host
# The transport that works everywhere: every rank copies its row block of A and all of B from the host's matrices.


class HostTransport:
    """Each rank copies what it needs over its own link. `panel_stream`: brings B from other nodes, panel by panel; None where
    all of B is in host memory before."""

    def __init__(
        self,
        device: Device,
        rank: int,
        matrices: RankMatrices,
        observer: CopyObserver | None = None,
        panel_stream: ArrivingPanels | None = None,
        in_place: Container[str] = (),
    ) -> None:
        """`in_place`: operands that lie in the buffers already, and are not copied."""
        self._device, self._rank, self._matrices, self._in_place = device, rank, matrices, in_place
        self._observer, self._panel_stream, self._told_later = observer, panel_stream, ToldLater(observer)
        self._last: Tile | None = None

    def begin(self, order: Sequence[Arrival]) -> None:
        self._last = last_tile(order)
        self._told_later.forget()

    def ready(self, arrival: Arrival) -> bool:
        return self._panel_stream is None or arrival.operand == "A" or self._panel_stream.arrived(arrival.index)

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event | None:
        if arrival.operand in self._in_place:
            return None
        self._wait_for_panel(arrival)
        event = self._copy_in(arrival, into, after)
        self._told_later.add(self._rank, arrival, event)
        return event

    def _copy_in(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        part = arrival.span.slice
        if arrival.operand == "A":
            return self._device.copy_in(into, self._matrices.a[part], after)
        b = self._matrices.b
        slab = [rows for rows in arrival.slab if len(rows)] or [b.rows]
        # Copies in run in the order they are enqueued, so the last one's event covers all.
        return [self._device.copy_in(into[rows.slice], b[rows][:, part], after) for rows in slab][-1]

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        return []

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        if "C" in self._in_place:
            return after[-1]
        into = self._matrices.c[tile.rows.slice, tile.columns.slice]
        told = partial(self._observer.stored, self._rank, tile) if self._observer is not None else None
        return copy_out(self._device, into, source, after, told, is_last=tile is self._last)

    def advance(self) -> None:
        self._told_later.tell_some()

    def finish(self) -> Timings:
        self._told_later.tell_all()
        return []

    def _wait_for_panel(self, arrival: Arrival) -> None:
        if self._panel_stream is not None and arrival.operand == "B":
            self._panel_stream.wait_for(arrival.index)
