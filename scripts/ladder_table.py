"""The ladder's numbers: recorded lines, the table made of them, and the targets they must reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from report_table import Table, markdown

from hybrid.errors import UsageError
from hybrid.kernels.catalogue import ALL, BOTH, CATALOGUE, Form, Kernel
from hybrid.reporting import jsonl

Shape = tuple[int, int, int]  # n, l, m
Line = dict[str, Any]

YARDSTICK = "cublas"
BENCHMARK = "ladder"  # says which lines of a file are ours
ROW_BLOCK = (1000, 8000, 8000)  # what one of eight ranks has of 8000×8000
ALONE = ("naive", "row_per_thread", "column_per_thread")  # in these every thread loads all that it multiplies


def rungs() -> list[Kernel]:
    """The catalogue's GPU kernels for matrices, from the first to the fastest, without the yardstick."""
    return [kernel for kernel in CATALOGUE if kernel.device == "cuda" and kernel.source and not kernel.vectors_only]


def rungs_named(names: Sequence[str] | None) -> list[Kernel]:
    """These rungs, or all. UsageError for what is none."""
    wanted = [kernel for kernel in rungs() if not names or kernel.name in names]
    if unknown := set(names or ()) - {kernel.name for kernel in wanted}:
        there_are = ", ".join(kernel.name for kernel in rungs())
        raise UsageError(f"no rung is called {', '.join(sorted(unknown))}: there are {there_are}")
    return wanted


def form_of(kernel: Kernel, dtype: str, capability: int) -> Form:
    """The form that is launched on a GPU of that compute capability (times ten)."""
    return next(form for form in kernel.forms[dtype] if form.capability <= capability)


def square(n: int) -> Shape:
    return n, n, n


def label(shape: Shape) -> str:
    """4096, 1000×8000² or 100×60×90."""
    n, l, m = shape
    if n == l == m:
        return str(n)
    return f"{n}×{l}²" if l == m else f"{n}×{l}×{m}"


# --- recorded lines


def recorded(path: str) -> list[Line]:
    """The ladder's lines of a file, oldest first. UsageError when there is none."""
    lines = [line for line in jsonl.read(path) if line.get("benchmark") == BENCHMARK]
    if not lines:
        raise UsageError(f"{path} has no lines of scripts/ladder.py")
    return lines


def shape_of(line: Line) -> Shape:
    return line["n"], line["l"], line["m"]


class Results:
    """By kernel, dtype and shape: of several lines the last one, of several GPUs only the last line's."""

    def __init__(self, lines: Sequence[Line]) -> None:
        ours = [line for line in lines if line["gpu"] == lines[-1]["gpu"]]
        self._lines = {(line["kernel"], line["dtype"], shape_of(line)): line for line in ours}

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines.values())

    def of(self, kernel: str, dtype: str, shape: Shape) -> Line | None:
        """None: not measured, or too slow to be."""
        line = self._lines.get((kernel, dtype, shape))
        return line if line and line["seconds"] else None

    def any_of(self, kernel: str, dtype: str) -> Line | None:
        """For what does not depend on the shape."""
        return next((line for line in self if (line["kernel"], line["dtype"]) == (kernel, dtype)), None)

    def dtypes(self) -> list[str]:
        return [dtype for dtype in BOTH if any(line["dtype"] == dtype for line in self)]

    def shapes(self) -> list[Shape]:
        """Squares first, by size."""
        return sorted({shape_of(line) for line in self}, key=lambda shape: (len(set(shape)) > 1, shape))

    def origin(self) -> str:
        """GPU, versions, dates and commands, in one line."""
        runs = dict.fromkeys((line["date"][:10], line["command"]) for line in self)
        return f"{self.machine()}; " + "; ".join(f"{date}, `{command}`" for date, command in runs)

    def machine(self) -> str:
        """GPU and versions."""
        last = list(self)[-1]
        major, minor, patch = last["cublas"] // 10000, last["cublas"] // 100 % 100, last["cublas"] % 100
        return f"{last['gpu']}, driver {last['driver']}, CuPy {last['cupy']}, cuBLAS {major}.{minor}.{patch}"


# --- the table


