# SPDX-License-Identifier: MIT
"""What the ladder's recorded lines say: the table, the picture, and the targets they must reach."""

from collections.abc import Iterator, Sequence
from typing import Any

from experiments.common import plots, records, results, tables
from experiments.lectures.loads import Shape, loads_per_multiply_add
from hybrid.core.settings import one_of
from hybrid.kernels.catalogue import ALL, BOTH, BYTES, CATALOGUE, HALVES, OPERAND_SIZES, Kernel

YARDSTICK = "cublas"
ROW_BLOCK = (1000, 8000, 8000)  # what one of eight ranks has of 8000×8000


def rungs() -> list[Kernel]:
    """The catalogue's GPU kernels for matrices, from the first to the fastest, without the yardstick."""
    return [kernel for kernel in CATALOGUE if kernel.device == "cuda" and kernel.source and not kernel.vectors_only]


def rungs_named(names: Sequence[str] | None) -> list[Kernel]:
    """These rungs, or all. UsageError for what is none."""
    for name in names or ():
        one_of("rung", name, [kernel.name for kernel in rungs()])
    return [kernel for kernel in rungs() if not names or kernel.name in names]


def square(n: int) -> Shape:
    return n, n, n


PICTURED = square(8192)


def label(shape: Shape) -> str:
    """4096, 1000×8000² or 100×60×90."""
    n, l, m = shape
    if n == l == m:
        return str(n)
    return f"{n}×{l}²" if l == m else f"{n}×{l}×{m}"


def shape_of(line: records.Line) -> Shape:
    return line["n"], line["l"], line["m"]


def unit_of(dtype: str) -> str:
    """Of what a record calls teraflops."""
    return "TOPS" if dtype in BYTES else "TF/s"


def as_text(line: records.Line) -> str:
    what = f"{line['kernel']:18} {line['dtype']} {label(shape_of(line)):12}"
    if not line["seconds"]:
        return f"{what} left out: a launch takes about {line['launch_seconds']:.1f} s"
    rate = f"{line['teraflops']:7.2f} {unit_of(line['dtype'])}"
    speed = f"{1e3 * line['seconds']['median']:9.3f} ms {rate}  {line['ratio']:.4f} × cuBLAS"
    return f"{what} {speed}" + (f"  {line['registers']} registers" if line["registers"] else "")


