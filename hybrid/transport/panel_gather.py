# SPDX-License-Identifier: MIT
"""Column panels of C on their way to the root's node: each node sends its rows of a panel when they are computed, while others
are."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate

from hybrid.devices.base import Event
from hybrid.plan.rank_share import RankShare
from hybrid.plan.schedule import Tile
from hybrid.ranks.collectives import Series
from hybrid.ranks.node_flags import NodeFlags
from hybrid.transport.panel_stream import PanelTransfers

_AHEAD = 4  # collectives that the root starts before the one that it waits for


class PanelGather:
    """One rank's view of it. By their flags ranks tell the gateways of their node which panels they have computed; the gateways
    take part in the collectives."""

    def __init__(
        self,
        flags: NodeFlags,
        first_flag: int,
        share: RankShare,
        senders: Sequence[int],
        transfers: PanelTransfers,
        done: Callable[[Event], bool],
    ) -> None:
        """`senders`: the ranks whose rows this node sends; none on the root's node, where rows lie in place already. Each of
        them has a flag for each panel, the first of which is `first_flag`. `done`: whether an event that `will_be_stored` got is
        complete."""
        self._flags, self._first_flag, self._share = flags, first_flag, share
        self._senders, self._transfers = senders, transfers
        self._done, self._ends = done, list(accumulate(transfers.collectives))
        self._first_columns = [panel.lo for panel in share.column_panels]
        self._expected: deque[tuple[Tile, Event]] = deque()
        self._rows_left: list[int] = []  # rows of each panel that this rank has still to compute
        self._series: Series | None = None
        self._panels = self._complete = 0  # panels started, and collectives complete

    @property
    def takes_part(self) -> bool:
        """Whether this rank is a gateway of its node."""
        return self._series is not None

    def begin(self) -> None:
        """A product begins: nothing is computed."""
        self._rows_left = [len(self._share.rows)] * len(self._ends)
        self._panels = self._complete = 0
        self._expected.clear()
        self._series = self._transfers.begin()

    def stored(self, tile: Tile) -> None:
        """Note that a tile of this rank is in host memory."""
        panels = self._first_columns
        for index in range(bisect_left(panels, tile.columns.lo), bisect_left(panels, tile.columns.hi)):
            self._rows_left[index] -= len(tile.rows)
            if not self._rows_left[index]:
                self._flags.set_flag(self._first_flag + index)

    def will_be_stored(self, tile: Tile, event: Event) -> None:
        """Note that a tile of this rank is in host memory when the event is complete."""
        self._expected.append((tile, event))

    def advance(self) -> None:
        """Note which tiles are stored by now, and send what is computed, without waiting."""
        while self._expected and self._done(self._expected[0][1]):
            self.stored(self._expected.popleft()[0])
        if self._series is None:
            return
        while self._panels < len(self._ends) and self._is_computed(self._panels):
            self._series.start(self._ends[self._panels])
            self._panels += 1
        if not self._senders:  # what the root receives, and what a node without rows sends, waits for nothing
            self._series.start(self._complete + _AHEAD)
        while self._complete < self._series.started and self._series.is_complete(self._complete):
            self._complete += 1

    def wait_for_stored(self) -> None:
        """Wait until all tiles that were announced are stored. PhaseEnded if a rank fails meanwhile."""
        pause = self._flags.pauses()
        while self._expected:
            self.advance()
            next(pause)

    def finish(self) -> None:
        """Wait until C is complete on the root's node, as far as this rank has a part in that. PhaseEnded if a rank fails
        meanwhile."""
        if self._series is None:
            return
        pause = self._flags.pauses()
        while self._complete < sum(self._transfers.collectives):
            self.advance()
            next(pause)

    def _is_computed(self, index: int) -> bool:
        """Whether all ranks whose rows this node sends have computed the panel; False where there are none."""
        return bool(self._senders) and all(self._flags.is_set(rank, self._first_flag + index) for rank in self._senders)