def loads_of_elements(kernel: str, tile: Sequence[int], shape: Shape) -> tuple[int, int]:
    """How often each element of A and of B is loaded from global memory."""
    n, _, m = shape
    return (m, n) if kernel in ALONE else (-(-m // tile[1]), -(-n // tile[0]))


def loads_per_multiply_add(kernel: str, tile: Sequence[int]) -> Fraction:
    """For whole tiles."""
    return Fraction(2) if kernel in ALONE else Fraction(1, tile[0]) + Fraction(1, tile[1])


def table(results: Results, picture: str = "") -> str:
    """Markdown: a table for each dtype, then where the numbers come from. `picture`: a path to show above them."""
    parts = [f"![TF/s of each rung beside cuBLAS]({picture})\n"] if picture else []
    parts += map(markdown, blocks(results))
    parts.append(f"Measured on {results.origin()}\n")
    return "\n".join(parts)


def blocks(results: Results) -> Iterator[Table]:
    shapes = results.shapes()
    for dtype in results.dtypes():
        heads = ["rung", "tile of C", "registers", "shared memory", "loads per multiply-add", *map(label, shapes)]
        rows = []
        for kernel in [*(kernel.name for kernel in rungs() if dtype in kernel.dtypes), YARDSTICK]:
            speeds = [_speed(results.of(kernel, dtype, shape)) for shape in shapes]
            rows.append([kernel, *_resources(results.any_of(kernel, dtype)), *speeds])
        yield Table(heads, "ll" + "r" * (len(heads) - 2), rows, f"{dtype}, TF/s (and % of cuBLAS)")


def _resources(line: Line | None) -> list[str]:
    if line is None or line["tile"] is None:
        return ["–"] * 4
    down, across = (str(length) if length != ALL else name for length, name in zip(line["tile"], "nm", strict=True))
    spilled = f", {line['spills']} bytes spilled" if line["spills"] else ""
    loads = loads_per_multiply_add(line["kernel"], line["tile"])
    return [f"{down}×{across}", f"{line['registers']}{spilled}", f"{line['shared'] / 1024:.4g} KiB", str(loads)]


def _speed(line: Line | None) -> str:
    if line is None:
        return "–"
    rate = f"{line['teraflops']:.{1 if line['teraflops'] >= 10 else 2}f}"
    return rate if line["kernel"] == YARDSTICK else f"{rate} ({100 * line['ratio']:.1f} %)"


# --- targets


@dataclass(frozen=True)
class Target:
    """At least so much of cuBLAS' speed; without a kernel, the best rung."""

    dtype: str
    kernel: str
    shape: Shape
    least: float


@dataclass(frozen=True)
class Verdict:
    passed: bool
    text: str


TARGETS = (
    Target("float64", "tensor", square(8192), 0.97),
    Target("float64", "tensor", square(16384), 0.97),
    Target("float64", "tensor", square(8000), 0.93),
    Target("float64", "tensor", ROW_BLOCK, 0.93),
    Target("float32", "", square(8192), 0.97),
    Target("float32", "", square(16384), 0.97),
)
LECTURE_NAIVE, LECTURE_TILED = 13.8, 4.8  # seconds at 8000×8000


def verdicts(results: Results) -> list[Verdict]:
    """One on each target, and whether tiles pay at 8000 in each dtype."""
    return [*(_judged(target, results) for target in TARGETS), *(_tiles_pay(dtype, results) for dtype in BOTH)]


def _judged(target: Target, results: Results) -> Verdict:
    names = [target.kernel] if target.kernel else [kernel.name for kernel in rungs()]
    found = [line for name in names if (line := results.of(name, target.dtype, target.shape))]
    what = f"{target.dtype} {target.kernel or 'best rung'} at {label(target.shape)}"
    if not found:
        return Verdict(False, f"{what}: not measured")
    best = max(found, key=lambda line: line["ratio"])
    name = "" if target.kernel else f" ({best['kernel']})"
    short = target.least - best["ratio"]
    text = f"{what}{name}: {best['ratio']:.4f} × cuBLAS, wanted {target.least:.2f}"
    return Verdict(short <= 0, text if short <= 0 else f"{text}, short by {short:.4f}")


def _tiles_pay(dtype: str, results: Results) -> Verdict:
    naive, tiled = (results.of(name, dtype, square(8000)) for name in ("naive", "tiled"))
    what = f"{dtype} tiled over naive at 8000"
    if not (naive and tiled):
        return Verdict(False, f"{what}: not measured")
    gain = naive["seconds"]["median"] / tiled["seconds"]["median"]
    lecture = f"the lecture's {LECTURE_NAIVE} s / {LECTURE_TILED} s = {LECTURE_NAIVE / LECTURE_TILED:.1f}"
    return Verdict(gain > 1, f"{what}: {gain:.2f} × as fast, wanted more than 1 ({lecture})")
