# SPDX-License-Identifier: MIT
"""How operands reach a rank's device and C returns: the interface of all transports, and `HostTransport`, which works everywhere:
every rank copies its row block of A and all of B from host memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hybrid.core.problem import record
from hybrid.devices.base import Device, Event, Timings
from hybrid.host.memory import RowView
from hybrid.planning.schedule import Arrival, Tile

_REPORTS_AT_ONCE = 4  # copies


@record
class RankMatrices:
    """The memory that a rank's copies access, on host or GPU: its rows of A and C, and at least the rows of B that it reads."""

    a: Any
    b: RowView
    c: Any


class CopyObserver(Protocol):
    """Notified of the copies that read the operands and write C."""

    def loaded(self, rank: int, arrival: Arrival, event: Event) -> None:
        """The data of this arrival is in memory, and its copy to the rank's device ends with the event. May be repeated."""

    def stored(self, rank: int, tile: Tile, event: Event) -> None:
        """A rank's tile is in memory once the event is complete."""


class Arriving(Protocol):
    """Column panels of B on their way from other nodes."""

    def arrived(self, index: int) -> bool:
        """Whether panel `index` is in host memory. Does not wait."""

    def wait_for(self, index: int) -> None:
        """Wait until panel `index` is in host memory. PhaseEnded if a rank fails meanwhile."""


@dataclass(kw_only=True)
class Transport(ABC):
    """Submits a rank's copies to its devices, for any number of products of a plan, each from `begin` to `finish`."""

    device: Device  # the rank's own
    rank: int
    observer: CopyObserver | None = None
    # Copies to report to the observer after submitting more: reporting takes longer than submitting, which keeps links busy.
    _unreported: deque[tuple[int, Arrival, Event]] = field(default_factory=deque, init=False)

    def begin(self, order: Sequence[Arrival]) -> None:
        """Begin a product. Collective. `order`: the arrivals that this rank will load."""
        self._unreported.clear()  # the previous product may have failed

    def ready(self, arrival: Arrival) -> bool:
        """Whether `load` would return without waiting for other ranks."""
        return True

    @abstractmethod
    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event | None:
        """Copy a row panel, or this rank's rows of a column panel or k-slab, to the device. None if no copy is needed."""

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        """Copy the other rows of a column panel or k-slab from the devices of the ranks that loaded them."""
        return []

    @abstractmethod
    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        """Copy a tile of C from the device to its destination."""

    def advance(self) -> None:
        """Progress other ranks' copies without waiting."""
        self._report(_REPORTS_AT_ONCE)

    def finish(self) -> Timings:
        """After the last tile is submitted, wait for the copies on devices other than the rank's own."""
        self._report(len(self._unreported))
        return []

    def _report(self, copies: int) -> None:
        for _ in range(min(copies, len(self._unreported))):
            if self.observer is not None:
                self.observer.loaded(*self._unreported.popleft())

    def _report_later(self, rank: int, arrival: Arrival, event: Event) -> None:
        if self.observer is not None:
            self._unreported.append((rank, arrival, event))

    def _copy_out(self, device: Device, rank: int, tile: Tile, into: Any, source: Any, after: list[Event]) -> Event:
        """Copy a rank's tile, and report it to the observer."""
        event = device.copy_out(into, source, after)
        if self.observer is not None:
            self.observer.stored(rank, tile, event)
        return event


def pattern_of(rank: int, rows: int, columns: int) -> np.ndarray:
    """The matrix that a rank sends to test the connection to its device, different for each rank."""
    return np.random.default_rng(rank).random((rows, columns))


@dataclass(kw_only=True)
class HostTransport(Transport):
    """Each rank copies its operands over its GPU's own link."""

    matrices: RankMatrices
    panels: Arriving | None = None  # of B, from other nodes; None: all of B is already in host memory
    in_place: Container[str] = ()  # operands already on the device, not copied

    def ready(self, arrival: Arrival) -> bool:
        return self.panels is None or arrival.operand == "A" or self.panels.arrived(arrival.index)

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event | None:
        if arrival.operand in self.in_place:
            return None
        if self.panels is not None and arrival.operand == "B":
            self.panels.wait_for(arrival.index)
        event = self._copy_in(arrival, into, after)
        self._report_later(self.rank, arrival, event)
        return event

    def _copy_in(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        part = arrival.span.slice
        if arrival.operand == "A":
            return self.device.copy_in(into, self.matrices.a[part], after)
        b = self.matrices.b
        slab = [rows for rows in arrival.slab if len(rows)] or [b.rows]
        # H2D copies run in order, so the last event covers all.
        return [self.device.copy_in(into[rows.slice], b[rows][:, part], after) for rows in slab][-1]

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        if "C" in self.in_place:
            return after[-1]
        into = self.matrices.c[tile.rows.slice, tile.columns.slice]
        return self._copy_out(self.device, self.rank, tile, into, source, after)
