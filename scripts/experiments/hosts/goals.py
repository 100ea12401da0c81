# SPDX-License-Identifier: MIT
"""What the times of scripts/bench_hosts.py must reach; judged is what was measured."""

from collections.abc import Iterator

from experiments.common.targets import Verdict, verdict
from experiments.hosts.results import NAMES, Cell, Results

MEASURED_AT_LEAST = 7  # repeats
TIMES_AS_FAST = {(8000, 1): 11.5, (8000, 2): 27.0, (8000, 4): 60.0, (8000, 8): 95.0, (16000, 8): 100.0}  # as written by hand
MOST_SECONDS = {  # by part, size and number of GPUs
    ("library", 8000, 1): 26e-3, ("library", 8000, 8): 9e-3, ("resident", 8000, 8): 3.0e-3, ("resident", 16384, 8): 21.5e-3,
    ("wall", 8000, 1): 2.0, ("wall", 8000, 8): 3.0,
}  # fmt: skip
SAID = {  # in what unit, and how many of it a second is
    "library": ("multiply", "ms", 1e3),
    "resident": ("row blocks", "ms", 1e3),
    "wall": ("whole command", "s", 1.0),
}
MORE_THAN_IMPORTS = {(8000, 1): 0.35, (8000, 2): 0.35}  # seconds, of the whole command
LARGER_RATE, SMALL_MORE_MS = 0.85, 1.0
TIMES_CUBLASXT, CUBLASXT_FROM = {"cublasxt, page-locked": 1.8, "cublasxt, pageable": 8.0}, 8000  # as fast, from this size on
SLOWER_AT_MOST, SLOWER_FROM = 1.03, 4000  # of each doubling of the GPUs, for matrices from this size on
NEVER_SLOWER = {"ours": "the command", "library": "multiply"}


def verdicts(results: Results) -> list[Verdict]:
    """One on each goal whose figures were measured; none where they are not of a GPU."""
    return [one for cell in results for one in _of_cell(cell, results)] if results.of_gpu else []


def _verdict(what: str, value: float, wanted: float, unit: str, repeats: int, *, at_least: bool = False) -> Verdict:
    passed, text = verdict(what, value, wanted, unit, at_least=at_least)
    few = f"; {repeats} repeats are fewer than {MEASURED_AT_LEAST}" if repeats < MEASURED_AT_LEAST else ""
    return Verdict(passed and not few, text + few)


def _of_cell(cell: Cell, results: Results) -> Iterator[Verdict]:
    where, at = (cell.n, cell.gpus), f"{cell.n} on {cell.gpus}"
    ratio, theirs = results.ratio(cell), results.of("handwritten", cell.gpus, cell.n, cell.run)
    if cell.part == "ours" and where in TIMES_AS_FAST and ratio is not None and theirs:
        repeats = min(cell.repeats, theirs.repeats)
        yield _verdict(f"the command at {at}", ratio, TIMES_AS_FAST[where], "× written by hand", repeats, at_least=True)
    if cell.part == "library, checked" and cell.n >= CUBLASXT_FROM:
        yield from _beside_cublasxt(cell, results)
    if (most := MOST_SECONDS.get((cell.part, *where))) is not None:
        what, unit, times = SAID[cell.part]
        yield _verdict(f"{what} at {at}", times * cell.seconds, times * most, unit, cell.repeats)
    imports = results.of("imports", cell.gpus, cell.n, cell.run)
    if cell.part == "wall" and where in MORE_THAN_IMPORTS and imports:
        what, more = f"whole command at {at}, beyond loading MPI, NumPy and CuPy", cell.seconds - imports.seconds
        yield _verdict(what, more, MORE_THAN_IMPORTS[where], "s", min(cell.repeats, imports.repeats))
    if cell.part == "larger" and (rate := results.ratio(cell, "ours")) is not None:
        yield _verdict(f"3 × the allowed memory at {at}", rate, LARGER_RATE, "× in memory", cell.repeats, at_least=True)
    if cell.part == "small" and (plain := results.of("small, plain", cell.gpus, cell.n, cell.run)):
        more = cell.milliseconds - plain.milliseconds
        yield _verdict(f"small product at {at}", more, SMALL_MORE_MS, "ms more", cell.repeats)
    half = results.of(cell.part, cell.gpus // 2, cell.n, cell.run) if cell.gpus % 2 == 0 else None
    if cell.part in NEVER_SLOWER and cell.n >= SLOWER_FROM and half:
        what = f"{NEVER_SLOWER[cell.part]} at {cell.n} on {cell.gpus} beside {half.gpus}"
        yield _verdict(what, cell.seconds / half.seconds, SLOWER_AT_MOST, "× the time", min(cell.repeats, half.repeats))


def _beside_cublasxt(cell: Cell, results: Results) -> Iterator[Verdict]:
    for peer, times in TIMES_CUBLASXT.items():
        ratio, other = results.ratio(cell, peer), results.of(peer, cell.gpus, cell.n, cell.run)
        if ratio is not None and other:
            what, repeats = f"multiply with its check at {cell.n} on {cell.gpus}", min(cell.repeats, other.repeats)
            yield _verdict(what, ratio, times, f"× {NAMES[peer]}", repeats, at_least=True)
