# SPDX-License-Identifier: MIT
"""From matrices in host memory to their product at rank 0: how fast beside the program one writes by hand?

For each number of GPUs these are started, round by round and each round in another order, with `mpirun -n P`:
  handwritten  Scatter, Bcast, CuPy, Gather; every buffer made before
  ours         python -m hybrid.matmul, its matrices in memory shared by the ranks
  wires        the same matrices copied to the GPUs and back, all at once and nothing multiplied: what the links allow; read as
               the check reads them; and both at once
  library      hybrid.multiply with rank 0's private arrays: checked, the same and new ones; unchecked, with and without out=
  cublasxt     cuBLASXt's own call of one process, the best of several block sizes
  larger       ours with a third of the matrices' bytes as --gpu-memory, on one GPU
  wall         the whole command with default flags, from the second start on (fewest and most GPUs); beside it mpirun alone,
               and a program that only loads mpi4py, NumPy and CuPy and makes its GPU ready
and after these, once:
  resident     hybrid.multiply of row blocks that lie on the GPUs, and stay there
  small        the same of small host arrays on one GPU, in turns with the same copies and cuBLAS
  jax, torch   host array, sharded over the GPUs, matmul, host array: for the picture
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from experiments.common import plots, records, results, tables
from hybrid.errors import UsageError

YARDSTICK = "handwritten"
_TIMES = "float64, operands in host memory to C at rank 0, in ms (and how many times as fast as written by hand)"
NOT_COMPARED = (YARDSTICK, "wires", "read", "wires, read", "resident")
PICTURED = 8000  # the size that the picture shows, and else the largest there is
NAMES = {  # of what is in the table, in its order
    "handwritten": "written by hand",
    "ours": "ours, the command",
    "wires": "the copies alone, nothing multiplied",
    "read": "the matrices read once by the check's threads, nothing copied",
    "wires, read": "the copies and this reading at once",
    "library, new arrays": "ours, `multiply(a, b)`, new arrays each time",
    "library, checked": "ours, `multiply(a, b, out=c)`, the same arrays",
    "library": "ours, `multiply(a, b, out=c, check=False)`",
    "library, new C": "ours, `multiply(a, b, check=False)`",
    "cublasxt, page-locked": "cuBLASXt, page-locked operands",
    "cublasxt, registered": "cuBLASXt, operands registered in the call",
    "cublasxt, pageable": "cuBLASXt, pageable operands",
    "jax": "JAX",
    "torch": "PyTorch",
    "resident": "ours, row blocks that stay on the GPUs",
}
IN_BLOCKS = tuple(part for part in NAMES if part.startswith("cublasxt"))  # measured with several block sizes: the best counts
DRAWN = {  # name, colour, how the line is drawn, marker
    "handwritten": ("written by hand", plots.LECTURE, "-", "o"),
    "jax": ("JAX", "#666666", "-", "v"),
    "torch": ("PyTorch", plots.OTHER, "-", "s"),
    "cublasxt, page-locked": ("cuBLASXt, page-locked", "#6699cc", "-", "^"),
    "library, new arrays": ("ours, multiply(a, b), new arrays", plots.HERE, "-.", "o"),
    "library, checked": ("ours, multiply(a, b, out=c)", plots.HERE, "--", "D"),
    "ours": ("ours, the command", plots.HERE, "-", "D"),
    "wires": ("the copies alone", plots.GREY, ":", "."),
}


@dataclass(frozen=True)
class Cell:
    """A part on so many GPUs at one size, over all rounds of a run: the median of their medians, the ends of their times.

    `block`: the block size with which it was measured; 0: it has none.
    """

    run: str
    part: str
    gpus: int
    n: int
    block: int
    seconds: float
    least: float
    most: float
    medians: dict[int, float]  # by round
    setup: float | None  # the least: rounds after the first find files and kernels in caches

    @property
    def milliseconds(self) -> float:
        return 1e3 * self.seconds


class Results(results.MachineResults):
    """The last run's result for each part, number of GPUs and size."""

    command, about_picture = "bench_hosts", "Time against the number of GPUs"
    more_arguments = " --gpus 1 2 4 8"

    def __init__(self, lines: Sequence[records.Line]) -> None:
        super().__init__(lines)
        self._timed = [line for line in lines if line.get("seconds")]
        grouped: dict[tuple[str, str, int, int, int], list[records.Line]] = {}
        for line in self._timed:
            key = line["run"], line["part"], line["gpus"], line["n"], line.get("block", 0)
            grouped.setdefault(key, []).append(line)
        best: dict[tuple[str, str, int, int], Cell] = {}
        for key, of_key in grouped.items():
            cell = _cell(key, of_key)
            if key[:4] not in best or cell.seconds < best[key[:4]].seconds:
                best[key[:4]] = cell
        self._cells = list(best.values())

    @staticmethod
    def machine_of(line: records.Line) -> str:
        """GPUs, or what stood for them."""
        if line["gpu"]:
            return f"{line['gpus_there']} × {line['gpu']}"
        return f"{line['machine']['processor']}, {line['machine']['cores']} cores: no GPU, device {line['device']}"

    def dates(self) -> str:
        return ", ".join(dict.fromkeys(line["date"][:10] for line in self._timed or self.lines))

    def __iter__(self) -> Iterator[Cell]:
        """The newest of each."""
        return iter({(cell.part, cell.gpus, cell.n): cell for cell in self._cells}.values())

    def of(self, part: str, gpus: int, n: int, run: str | None = None) -> Cell | None:
        """The newest, or the one of this run."""
        found = [cell for cell in self._cells if (cell.part, cell.gpus, cell.n) == (part, gpus, n)]
        return next((cell for cell in reversed(found) if run in (None, cell.run)), None)

    def ratio(self, cell: Cell, yardstick: str = YARDSTICK) -> float | None:
        """The yardstick's time over this one's, the median over the rounds that have both; None: not of the same run."""
        other = self.of(yardstick, cell.gpus, cell.n, cell.run)
        both = [number for number in cell.medians if other and number in other.medians]
        return statistics.median(other.medians[number] / cell.medians[number] for number in both) if other and both else None

    def sizes(self, parts: Sequence[str] = tuple(NAMES)) -> list[int]:
        return sorted({cell.n for cell in self if cell.part in parts})

    def gpus(self) -> list[int]:
        return sorted({cell.gpus for cell in self if cell.part in NAMES})

    def left_out(self) -> list[str]:
        """Parts that failed, or were left out, in the last run, and why."""
        last = self.lines[-1]["run"]
        return [line["left_out"] for line in self.lines if line["run"] == last and line.get("left_out")]

    def software(self) -> str:
        versions = self.lines[-1]["versions"]
        cupy = [f"{key} {versions[key]}" for key in ("cupy-cuda13x", "cupy-cuda12x") if key in versions]
        libraries = [line[key].split(",")[0] for key in ("mpi", "library") for line in self.lines if line.get(key)]
        return ", ".join([self.machine(), *dict.fromkeys(cupy + libraries)])

    def blocks(self) -> Iterator[tables.Block]:
        if not self.of_gpu:
            yield tables.Remarks(["Not of a GPU: this shows only that the programs run."])
        if self.gpus():
            yield self._grid(self._time, _TIMES)
        if any(cell.setup is not None for cell in self if cell.part in NAMES):
            title = "Once, before the clock, in ms (the command: what it prepares; else the first product with all that it needs)"
            yield self._grid(lambda cell: _number(1e3 * cell.setup) if cell.setup is not None else "–", title)
        if remarks := [*self._beside(), *(f"Left out: {text}" for text in self.left_out())]:
            yield tables.Remarks(remarks)

    def on_page(self) -> Iterator[tables.Block]:
        """The times of the size that the picture shows."""
        yield self._grid(self._time, _TIMES, [size_of_picture(self.sizes())])

    def _time(self, cell: Cell) -> str:
        ratio = None if cell.part in NOT_COMPARED else self.ratio(cell)
        return _number(cell.milliseconds) + (f" ({_number(ratio)} ×)" if ratio is not None else "")

    def _grid(self, text: Callable[[Cell], str], title: str, sizes: Sequence[int] = ()) -> tables.Table:
        gpus, unit = self.gpus(), "GPU" if self.of_gpu else "rank"
        heads, rows = ["n", "", *(f"{count} {unit}{'s' if count > 1 else ''}" for count in gpus)], []
        for n in sizes or self.sizes():
            for part, name in NAMES.items():
                texts = [text(cell) if (cell := self.of(part, count, n)) else "–" for count in gpus]
                if set(texts) != {"–"}:
                    rows.append([str(n), name, *texts])
        return tables.Table(heads, "rl" + "r" * len(gpus), rows, title)

    def _beside(self) -> Iterator[str]:
        for cell in self:
            if cell.part == "larger":
                ratio = self.ratio(cell, "ours")
                rate = "–" if ratio is None else f"{ratio:.3f}"
                larger = f"{cell.n} on 1, matrices 3 × the allowed memory"
                yield f"{larger}: {_number(cell.milliseconds)} ms, {rate} × the rate in memory."
            elif cell.part == "wall":
                times = f"{cell.seconds:.2f} s ({cell.least:.2f} to {cell.most:.2f})"
                launcher = self.of("launcher", cell.gpus, cell.n, cell.run)
                alone = f"; `mpirun -n {cell.gpus} true` takes {launcher.seconds:.2f} s" if launcher else ""
                if imports := self.of("imports", cell.gpus, cell.n, cell.run):
                    alone += f", and to load mpi4py, NumPy and CuPy and make the GPU ready {imports.seconds:.2f} s"
                command = f"mpirun -n {cell.gpus} python -m hybrid.matmul {cell.n} {cell.n} {cell.n}"
                yield f"Whole command, `{command}`: {times}{alone}."
            elif cell.part == "small" and (plain := self.of("small, plain", cell.gpus, cell.n, cell.run)):
                both = f"{cell.milliseconds:.3f} ms, the same copies and cuBLAS {plain.milliseconds:.3f} ms"
                yield f"{cell.n} on 1: {both}, {cell.milliseconds - plain.milliseconds:.3f} ms more."

        for part in IN_BLOCKS:
            if best := sorted((cell.n, cell.gpus, cell.block) for cell in self if cell.part == part):
                listed = ", ".join(f"{block} for {n} on {gpus}" for n, gpus, block in best)
                yield f"The best block sizes of {NAMES[part]}: {listed}."

    def has_picture(self) -> bool:
        return bool(self.sizes(tuple(DRAWN)))

    def draw(self, path: str) -> None:
        """A line for each program at 8000, or at the largest size there is; both axes logarithmic."""
        from matplotlib.ticker import LogLocator, NullLocator

        if not self.has_picture():
            raise UsageError("nothing of the picture was measured")
        n, gpus = size_of_picture(self.sizes(tuple(DRAWN))), self.gpus()
        with plots.figure(path, (6.4, 4.2)) as figure:
            panel = figure.subplots()
            plots.plain(panel)
            for part, (name, color, style, marker) in DRAWN.items():
                points = [(cell.gpus, cell.milliseconds) for count in gpus if (cell := self.of(part, count, n))]
                if points:
                    last = f"{name}: {points[-1][1]:.{1 if points[-1][1] < 100 else 0}f} ms on {points[-1][0]}"
                    panel.plot(*zip(*points, strict=True), style, marker=marker, markersize=5, color=color, label=last)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_xticks(gpus, [str(count) for count in gpus])
            panel.set_xticks([], minor=True)
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.yaxis.set_minor_locator(NullLocator())
            panel.grid(axis="x", visible=False)
            panel.set_ylabel(f"ms from host to host, {n}×{n} float64")
            panel.set_xlabel(f"GPUs of {self.machine()}, {self.dates()}")
            figure.legend(loc="outside upper center", ncols=1 if plots.narrow() else 2, frameon=False, fontsize=9)


def _cell(key: tuple[str, str, int, int, int], lines: Sequence[records.Line]) -> Cell:
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
        medians,
        min(setups, default=None),
    )


def size_of_picture(sizes: Sequence[int]) -> int:
    return PICTURED if PICTURED in sizes else max(sizes)


def _number(value: float) -> str:
    """Three digits or so."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
