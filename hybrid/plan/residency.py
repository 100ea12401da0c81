"""What lies in a device's buffers as a share's arrivals come, and what they overwrite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from hybrid.core.spans import Span
from hybrid.plan.schedule import Arrival, Strip

Of = TypeVar("Of")


@dataclass(frozen=True)
class _Place:
    """In the buffer of an operand."""

    held: Span  # rows of the chunks' buffer, columns of the panels'
    rows: Span | None = None  # of the panels' buffer; None: all

    def meets(self, other: _Place) -> bool:
        return self.held.meets(other.held) and (self.rows is None or other.rows is None or self.rows.meets(other.rows))


class Held(Generic[Of]):
    """What is known of the pieces in a device's buffers, by where they lie."""

    def __init__(self) -> None:
        self._by_buffer: dict[tuple[str, int], list[tuple[_Place, Of]]] = {}

    def under(self, arrival: Arrival) -> list[Of]:
        """Of what lies, or lay, where the piece goes."""
        return [known for place in _places(arrival) for known in self._over(arrival.operand, arrival.slot, place)]

    def read_by(self, strip: Strip) -> list[Of]:
        """Of the chunks and panels that the strip is computed from."""
        return self._over("A", 0, _Place(strip.held_rows)) + self._over("B", strip.slot, _Place(strip.held_columns, strip.inner))

    def put(self, arrival: Arrival, known: Of) -> None:
        """In the place of what was known there."""
        buffer = self._by_buffer.setdefault((arrival.operand, arrival.slot), [])
        for place in _places(arrival):
            buffer[:] = [entry for entry in buffer if not entry[0].meets(place)]
            buffer.append((place, known))

    def _over(self, operand: str, slot: int, place: _Place) -> list[Of]:
        return [known for held, known in self._by_buffer.get((operand, slot), []) if held.meets(place)]


def last_uses(arrivals: Sequence[Arrival]) -> list[int]:
    """For each arrival the last one before it whose strips use what it overwrites; -1 where it overwrites nothing."""
    uses: list[int] = []
    held: Held[list[int]] = Held()
    for index, arrival in enumerate(arrivals):
        uses.append(max((use for used in held.under(arrival) for use in used), default=-1))
        held.put(arrival, [])
        for strip in arrival.releases:
            for used in held.read_by(strip):
                used[:] = [index]
    return uses


def _places(arrival: Arrival) -> Sequence[_Place]:
    return [_Place(arrival.held, rows) for rows in arrival.slab] or [_Place(arrival.held)]
