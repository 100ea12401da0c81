# SPDX-License-Identifier: MIT
"""Tells the check of the copies that bring operands, after more of them have been submitted."""

from __future__ import annotations

from collections import deque

from hybrid.devices.base import Event
from hybrid.plan.schedule import Arrival
from hybrid.transport.base import CopyObserver

_AT_ONCE = 4  # copies


class ToldLater:
    """The copies of which an observer is still to be told. That takes longer than to submit a copy, for which a link, or another
    rank, may be waiting. `observer`: None where nobody wants to know."""

    def __init__(self, observer: CopyObserver | None) -> None:
        self._observer = observer
        self._copies: deque[tuple[int, Arrival, Event]] = deque()

    def forget(self) -> None:
        """A product begins; the one before may have failed."""
        self._copies.clear()

    def add(self, rank: int, arrival: Arrival, event: Event) -> None:
        """A rank's device has got this arrival when the event is complete."""
        if self._observer is not None:
            self._copies.append((rank, arrival, event))

    def tell_some(self) -> None:
        self._tell(_AT_ONCE)

    def tell_all(self) -> None:
        self._tell(len(self._copies))

    def _tell(self, copies: int) -> None:
        for _ in range(min(copies, len(self._copies))):
            assert self._observer is not None
            self._observer.loaded(*self._copies.popleft())
