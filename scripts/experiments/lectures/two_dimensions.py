# SPDX-License-Identifier: MIT
"""CUDA in two dimensions: python -m hybrid.lectures 2d [--picture FILE.svg]

The lecture's three programs, C = A·B of width 1024 in float32 with a[y][x] = b[y][x] = x + y·width: MM-CPU (three loops on one
core), MM-GPU-GM (one thread per element) and MM-GPU-SM (tiles in shared memory), in blocks of 32×32. Five runs each, the average,
and times faster; a GPU's runs span allocation, copies in, kernel and copy out, as there, with the kernel alone beside them.
Then the same at width 1000, of which the lecture's programs leave a part out, and the lecture's roofline (bytes that memory
delivers against operations) for the device at hand, whose memory and arithmetic are measured.

Without a GPU the CPU runs its program at full width; the GPU's run at width 256 (1000 for the second part) on the CPU's CUDA
runtime: their products are checked, and their times are no speeds. --quick takes widths 256, 128 and 72.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from experiments.common import cli, cuda, plots, records, results, tables
from hybrid.errors import DeviceUnavailable
from hybrid.host.threads import limited_threads
from hybrid.kernels.catalogue import Kernel, fastest

ITEM = 4  # bytes of a float32
COPIED = (8192, 8192)  # float32 numbers, more than any cache holds
MULTIPLIED = {"cuda": 8192, "emulate": 1024}
REPEAT = 5
TILE = 32
# Operations for each byte that a program loads from global memory: a multiplication and an addition for two numbers, or for
# two TILEth parts of numbers.
INTENSITY = {"MM-CPU": 2 / (2 * ITEM), "MM-GPU-GM": 2 / (2 * ITEM), "MM-GPU-SM": 2 / (2 * ITEM / TILE)}


@dataclass(frozen=True)
class Roof:
    """What a device's memory and its arithmetic can do in a second."""

    name: str
    bytes: float
    operations: float

    @property
    def numbers(self) -> float:
        return self.bytes / ITEM

    def bound(self, intensity: float) -> float:
        """Operations a second at so many for each byte."""
        return min(self.operations, self.bytes * intensity)


@dataclass(frozen=True)
class Point:
    """A program on a device: operations for each byte, and a second."""

    program: str
    intensity: float
    operations: float


LECTURE = Roof("C2075 (lecture)", 144e9, 1e12)


def point(program: str, width: int, seconds: float) -> Point:
    return Point(program, INTENSITY[program], 2 * width**3 / seconds)


def measured_roof(runtime: cuda.CudaRuntime) -> Iterator[records.Line]:
    """A GPU, or where there is none a core of the CPU: the best of some copies, and the fastest multiplication there is."""
    moved = 2 * ITEM * COPIED[0] * COPIED[1]  # read and written
    size = MULTIPLIED[runtime.device]
    a, b = cuda.matrices("uniform", "float32", size, size, size)
    if runtime.device == "cuda":
        copy = min(_copies_on_gpu(runtime))
        kernel = fastest("cuda", "float32", size, runtime.capability)
        product = min(cuda.kernel_seconds(runtime, kernel, a, b, REPEAT))
        name, how = runtime.name, kernel.name
    else:
        with limited_threads(1):
            into, source = np.zeros(COPIED, np.float32), np.ones(COPIED, np.float32)
            copy = min(records.seconds_of(np.copyto, into, source) for _ in range(REPEAT))
            product = min(records.seconds_of(np.matmul, a, b) for _ in range(REPEAT))
        name, how = f"one core of {cuda.processor()}", "blas"
    roof = {"roof": name, "bytes_per_second": moved / copy, "operations_per_second": 2 * size**3 / product}
    yield {"part": "roof", **roof, "multiplied_by": how}


def _copies_on_gpu(runtime: cuda.CudaRuntime) -> list[float]:
    try:
        into, source = (runtime.allocate(*COPIED, "float32") for _ in range(2))
        runtime.poison(source)
        times = []
        for _ in range(REPEAT + 1):
            begin = runtime.event()
            runtime.move(into, source)
            times.append(runtime.seconds(begin, runtime.event()))
        return times[1:]
    finally:
        runtime.release()


