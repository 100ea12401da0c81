"""What lies in a device's buffers as a share's arrivals come, and what they overwrite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from hybrid.core.spans import Span
from hybrid.plan.schedule import Arrival, Tile

Of = TypeVar("Of")


@dataclass(frozen=True)
class _Location:
    """In the buffer of an operand."""

    held: Span  # rows of the chunks' buffer, columns of the panels'
    rows: Span | None = None  # of the panels' buffer; None: all

    def meets(self, other: _Location) -> bool:
        return self.held.meets(other.held) and (self.rows is None or other.rows is None or self.rows.meets(other.rows))


class Residency(Generic[Of]):
    """What is known of the pieces in a device's buffers, by where they lie."""

    def __init__(self) -> None:
        self._by_buffer: dict[tuple[str, int], list[tuple[_Location, Of]]] = {}

    def under(self, arrival: Arrival) -> list[Of]:
        """Of what lies, or lay, where the piece goes."""
        return [known for location in _locations(arrival) for known in self._over(arrival.operand, arrival.slot, location)]

    def read_by(self, tile: Tile) -> list[Of]:
        """Of the chunks and panels that the strip is computed from."""
        return self._over("A", 0, _Location(tile.buffer_rows)) + self._over(
            "B", tile.slot, _Location(tile.buffer_columns, tile.inner)
        )

    def put(self, arrival: Arrival, known: Of) -> None:
        """In the location of what was known there."""
        buffer = self._by_buffer.setdefault((arrival.operand, arrival.slot), [])
        for location in _locations(arrival):
            buffer[:] = [entry for entry in buffer if not entry[0].meets(location)]
            buffer.append((location, known))

    def _over(self, operand: str, slot: int, location: _Location) -> list[Of]:
        return [known for held, known in self._by_buffer.get((operand, slot), []) if held.meets(location)]


def last_uses(arrivals: Sequence[Arrival]) -> list[int]:
    """For each arrival the last one before it whose strips use what it overwrites; -1 where it overwrites nothing."""
    uses: list[int] = []
    held: Residency[list[int]] = Residency()
    for index, arrival in enumerate(arrivals):
        uses.append(max((use for used in held.under(arrival) for use in used), default=-1))
        held.put(arrival, [])
        for tile in arrival.releases:
            for used in held.read_by(tile):
                used[:] = [index]
    return uses


def _locations(arrival: Arrival) -> Sequence[_Location]:
    return [_Location(arrival.held, rows) for rows in arrival.slab] or [_Location(arrival.held)]
