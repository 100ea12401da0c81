# SPDX-License-Identifier: MIT
"""Column panels of C to the root's node: each node sends its rows of a panel as soon as they are computed, while others are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from hybrid.devices.base import Event
from hybrid.plan.rank_share import RankShare
from hybrid.plan.schedule import Tile
from hybrid.ranks.collectives import Series
from hybrid.ranks.node_flags import NodeFlags
from hybrid.ranks.team import Team
from hybrid.transport.panel_stream import PanelTransfers

_AHEAD = 4  # collectives that the root starts before the one that it waits for


class PanelGather:
    """One rank's view. Flags tell its node's gateway rank which ranks have computed a panel; it takes part in the collectives."""

    def __init__(
        self, team: Team, flags: NodeFlags, first_flag: int, share: RankShare, senders: Sequence[int], transfers: PanelTransfers
    ) -> None:
        """`senders`: the ranks whose rows this node sends, none on the root's node, where they lie in place. Each sets a flag for
        each panel, the first one `first_flag`."""
        self._team, self._flags, self._first_flag, self._share = team, flags, first_flag, share
        self._senders, self._transfers = senders, transfers
        self._ends = list(accumulate(transfers.collectives))
        self._rows_left: list[int] = []  # of each panel, to be computed by this rank
        self._series: Series | None = None
        self._panels = self._complete = 0  # panels started, and collectives complete

    @property
    def takes_part(self) -> bool:
        """Whether this rank is its node's gateway."""
        return self._series is not None

    def begin(self) -> None:
        """A product begins: nothing is computed."""
        self._rows_left = [len(self._share.rows)] * len(self._ends)
        self._panels = self._complete = 0
        self._series = self._transfers.begin()

    def stored(self, tile: Tile) -> None:
        """A tile of this rank's is in host memory."""
        for index, panel in enumerate(self._share.column_panels):
            if panel.lies_in(tile.columns):
                self._rows_left[index] -= len(tile.rows)
                if not self._rows_left[index]:
                    self._flags.set_flag(self._first_flag + index)

    def follow(self, tiles: Iterable[tuple[Tile, Event]], done: Callable[[Event], bool]) -> None:
        """These tiles of this rank's will be in host memory, each after its event; returns when all are."""
        pause = self._flags.pauses()
        for tile, event in tiles:
            while not done(event):
                self.advance()
                next(pause)
            self.stored(tile)

    def advance(self) -> None:
        """Without waiting: send what is computed."""
        if self._series is None:
            return
        while self._panels < len(self._ends) and self._is_computed(self._panels):
            self._series.start(self._ends[self._panels])
            self._panels += 1
        if not self._senders:
            self._series.start(self._complete + _AHEAD)
        while self._complete < self._series.started and self._series.is_complete(self._complete):
            self._complete += 1

    def finish(self) -> None:
        """Until C is complete on the root's node, as far as this rank has a part in it; PhaseEnded if a rank fails meanwhile."""
        if self._series is None:
            return
        began, pause = time.perf_counter(), self._flags.pauses()
        self._team.enter("gather")
        while self._complete < sum(self._transfers.collectives):
            self.advance()
            next(pause)
        self._team.timeline.add("gather", began, time.perf_counter())

    def _is_computed(self, index: int) -> bool:
        """By all ranks whose rows this node sends; where there are none, nothing is to be computed before."""
        return bool(self._senders) and all(self._flags.is_set(rank, self._first_flag + index) for rank in self._senders)
