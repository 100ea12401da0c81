# SPDX-License-Identifier: MIT
"""What a rank did when: intervals of the phases of products, for the table of phases and the trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hybrid.core.record import record

# In a product's order. Other phases (such as "agree") are recorded, but are in neither the table nor the trace.
PHASES = ("fill", "prepare", "scatter", "copy in", "exchange", "multiply", "copy out", "gather", "check", "repair")
ON_DEVICE = ("copy in", "exchange", "multiply", "copy out")


@record
class Interval:
    """A phase from `begin` to `end`, in seconds on this rank's clock. `repeat`: the number of the product; None outside of
    products."""

    phase: str
    begin: float
    end: float
    repeat: int | None = None
    detail: str = ""


class Timeline:
    """The intervals of one rank."""

    def __init__(self, *, traced: bool = False) -> None:
        self.intervals: list[Interval] = []
        self.repeat: int | None = None  # negative: a warm-up
        self.traced = traced  # a trace is wanted: the intervals themselves, not only their sums
        self.zero = 0.0  # a moment that all ranks share, on this rank's clock

    def add(self, phase: str, begin: float, end: float, detail: str = "") -> None:
        self.intervals.append(Interval(phase, begin, end, self.repeat, detail))

    def seconds(self) -> dict[tuple[str, int | None], float]:
        """The seconds of each phase in each repeat, without those of warm-ups. Where intervals of a phase overlap, the time
        counts once."""
        spent: dict[tuple[str, int | None], float] = {}
        until: dict[tuple[str, int | None], float] = {}
        for interval in sorted(self._counted(), key=lambda interval: interval.begin):
            key = (interval.phase, interval.repeat)
            counted = max(interval.begin, until.get(key, interval.begin))
            spent[key] = spent.get(key, 0.0) + max(0.0, interval.end - counted)
            until[key] = max(interval.end, counted)
        return spent

    def since_zero(self) -> list[Interval]:
        """The intervals in seconds after `zero`, without warm-ups."""
        return [replace(entry, begin=entry.begin - self.zero, end=entry.end - self.zero) for entry in self._counted()]

    def _counted(self) -> Iterator[Interval]:
        """The intervals that count: those of warm-ups do not."""
        return (entry for entry in self.intervals if entry.repeat is None or entry.repeat >= 0)


@record
class Spread:
    """The median, the least and the most seconds of several repeats."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered, half = sorted(values), len(values) // 2
        # The same as statistics.median, whose module takes several milliseconds to import.
        median = ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
        return cls(median, ordered[0], ordered[-1])


def slowest(of_ranks: Sequence[dict[tuple[str, int | None], float]], devices: Sequence[str]) -> dict[str, Spread]:
    """For each of PHASES the time of the slowest rank or device in each repeat, as the spread over the repeats.

    `of_ranks[rank]`: what the rank's `Timeline.seconds` gave. `devices[rank]`: its device. Ranks that share a device take turns
    on it, so their times in the phases ON_DEVICE add up.
    """
    sums: dict[tuple[str, int | None, str], float] = {}
    for rank, (spent, device) in enumerate(zip(of_ranks, devices, strict=True)):
        for (phase, repeat), seconds in spent.items():
            key = (phase, repeat, device if phase in ON_DEVICE else f"rank {rank}")
            sums[key] = sums.get(key, 0.0) + seconds
    slowest_of: dict[str, dict[int | None, float]] = {}
    for (phase, repeat, _), seconds in sums.items():
        by_repeat = slowest_of.setdefault(phase, {})
        by_repeat[repeat] = max(by_repeat.get(repeat, 0.0), seconds)
    return {phase: Spread.of(list(slowest_of[phase].values())) for phase in PHASES if phase in slowest_of}