class Results(results.MachineResults):
    """By kernel, dtype and shape; of several lines the last one."""

    command, about_picture = "ladder", "TF/s of each rung beside cuBLAS"

    def __init__(self, lines: Sequence[records.Line]) -> None:
        self._lines = {(line["kernel"], line["dtype"], shape_of(line)): line for line in lines}
        super().__init__(list(self._lines.values()))

    @staticmethod
    def machine_of(line: records.Line) -> str:
        return line["gpu"]

    def of(self, kernel: str, dtype: str, shape: Shape) -> records.Line | None:
        """None: not measured, or too slow to be."""
        line = self._lines.get((kernel, dtype, shape))
        return line if line and line["seconds"] else None

    def any_of(self, kernel: str, dtype: str) -> records.Line | None:
        """For what does not depend on the shape."""
        return next((line for line in self.lines if (line["kernel"], line["dtype"]) == (kernel, dtype)), None)

    def dtypes(self) -> list[str]:
        return [dtype for dtype in OPERAND_SIZES if any(line["dtype"] == dtype for line in self.lines)]

    def shapes(self) -> list[Shape]:
        """Squares first, by size."""
        return sorted({shape_of(line) for line in self.lines}, key=lambda shape: (len(set(shape)) > 1, shape))

    def machine(self) -> str:
        """GPU and versions."""
        last = self.lines[-1]
        major, minor, patch = last["cublas"] // 10000, last["cublas"] // 100 % 100, last["cublas"] % 100
        return f"{last['gpu']}, driver {last['driver']}, CuPy {last['cupy']}, cuBLAS {major}.{minor}.{patch}"

    def blocks(self) -> Iterator[tables.Table]:
        shapes = self.shapes()
        for dtype in self.dtypes():
            heads = ["rung", "tile of C", "registers", "shared memory", "loads per multiply-add", *map(label, shapes)]
            rows = []
            for kernel in [*(kernel.name for kernel in rungs() if dtype in kernel.dtypes), YARDSTICK]:
                speeds = [_speed(self.of(kernel, dtype, shape)) for shape in shapes]
                rows.append([kernel, *_resources(self.any_of(kernel, dtype)), *speeds])
            yield tables.Table(heads, "ll" + "r" * (len(heads) - 2), rows, f"{dtype}, {unit_of(dtype)} (and % of cuBLAS)")

    def verdicts(self) -> Iterator[results.Verdict]:
        """On each target that was measured, and whether tiles pay at 8000 in each dtype."""
        for dtype, kernel, shape, least in TARGETS:
            names = [kernel] if kernel else [rung.name for rung in rungs()]
            if found := [line for name in names if (line := self.of(name, dtype, shape))]:
                best = max(found, key=lambda line: line["ratio"])
                yield results.verdict(
                    f"{dtype} {best['kernel']} at {label(shape)}", best["ratio"], least, "× cuBLAS", at_least=True
                )
        for dtype in BOTH:
            naive, tiled = (self.of(name, dtype, square(8000)) for name in ("naive", "tiled"))
            if naive and tiled:
                gain = naive["seconds"]["median"] / tiled["seconds"]["median"]
                yield results.verdict(f"{dtype} tiled at 8000", gain, 1, "× naive", at_least=True)

    def draw(self, path: str) -> None:
        """Each rung's TF/s at 8192 as a bar, cuBLAS as a line, a panel for each dtype. Those of 16 bits and of bytes have rows
        and axes of their own: they are ten times as fast, by few rungs."""
        of_rows = [[dtype for dtype in self.dtypes() if dtype in together] for together in (BOTH, HALVES, BYTES)]
        of_rows = [dtypes for dtypes in of_rows if dtypes]
        columns, heights = max(map(len, of_rows)), [0.4 + 0.33 * max(map(self._bars, dtypes)) for dtypes in of_rows]
        with plots.figure(path, (4.6 * columns, 0.4 + sum(heights))) as figure:
            panels = plots.panels(figure, len(of_rows), columns, sharex="row", height_ratios=heights)
            for number, panel in enumerate(panels):
                dtypes = of_rows[number // columns]
                if number % columns < len(dtypes):
                    self._draw_dtype(panel, dtypes[number % columns])
                else:
                    panel.set_axis_off()
            size = label(PICTURED)
            units = " and ".join(dict.fromkeys(map(unit_of, self.dtypes())))
            figure.supxlabel(f"{units}, matrices of {size}×{size} on {self.lines[-1]['gpu']}", fontsize=10)

    @staticmethod
    def _bars(dtype: str) -> int:
        return sum(dtype in kernel.dtypes for kernel in rungs())

    def _draw_dtype(self, panel: Any, dtype: str) -> None:
        names = [kernel.name for kernel in rungs() if dtype in kernel.dtypes]
        speeds = [line["teraflops"] if (line := self.of(name, dtype, PICTURED)) else None for name in names]
        panel.barh(names, [speed or 0 for speed in speeds], color=plots.HERE, height=0.7)
        yardstick = self.of(YARDSTICK, dtype, PICTURED)
        widest = max([yardstick["teraflops"] if yardstick else 0, *(speed or 0 for speed in speeds)])
        for row, speed in enumerate(speeds):
            inside = speed is not None and speed > widest / 4  # else the line of cuBLAS would cross it
            side = {"ha": "right", "color": "white"} if inside else {"ha": "left"}
            text, shift = "–" if speed is None else f"{speed:.1f}", (-4 if inside else 4, 0)
            panel.annotate(text, (speed or 0, row), shift, textcoords="offset points", va="center", **side)
        if yardstick:
            speed = yardstick["teraflops"]
            panel.axvline(speed, color=plots.LECTURE, linewidth=1.2, zorder=0)  # behind the bars that go past it
            top = (speed, 1), (0, 3), ("data", "axes fraction"), "offset points"
            panel.annotate(f"cuBLAS {speed:.1f}", *top, ha="center", color=plots.LECTURE)
        panel.invert_yaxis()  # the first rung above
        panel.margins(x=0.1)
        panel.set_title(dtype, loc="left", fontsize=10, fontweight="bold")
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)


def _resources(line: records.Line | None) -> list[str]:
    if line is None or line["tile"] is None:
        return ["–"] * 4
    down, across = (str(length) if length != ALL else name for length, name in zip(line["tile"], "nm", strict=True))
    spilled = f", {line['spills']} bytes spilled" if line["spills"] else ""
    loads = loads_per_multiply_add(line["kernel"], line["tile"])
    return [f"{down}×{across}", f"{line['registers']}{spilled}", f"{line['shared'] / 1024:.4g} KiB", str(loads)]


def _speed(line: records.Line | None) -> str:
    if line is None:
        return "–"
    rate = f"{line['teraflops']:.{1 if line['teraflops'] >= 10 else 2}f}"
    return rate if line["kernel"] == YARDSTICK else f"{rate} ({100 * line['ratio']:.1f} %)"


TARGETS = (  # at least so much of cuBLAS' speed; without a kernel, of the best rung's
    ("float64", "tensor", square(8192), 0.97),
    ("float64", "tensor", square(16384), 0.97),
    ("float64", "tensor", square(8000), 0.93),
    ("float64", "tensor", ROW_BLOCK, 0.93),
    ("float32", "", square(8192), 0.97),
    ("float32", "", square(16384), 0.97),
)
