# SPDX-License-Identifier: MIT
"""Which panels and slabs lie in a device's buffers as a rank's panels arrive, and what each overwrites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.plan.schedule import Arrival, Tile

Known = TypeVar("Known")


@record
class _Location:
    """The place of a panel or slab in the buffer of its operand."""

    lines: Span  # rows of A's buffer, columns of B's
    rows_of_b: Span | None = None  # None: all, as always of A

    def meets(self, other: _Location) -> bool:
        if not self.lines.meets(other.lines):
            return False
        return self.rows_of_b is None or other.rows_of_b is None or self.rows_of_b.meets(other.rows_of_b)


class Residency(Generic[Known]):
    """What the caller knows of each panel or slab in a device's buffers, found by where that lies.

    A look-up takes the longer the more panels are in the buffer. They are few, except where all panels are resident.
    """

    def __init__(self) -> None:
        self._by_buffer: dict[tuple[str, int], list[tuple[_Location, Known]]] = {}

    def under(self, arrival: Arrival) -> list[Known]:
        """What is known of the panels or slabs that lie where this one goes; or of this one, when it has been put there."""
        return [known for location in _locations(arrival) for known in self._at(arrival.operand, arrival.slot, location)]

    def read_by(self, tile: Tile) -> list[Known]:
        """What is known of the panels and slabs from which the tile is computed."""
        of_a = self._at("A", 0, _Location(tile.buffer_rows))
        return of_a + self._at("B", tile.slot, _Location(tile.buffer_columns, tile.inner))

    def put(self, arrival: Arrival, known: Known) -> None:
        """Note what is known of the panel or slab, in place of what was known of those that it overwrites."""
        buffer = self._by_buffer.setdefault((arrival.operand, arrival.slot), [])
        for location in _locations(arrival):
            buffer[:] = [entry for entry in buffer if not entry[0].meets(location)]
            buffer.append((location, known))

    def _at(self, operand: str, slot: int, location: _Location) -> list[Known]:
        return [known for there, known in self._by_buffer.get((operand, slot), []) if there.meets(location)]


def last_uses(arrivals: Sequence[Arrival]) -> list[int]:
    """For each arrival the number of the last arrival before it whose tiles read what it overwrites; -1 where it overwrites
    nothing."""
    uses: list[int] = []
    readers: Residency[list[int]] = Residency()
    for index, arrival in enumerate(arrivals):
        uses.append(max((use for panel in readers.under(arrival) for use in panel), default=-1))
        readers.put(arrival, [])
        for tile in arrival.releases:
            for panel in readers.read_by(tile):
                panel[:] = [index]
    return uses


def _locations(arrival: Arrival) -> Sequence[_Location]:
    return [_Location(arrival.buffer_span, rows) for rows in arrival.slab] or [_Location(arrival.buffer_span)]
