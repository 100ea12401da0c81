# SPDX-License-Identifier: MIT
"""Collectives between nodes after which something happens to what has arrived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybrid.execution.scatter_gather
from hybrid.transport import row_exchange


class _Then:
    """A request that does something once it is complete."""

    def __init__(self, request: Any, act: Callable[[], object]) -> None:
        self._request, self._act, self._done = request, act, False

    def Test(self) -> bool:
        complete = self._request.Test()
        if complete and not self._done:
            self._done = True
            self._act()
        return complete


def change_what_arrives(monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], None]) -> None:
    """`change(matrix)` on every rank that has received a column panel of B from the root's node."""
    original = hybrid.execution.scatter_gather.row_broadcast

    def row_broadcast(matrix: np.ndarray, root: int) -> Callable[[Any], Any]:
        start = original(matrix, root)
        return lambda comm: _Then(start(comm), lambda: comm.Get_rank() != root and change(matrix))

    monkeypatch.setattr(hybrid.execution.scatter_gather, "row_broadcast", row_broadcast)


def change_what_is_gathered(monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], None]) -> None:
    """`change(matrix)` on the root's node, with all rows of a column panel of C, when the other nodes' have arrived."""
    original = hybrid.execution.scatter_gather.row_gather

    def row_gather(matrix: np.ndarray, rows: Any, root: int) -> Callable[[Any], Any]:
        start = original(matrix, rows, root)
        return lambda comm: _Then(start(comm), lambda: comm.Get_rank() == root and change(matrix))

    monkeypatch.setattr(hybrid.execution.scatter_gather, "row_gather", row_gather)


def change_rows_that_arrive(monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], None]) -> None:
    """`change(matrix)` on every rank that has received rows of A or B from other nodes, for each matrix."""
    original = row_exchange.exchange

    def exchange(sends: Any, receives: Any, own_rank: int) -> Callable[[Any], Any]:
        start = original(sends, receives, own_rank)
        arrived = [matrix for of_rank in receives.values() for matrix in of_rank]
        return lambda comm: _Then(start(comm), lambda: [change(matrix) for matrix in arrived])

    monkeypatch.setattr(row_exchange, "exchange", exchange)
