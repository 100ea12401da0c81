"""Panels of B that come from other nodes: into the node's window one after another, while those before are multiplied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybrid.ranks.node_flags import Board


@dataclass(frozen=True)
class Passing:
    """How panels of B go from node to node: `pass_panel(index)` on the rank that does it for its node, None on the others."""

    pass_panel: Callable[[int], None] | None


class Deliveries:
    """One rank's view. Its node's courier passes panels on when it needs the next, and the others see that it has.

    All couriers pass the same panels in the same order, so none waits for another's product.
    """

    def __init__(self, board: Board, first_place: int, courier: int, passing: Passing) -> None:
        """`courier`: the rank that passes the node's panels on, and notes on the board, from `first_place` on, which came."""
        self._board, self._first_place, self._courier, self._pass_panel = board, first_place, courier, passing.pass_panel
        self._passed = 0

    def begin(self) -> None:
        """A new product, of which nothing has come."""
        self._passed = 0

    def came(self, index: int) -> bool:
        """Whether the panel is there, without waiting."""
        if self._pass_panel is not None:
            return index < self._passed
        return self._board.posted(self._courier, self._first_place + index)

    def wait_for(self, index: int) -> None:
        """Until the panel is there."""
        if self._pass_panel is None:
            self._board.wait(self._courier, self._first_place + index)
            return
        while self._passed <= index:
            self._pass_panel(self._passed)
            self._board.post(self._first_place + self._passed)
            self._passed += 1
