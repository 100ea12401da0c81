"""How the operands come to a rank's device and C goes home from there; and how rows go from node to node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from hybrid.devices.base import Event, Work
from hybrid.host.row_view import RowView
from hybrid.plan.schedule import Arrival, Tile


@dataclass(frozen=True)
class RankMatrices:
    """Where a rank's share comes from and goes to: its row-block of A, all of B, its row-block of C.

    In the host's memory, or a GPU's. Of B only some rows need be there, where the transport reads no others.
    """

    a: Any
    b: RowView
    c: Any


class Transport(Protocol):
    """The way of the operands to a rank's device, and of C from there. Made once, gone once for each product."""

    def begin(self) -> None:
        """Called before all else, once every rank has come to the product."""

    def ready(self, arrival: Arrival) -> bool:
        """Whether `load` would not wait for other ranks."""

    def load(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        """Load a chunk, or what this rank loads of a panel, once `after` is done."""

    def exchange(self, arrival: Arrival, into: Any) -> list[Event]:
        """Fetch what other ranks have loaded of a panel."""

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        """Bring a strip of C to host memory."""

    def finish(self) -> Work:
        """Called when all strips are handed over: wait for what does not belong to the rank's own device."""
