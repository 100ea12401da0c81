# SPDX-License-Identifier: MIT
"""Column panels of B from other nodes: they arrive in node-shared memory one by one, while earlier ones are multiplied."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from hybrid.ranks.collectives import Series
from hybrid.ranks.node_flags import NodeFlags
from hybrid.ranks.team import Team

_AHEAD = 2  # collectives that are started before they are needed: their messages fill the network while others end


@dataclass(frozen=True)
class PanelTransfers:
    """How the panels travel between the nodes' gateway ranks: each panel by so many collectives, of a new series a product."""

    collectives: Sequence[int]
    begin: Callable[[], Series | None]  # None on the other ranks


class PanelStream:
    """One rank's view. Its node's gateway rank takes part in the collectives; a flag tells the other ranks of each panel.

    All gateway ranks start the same collectives in the same order, so none has to wait until another has multiplied.
    """

    def __init__(
        self,
        team: Team,
        flags: NodeFlags,
        first_flag: int,
        gateway: int,
        transfers: PanelTransfers,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """`gateway`: the rank that sets a flag for each panel that arrived, the first one `first_flag`. `meanwhile`: is called
        there while it waits, and must not wait itself."""
        self._team, self._meanwhile = team, meanwhile
        self._flags, self._first_flag, self._gateway, self._transfers = flags, first_flag, gateway, transfers
        self._ends = list(accumulate(transfers.collectives))
        self._series: Series | None = None
        self._arrived = 0

    @property
    def takes_part(self) -> bool:
        """Whether this rank is its node's gateway."""
        return self._series is not None

    def begin(self) -> None:
        """A product begins: no panel has arrived."""
        self._arrived, self._series = 0, self._transfers.begin()

    def arrived(self, index: int) -> bool:
        """Whether the panel is in node-shared memory, without waiting."""
        if self._series is None:
            return self._flags.is_set(self._gateway, self._first_flag + index)
        self._meanwhile()
        while self._arrived <= index and self._all_complete(self._series):
            self._note()
        return index < self._arrived

    def wait_for(self, index: int, computing: Callable[[], bool] = lambda: False) -> None:
        """Until the panel is in node-shared memory. `computing`: whether another thread of this rank needs its core."""
        if self._series is None:
            self._flags.wait(self._gateway, self._first_flag + index)
            return
        began = time.perf_counter()
        self._team.enter("scatter")
        while self._arrived <= index:
            for number in self._of_next():
                self._series.start(number + 1 + _AHEAD)
                self._series.wait_for(number, self._meanwhile, computing)
            self._note()
        self._team.timeline.add("scatter", began, time.perf_counter())

    def _of_next(self) -> range:
        """The collectives of the next panel."""
        return range(self._ends[self._arrived - 1] if self._arrived else 0, self._ends[self._arrived])

    def _all_complete(self, series: Series) -> bool:
        series.start(self._ends[self._arrived] + _AHEAD)
        return all(series.is_complete(number) for number in self._of_next())

    def _note(self) -> None:
        self._flags.set_flag(self._first_flag + self._arrived)
        self._arrived += 1
