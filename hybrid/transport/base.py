# SPDX-License-Identifier: MIT
"""The protocol of a transport: how operands reach a rank's device, and how C is copied back to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.devices.base import Event, Timings
from hybrid.host.row_view import RowView
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
