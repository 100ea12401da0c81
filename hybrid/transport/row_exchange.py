# SPDX-License-Identifier: MIT
"""Rows of matrices on their way from node to node before a product, by MPI's collectives between the nodes' gateway ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hybrid.core.spans import Span, pieces
from hybrid.plan.rectangles import Rectangle
from hybrid.ranks.collectives import Series, exchange
from hybrid.ranks.team import Team

_AHEAD = 1  # collectives that are started while the one before is under way
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
            self._series.start(number + 1 + _AHEAD)
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
