# SPDX-License-Identifier: MIT
"""Runs one rank's share of a plan on a device: each arriving panel or k-slab releases tiles of C to multiply.

Without MPI and CUDA: a transport loads operands and stores C, a device orders work by events, a callback reports progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from hybrid.devices.base import Buffers, Device, Event, Timings
from hybrid.host.threads import limited_threads, threads_allowed
from hybrid.planning.schedule import RankShare, Tile
from hybrid.transport.base import RankMatrices, Transport
from hybrid.verification.device_check import DeviceCheck

if TYPE_CHECKING:
    from hybrid.devices.remainders import ModularProduct
    from hybrid.execution.between_nodes import Panels
    from hybrid.transport.nccl import DeviceGather


MEASURED_AHEAD = 6  # panels already loaded: hides the host's work per tile from the device
_PAUSE = 1e-3  # seconds: longest interval between polls by the thread that moves data while another multiplies
LOADS_AHEAD = 8  # panels: enough to keep the link busy, few enough to launch the first tile at once


@dataclass
class ShareRun:
    """One product of a share in a device's buffers. Loads are prefetched as far as the buffers have room.

    `entering`: called with the phase before each copy or multiplication is submitted. `gather`: sends column panels of C
    meanwhile. `modular`: emulates the tiles' multiplication where possible; None: native kernels.
    """

    share: RankShare
    buffers: Buffers
    transport: Transport
    device: Device
    entering: Callable[[str], None]
    check: DeviceCheck | None = None
    gather: Panels | DeviceGather | None = None
    modular: ModularProduct | None = None

    def run(self) -> Timings:
        """Multiply the rank's row block by B. Returns the device's timings."""
        share, check = self.share, self.check
        self._arrivals, self._uses = share.order, share.uses
        self._loaded = self._measured = 0  # arrivals
        self._copies = False  # whether any arrival is copied; else all operands are in place on the device
        self._pieces: dict[int, _Piece] = {}  # in the buffers, by the arrival's number
        # For each slot of C, the tiles in use (computed, copied back, checked), each with the events that end the use.
        self._written: dict[int, list[tuple[Tile, list[Event]]]] = {}
        # If no buffer is overwritten, the check is submitted last, so that it delays no copies.
        self._overwrites = not share.holds_all
        self._to_check: deque[Callable[[], object]] = deque()
        self.transport.begin(share.order)
        if self.modular is not None:
            self.modular.begin()
        if self._arrivals:
            self._load_ahead(0)
        if check is not None and self._overwrites:
            check.begin()  # while the first panel is copied
        elif check is not None:
            self._to_check.append(check.begin)
        self._submit()
        self._submit_checks()
        if self.modular is not None:
            self.modular.end()
        if check is not None:
            check.finish()
        if self.gather is not None:
            self.gather.wait_for_stored()
        self.entering("multiply")
        return chain(self.transport.finish(), self.device.finish())

    def _submit(self) -> None:
        for index, arrival in enumerate(self._arrivals):
            self._load_ahead(index)
            if arrival.operand == "B":
                fetched = self.transport.exchange(arrival, self.buffers.destination(arrival))
                self._pieces[index].loaded += fetched
            if self.modular is not None:
                self._measure_ahead(self.modular, index)
            if self.check is not None and self._overwrites:
                self._pieces[index].readers += self.check.arrived(index, self._pieces[index].loaded)
            elif self.check is not None:
                self._to_check.append(partial(self.check.arrived, index, self._pieces[index].loaded))
            if self.modular is not None and not self._copies:
                self._submit_checks()  # while the host waits for the device's measurements
            for number, tile in enumerate(arrival.releases):
                self._multiply(index, number, tile)
            if self.modular is not None:
                self._submit_checks(while_waiting_for=index + 1)
            self.transport.advance()
            if self.gather is not None:
                self.gather.advance()

    def _submit_checks(self, while_waiting_for: int | None = None) -> None:
        """Submit the deferred parts of the check, or only until the arrival `while_waiting_for` is on the device."""
        while self._to_check and (while_waiting_for is None or not self._is_there(while_waiting_for)):
            self._to_check.popleft()()
            self.transport.advance()  # do not delay other ranks' tiles
            if self.gather is not None:
                self.gather.advance()

    def _is_there(self, index: int) -> bool:
        """Whether an arrival is on the device; True for an index behind the last arrival."""
        if index >= self._loaded:
            return index >= len(self._arrivals)
        return all(self.device.done(event) for event in self._pieces[index].loaded)

    def _measure_ahead(self, modular: ModularProduct, index: int) -> None:
        """Measure this arrival and the following ones already loaded, before the tiles of this one occupy the stream.

        If nothing is copied, also query the guard at once, so that the host waits only once, after submitting part of the check.
        """
        self._measure(modular, index)
        if not self._copies:
            self._ask_ahead(modular, index)
        for following in range(index + 1, min(self._loaded, index + 1 + MEASURED_AHEAD)):
            needs_exchange = self._arrivals[following].operand != "A" and not self.share.blocks
            if needs_exchange or not self._is_there(following):
                return
            self._measure(modular, following)
            self._ask_ahead(modular, following)

    def _ask_ahead(self, modular: ModularProduct, index: int) -> None:
        for tile in self._arrivals[index].releases:
            if not tile.mirrors:
                modular.ask_ahead(tile)

    def _measure(self, modular: ModularProduct, index: int) -> None:
        if self._measured > index:
            return
        self._measured, arrival = index + 1, self._arrivals[index]
        piece = self._pieces[index]
        piece.readers.append(modular.arrived(arrival, self.buffers.destination(arrival), piece.loaded))

    def _load_ahead(self, index: int) -> None:
        """Load arrival `index`, and prefetch further arrivals into buffers whose readers have all been submitted."""
        until = min(len(self._arrivals), index + 1 + LOADS_AHEAD)
        while self._loaded < until and self._uses[self._loaded].last_use < index:
            arrival = self._arrivals[self._loaded]
            if self._loaded > index and not self.transport.ready(arrival):
                return
            self.entering("copy in")
            before = self._uses[self._loaded].overwrites
            readers = self._pieces.pop(before).readers if before >= 0 else []
            if readers and self.check is not None:
                readers += self.check.before_overwriting(arrival)
            into = self.buffers.destination(arrival)
            if self.share.blocks and arrival.operand not in self.share.copied:  # transpose the other operand on the device
                there = self.buffers.columns_of_b if arrival.operand == "A" else self.buffers.rows_of_a
                copied = self._pieces[0 if arrival.operand == "A" else self._loaded - 1].loaded
                event = self.device.mirror(into, there(arrival.buffer_span), copied)
            else:
                event = self.transport.load(arrival, into, readers)
            self._copies = self._copies or event is not None
            self._pieces[self._loaded] = _Piece([event] if event is not None else [], [])
            self._loaded += 1

    def _multiply(self, index: int, number: int, tile: Tile) -> None:
        """Submit tile `number` of arrival `index`."""
        a, b, c = self.buffers.operands(tile)
        pieces = [self._pieces[each] for each in self._uses[index].reads[number]]
        written = self._written.setdefault(tile.slot, [])
        rows, columns = tile.buffer_rows, tile.buffer_columns
        reads = tile.transposed if tile.mirrors else tile
        overlapping = (
            each
            for each in written
            for part in (tile, reads)
            if each[0].buffer_rows.meets(part.buffer_rows) and each[0].buffer_columns.meets(part.buffer_columns)
        )
        before = [event for _, events in overlapping for event in events]
        self.entering("multiply")
        after = [event for piece in pieces for event in piece.loaded] + before
        if tile.mirrors:
            event = self.device.mirror(c, self.buffers.operands(reads)[2], after)
        elif self.modular is not None:
            event = self.modular.multiply(tile, a, b, c, after)
        else:
            event = self.device.multiply(a, b, c, after, adding=tile.adds)
        if self.share.blocks and rows == columns:
            event = self.device.mirror(c, c, [event])
        read, events = [event], [event]
        if tile.completes:
            self.entering("copy out")
            events = [self.transport.store(tile, c, [event])]
            if self.gather is not None:
                self.gather.will_be_stored(tile, events[0])
            if self.check is not None and self._overwrites:
                checked = self.check.computed(index, number, tile, [event])
                read, events = read + checked, events + checked
            elif self.check is not None:
                self._to_check.append(partial(self.check.computed, index, number, tile, [event]))
        for piece in pieces:
            piece.readers += read
        # The new entry replaces those it covers: D2H copies, checks, and tiles that accumulate run in order.
        written[:] = [
            (other, until)
            for other, until in written
            if not (other.buffer_rows.lies_in(rows) and other.buffer_columns.lies_in(columns))
        ]
        written.append((tile, events))


@dataclass
class _Piece:
    """A panel or slab in the device's buffers."""

    loaded: list[Event]  # must complete before the piece is read
    readers: list[Event]  # must complete before it is overwritten


