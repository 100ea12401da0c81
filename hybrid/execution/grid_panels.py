# SPDX-License-Identifier: MIT
"""The column panels of a grid as a rank's device sees them: those of B that have arrived, and those of C that are computed.

The device's own panels may be others than those that travel: a panel is there when all that it overlaps with are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from hybrid.core.spans import Span
from hybrid.devices.base import Event
from hybrid.execution.grid_exchange import GridExchange
from hybrid.plan.grid_layout import GridLayout
from hybrid.plan.rank_share import RankShare
from hybrid.plan.schedule import Tile


class GridPanels:
    """One rank's view of them. It is told of each tile that is stored. A panel of C is sent when all of its elements are, and
    those of the panels before."""

    def __init__(
        self,
        exchange: GridExchange,
        layout: GridLayout,
        rank: int,
        share: RankShare,
        done: Callable[[Event], bool],
        pauses: Callable[[], Iterator[None]],
    ) -> None:
        """`share`: of the rank's part of the product. `done`: whether an event of the device is complete."""
        self._exchange, self._done, self._pauses = exchange, done, pauses
        columns = layout.part_of_c(rank).columns
        self._travelling = [layout.panel(rank, number).within(columns) for number in range(layout.pieces["B"])]
        self._last_of = [self._overlapped(panel)[-1] for panel in share.column_panels]
        self._rows = len(share.rows)
        self._left: list[int] = []  # elements of each panel of C that are not in host memory
        self._expected: deque[tuple[Tile, Event]] = deque()

    def begin(self) -> None:
        """A product begins: nothing is computed."""
        self._expected.clear()
        self._left = [self._rows * len(panel) for panel in self._travelling]
        self._note_computed()

    def arrived(self, index: int) -> bool:
        return self._exchange.has_panel(self._last_of[index])

    def wait_for(self, index: int) -> None:
        if not self.arrived(index):
            self._exchange.wait_for_panel(self._last_of[index])

    def will_be_stored(self, tile: Tile, event: Event) -> None:
        self._expected.append((tile, event))

    def advance(self) -> None:
        while self._expected and self._done(self._expected[0][1]):
            tile, _ = self._expected.popleft()
            for number in self._overlapped(tile.columns):
                self._left[number] -= len(tile.rows) * len(self._travelling[number].common(tile.columns))
        self._note_computed()
        self._exchange.advance()

    def wait_for_stored(self) -> None:
        pause = self._pauses()
        while self._expected:
            self.advance()
            next(pause)

    def _note_computed(self) -> None:
        """Tell the exchange how many panels of C are computed."""
        computed = self._exchange.computed
        while computed < len(self._left) and not self._left[computed]:
            computed += 1
        self._exchange.computed = computed

    def _overlapped(self, columns: Span) -> list[int]:
        """The numbers of the travelling panels that overlap with these columns."""
        return [number for number, panel in enumerate(self._travelling) if panel.meets(columns)]
