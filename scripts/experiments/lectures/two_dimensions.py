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
from functools import partial
from statistics import fmean

from experiments.common import cli, cuda, plots, records, results, tables, timing, wording
from experiments.lectures import roofline
from experiments.lectures.roofline import Point, point
from hybrid.errors import DeviceUnavailable
from hybrid.kernels.catalogue import Kernel

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
    return timing.with_block("naive", SIDE) if program == "MM-GPU-GM" else timing.kernel_of(PROGRAMS[program])


def left_out(width: int, side: int = SIDE) -> int:
    """Elements of C that no thread of the lecture's grid computes: it rounds the number of blocks down."""
    return width**2 - (width // side * side) ** 2


def measured(runtime: cuda.CudaRuntime, cpu_width: int, width: int, ragged: int) -> Iterator[records.Line]:
    a, b = timing.matrices("index", DTYPE, cpu_width, cpu_width, cpu_width)
    try:
        times = [seconds for _ in cli.shown(range(RUNS), "MM-CPU") for seconds in timing.loops_seconds("loops", a, b, 1)]
        yield {"part": "programs", "program": "MM-CPU", "width": cpu_width, "runs": times, "kernel_seconds": None}
    except DeviceUnavailable as missing:
        print(f"MM-CPU is left out: {missing}", file=sys.stderr)
    on_gpu = runtime.device == "cuda"
    for part, at in (("programs", width), ("ragged", ragged)):
        a, b = timing.matrices("index", DTYPE, at, at, at)
        for program in cli.shown(("MM-GPU-GM", "MM-GPU-SM"), f"width {at}"):
            times = timing.whole_seconds(runtime, kernel_for(program), a, b, RUNS if on_gpu else 1)
            alone = records.spread(timing.kernel_seconds(runtime, kernel_for(program), a, b, RUNS)) if on_gpu else None
            yield {"part": part, "program": program, "width": at, "runs": times, "kernel_seconds": alone}
    yield from roofline.measured(runtime)


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
        yield from roofline.tables(roofline.roof_of(self.lines), self.points())

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
            plots.bars(left, names, values, [f"{wording.number(value)} ms" for value in values], colors)
            left.set_xlabel("ms")
            told = [point(program, LECTURE_WIDTH, LECTURE_MEAN_MS[program] / 1e3) for program in PROGRAMS if "GPU" in program]
            roofline.draw(right, roofline.roof_of(self.lines), self.points(), told)


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
