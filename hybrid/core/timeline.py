# SPDX-License-Identifier: MIT
"""Timing: the phases of products on a rank, for the table of phases and the trace, and the parts of a command's wall time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from hybrid.core.problem import record
from hybrid.core.processes import launch_began

# In a product's order. Other phases, such as "agree", are recorded but are neither in the table nor in the trace.
PHASES = ("fill", "prepare", "scatter", "copy in", "exchange", "multiply", "copy out", "gather", "check", "repair")
ON_DEVICE = ("copy in", "exchange", "multiply", "copy out")


@record
class Interval:
    """A phase, in seconds on this rank's clock. `repeat`: the number of the product; None outside of products."""

    phase: str
    begin: float
    end: float
    repeat: int | None = None


class Timeline:
    """The intervals of one rank."""

    def __init__(self, *, traced: bool = False) -> None:
        self.intervals: list[Interval] = []
        self.repeat: int | None = None  # negative: a warm-up
        self.traced = traced  # keep the intervals themselves, not only their sums
        self.zero = 0.0  # a moment common to all ranks, on this rank's clock

    def add(self, phase: str, begin: float, end: float) -> None:
        self.intervals.append(Interval(phase, begin, end, self.repeat))

    def seconds(self) -> dict[tuple[str, int | None], float]:
        """The seconds of each phase in each repeat, without warm-ups. Overlapping intervals of a phase count once."""
        spent: dict[tuple[str, int | None], float] = {}
        until: dict[tuple[str, int | None], float] = {}
        for interval in sorted(self._counted, key=lambda interval: interval.begin):
            key = (interval.phase, interval.repeat)
            counted = max(interval.begin, until.get(key, interval.begin))
            spent[key] = spent.get(key, 0.0) + max(0.0, interval.end - counted)
            until[key] = max(interval.end, counted)
        return spent

    def since_zero(self) -> list[Interval]:
        """The intervals in seconds after `zero`, without warm-ups."""
        return [replace(entry, begin=entry.begin - self.zero, end=entry.end - self.zero) for entry in self._counted]

    @property
    def _counted(self) -> Iterator[Interval]:
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
        # As statistics.median, whose module takes several milliseconds to import.
        median = ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
        return cls(median, ordered[0], ordered[-1])

    def plus(self, other: Spread) -> Spread:
        """The seconds of both, one after the other."""
        return Spread(self.median + other.median, self.min + other.min, self.max + other.max)


class WallTime:
    """Divides a command's wall time, from the launcher's start, into parts, in the order in which they were first entered.

    The clock is this process's. Rank 0 shows its own: time in which it waits for others counts for the part in which it waits.
    """

    def __init__(self, part: str, began: float) -> None:
        """The first part began at `began`, of time.perf_counter."""
        self.part, self._since = part, began
        self._spent = {part: 0.0}

    def enter(self, part: str) -> str:
        """Begin a part; returns the one that it ends."""
        now, before = time.perf_counter(), self.part
        self._spent[before] += now - self._since
        self._spent.setdefault(part, 0.0)
        self.part, self._since = part, now
        return before

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """A context for this part; afterwards the part before continues."""
        before = self.enter(part)
        try:
            yield
        finally:
            self.enter(before)

    def parts(self) -> dict[str, float]:
        """The parts' seconds until now, which add up to all the time since the first began."""
        self.enter(self.part)
        return dict(self._spent)


wall = WallTime("start", launch_began())
