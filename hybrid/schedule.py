"""The order in which chunks of A and panels of B reach a device, and the strips of C that each arrival releases.

A device has room for some chunks, side by side in one buffer, and for some panels, each in a slot of its own. The chunks
that are there together are a stay. Every panel visits each stay; the sweeps go there and back, so that the panels at a
turn are loaded once for both. Where there is room for all, the panels lie side by side in one slot, and a chunk meets all
that are there in one strip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hybrid.partition import Span


@dataclass(frozen=True)
class Strip:
    """A part of C that can be computed: all its columns lie in one slot."""

    rows: Span  # within the rank's block
    columns: Span
    held: Span  # the same rows within the device's buffer of chunks
    slot: int  # of the panels, and of the part of C below them
    within: Span  # the same columns within the slot


@dataclass(frozen=True)
class Arrival:
    """A chunk of A or a panel of B that comes to the device, and the strips of C it releases."""

    operand: str  # "A" or "B"
    index: int  # of the chunk or panel
    stay: int  # a chunk's, or the one that the panel visits
    span: Span  # rows within the rank's block, or columns
    held: Span  # of a chunk: its rows within the device's buffer; of a panel: its columns within the slot
    slot: int  # of a panel
    releases: tuple[Strip, ...]


def stays(chunks: Sequence[Span], together: int) -> list[Sequence[Span]]:
    """The chunks in groups of those that a device holds at the same time."""
    return [chunks[first : first + together] for first in range(0, len(chunks), together)]


def arrivals(
    chunks: Sequence[Span], panels: Sequence[Span], chunks_held: int, panels_held: int, *, side_by_side: bool = False
) -> Iterator[Arrival]:
    """Every chunk once, and panels as often as they are needed.

    A new chunk multiplies all panels that are there, a new panel all chunks of the stay. What is overwritten has met all it
    shall meet. `side_by_side`: all are held, and the panels lie in one slot.
    """

    def place(panel: int) -> tuple[int, Span]:
        """Its slot, and its columns there."""
        return (0, panels[panel]) if side_by_side else (panel % panels_held, panels[panel].within(panels[panel]))

    def strip(rows: Span, first_row: int, panel: int, last_panel: int) -> Strip:
        slot, within = place(panel)
        columns = Span(panels[panel].lo, panels[last_panel].hi)
        return Strip(rows, columns, rows.within(Span(first_row, first_row)), slot, Span(within.lo, within.lo + len(columns)))

    here: list[int] = []  # the panels in the slots, in the order in which they came
    room = sum(map(len, panels[:panels_held]))
    for number, stay in enumerate(stays(chunks, chunks_held)):
        sweep = range(len(panels)) if number % 2 == 0 else range(len(panels) - 1, -1, -1)
        coming = [panel for panel in sweep if panel not in here]
        first, came = stay[0].lo, 0
        fill = min(panels_held, len(panels))
        while came < len(stay) or coming:
            # Whichever operand is behind, by the share of it that has arrived, comes next; with all slots taken, chunks.
            # A chunk is the last, since its strips are small: few of them are still to be computed and brought home then.
            rows = Span(first, stay[came - 1].hi if came else first)
            columns = sum(len(panels[panel]) for panel in here)
            full = len(here) == fill or not coming
            if came < len(stay) and (full or not came or len(rows) * room < columns * (stay[-1].hi - first)):
                chunk, index = stay[came], number * chunks_held + came
                came += 1
                together = [(here[0], here[-1])] if side_by_side and here else [(panel, panel) for panel in here]
                met = tuple(strip(chunk, first, *ends) for ends in together)
                yield Arrival("A", index, number, chunk, chunk.within(Span(first, first)), 0, met)
            else:
                panel = coming.pop(0)
                slot, within = place(panel)
                here = [other for other in here if other % panels_held != panel % panels_held] + [panel]
                met = (strip(rows, first, panel, panel),) if len(rows) else ()
                yield Arrival("B", panel, number, panels[panel], within, slot, met)
