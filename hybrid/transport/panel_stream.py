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
    """How the panels travel between the nodes' gateway ranks: each panel by so many collectives, of a new series a product.

    Where a node has several gateways, each brings some columns of every panel.
    """

    collectives: Sequence[int]  # of this rank, if it is one
    begin: Callable[[], Series | None]  # None on the other ranks
    gateways: Sequence[int]  # of this rank's node


class PanelStream:
    """One rank's view. Its node's gateway ranks take part in the collectives; their flags tell the node's ranks of each panel.

    All gateway ranks of a communicator start the same collectives in the same order, so none has to wait until another has
    multiplied.
    """

    def __init__(
        self,
        team: Team,
        flags: NodeFlags,
        first_flag: int,
        transfers: PanelTransfers,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """A gateway sets a flag for each panel of which its columns have arrived, the first one `first_flag`. `meanwhile`: is
        called there while it waits, and must not wait itself."""
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
        """Until the panel is in node-shared memory. `computing`: whether another thread of this rank needs its core."""
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
        """The collectives of the next panel."""
        return range(self._ends[self._arrived - 1] if self._arrived else 0, self._ends[self._arrived])

    def _all_complete(self, series: Series) -> bool:
        series.start(self._ends[self._arrived] + _AHEAD)
        return all(series.is_complete(number) for number in self._of_next())

    def _note(self) -> None:
        self._flags.set_flag(self._first_flag + self._arrived)
        self._arrived += 1
