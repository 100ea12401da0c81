# SPDX-License-Identifier: MIT
"""Runs one rank's share of a plan on a device, where each panel or k-slab that arrives releases tiles of C.

Here is no call of MPI and none of CUDA: a transport loads the operands and stores C, a device orders the work by events, and a
callback is told of the progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from hybrid.devices.base import Buffers, Device, Event, Timings
from hybrid.execution.outcome import Entering, Worker
from hybrid.plan.schedule import RankShare, Tile
from hybrid.transport.base import LeavingPanels, RankMatrices, Transport
from hybrid.verification.device_check import DeviceCheck

if TYPE_CHECKING:
    from hybrid.devices.remainders import ModularProduct
    from hybrid.transport.panels import Panels


MEASURED_AHEAD = 6  # panels that are there; the host needs some time for each tile, and the device shall not wait for it
LOADS_AHEAD = 8  # panels; enough to keep a link busy, and few enough that the first tile is launched at once


def run_share(
    share: RankShare,
    buffers: Buffers,
    transport: Transport,
    device: Device,
    entering: Entering,
    check: DeviceCheck | None = None,
    gather: LeavingPanels | None = None,
    modular: ModularProduct | None = None,
) -> Timings:
    """Multiply the rank's row block by B in the device's buffers; column panels of C are sent meanwhile. Returns what
    `Device.finish` does.

    `modular`: computes the tiles, from remainders where it can; None: the device does, natively.
    """
    transport.begin(share.order)
    if modular is not None:
        modular.begin()
    run = _Run(share, buffers, transport, device, entering, check, gather, modular)
    run.load_first()
    run.begin_check()  # while the first panel is copied
    run.submit()
    run.submit_checks()
    if modular is not None:
        modular.end()
    if check is not None:
        check.finish()
    if gather is not None:
        gather.wait_for_stored()
    entering("multiply")
    return chain(transport.finish(), device.finish())


class _Run:
    """Submits a share's copies and multiplications. Loads run ahead of the tiles as far as the buffers have room."""

    def __init__(
        self,
        share: RankShare,
        buffers: Buffers,
        transport: Transport,
        device: Device,
        entering: Entering,
        check: DeviceCheck | None,
        gather: LeavingPanels | None,
        modular: ModularProduct | None,
    ) -> None:
        self._gather, self._modular = gather, modular
        self._check, self._overwrites = check, not share.holds_all
        # Where nothing is overwritten, the check is submitted last: it shall not keep copies waiting.
        self._to_check: deque[Callable[[], object]] = deque()
        self._arrivals = share.order
        self._uses = share.uses
        self._buffers, self._transport, self._device, self._entering = buffers, transport, device, entering
        self._loaded = self._measured = 0  # arrivals
        self._copies = False  # whether any of them is copied; else all operands lie on the device
        self._pieces: dict[int, _Piece] = {}  # in the buffers, by the number of the arrival
        # For each slot of C the tiles that are being computed, copied back or checked, each with the events that end that.
        self._written: dict[int, list[tuple[Tile, list[Event]]]] = {}

    def load_first(self) -> None:
        if self._arrivals:
            self._load_ahead(0)

    def begin_check(self) -> None:
        """Begin the check; where nothing is overwritten, submit that only at the end."""
        if self._check is not None and self._overwrites:
            self._check.begin()
        elif self._check is not None:
            self._to_check.append(self._check.begin)

    def submit(self) -> None:
        for index, arrival in enumerate(self._arrivals):
            self._load_ahead(index)
            if arrival.operand == "B":
                fetched = self._transport.exchange(arrival, self._buffers.destination(arrival))
                self._pieces[index].loaded += fetched
            if self._modular is not None:
                self._measure_ahead(self._modular, index)
            if self._check is not None:
                self._check_arrival(self._check, index)
            if self._modular is not None and not self._copies:
                self.submit_checks()  # while the device measures, for whose results the host waits before it multiplies
            for number, tile in enumerate(arrival.releases):
                self._multiply(index, number, tile)
            if self._modular is not None:
                self.submit_checks(while_waiting_for=index + 1)
            self._transport.advance()
            if self._gather is not None:
                self._gather.advance()

    def submit_checks(self, while_waiting_for: int | None = None) -> None:
        """Submit what `submit` has left of the check; or some of it, while arrival `while_waiting_for` is not on the device.

        When that is there, there are tiles to submit, whose arithmetic the host could not choose before.
        """
        while self._to_check and (while_waiting_for is None or not self._is_there(while_waiting_for)):
            self._to_check.popleft()()
            self._transport.advance()  # other ranks' tiles shall not wait until all of the check is submitted
            if self._gather is not None:
                self._gather.advance()

    def _is_there(self, index: int) -> bool:
        """Whether an arrival is on the device. After the last one nothing is waited for."""
        if index >= self._loaded:
            return index >= len(self._arrivals)  # after the last arrival nothing is waited for
        return all(self._device.done(event) for event in self._pieces[index].loaded)

    def _measure_ahead(self, modular: ModularProduct, index: int) -> None:
        """Measure this arrival, and those of the next ones that are there already.

        That is done before the tiles of this one are submitted, behind which it would have to wait. Where nothing is copied, the
        guard is asked at once as well: so the host waits once, after it has submitted some of the check, and not twice.
        """
        self._measure(modular, index)
        if not self._copies:
            for tile in self._arrivals[index].releases:
                modular.ask_ahead(tile)
        for following in range(index + 1, min(self._loaded, index + 1 + MEASURED_AHEAD)):
            if self._arrivals[following].operand != "A" or not self._is_there(following):
                return
            self._measure(modular, following)
            for tile in self._arrivals[following].releases:
                modular.ask_ahead(tile)

    def _measure(self, modular: ModularProduct, index: int) -> None:
        if self._measured > index:
            return
        self._measured, arrival = index + 1, self._arrivals[index]
        piece = self._pieces[index]
        piece.readers.append(modular.arrived(arrival, self._buffers.destination(arrival), piece.loaded))

    def _check_arrival(self, check: DeviceCheck, index: int) -> None:
        piece = self._pieces[index]
        if self._overwrites:
            piece.readers += check.arrived(index, piece.loaded)
        else:
            self._to_check.append(partial(check.arrived, index, piece.loaded))

    def _load_ahead(self, index: int) -> None:
        """Load what arrival `index` needs, and further arrivals into buffers that only tiles read that have been submitted."""
        until = min(len(self._arrivals), index + 1 + LOADS_AHEAD)
        while self._loaded < until and self._uses[self._loaded].last_use < index:
            arrival = self._arrivals[self._loaded]
            if self._loaded > index and not self._transport.ready(arrival):
                return
            self._entering("copy in")
            before = self._uses[self._loaded].overwrites
            readers = self._pieces.pop(before).readers if before >= 0 else []
            if readers and self._check is not None:
                readers += self._check.before_overwriting(arrival)
            event = self._transport.load(arrival, self._buffers.destination(arrival), readers)
            self._copies = self._copies or event is not None
            self._pieces[self._loaded] = _Piece([event] if event is not None else [], [])
            self._loaded += 1

    def _multiply(self, index: int, number: int, tile: Tile) -> None:
        """Submit tile `number` of those that arrival `index` releases."""
        a, b, c = self._buffers.operands(tile)
        pieces = [self._pieces[each] for each in self._uses[index].reads[number]]
        written = self._written.setdefault(tile.slot, [])
        before = [event for other, events in written if _meet(other, tile) for event in events]
        self._entering("multiply")
        after = [event for piece in pieces for event in piece.loaded] + before
        if self._modular is not None:
            event = self._modular.multiply(tile, a, b, c, after)
        else:
            event = self._device.multiply(a, b, c, after, adding=tile.adds)
        read, events = [event], [event]
        if tile.completes:
            self._entering("copy out")
            events = [self._transport.store(tile, c, [event])]
            if self._gather is not None:
                self._gather.will_be_stored(tile, events[0])
            if self._check is not None and self._overwrites:
                checked = self._check.computed(index, number, tile, [event])
                read, events = read + checked, events + checked
            elif self._check is not None:
                self._to_check.append(partial(self._check.computed, index, number, tile, [event]))
        for piece in pieces:
            piece.readers += read
        # The new entry stands for all that the tile covers: copies out run in their order, and so do checks, and tiles that add
        # to the same elements.
        written[:] = [entry for entry in written if not _covers(tile, entry[0])]
        written.append((tile, events))