def roof_of(lines: Sequence[records.Line]) -> Roof:
    """The last one measured."""
    line = [line for line in lines if line["part"] == "roof"][-1]
    return Roof(line["roof"], line["bytes_per_second"], line["operations_per_second"])


def roof_tables(roof: Roof, points: Sequence[Point]) -> Iterator[tables.Table]:
    """The lecture's argument in its numbers, then in these; then what was reached. `points`: programs on `roof`."""
    rows = []
    for one in (LECTURE, roof):
        memory, numbers, peak = (records.number(rate / 1e9) for rate in (one.bytes, one.numbers, one.operations))
        share = f"{100 * one.numbers / one.operations:.2g} %"
        rows.append([one.name, f"{memory} GB/s", f"{numbers} G/s", f"{numbers} GF/s", f"{peak} GF/s", share])
    yield tables.Table(["", "memory", "numbers", "an operation each", "arithmetic", "share"], "lrrrrr", rows, "the roofline")
    rows = []
    for each in points:
        bound, reached = (records.number(rate / 1e9) for rate in (roof.bound(each.intensity), each.operations))
        note = " (above: caches hold what was loaded before)" if each.operations > roof.bound(each.intensity) else ""
        rows.append([each.program, f"{each.intensity:g}", f"{bound} GF/s", f"{reached} GF/s{note}"])
    if rows:
        yield tables.Table(["", "operations a byte", "bound", "reached"], "lrrl", rows, f"under the roof of {roof.name}")


def draw_roof(panel: Any, roof: Roof, points: Sequence[Point], lecture: Sequence[Point]) -> None:
    """Both roofs, and the programs that were measured under each."""
    plots.plain(panel, "what memory and arithmetic allow")
    across = np.geomspace(1 / 64, 256, 200)
    for one, reached, color in ((LECTURE, lecture, plots.LECTURE), (roof, points, plots.HERE)):
        rates = f"{records.number(one.bytes / 1e9)} GB/s, {records.number(one.operations / 1e9)} GF/s"
        label = f"{one.name}:{chr(10) if plots.narrow() else ' '}{rates}"
        panel.plot(across, [one.bound(intensity) / 1e9 for intensity in across], color=color, label=label)
        for each in reached:
            where = (each.intensity, each.operations / 1e9)
            panel.plot(*where, "o", color=color)
            above = each.operations > one.bound(each.intensity)  # the texts keep off the slope
            side = {"xytext": (-6, 5), "ha": "right"} if above else {"xytext": (6, 5), "ha": "left"}
            panel.annotate(each.program, where, textcoords="offset points", color=color, fontsize=8, **side)
    if any(each.operations > one.bound(each.intensity) for one, of in ((LECTURE, lecture), (roof, points)) for each in of):
        note = "above its slope: caches deliver\nwhat was loaded before"
        panel.annotate(note, (0.02, 0.97), xycoords="axes fraction", va="top", fontsize=8, color=plots.TEXT)
    panel.margins(y=0.14)
    panel.axvline(1 / ITEM, color=plots.GREY, linewidth=0.8, linestyle=":")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{1 / value:g}")
    panel.set_xlabel("operations a byte loaded from memory")
    panel.set_ylabel("GF/s")
    panel.legend(frameon=False, fontsize=8, loc="lower right")


DTYPE, RUNS = "float32", 5
PROGRAMS = {"MM-CPU": "loops", "MM-GPU-GM": "naive", "MM-GPU-SM": "tiled32"}  # the kernel of each
SIDE = 32  # of a block
LECTURE_WIDTH, RAGGED_WIDTH = 1024, 1000
WIDTHS = {"cuda": 1024, "emulate": 256}
QUICK_WIDTHS, QUICK_RAGGED = {"cuda": 256, "emulate": 128}, 72
LECTURE_MS = {
    "MM-CPU": (41045.35, 40277.44, 40369.30, 40385.85, 40446.14),
    "MM-GPU-GM": (52.5, 52.4, 52.4, 52.4, 52.6),
    "MM-GPU-SM": (24.4, 24.2, 24.3, 24.4, 24.4),
}
LECTURE_MEAN_MS = {"MM-CPU": 40504.82, "MM-GPU-GM": 52.46, "MM-GPU-SM": 24.34}
LECTURE_TIMES_FASTER = {"MM-GPU-GM": 772, "MM-GPU-SM": 1664}