def multiply_in_place(
    share: RankShare, matrices: RankMatrices, device: Device, entering: Callable[[str], None], panels: Panels | None = None
) -> Timings:
    """Multiply the rank's row block by B in place, while panels of B arrive and panels of C leave. Returns the device's timings.

    If this rank moves panels, a second thread multiplies: MPI only progresses inside its calls.
    """

    def multiply(tile: Tile) -> None:
        rows, columns = tile.rows.slice, tile.columns.slice
        if tile.mirrors:
            first = share.rows.lo
            computed = matrices.c[tile.columns.moved(-first).slice, tile.rows.moved(first).slice]
            device.mirror(matrices.c[rows, columns], computed, after=[])
            return
        device.multiply(matrices.a[rows], matrices.b.array[:, columns], matrices.c[rows, columns], after=[])
        if panels is not None:
            panels.stored(tile)

    def with_threads(count: int, tile: Tile) -> None:
        with limited_threads(count):  # the limit is per thread
            multiply(tile)

    beside = ThreadPoolExecutor(1) if panels is not None and panels.takes_part else None
    asked: list[Future[None]] = []
    try:
        for arrival in share.order:
            if panels is not None and arrival.operand == "B":
                panels.wait_for(arrival.index, lambda: bool(asked) and not asked[-1].done())
            for tile in arrival.releases:
                entering("multiply")
                if beside is None:
                    multiply(tile)
                else:
                    asked.append(beside.submit(with_threads, threads_allowed(), tile))
        entering("multiply")
        for each in asked:
            while panels is not None and not wait([each], _PAUSE).done:
                panels.advance()
            each.result()
    finally:
        if beside is not None:
            beside.shutdown(cancel_futures=True)
    return device.finish()
