# SPDX-License-Identifier: MIT
"""What a rank of a grid of nodes sends and receives: A, then the column panels of B one by one, and those of C as they are
computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from hybrid.plan.grid_layout import GridLayout, Place
from hybrid.plan.rectangles import Rectangle
from hybrid.ranks.collectives import Series, Start, exchange
from hybrid.ranks.node_flags import NodeFlags
from hybrid.ranks.team import Team

_IN, _OUT = "to the grid", "from the grid"  # the two series of collectives
_AHEAD = 2  # collectives that are started before they are needed: their messages fill the network while others end

Pieces = dict[int, list[np.ndarray]]  # what goes to each rank, or comes from each


class GridMatrices:
    """The matrices of one rank.

    `kept`: what it has of A and B, and is to have of C, by operand. `a`, `b`, `c`: what it multiplies and computes; its node's
    ranks have `b` in common. `terms`: where there are several layers, what each of them gives to this rank's part of C.
    """

    def __init__(
        self, kept: dict[str, np.ndarray], a: np.ndarray, b: np.ndarray, c: np.ndarray, terms: np.ndarray | None
    ) -> None:
        self.kept, self.a, self.b, self.c, self.terms = kept, a, b, c, terms


class GridExchange:
    """The exchange of one product after the other.

    A rank that waits goes on meanwhile with all that is under way, so no rank waits for another one that multiplies.
    """

    def __init__(self, team: Team, layout: GridLayout, matrices: GridMatrices, flags: NodeFlags) -> None:
        """Every rank calls it. `flags`: one for each column panel of B, which a rank sets when it has received its part of the
        panel for its node."""
        self._team, self._layout, self._matrices, self._flags = team, layout, matrices, flags
        self._place_of_b = layout.grid.of_b(team.node, layout.problem)
        self.exchanged: list[tuple[str, Pieces, Pieces]] = []  # operand, what was sent, what was received
        self._transfers = {
            series: [self._transfer(operand, number) for operand in operands for number in range(layout.pieces[operand])]
            for series, operands in ((_IN, "AB"), (_OUT, "C"))
        }
        self._series: dict[str, Series] = {}
        self._received = self._sent = 0  # collectives that are complete
        self.computed = 0  # panels of C, in their order
        for series in (_IN, _OUT):
            team.connect(series, range(team.size))

    def begin(self) -> None:
        """Begin a product, in a phase that all ranks leave together before they multiply."""
        self._received = self._sent = self.computed = 0
        self._flags.new_round()
        for name, transfers in self._transfers.items():
            series = self._team.messages.collectives.series(name, range(self._team.size), transfers)
            assert series is not None
            self._series[name] = series

    def wait_for_a(self) -> None:
        """Wait until this rank has the rows of A that it multiplies. PhaseEnded if a rank fails meanwhile."""
        self._receive(self._layout.pieces["A"])

    def wait_for_panel(self, number: int, computing: Callable[[], bool] = lambda: False) -> None:
        """Wait until A is there, and this panel of B is on the node. PhaseEnded if a rank fails meanwhile.

        `computing`: whether another thread of this rank needs its core.
        """
        began = time.perf_counter()
        self._team.enter("scatter")
        self._receive(self._layout.pieces["A"] + number + 1, computing)
        pause = self._flags.pauses()
        while not self._is_on_node(number):
            self.advance()
            next(pause)
        self._team.timeline.add("scatter", began, time.perf_counter())

    def has_panel(self, number: int) -> bool:
        """Whether this panel of B is on the node, without waiting."""
        self.advance()
        return self._received > self._layout.pieces["A"] + number and self._is_on_node(number)

    def advance(self) -> None:
        """Note what has arrived, and send the panels of C that are computed, without waiting."""
        series = self._series[_IN]
        while self._received < len(self._transfers[_IN]):
            series.start(self._received + 1 + _AHEAD)
            if not series.is_complete(self._received):
                break
            self._note_received()
        self.send_computed()

    def send_computed(self) -> None:
        """Start sending the panels of C that are computed, and go on with those that are under way, without waiting."""
        series = self._series[_OUT]
        series.start(self.computed)
        while self._sent < series.started and series.is_complete(self._sent):
            self._sent += 1

    def finish(self) -> None:
        """Wait until C is where it is kept, with the layers' results added up. PhaseEnded if a rank fails meanwhile."""
        self._series[_OUT].wait_until_complete()
        matrices = self._matrices
        if matrices.terms is not None:
            np.sum(matrices.terms, axis=0, out=matrices.kept["C"])

    def _receive(self, count: int, computing: Callable[[], bool] = lambda: False) -> None:
        """Wait until the first `count` collectives are complete."""
        series = self._series[_IN]
        while self._received < count:
            series.start(self._received + 1 + _AHEAD)
            series.wait_for(self._received, self.send_computed, computing)
            self._note_received()

    def _note_received(self) -> None:
        panel = self._received - self._layout.pieces["A"]
        self._received += 1
        if panel >= 0:
            self._flags.set_flag(panel)

    def _is_on_node(self, number: int) -> bool:
        """Whether all ranks of the node have received their parts of this panel of B."""
        return all(self._flags.is_set(rank, number) for rank in self._team.node_ranks)

    def _transfer(self, operand: str, number: int) -> Start:
        """The collective that brings piece `number` of an operand: what this rank sends to each rank, and receives from each."""
        layout, me, ranks = self._layout, self._team.rank, range(self._team.size)
        sends = {rank: self._sources(operand, layout.sends(operand, number, me, rank)) for rank in ranks}
        receives = {rank: self._destinations(operand, layout.sends(operand, number, rank, me), rank) for rank in ranks}
        self.exchanged.append((operand, sends, receives))
        return exchange(sends, receives, me)

    def _sources(self, operand: str, parts: Sequence[tuple[Rectangle, Place]]) -> list[np.ndarray]:
        """The arrays that are sent, one for each of these parts."""
        if operand == "C":
            computed = self._layout.part_of_c(self._team.rank)
            return [self._matrices.c[part.within(computed)] for part, _ in parts]
        return [self._matrices.kept[operand][place] for _, place in parts]

    def _destinations(self, operand: str, parts: Sequence[tuple[Rectangle, Place]], source: int) -> list[np.ndarray]:
        """The arrays into which these parts are received from rank `source`."""
        matrices, layout = self._matrices, self._layout
        if operand == "C":
            into = matrices.kept["C"] if matrices.terms is None else matrices.terms[layout.layer_of(source)]
            return [into[place] for _, place in parts]
        whole = layout.rows_of_a(self._team.rank) if operand == "A" else self._place_of_b
        into = matrices.a if operand == "A" else matrices.b
        return [into[part.within(whole)] for part, _ in parts]
