# SPDX-License-Identifier: MIT
"""Column panels of B that come from other nodes, and of C that go to others, by MPI's collectives while others are multiplied.

Some ranks of every node take part in the collectives. By flags in node-shared memory they tell the ranks of their node which
panels have arrived, and learn from them which are computed. All ranks start the same collectives in the same order, and one that
waits goes on with all that are under way: so none waits for another one that multiplies.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from hybrid.core.problem import record
from hybrid.core.spans import Span
from hybrid.devices.base import Device, Event
from hybrid.planning.schedule import RankShare, Tile
from hybrid.ranks.messages import Series, Start
from hybrid.ranks.shared_memory import NodeFlags
from hybrid.ranks.team import Team

# Collectives that are started before they are needed: their messages fill the network while others end.
_B_AHEAD, _C_AHEAD = 2, 4


@record
class Moves:
    """The collectives that bring the panels of B to the nodes, or those of C to where they are kept, as one rank knows them.

    `kind`, `ranks`: their communicator. `of_panels`: for each panel those that move it, or this rank's part of it; none on a
    rank that takes no part. `members`: of B, the ranks that receive parts of a panel for this node; of C, those whose results
    this rank sends.
    """

    kind: str
    ranks: tuple[int, ...]
    of_panels: Sequence[Sequence[Start]]
    members: Sequence[int]

    def begin(self, team: Team) -> Series | None:
        starts = [start for of_panel in self.of_panels for start in of_panel]
        return team.messages.series(self.kind, self.ranks, starts) if team.rank in self.ranks else None


@record
class PanelMoves:
    """What moves during a product. `columns`: of each panel, within this rank's columns of C. `terms`: where several layers'
    results arrive, whose sum belongs in `kept`."""

    columns: Sequence[Span]
    arriving: Moves
    leaving: Moves
    terms: np.ndarray | None = None
    kept: np.ndarray | None = None


class Panels:
    """One rank's view of the panels, for any number of products, each from `begin` to `finish`.

    The panels of its device may be others than those that move: one of B is there when all are that it overlaps with.
    """

    def __init__(
        self, team: Team, moves: PanelMoves, share: RankShare, device: Device, flags: NodeFlags, first_flag: int
    ) -> None:
        """`flags`: from `first_flag` on a rank has one for each panel of B, and then one for each of C."""
        self._team, self._moves, self._device, self._flags = team, moves, device, flags
        self._columns, self._rows = moves.columns, len(share.rows)
        self._flag_of_b, self._flag_of_c = first_flag, first_flag + len(moves.columns)
        self._ends_of_b, self._ends_of_c = ([*accumulate(map(len, each.of_panels))] for each in (moves.arriving, moves.leaving))
        self._last_of = [self._overlapped(panel)[-1] for panel in share.column_panels]
        self._expected: deque[tuple[Tile, Event]] = deque()
        self._left: list[int] = []  # elements of each panel of C that this rank has still to compute
        self._arriving: Series | None = None
        self._leaving: Series | None = None
        self._arrived = self._computed = self._sent = 0  # panels of B and of C, and collectives of C that are complete

    @property
    def takes_part(self) -> bool:
        """Whether this rank takes part in the collectives."""
        return self._team.rank in (*self._moves.arriving.ranks, *self._moves.leaving.ranks)

    def begin(self) -> None:
        """A product begins: nothing has arrived, and nothing is computed."""
        self._expected.clear()
        self._left = [self._rows * len(panel) for panel in self._columns]
        self._arrived = self._computed = self._sent = 0
        self._arriving, self._leaving = self._moves.arriving.begin(self._team), self._moves.leaving.begin(self._team)
        for number, elements in enumerate(self._left):
            if not elements:
                self._flags.set_flag(self._flag_of_c + number)

    def arrived(self, index: int) -> bool:
        """Whether panel `index` of this rank's device is in host memory, without waiting."""
        self.advance()
        return self._is_on_node(self._last_of[index])

    def wait_for(self, index: int, computing: Callable[[], bool] = lambda: False) -> None:
        """Wait until panel `index` of this rank's device is in host memory. PhaseEnded if a rank fails meanwhile. `computing`:
        whether another thread of this rank needs its core."""
        self._wait_for(self._last_of[index], computing)

    def wait_for_panels(self, count: int | None = None) -> None:
        """Wait until so many of the panels that move, or all, are on the node: also a rank without rows receives some for the
        others."""
        if self._columns:
            self._wait_for((len(self._columns) if count is None else count) - 1)

    def _wait_for(self, panel: int, computing: Callable[[], bool] = lambda: False) -> None:
        began = time.perf_counter()
        if (series := self._arriving) is not None:
            self._team.enter("scatter")
            while self._arrived <= panel:
                for number in self._of_next():
                    series.start(number + 1 + _B_AHEAD)
                    series.wait_for(number, self._advance_c, computing)
                self._note_arrived()
        pause = self._flags.pauses()
        while not self._is_on_node(panel):
            self.advance()
            next(pause)
        if series is not None:
            self._team.timeline.add("scatter", began, time.perf_counter())

    def _is_on_node(self, panel: int) -> bool:
        return all(self._flags.is_set(rank, self._flag_of_b + panel) for rank in self._moves.arriving.members)

    def _of_next(self) -> range:
        """The numbers of the collectives that bring the next panel."""
        return range(self._ends_of_b[self._arrived - 1] if self._arrived else 0, self._ends_of_b[self._arrived])

    def _note_arrived(self) -> None:
        """Tell the node that this rank's part of the next panel has arrived."""
        self._flags.set_flag(self._flag_of_b + self._arrived)
        self._arrived += 1

    def stored(self, tile: Tile) -> None:
        """Note that a tile of this rank is in host memory."""
        for number in self._overlapped(tile.columns):
            self._left[number] -= len(tile.rows) * len(self._columns[number].common(tile.columns))
            if not self._left[number]:
                self._flags.set_flag(self._flag_of_c + number)

    def will_be_stored(self, tile: Tile, event: Event) -> None:
        """Note that a tile of this rank is in host memory when the event is complete."""
        self._expected.append((tile, event))

    def advance(self) -> None:
        """Note what has arrived and what is stored by now, and send what is computed, without waiting."""
        if (series := self._arriving) is not None:
            while self._arrived < len(self._columns):
                series.start(self._ends_of_b[self._arrived] + _B_AHEAD)
                if not all(series.is_complete(number) for number in self._of_next()):
                    break
                self._note_arrived()
        self._advance_c()

    def wait_for_stored(self) -> None:
        """Wait until all tiles that were announced are stored. PhaseEnded if a rank fails meanwhile."""
        pause = self._flags.pauses()
        while self._expected:
            self.advance()
            next(pause)

    def finish(self) -> None:
        """Wait until C is where it is kept, as far as this rank has a part in that, when all of it is computed. PhaseEnded if a
        rank fails meanwhile."""
        if self._leaving is not None:
            self._leaving.wait_until_complete()
        if self._moves.terms is not None:
            np.sum(self._moves.terms, axis=0, out=self._moves.kept)

    def _advance_c(self) -> None:
        """Start the collectives of the panels of C that are computed, but not too many at a time."""
        while self._expected and self._device.done(self._expected[0][1]):
            self.stored(self._expected.popleft()[0])
        if (series := self._leaving) is None:
            return
        flag, members = self._flag_of_c, self._moves.leaving.members
        while self._computed < len(self._columns) and all(self._flags.is_set(rank, flag + self._computed) for rank in members):
            self._computed += 1
        may_start = self._ends_of_c[self._computed - 1] if self._computed else 0
        series.start(min(may_start, self._sent + _C_AHEAD))
        while self._sent < series.started and series.is_complete(self._sent):
            self._sent += 1

    def _overlapped(self, columns: Span) -> list[int]:
        """The numbers of the panels that overlap with these columns."""
        return [number for number, panel in enumerate(self._columns) if panel.meets(columns)]