@dataclass
class _Piece:
    """A panel or slab in the device's buffers."""

    loaded: list[Event]  # what must be complete before it is read
    readers: list[Event]  # what must be complete before it is overwritten


def _meet(one: Tile, other: Tile) -> bool:
    """Whether the two tiles overlap in the device's buffers."""
    return one.buffer_rows.meets(other.buffer_rows) and one.buffer_columns.meets(other.buffer_columns)


def _covers(tile: Tile, other: Tile) -> bool:
    """Whether the one tile has all elements of the other."""
    return other.buffer_rows.lies_in(tile.buffer_rows) and other.buffer_columns.lies_in(tile.buffer_columns)


# -------- in place
# Multiplies one rank's share of a plan on a CPU where the matrices lie, without buffers.


def multiply_in_place(
    share: RankShare,
    matrices: RankMatrices,
    device: Device,
    entering: Entering,
    panels: Panels | None = None,
) -> Timings:
    """Multiply the rank's row block by B where they lie, while column panels of B arrive and those of C are sent. Returns what
    `Device.finish` does.

    Where this rank takes part in bringing them, another thread multiplies: MPI moves data only while it is called.
    """

    def multiply(tile: Tile) -> None:
        rows, columns = tile.rows.slice, tile.columns.slice
        device.multiply(matrices.a[rows], matrices.b.array[:, columns], matrices.c[rows, columns], after=[])
        if panels is not None:
            panels.stored(tile)

    with Worker(beside=panels is not None and panels.takes_part) as worker:
        for arrival in share.order:
            if panels is not None and arrival.operand == "B":
                panels.wait_for(arrival.index, worker.computes)
            for tile in arrival.releases:
                entering("multiply")
                worker.do(partial(multiply, tile))
        entering("multiply")
        worker.wait(panels.advance if panels is not None else lambda: None)
    return device.finish()
