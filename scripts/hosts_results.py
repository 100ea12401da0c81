"""The numbers of scripts/bench_hosts.py: recorded lines, and the table made of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from report_table import Block, Remarks, Table, markdown

from hybrid.errors import UsageError
from hybrid.reporting import jsonl

Line = dict[str, Any]

BENCHMARK = "hosts"  # says which lines of a file are ours
YARDSTICK = "handwritten"
NOT_COMPARED = (YARDSTICK, "wires", "resident")
PICTURED = 8000  # the size that the picture shows, and else the largest there is
NAMES = {  # of what has a place in the table, in its order
    "handwritten": "written by hand",
    "ours": "ours, the command",
    "wires": "the copies alone, nothing multiplied",
    "library": "ours, `multiply(a, b, out=c)`",
    "library, new C": "ours, `multiply(a, b)`",
    "jax": "JAX",
    "torch": "PyTorch",
    "resident": "ours, row-blocks that stay on the GPUs",
}


@dataclass(frozen=True)
class Cell:
    """A part on so many GPUs at one size, over all rounds of a run: the median of their medians, the ends of their times."""

    run: str
    part: str
    gpus: int
    n: int
    seconds: float
    least: float
    most: float
    repeats: int
    medians: dict[int, float]  # by round
    setup: float | None  # the least: rounds after the first find files and kernels in caches
    last: Line

    @property
    def milliseconds(self) -> float:
        return 1e3 * self.seconds


def recorded(path: str) -> list[Line]:
    """Our lines of a file, oldest first. UsageError when there is none."""
    lines = [line for line in jsonl.read(path) if line.get("benchmark") == BENCHMARK]
    if not lines:
        raise UsageError(f"{path} has no lines of scripts/bench_hosts.py")
    return lines


class Results:
    """The last run's result for each part, number of GPUs and size, on the machine of the last line."""

    def __init__(self, lines: Sequence[Line]) -> None:
        machine = machine_of(lines[-1])
        self._lines = [line for line in lines if machine_of(line) == machine]
        grouped: dict[tuple[str, str, int, int], list[Line]] = {}
        for line in self._lines:
            if line.get("seconds"):
                grouped.setdefault((line["run"], line["part"], line["gpus"], line["n"]), []).append(line)
        self._cells = {key: _cell(key, of_key) for key, of_key in grouped.items()}

    def __iter__(self) -> Iterator[Cell]:
        """The newest of each."""
        return iter({(cell.part, cell.gpus, cell.n): cell for cell in self._cells.values()}.values())

    def of(self, part: str, gpus: int, n: int, run: str | None = None) -> Cell | None:
        """The newest, or the one of this run."""
        found = [cell for cell in self._cells.values() if (cell.part, cell.gpus, cell.n) == (part, gpus, n)]
        return next((cell for cell in reversed(found) if run in (None, cell.run)), None)

    def ratio(self, cell: Cell, yardstick: str = YARDSTICK, gpus: int | None = None) -> float | None:
        """The yardstick's time over this one's, the median over the rounds that have both; None: not of the same run."""
        other = self.of(yardstick, gpus or cell.gpus, cell.n, cell.run)
        both = [number for number in cell.medians if other and number in other.medians]
        return statistics.median(other.medians[number] / cell.medians[number] for number in both) if other and both else None

    def sizes(self, parts: Sequence[str] = tuple(NAMES)) -> list[int]:
        return sorted({cell.n for cell in self if cell.part in parts})

    def gpus(self) -> list[int]:
        return sorted({cell.gpus for cell in self if cell.part in NAMES})

    @property
    def of_gpu(self) -> bool:
        return self._lines[-1]["device"] == "cuda"

    def left_out(self) -> list[str]:
        """Parts that failed, or were left out, in the last run, and why."""
        last = self._lines[-1]["run"]
        return [line["left_out"] for line in self._lines if line["run"] == last and line.get("left_out")]

    def machine(self) -> str:
        """GPUs, or what stood for them."""
        last = self._lines[-1]
        name = last["gpu"] or f"{last['machine']['processor']}, {last['machine']['cores']} cores"
        return f"{last['gpus_there']} × {name}" if last["gpu"] else f"{name}: no GPU, device {last['device']}"

    def dates(self) -> str:
        return ", ".join(dict.fromkeys(line["date"][:10] for line in self._lines if line.get("seconds")))

    def commands(self) -> list[str]:
        return list(dict.fromkeys(line["command"] for line in self._lines))

    def origin(self) -> str:
        """Machine, versions, dates and commands, in one line."""
        last = self._lines[-1]
        versions = [f"{key} {last['versions'][key]}" for key in ("cupy-cuda13x", "cupy-cuda12x") if key in last["versions"]]
        libraries = [line[key].split(",")[0] for key in ("mpi", "library") for line in self._lines if line.get(key)]
        runs = dict.fromkeys((line["date"][:10], line["command"]) for line in self._lines if line.get("seconds"))
        about = ", ".join([self.machine(), *dict.fromkeys(versions + libraries)])
        return f"{about}; " + "; ".join(f"{date}, `{command}`" for date, command in runs)