def kernel_for(program: str) -> Kernel:
    return cuda.with_block("naive", SIDE) if program == "MM-GPU-GM" else cuda.kernel_of(PROGRAMS[program])


def left_out(width: int, side: int = SIDE) -> int:
    """Elements of C that no thread of the lecture's grid computes: it rounds the number of blocks down."""
    return width**2 - (width // side * side) ** 2


def measured(runtime: cuda.CudaRuntime, cpu_width: int, width: int, ragged: int) -> Iterator[records.Line]:
    a, b = cuda.matrices("index", DTYPE, cpu_width, cpu_width, cpu_width)
    try:
        times = [seconds for _ in cli.shown(range(RUNS), "MM-CPU") for seconds in cuda.loops_seconds("loops", a, b, 1)]
        yield {"part": "programs", "program": "MM-CPU", "width": cpu_width, "runs": times, "kernel_seconds": None}
    except DeviceUnavailable as missing:
        print(f"MM-CPU is left out: {missing}", file=sys.stderr)
    on_gpu = runtime.device == "cuda"
    for part, at in (("programs", width), ("ragged", ragged)):
        a, b = cuda.matrices("index", DTYPE, at, at, at)
        for program in cli.shown(("MM-GPU-GM", "MM-GPU-SM"), f"width {at}"):
            times = cuda.whole_seconds(runtime, kernel_for(program), a, b, RUNS if on_gpu else 1)
            alone = records.spread(cuda.kernel_seconds(runtime, kernel_for(program), a, b, RUNS)) if on_gpu else None
            yield {"part": part, "program": program, "width": at, "runs": times, "kernel_seconds": alone}
    yield from measured_roof(runtime)


class Results(results.Results):
    """The line of each program, at the width that is compared and at the ragged one."""

    command, again = "lecture_2d", "python -m hybrid.lectures 2d"

    def __init__(self, lines: Sequence[records.Line]) -> None:
        super().__init__(lines)
        self.programs = {line["program"]: line for line in lines if line["part"] == "programs"}
        self.ragged = {line["program"]: line for line in lines if line["part"] == "ragged"}

    def milliseconds(self, program: str) -> float:
        """The average."""
        return 1e3 * fmean(self.programs[program]["runs"])

    def times_faster(self, program: str) -> float | None:
        """Than the CPU's program; None without a GPU, and where that was not measured, or not at this size."""
        cpu = self.programs.get("MM-CPU")
        comparable = self.of_gpu and cpu and program != "MM-CPU" and self.programs[program]["width"] == cpu["width"]
        return self.milliseconds("MM-CPU") / self.milliseconds(program) if comparable else None

    def points(self) -> list[Point]:
        """Where the programs are under the roof of this machine: the kernels alone, or the CPU's program."""
        if self.of_gpu:
            kernels = [(name, line) for name, line in self.programs.items() if line["kernel_seconds"]]
            return [point(name, line["width"], line["kernel_seconds"]["median"]) for name, line in kernels]
        cpu = self.programs.get("MM-CPU")
        return [point("MM-CPU", cpu["width"], self.milliseconds("MM-CPU") / 1e3)] if cpu else []

    def blocks(self) -> Iterator[tables.Block]:
        heads = ["", "width", "five runs", "average", "times faster", "kernel alone", ""]
        yield tables.Table(heads, "lrlrrrl", list(self._program_rows()), f"{DTYPE}, a[y][x] = x + y·width; ms")
        if said := list(self._as_printed()):
            yield tables.Remarks(said, "as the lecture's programs print it: allocation, copies in, kernel and copy out")
        if self.ragged:
            yield tables.Remarks([_about_ragged(line) for line in self.ragged.values()], f"a width that is no multiple of {SIDE}")
        yield from roof_tables(roof_of(self.lines), self.points())

    def _program_rows(self) -> Iterator[list[str]]:
        for program, line in self.programs.items():
            yield [program, *_times(LECTURE_WIDTH, LECTURE_MS[program], LECTURE_TIMES_FASTER.get(program)), "", "lecture"]
            if program == "MM-CPU" or self.of_gpu:
                alone = f"{1e3 * line['kernel_seconds']['median']:.3f}" if line["kernel_seconds"] else ""
                runs = [1e3 * seconds for seconds in line["runs"]]
                yield ["", *_times(line["width"], runs, self.times_faster(program)), alone, "here"]
            else:
                yield ["", str(line["width"]), "right, on the CPU's CUDA runtime", "", "", "", "here"]

    def _as_printed(self) -> Iterator[str]:
        whose = "" if self.of_gpu else " (on the CPU's CUDA runtime: not a GPU's time)"
        for program, line in self.programs.items():
            if program != "MM-CPU":
                runs = ", ".join(f"{1e3 * seconds:3.1f} ms" for seconds in line["runs"])
                yield f"{program}  Time to generate:  {runs}{whose}"

    def draw(self, path: str) -> None:
        """The averages beside the lecture's, and both roofs."""
        there = [(program, line) for program, line in self.programs.items() if program == "MM-CPU" or self.of_gpu]
        one_width = {line["width"] for _, line in there} <= {LECTURE_WIDTH}
        rows = []
        for program in PROGRAMS:
            of_lecture = "lecture" if one_width else f"lecture, width {LECTURE_WIDTH}"
            rows.append((f"{program}, {of_lecture}", LECTURE_MEAN_MS[program], plots.LECTURE))
            for _, line in (pair for pair in there if pair[0] == program):
                of_here = "here" if one_width else f"here, width {line['width']}"
                rows.append((f"{program}, {of_here}", self.milliseconds(program), plots.HERE))
        names, values, colors = zip(*rows, strict=True)
        title = f"CUDA in two dimensions: {DTYPE}" + (f", width {LECTURE_WIDTH}" if one_width else "")
        with plots.figure(path, (10.5, 4.4), title, self.caption()) as figure:
            left, right = plots.panels(figure, 1, 2)
            plots.plain(left, "average of five runs" + ("" if self.of_gpu else " (no GPU here)"))
            plots.bars(left, names, values, [f"{records.number(value)} ms" for value in values], colors)
            left.set_xlabel("ms")
            told = [point(program, LECTURE_WIDTH, LECTURE_MEAN_MS[program] / 1e3) for program in PROGRAMS if "GPU" in program]
            draw_roof(right, roof_of(self.lines), self.points(), told)


def _times(width: int, runs: Sequence[float], faster: float | None) -> list[str]:
    mean = fmean(runs)
    digits = 2 if mean >= 1000 else 1 if mean >= 10 else 3
    five = " ".join(f"{ms:.{digits}f}" for ms in runs)
    return [str(width), five, f"{mean:.{max(2, digits)}f}", "" if faster is None else f"{faster:.0f}"]


def _about_ragged(line: records.Line) -> str:
    width = line["width"]
    terms = f" and the terms from k = {width // SIDE * SIDE} on" if "SM" in line["program"] else ""
    return (
        f"{line['program']} at width {width}, no multiple of {SIDE}: right; the lecture's leaves {left_out(width):,} of "
        f"{width**2:,} elements out{terms}"
    )


def _measured(options: argparse.Namespace) -> Iterator[records.Line]:
    runtime = cuda.runtime_for(options.device)
    width = options.width or (QUICK_WIDTHS if options.quick else WIDTHS)[runtime.device]
    cpu = options.width or (QUICK_WIDTHS["cuda"] if options.quick else LECTURE_WIDTH)
    cli.refuse_too_large(*[max(cpu, width)] * 3)
    yield from cuda.on(runtime, measured(runtime, cpu, width, QUICK_RAGGED if options.quick else RAGGED_WIDTH))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.parser_for(__doc__)
    parser.add_argument("--width", type=cli.at_least_1, metavar="N", help="of all three programs")
    return cli.command(parser, partial(cli.present, results=Results, measured=_measured), arguments)
