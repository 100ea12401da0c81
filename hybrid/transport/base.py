# SPDX-License-Identifier: MIT
"""How operands reach a rank's device and C is copied back to the host: what all transports have in common, and the one that works
everywhere, by which every rank copies its row block of A and all of B from the host's matrices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Container, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from hybrid.core.problem import Span, record
from hybrid.devices.base import Device, Event, Timings
from hybrid.devices.row_sums import WEIGHTED_ROWS
from hybrid.host.memory import RowView
from hybrid.planning.schedule import Arrival, Tile

_LEAST_BYTES = 4 << 20  # of a part of the last tile
_TOLD_AT_ONCE = 4  # copies


@record
class RankMatrices:
    """The memory that a rank's copies read and write: its row block of A, rows of B, and its row block of C, in host or GPU
    memory.

    Of B it has at least the rows that the rank's transport reads. `rounded`: host memory for C, of which `c` is then, in the same
    type of 16 bits, the rounded one on the device.
    """

    a: Any
    b: RowView
    c: Any
    rounded: Any = None


class CopyObserver(Protocol):
    """Is told of the copies from and to the memory in which the operands and C lie."""

    def loaded(self, rank: int, arrival: Arrival, event: Event) -> None:
        """What a rank's device gets by this arrival is in memory, and has been copied when the event is complete. This may be
        told more than once."""

    def stored(self, rank: int, tile: Tile, part: Span, event: Event) -> None:
        """The rows `part` of a rank's tile are in memory when the event is complete. They begin at a multiple of
        WEIGHTED_ROWS."""


class Arriving(Protocol):
    """Tells of column panels of B that come from other nodes."""

    def arrived(self, index: int) -> bool:
        """Whether panel `index` is in host memory, without waiting."""

    def wait_for(self, index: int) -> None:
        """Wait until it is. PhaseEnded if a rank fails meanwhile."""


class Transport(ABC):
    """Submits a rank's copies to its devices. It is made once for a plan, and used for any number of products, each from `begin`
    to `finish`."""

    def __init__(self, observer: CopyObserver | None = None) -> None:
        self._observer = observer
        # Copies that the observer is told of after more of them have been submitted: to tell it takes longer than to submit a
        # copy, for which a link, or another rank, may be waiting.
        self._untold: deque[tuple[int, Arrival, Event]] = deque()

    def begin(self, order: Sequence[Arrival]) -> None:
        """Begin a product, on all ranks. `order`: the arrivals that this rank will load."""
        self._untold.clear()  # the product before may have failed

    def ready(self, arrival: Arrival) -> bool:
        """Whether `load` would return without waiting for other ranks."""
        return True

    @abstractmethod
    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event | None:
        """Copy to the device a row panel, or of a column panel or k-slab the rows that this rank loads. None where nothing needs
        to be copied."""

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        """Copy the other rows of a column panel or k-slab from the devices of the ranks that loaded them."""
        return []

    @abstractmethod
    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        """Copy a tile of C from the device to where it belongs."""

    def advance(self) -> None:
        """Go on with other ranks' copies, as far as that is possible without waiting."""
        self._tell(_TOLD_AT_ONCE)

    def finish(self) -> Timings:
        """Wait for the copies on other devices than the rank's own, when all tiles are submitted."""
        self._tell(len(self._untold))
        return []

    def _tell(self, copies: int) -> None:
        for _ in range(min(copies, len(self._untold))):
            if self._observer is not None:
                self._observer.loaded(*self._untold.popleft())

    def _will_tell(self, rank: int, arrival: Arrival, event: Event) -> None:
        """Tell the observer later that a rank's device has got this arrival when the event is complete."""
        if self._observer is not None:
            self._untold.append((rank, arrival, event))

    def _copy_out(
        self, device: Device, rank: int, tile: Tile, into: Any, source: Any, after: list[Event], *, is_last: bool
    ) -> Event:
        """Copy a rank's tile, and tell the observer.

        Where C is observed, the last tile is copied in parts, each half as large as the one before, so that little is left to be
        summed when the product is complete.
        """
        if self._observer is None or not is_last:
            event = device.copy_out(into, source, after)
            if self._observer is not None:
                self._observer.stored(rank, tile, Span(0, len(source)), event)
            return event
        for part in _halves(Span(0, len(source)), source.shape[1] * source.itemsize):
            event = device.copy_out(into[part.slice], source[part.slice], after)  # copies out run one after the other
            self._observer.stored(rank, tile, part, event)
        return event


def last_tile(order: Sequence[Arrival]) -> Tile | None:
    """The tile that is copied when all others are; None where there is none."""
    return next((tile for arrival in reversed(order) for tile in reversed(arrival.releases) if tile.completes), None)


def _halves(rows: Span, row_bytes: int) -> Iterator[Span]:
    """The rows in parts, each of which has about half of those that are left."""
    first = rows.lo
    while (half := (rows.hi - first) // 2 // WEIGHTED_ROWS * WEIGHTED_ROWS) * row_bytes >= _LEAST_BYTES:
        yield Span(first, first + half)
        first += half
    yield Span(first, rows.hi)


def pattern_of(rank: int, rows: int, columns: int) -> np.ndarray:
    """The matrix that a rank sends where the connection to its device is tested: each rank's has other numbers."""
    return np.random.default_rng(rank).random((rows, columns))


class HostTransport(Transport):
    """Each rank copies what it needs over its own link. `panels`: bring B from other nodes; None where all of B is in host
    memory before."""

    def __init__(
        self,
        device: Device,
        rank: int,
        matrices: RankMatrices,
        observer: CopyObserver | None = None,
        panels: Arriving | None = None,
        in_place: Container[str] = (),
    ) -> None:
        """`in_place`: operands that lie in the buffers already, and are not copied."""
        super().__init__(observer)
        self._device, self._rank, self._matrices, self._in_place = device, rank, matrices, in_place
        self._arriving = panels
        self._last: Tile | None = None

    def begin(self, order: Sequence[Arrival]) -> None:
        super().begin(order)
        self._last = last_tile(order)

    def ready(self, arrival: Arrival) -> bool:
        return self._arriving is None or arrival.operand == "A" or self._arriving.arrived(arrival.index)

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event | None:
        if arrival.operand in self._in_place:
            return None
        if self._arriving is not None and arrival.operand == "B":
            self._arriving.wait_for(arrival.index)
        event = self._copy_in(arrival, into, after)
        self._will_tell(self._rank, arrival, event)
        return event

    def _copy_in(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        part = arrival.span.slice
        if arrival.operand == "A":
            return self._device.copy_in(into, self._matrices.a[part], after)
        b = self._matrices.b
        slab = [rows for rows in arrival.slab if len(rows)] or [b.rows]
        # Copies in run in the order they are enqueued, so the last one's event covers all.
        return [self._device.copy_in(into[rows.slice], b[rows][:, part], after) for rows in slab][-1]

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        if "C" in self._in_place:
            return after[-1]
        into = self._matrices.c[tile.rows.slice, tile.columns.slice]
        if self._matrices.rounded is not None:
            rounded = self._device.copy_out(into, source, after)
            return self._device.copy_out(self._matrices.rounded[tile.rows.slice, tile.columns.slice], into, [rounded])
        return self._copy_out(self._device, self._rank, tile, into, source, after, is_last=tile is self._last)
