"""Runs one rank's share of a plan on a device: each arrival of a chunk or panel releases strips of C.

It knows no MPI call and no CUDA call: a road brings the operands and takes C away, a device orders the work, a callback
hears of its progress.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from hybrid.devices import Device, Mark, Work
from hybrid.devices.buffers import Buffers
from hybrid.exchange import Ends, Road
from hybrid.exchange.deliveries import Deliveries
from hybrid.partition import Span
from hybrid.plan import Share
from hybrid.schedule import Arrival, Strip

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
        self._overwritten = last_uses(self._arrivals)
        self._buffers, self._road, self._device, self._entering = buffers, road, device, entering
        self._loaded = 0
        self._held: Held[_Piece] = Held()
        self._taken: dict[int, list[tuple[Strip, Mark]]] = {}  # by the panels' slot: strips on their way home

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
        taken = self._taken.setdefault(strip.slot, [])
        overwritten = [mark for other, mark in taken if _meet(other, strip)]
        self._entering("multiply")
        mark = self._device.multiply(a, b, c, [mark for piece in pieces for mark in piece.loaded] + overwritten)
        for piece in pieces:
            piece.readers.append(mark)
        self._entering("copy out")
        # Copies out keep their order.
        taken[:] = [entry for entry in taken if not _covers(strip, entry[0])]
        taken.append((strip, self._road.take(strip, c, [mark])))


@dataclass
class _Piece:
    """A chunk or panel on the device."""

    loaded: list[Mark]  # what has to be done before it is read
    readers: list[Mark]  # what has to be done before it is overwritten


Of = TypeVar("Of")


class Held(Generic[Of]):
    """What is known of the pieces in a device's buffers, by where they lie."""

    def __init__(self) -> None:
        self._by_buffer: dict[tuple[str, int], list[tuple[Span, Of]]] = {}

    def under(self, arrival: Arrival) -> list[Of]:
        """Of what lies, or lay, where the piece goes."""
        return self._over(arrival.operand, arrival.slot, arrival.held)

    def read_by(self, strip: Strip) -> list[Of]:
        """Of the chunks and panels that the strip is computed from."""
        return self._over("A", 0, strip.held_rows) + self._over("B", strip.slot, strip.held_columns)

    def put(self, arrival: Arrival, known: Of) -> None:
        """In the place of what was known there."""
        buffer = self._by_buffer.setdefault((arrival.operand, arrival.slot), [])
        buffer[:] = [entry for entry in buffer if not entry[0].meets(arrival.held)]
        buffer.append((arrival.held, known))

    def _over(self, operand: str, slot: int, span: Span) -> list[Of]:
        return [known for held, known in self._by_buffer.get((operand, slot), []) if held.meets(span)]


def _meet(one: Strip, other: Strip) -> bool:
    return one.held_rows.meets(other.held_rows) and one.held_columns.meets(other.held_columns)


def _covers(strip: Strip, other: Strip) -> bool:
    return other.held_rows.lies_in(strip.held_rows) and other.held_columns.lies_in(strip.held_columns)


def last_uses(arrivals: Sequence[Arrival]) -> list[int]:
    """For each arrival the last one before it whose strips use what it overwrites; -1 where it overwrites nothing."""
    uses: list[int] = []
    held: Held[list[int]] = Held()
    for index, arrival in enumerate(arrivals):
        uses.append(max((use for used in held.under(arrival) for use in used), default=-1))
        held.put(arrival, [])
        for strip in arrival.releases:
            for used in held.read_by(strip):
                used[:] = [index]
    return uses
