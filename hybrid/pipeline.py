"""Runs one rank's share of a plan on a device: each arrival of a chunk or panel releases strips of C.

It knows no MPI call and no CUDA call: a road brings the operands and takes C away, a device orders the work, a callback
hears of its progress.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from hybrid.devices import Device, Mark, Work
from hybrid.devices.buffers import Buffers
from hybrid.exchange import Ends, Road
from hybrid.exchange.deliveries import Deliveries
from hybrid.partition import Span
from hybrid.plan import Share
from hybrid.schedule import Arrival, Strip

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
        self._stay = -1
        self._chunks: list[tuple[Span, Mark]] = []  # of the stay, by the rows that hold them
        self._multiplied: list[Mark] = []  # of the stay
        # Of each slot, by its columns:
        self._panels: dict[int, list[tuple[Span, Mark]]] = {}  # what has to be there
        self._readers: dict[int, list[tuple[Span, Mark]]] = {}  # what has to be done before they are overwritten
        self._taken: dict[int, list[tuple[Strip, Mark]]] = {}  # strips on their way home

    def hand_over(self) -> None:
        for index, arrival in enumerate(self._arrivals):
            self._load_ahead(index)
            if arrival.operand == "B":
                fetched = self._road.complete(arrival, self._buffers.place(arrival))
                self._panels[arrival.slot] += [(arrival.held, mark) for mark in fetched]
            for strip in arrival.releases:
                self._multiply(strip)

    def _load_ahead(self, index: int) -> None:
        """Load what arrival `index` needs, and further arrivals whose places nothing uses after it but what is handed over."""
        while self._loaded < len(self._arrivals) and self._overwritten[self._loaded] < index:
            arrival = self._arrivals[self._loaded]
            if self._loaded > index and not self._road.ready(arrival):
                return
            self._load(arrival)
            self._loaded += 1

    def _load(self, arrival: Arrival) -> None:
        self._entering("copy in")
        place = self._buffers.place(arrival)
        if arrival.operand == "B":
            here, readers = self._panels.setdefault(arrival.slot, []), self._readers.setdefault(arrival.slot, [])
            here[:] = [entry for entry in here if not entry[0].meets(arrival.held)]
            here.append((arrival.held, self._road.bring(arrival, place, _over(arrival.held, readers))))
            readers[:] = [entry for entry in readers if not entry[0].lies_in(arrival.held)]
            return
        before: list[Mark] = []
        if arrival.stay != self._stay:  # its chunks overwrite those of the stay before; copies in keep their order
            self._stay, before = arrival.stay, self._multiplied
            self._chunks, self._multiplied = [], []
        self._chunks.append((arrival.held, self._road.bring(arrival, place, before)))

    def _multiply(self, strip: Strip) -> None:
        a, b, c = self._buffers.operands(strip)
        chunks, panels = _over(strip.held, self._chunks), _over(strip.within, self._panels[strip.slot])
        taken = self._taken.setdefault(strip.slot, [])
        overwritten = [mark for other, mark in taken if other.held.meets(strip.held) and other.within.meets(strip.within)]
        self._entering("multiply")
        mark = self._device.multiply(a, b, c, chunks + panels + overwritten)
        self._multiplied.append(mark)
        self._readers.setdefault(strip.slot, []).append((strip.within, mark))
        self._entering("copy out")
        # Copies out keep their order.
        taken[:] = [entry for entry in taken if not (entry[0].held.lies_in(strip.held) and entry[0].within.lies_in(strip.within))]
        taken.append((strip, self._road.take(strip, c, [mark])))


def _over(rows: Span, marked: list[tuple[Span, Mark]]) -> list[Mark]:
    return [mark for span, mark in marked if span.meets(rows)]


def last_uses(arrivals: Sequence[Arrival]) -> list[int]:
    """For each arrival the last one before it whose strips use what it overwrites; -1 where it overwrites nothing."""
    uses: list[int] = []
    by_slot: dict[int, list[tuple[Span, int]]] = {}
    stay, last_of_stay = 0, -1
    for index, arrival in enumerate(arrivals):
        if arrival.stay != stay:
            stay, last_of_stay = arrival.stay, index - 1
        readers = (use for columns, use in by_slot.get(arrival.slot, []) if columns.meets(arrival.held))
        uses.append(last_of_stay if arrival.operand == "A" else max(readers, default=-1))
        for strip in arrival.releases:
            of_slot = by_slot.setdefault(strip.slot, [])
            of_slot[:] = [use for use in of_slot if not use[0].lies_in(strip.within)] + [(strip.within, index)]
    return uses