def machine_of(line: Line) -> tuple[Any, ...]:
    return line["device"], line["gpu"], line["gpus_there"]


def _cell(key: tuple[str, str, int, int], lines: Sequence[Line]) -> Cell:
    seconds = [line["seconds"] for line in lines]
    by_round: dict[int, list[float]] = {}
    for line in lines:
        by_round.setdefault(line["round"], []).append(line["seconds"]["median"])
    medians = {number: statistics.median(times) for number, times in by_round.items()}
    setups = [line["setup"] for line in lines if line.get("setup") is not None]
    return Cell(
        *key,
        statistics.median(medians.values()),
        min(each["min"] for each in seconds),
        max(each["max"] for each in seconds),
        sum(line["repeat"] for line in lines),
        medians,
        min(setups) if setups else None,
        lines[-1],
    )


def size_of_picture(sizes: Sequence[int]) -> int:
    return PICTURED if PICTURED in sizes else max(sizes)


# --- the table


def table(results: Results, picture: str = "") -> str:
    """Markdown: the times, what was measured beside them, and where the numbers come from. `picture`: shown above."""
    parts = [f"![Time against the number of GPUs]({picture})\n"] if picture else []
    parts += map(markdown, blocks(results))
    parts.append(f"Measured on {results.origin()}\n")
    return "\n".join(parts)


def blocks(results: Results) -> Iterator[Block]:
    if not results.of_gpu:
        yield Remarks(["Not of a GPU: this shows only that the programs run."])
    if results.gpus():
        yield _times(results)
        yield _setups(results)
    if remarks := [*beside(results), *(f"Left out: {text}" for text in results.left_out())]:
        yield Remarks(remarks)


def _times(results: Results) -> Table:
    def text(cell: Cell) -> str:
        ratio = None if cell.part in NOT_COMPARED else results.ratio(cell)
        return _number(cell.milliseconds) + (f" ({_number(ratio)} ×)" if ratio is not None else "")

    title = "float64, operands in host memory to C at rank 0, in ms (and how many times as fast as written by hand)"
    return _grid(results, text, title)


def _setups(results: Results) -> Table:
    def text(cell: Cell) -> str:
        return _number(1e3 * cell.setup) if cell.setup is not None else "–"

    title = "Once, before the clock, in ms (the command: what it prepares; else the first product with all that it needs)"
    return _grid(results, text, title)


def _grid(results: Results, text: Callable[[Cell], str], title: str) -> Table:
    gpus, unit = results.gpus(), "GPU" if results.of_gpu else "rank"
    heads, rows = ["n", "", *(f"{count} {unit}{'s' if count > 1 else ''}" for count in gpus)], []
    for n in results.sizes():
        for part, name in NAMES.items():
            texts = [text(cell) if (cell := results.of(part, count, n)) else "–" for count in gpus]
            if set(texts) != {"–"}:
                rows.append([str(n), name, *texts])
    return Table(heads, "rl" + "r" * len(gpus), rows, title)


def beside(results: Results) -> Iterator[str]:
    """What has no place in the table."""
    for cell in results:
        if cell.part == "larger":
            ratio = results.ratio(cell, "ours")
            rate = "–" if ratio is None else f"{ratio:.3f}"
            larger = f"{cell.n} on 1, matrices 3 × the allowed memory"
            yield f"{larger}: {_number(cell.milliseconds)} ms, {rate} × the rate in memory."
        elif cell.part == "wall":
            times = f"{cell.seconds:.2f} s ({cell.least:.2f} to {cell.most:.2f})"
            launcher = results.of("launcher", cell.gpus, cell.n, cell.run)
            alone = f"; `mpirun -n {cell.gpus} true` takes {launcher.seconds:.2f} s" if launcher else ""
            yield f"Whole command, `mpirun -n {cell.gpus} python -m hybrid.matmul {cell.n} {cell.n} {cell.n}`: {times}{alone}."
        elif cell.part == "small":
            plain = results.of("small, plain", cell.gpus, cell.n, cell.run)
            if plain:
                both = f"{cell.milliseconds:.3f} ms, the same copies and cuBLAS {plain.milliseconds:.3f} ms"
                yield f"{cell.n} on 1: {both}, {cell.milliseconds - plain.milliseconds:.3f} ms more."


def _number(value: float) -> str:
    """Three digits or so."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
