# SPDX-License-Identifier: MIT
"""Column panels of B from other nodes: received into node-shared memory one by one, while earlier ones are multiplied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybrid.ranks.node_flags import NodeFlags


@dataclass(frozen=True)
class PanelForwarder:
    """On a node's gateway rank, `forward_panel(index)` receives a panel from one node and sends it to the next; else None."""

    forward_panel: Callable[[int], None] | None


class PanelStream:
    """One rank's view. Its node's gateway rank forwards panels as it needs them itself; a flag tells the other ranks of each.

    All gateway ranks forward the same panels in the same order, so none has to wait until another has multiplied.
    """

    def __init__(self, flags: NodeFlags, first_flag: int, gateway: int, forwarder: PanelForwarder) -> None:
        """`gateway`: the rank that sets a flag for each panel that arrived, the first one `first_flag`."""
        self._flags, self._first_flag, self._gateway, self._forward_panel = flags, first_flag, gateway, forwarder.forward_panel
        self._forwarded = 0

    def begin(self) -> None:
        """A product begins: no panel has arrived."""
        self._forwarded = 0

    def arrived(self, index: int) -> bool:
        """Whether the panel is in node-shared memory, without waiting."""
        if self._forward_panel is not None:
            return index < self._forwarded
        return self._flags.is_set(self._gateway, self._first_flag + index)

    def wait_for(self, index: int) -> None:
        """Until the panel is in node-shared memory."""
        if self._forward_panel is None:
            self._flags.wait(self._gateway, self._first_flag + index)
            return
        while self._forwarded <= index:
            self._forward_panel(self._forwarded)
            self._flags.set_flag(self._first_flag + self._forwarded)
            self._forwarded += 1
