"""What a rank did when: named intervals, from which the phase table and the trace are made."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

# In the order in which a product goes through them; other names (such as "agree") are kept but not tabulated.
PHASES = ("fill", "prepare", "scatter", "copy in", "exchange", "multiply", "copy out", "gather", "check")
ON_DEVICE = ("copy in", "exchange", "multiply", "copy out")


@dataclass(frozen=True)
class Interval:
    """Seconds on this rank's clock. `repeat`: which repetition of the product, None outside of them."""

    phase: str
    begin: float
    end: float
    repeat: int | None = None
    detail: str = ""


class Timeline:
    """The intervals of one rank."""

    def __init__(self, *, keep_intervals: bool = False) -> None:
        self.intervals: list[Interval] = []
        self.repeat: int | None = None  # negative: a warm-up
        self.keep_intervals = keep_intervals  # they themselves are wanted, for a trace, not only their sums
        self.zero = 0.0  # a moment that all ranks share, on this rank's clock

    def add(self, phase: str, begin: float, end: float, detail: str = "") -> None:
        self.intervals.append(Interval(phase, begin, end, self.repeat, detail))

    def seconds(self) -> dict[tuple[str, int | None], float]:
        """Time in which each phase went on, for each repeat apart; warm-ups left out.

        What runs at the same time in one phase counts once.
        """
        spent: dict[tuple[str, int | None], float] = {}
        until: dict[tuple[str, int | None], float] = {}
        for interval in sorted(self._counted(), key=lambda interval: interval.begin):
            key = (interval.phase, interval.repeat)
            counted = max(interval.begin, until.get(key, interval.begin))
            spent[key] = spent.get(key, 0.0) + max(0.0, interval.end - counted)
            until[key] = max(interval.end, counted)
        return spent

    def since_zero(self) -> list[Interval]:
        """The intervals on a clock that all ranks share; warm-ups left out."""
        return [replace(entry, begin=entry.begin - self.zero, end=entry.end - self.zero) for entry in self._counted()]

    def _counted(self) -> Iterator[Interval]:
        return (entry for entry in self.intervals if entry.repeat is None or entry.repeat >= 0)


@dataclass(frozen=True)
class Spread:
    """Seconds over the repeats."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


def slowest(of_ranks: Sequence[dict[tuple[str, int | None], float]], devices: Sequence[str]) -> dict[str, Spread]:
    """For each phase the slowest device of each repeat, then the spread over repeats; in the order of PHASES.

    `devices[rank]`: ranks that share a device take turns on it, so their times there add up.
    """
    on_device: dict[tuple[str, int | None, str], float] = {}
    for rank, (spent, device) in enumerate(zip(of_ranks, devices, strict=True)):
        for (phase, repeat), seconds in spent.items():
            key = (phase, repeat, device if phase in ON_DEVICE else f"rank {rank}")
            on_device[key] = on_device.get(key, 0.0) + seconds
    worst: dict[str, dict[int | None, float]] = {}
    for (phase, repeat, _), seconds in on_device.items():
        by_repeat = worst.setdefault(phase, {})
        by_repeat[repeat] = max(by_repeat.get(repeat, 0.0), seconds)
    return {phase: Spread.of(list(worst[phase].values())) for phase in PHASES if phase in worst}
