# SPDX-License-Identifier: MIT
"""Rows and column panels of matrices on their way between nodes, by MPI's collectives, while others are multiplied."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from hybrid.core.problem import record
from hybrid.core.spans import Span, pieces
from hybrid.devices.base import Event
from hybrid.plan.grid import Rectangle
from hybrid.plan.schedule import RankShare, Tile
from hybrid.ranks.collectives import Series, exchange
from hybrid.ranks.shared_memory import NodeFlags
from hybrid.ranks.team import Team

# -------- panel stream
# Column panels of B from other nodes: they arrive in node-shared memory one by one, while earlier ones are multiplied.

_PANELS_OF_B_AHEAD = 2  # collectives that are started before they are needed: their messages fill the network while others end


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
                    self._series.start(number + 1 + _PANELS_OF_B_AHEAD)
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
        series.start(self._ends[self._arrived] + _PANELS_OF_B_AHEAD)
        return all(series.is_complete(number) for number in self._of_next())

    def _note(self) -> None:
        """Tell the node that this gateway's columns of the next panel have arrived."""
        self._flags.set_flag(self._first_flag + self._arrived)
        self._arrived += 1


# -------- panel gather
# Column panels of C on their way to the root's node: each node sends its rows of a panel when they are computed, while others
# are.

_PANELS_OF_C_AHEAD = 4  # collectives that the root starts before the one that it waits for


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
            self._series.start(self._complete + _PANELS_OF_C_AHEAD)
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


# -------- row exchange
# Rows of matrices on their way from node to node before a product, by MPI's collectives between the nodes' gateway ranks.

_ROWS_AHEAD = 1  # collectives that are started while the one before is under way
Matrices = Mapping[int, Sequence[np.ndarray]]  # for each node those that it gets, or has sent
# Gives what this rank sends to each node by one collective, and what it receives from each.
Piece = Callable[[], tuple[Matrices, Matrices]]


class RowExchange:
    """Every rank of the team makes one.

    `gateways[node]`: the rank that takes part for a node. `pieces`: each gives what one collective sends and receives; it is
    called when that is started, and what it gives is kept until it has arrived.
    """

    def __init__(self, team: Team, gateways: Sequence[int], pieces: Sequence[Piece]) -> None:
        self._team, self._gateways, self._pieces = team, tuple(gateways), pieces
        self._held: dict[int, tuple[Matrices, Matrices]] = {}
        self._series: Series | None = None
        team.connect("rows", self._gateways)

    def begin(self) -> None:
        """Begin an exchange, in a phase that ends before `run`."""
        self._held.clear()
        starts = [partial(self._start, number) for number in range(len(self._pieces))]
        self._series = self._team.messages.collectives.series("rows", self._gateways, starts)

    def run(self) -> None:
        """Wait until all rows have arrived. PhaseEnded if a rank fails meanwhile."""
        if self._series is None:  # another rank is its node's gateway
            return
        for number in range(len(self._pieces)):
            self._series.start(number + 1 + _ROWS_AHEAD)
            self._series.wait_for(number)
            del self._held[number]

    def _start(self, number: int, comm: Any) -> Any:
        self._held[number] = self._pieces[number]()
        return exchange(*self._held[number], comm.Get_rank())(comm)


def cut(rows: Span, columns: int, item_size: int, message_bytes: int) -> Iterator[Rectangle]:
    """Rows of so many columns, in rectangles of at most so many bytes: of whole rows, where a message has room for one."""
    width = max(1, min(columns, message_bytes // item_size))
    height = max(1, message_bytes // max(1, width * item_size))
    for some_rows in pieces(rows, height):
        for some_columns in pieces(Span(0, columns), width):
            yield Rectangle(some_rows, some_columns)
