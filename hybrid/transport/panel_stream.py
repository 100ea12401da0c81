"""Panels of B that come from other nodes: into the node's window one after another, while those before are multiplied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybrid.ranks.node_flags import NodeFlags


@dataclass(frozen=True)
class PanelForwarder:
    """How panels of B go from node to node: `pass_panel(index)` on the rank that does it for its node, None on the others."""

    forward_panel: Callable[[int], None] | None


class PanelStream:
    """One rank's view. Its node's courier passes panels on when it needs the next, and the others see that it has.

    All couriers pass the same panels in the same order, so none waits for another's product.
    """

    def __init__(self, flags: NodeFlags, first_place: int, courier: int, forwarder: PanelForwarder) -> None:
        """`courier`: the rank that passes the node's panels on, and notes on the board, from `first_place` on, which came."""
        self._flags, self._first_place, self._courier, self._forward_panel = flags, first_place, courier, forwarder.forward_panel
        self._passed = 0

    def begin(self) -> None:
        """A new product, of which nothing has come."""
        self._passed = 0

    def arrived(self, index: int) -> bool:
        """Whether the panel is there, without waiting."""
        if self._forward_panel is not None:
            return index < self._passed
        return self._flags.is_set(self._courier, self._first_place + index)

    def wait_for(self, index: int) -> None:
        """Until the panel is there."""
        if self._forward_panel is None:
            self._flags.wait(self._courier, self._first_place + index)
            return
        while self._passed <= index:
            self._forward_panel(self._passed)
            self._flags.set_flag(self._first_place + self._passed)
            self._passed += 1
