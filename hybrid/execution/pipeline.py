"""Runs one rank's share of a plan on a device: each arrival of a chunk or panel releases strips of C.

It knows no MPI call and no CUDA call: a road brings the operands and takes C away, a device orders the work, a callback
hears of its progress.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from hybrid.devices.base import Device, Mark, Work
from hybrid.devices.buffers import Buffers
from hybrid.plan.rank_share import Share
from hybrid.plan.residency import Held
from hybrid.plan.schedule import Strip
from hybrid.transport.base import Ends, Road
from hybrid.transport.panel_stream import Deliveries

LOADS_AHEAD = 4  # enough to keep a link busy; more, and the first strip is handed over late

Entering = Callable[[str], None]  # told the phase of each piece of work before it is handed to the device


def multiply_in_place(share: Share, ends: Ends, device: Device, entering: Entering, deliveries: Deliveries | None = None) -> Work:
    """Multiply the rank's row-block by B where they lie, as panels of B are delivered. Returns what `Device.finish` does."""
    for arrival in share.order:
        if deliveries is not None and arrival.operand == "B":
            deliveries.wait_for(arrival.index)
        for strip in arrival.releases:
            entering("multiply")
            rows, columns = strip.rows.slice, strip.columns.slice
            device.multiply(ends.a[rows], ends.b[:, columns], ends.c[rows, columns], after=[])
    entering("multiply")
    return device.finish()


def run_share(share: Share, buffers: Buffers, road: Road, device: Device, entering: Entering) -> Work:
    """Multiply the rank's row-block by B in the device's buffers. Returns what `Device.finish` does."""
    road.begin()
    _Run(share, buffers, road, device, entering).hand_over()
    entering("multiply")
    return chain(road.finish(), device.finish())


class _Run:
    """Hands a share's work to the device. Loads run ahead of the strips as far as there is room for them."""

    def __init__(self, share: Share, buffers: Buffers, road: Road, device: Device, entering: Entering) -> None:
        self._arrivals = share.order
        self._overwritten = share.last_uses
        self._buffers, self._road, self._device, self._entering = buffers, road, device, entering
        self._loaded = 0
        self._held: Held[_Piece] = Held()
        self._written: dict[int, list[tuple[Strip, Mark]]] = {}  # by the panels' slot: strips computed, or on their way home

    def hand_over(self) -> None:
        for index, arrival in enumerate(self._arrivals):
            self._load_ahead(index)
            if arrival.operand == "B":
                fetched = self._road.complete(arrival, self._buffers.place(arrival))
                for piece in self._held.under(arrival):
                    piece.loaded += fetched
            for strip in arrival.releases:
                self._multiply(strip)

    def _load_ahead(self, index: int) -> None:
        """Load what arrival `index` needs, and further arrivals whose places nothing uses after it but what is handed over."""
        until = min(len(self._arrivals), index + 1 + LOADS_AHEAD)
        while self._loaded < until and self._overwritten[self._loaded] < index:
            arrival = self._arrivals[self._loaded]
            if self._loaded > index and not self._road.ready(arrival):
                return
            self._entering("copy in")
            readers = [mark for piece in self._held.under(arrival) for mark in piece.readers]
            mark = self._road.bring(arrival, self._buffers.place(arrival), readers)
            self._held.put(arrival, _Piece([mark], []))
            self._loaded += 1

    def _multiply(self, strip: Strip) -> None:
        a, b, c = self._buffers.operands(strip)
        pieces = self._held.read_by(strip)
        written = self._written.setdefault(strip.slot, [])
        before = [mark for other, mark in written if _meet(other, strip)]
        self._entering("multiply")
        after = [mark for piece in pieces for mark in piece.loaded] + before
        mark = self._device.multiply(a, b, c, after, adding=strip.adds)
        for piece in pieces:
            piece.readers.append(mark)
        if strip.completes:
            self._entering("copy out")
            mark = self._road.take(strip, c, [mark])
        # What comes later is done later: copies out keep their order, and so do strips that add to each other.
        written[:] = [entry for entry in written if not _covers(strip, entry[0])]
        written.append((strip, mark))


@dataclass
class _Piece:
    """A chunk or panel on the device."""

    loaded: list[Mark]  # what has to be done before it is read
    readers: list[Mark]  # what has to be done before it is overwritten


def _meet(one: Strip, other: Strip) -> bool:
    return one.held_rows.meets(other.held_rows) and one.held_columns.meets(other.held_columns)


def _covers(strip: Strip, other: Strip) -> bool:
    return other.held_rows.lies_in(strip.held_rows) and other.held_columns.lies_in(strip.held_columns)
