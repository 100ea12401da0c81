"""How the operands come to a rank's device and C goes home from there; and how rows go from node to node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from hybrid.devices.base import Mark, Work
from hybrid.plan.schedule import Arrival, Strip


@dataclass(frozen=True)
class Ends:
    """Where a rank's share comes from and goes to: its row-block of A, all of B, its row-block of C.

    In the host's memory, or a GPU's. Of B there may be `SomeRows`, where the road reads no others.
    """

    a: Any
    b: Any
    c: Any


class Road(Protocol):
    """The way of the operands to a rank's device, and of C from there. Made once, gone once for each product."""

    def begin(self) -> None:
        """Called before all else, once every rank has come to the product."""

    def ready(self, arrival: Arrival) -> bool:
        """Whether `bring` would not wait for other ranks."""

    def bring(self, arrival: Arrival, into: Any, after: list[Mark]) -> Mark:
        """Load a chunk, or what this rank loads of a panel, once `after` is done."""

    def complete(self, arrival: Arrival, into: Any) -> list[Mark]:
        """Fetch what other ranks have loaded of a panel."""

    def take(self, strip: Strip, source: Any, after: list[Mark]) -> Mark:
        """Bring a strip of C to host memory."""

    def finish(self) -> Work:
        """Called when all strips are handed over: wait for what does not belong to the rank's own device."""
