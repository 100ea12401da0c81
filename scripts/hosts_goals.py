"""What the times of scripts/bench_hosts.py must reach; judged is what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hosts_results import Cell, Results
from ladder_table import Verdict

MEASURED_AT_LEAST = 7  # repeats
TIMES_AS_FAST = {(8000, 1): 11.5, (8000, 2): 27.0, (8000, 4): 60.0, (8000, 8): 95.0, (16000, 8): 100.0}  # as written by hand
LIBRARY_SECONDS = {(8000, 1): 26e-3, (8000, 8): 9e-3}
RESIDENT_SECONDS = {(8000, 8): 3.0e-3, (16384, 8): 21.5e-3}
WALL_SECONDS = {(8000, 1): 2.0, (8000, 8): 3.0}
LARGER_RATE, SMALL_MORE_SECONDS = 0.85, 1e-3
SLOWER_AT_MOST, SLOWER_FROM = 1.03, 4000  # of each doubling of the GPUs, for matrices from this size on
NEVER_SLOWER = {"ours": "the command", "library": "multiply"}


@dataclass(frozen=True)
class _Goal:
    what: str
    value: float
    wanted: float
    unit: str
    at_least: bool = False  # else at most
    repeats: int = MEASURED_AT_LEAST

    def verdict(self) -> Verdict:
        short = self.wanted - self.value if self.at_least else self.value - self.wanted
        bound = "at least" if self.at_least else "at most"
        text = f"{self.what}: {self.value:.4g} {self.unit}, wanted {bound} {self.wanted:g}"
        if short > 0:
            text += f", {'short' if self.at_least else 'over'} by {short:.4g}"
        if self.repeats < MEASURED_AT_LEAST:
            text += f"; {self.repeats} repeats are fewer than {MEASURED_AT_LEAST}"
        return Verdict(short <= 0 and self.repeats >= MEASURED_AT_LEAST, text)


def verdicts(results: Results) -> list[Verdict]:
    """One on each goal whose figures were measured; none where they are not of a GPU."""
    return [goal.verdict() for cell in results for goal in _goals(cell, results)] if results.of_gpu else []


def _goals(cell: Cell, results: Results) -> Iterator[_Goal]:
    where, at = (cell.n, cell.gpus), f"{cell.n} on {cell.gpus}"
    if cell.part == "ours" and where in TIMES_AS_FAST:
        ratio, theirs = results.ratio(cell), results.of("handwritten", cell.gpus, cell.n, cell.run)
        if ratio is not None and theirs:
            repeats = min(cell.repeats, theirs.repeats)
            yield _Goal(f"the command at {at}", ratio, TIMES_AS_FAST[where], "× written by hand", True, repeats)
    elif cell.part == "library" and where in LIBRARY_SECONDS:
        yield _Goal(f"multiply at {at}", cell.milliseconds, 1e3 * LIBRARY_SECONDS[where], "ms", repeats=cell.repeats)
    elif cell.part == "resident" and where in RESIDENT_SECONDS:
        yield _Goal(f"row-blocks at {at}", cell.milliseconds, 1e3 * RESIDENT_SECONDS[where], "ms", repeats=cell.repeats)
    elif cell.part == "wall" and where in WALL_SECONDS:
        yield _Goal(f"whole command at {at}", cell.seconds, WALL_SECONDS[where], "s", repeats=cell.repeats)
    elif cell.part == "larger":
        ratio = results.ratio(cell, "ours")
        if ratio is not None:
            yield _Goal(f"3 × the allowed memory at {at}", ratio, LARGER_RATE, "× in memory", True, cell.repeats)
    elif cell.part == "small":
        plain = results.of("small, plain", cell.gpus, cell.n, cell.run)
        if plain:
            more = cell.milliseconds - plain.milliseconds
            yield _Goal(f"small product at {at}", more, 1e3 * SMALL_MORE_SECONDS, "ms more", repeats=cell.repeats)
    if cell.part in NEVER_SLOWER and cell.n >= SLOWER_FROM:
        half = results.of(cell.part, cell.gpus // 2, cell.n, cell.run) if cell.gpus % 2 == 0 else None
        if half:
            what = f"{NEVER_SLOWER[cell.part]} at {cell.n} on {cell.gpus} beside {half.gpus}"
            repeats = min(cell.repeats, half.repeats)
            yield _Goal(what, cell.seconds / half.seconds, SLOWER_AT_MOST, "× the time", repeats=repeats)
