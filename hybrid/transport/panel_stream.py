# SPDX-License-Identifier: MIT
"""Column panels of B from other nodes: they arrive in node-shared memory one by one, while earlier ones are multiplied."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate

from hybrid.core.record import record
from hybrid.ranks.collectives import Series
from hybrid.ranks.node_flags import NodeFlags
from hybrid.ranks.team import Team

_AHEAD = 2  # collectives that are started before they are needed: their messages fill the network while others end


@record
class PanelTransfers:
    """How the panels travel between the nodes' gateway ranks: each panel by so many collectives, and those of a product in a new
    series.

    Where a node has several gateways, each brings some columns of every panel.
    """

    collectives: Sequence[int]  # for each panel, how many this rank starts if it is a gateway
    begin: Callable[[], Series | None]  # makes the series of a product; None on ranks that are no gateways
    gateways: Sequence[int]  # of this rank's node


class PanelStream:
    """One rank's view of it. The gateway ranks of its node take part in the collectives; by their flags they tell the ranks of
    their node which panels have arrived.

    All gateways of a communicator start the same collectives in the same order, so none waits until another has multiplied.
    """

    def __init__(
        self,
        team: Team,
        flags: NodeFlags,
        first_flag: int,
        transfers: PanelTransfers,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """A gateway has a flag for each panel, the first of which is `first_flag`; it sets the flag when its columns of the
        panel have arrived. `meanwhile`: is called while a gateway waits, and must not wait itself."""
        self._team, self._meanwhile = team, meanwhile
        self._flags, self._first_flag, self._transfers = flags, first_flag, transfers
        self._ends = list(accumulate(transfers.collectives))
        self._series: Series | None = None
        self._arrived = 0

    @property
    def takes_part(self) -> bool:
        """Whether this rank is a gateway of its node."""
        return self._series is not None

    def begin(self) -> None:
        """A product begins: no panel has arrived."""
        self._arrived, self._series = 0, self._transfers.begin()

    def arrived(self, index: int) -> bool:
        """Whether the panel is in node-shared memory, without waiting."""
        if self._series is not None:
            self._meanwhile()
            while self._arrived < len(self._ends) and self._all_complete(self._series):
                self._note()
        return all(self._flags.is_set(gateway, self._first_flag + index) for gateway in self._transfers.gateways)

    def wait_for(self, index: int, computing: Callable[[], bool] = lambda: False) -> None:
        """Wait until the panel is in node-shared memory. PhaseEnded if a rank fails meanwhile. `computing`: whether another
        thread of this rank needs its core."""
        began = time.perf_counter()
        if self._series is not None:
            self._team.enter("scatter")
            while self._arrived <= index:
                for number in self._of_next():
                    self._series.start(number + 1 + _AHEAD)
                    self._series.wait_for(number, self._meanwhile, computing)
                self._note()
        pause = self._flags.pauses()
        while not self.arrived(index):
            next(pause)
        if self._series is not None:
            self._team.timeline.add("scatter", began, time.perf_counter())

    def _of_next(self) -> range:
        """The numbers of the collectives that bring the next panel."""
        return range(self._ends[self._arrived - 1] if self._arrived else 0, self._ends[self._arrived])

    def _all_complete(self, series: Series) -> bool:
        """Whether the next panel has arrived at this gateway. The collectives after it are started, too."""
        series.start(self._ends[self._arrived] + _AHEAD)
        return all(series.is_complete(number) for number in self._of_next())

    def _note(self) -> None:
        """Tell the node that this gateway's columns of the next panel have arrived."""
        self._flags.set_flag(self._first_flag + self._arrived)
        self._arrived += 1
