"""CUDA in two dimensions: python scripts/lecture_2d.py [--picture FILE.svg]

The lecture's three programs, C = A·B of width 1024 in float32 with a[y][x] = b[y][x] = x + y·width: MM-CPU (three loops on one
core), MM-GPU-GM (a thread an element) and MM-GPU-SM (tiles in shared memory), in blocks of 32×32. Five runs each, the average,
and times faster; a GPU's runs span allocation, copies in, kernel and copy out, as there, with the kernel alone beside them.
Then the same at width 1000, of which the lecture's programs leave a part out, and the lecture's roofline (bytes that memory
delivers against operations) for the device at hand, whose memory and arithmetic are measured.

Without a GPU the CPU runs its program at full width; the GPU's run at width 256 (1000 for the second part) on the CPU's CUDA
runtime: their products are checked, and their times are no speeds. --quick takes widths 256, 128 and 72.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from statistics import fmean

import lecture_picture
import lecture_roofline
from lecture_common import (
    Line,
    at_least_1,
    caption,
    command,
    lines_of,
    number,
    of_gpu,
    on,
    parser_for,
    present,
    refuse_too_large,
    shown,
    spread,
)
from lecture_names import PROGRAMS_2D
from lecture_places import Place, place_for
from lecture_roofline import Point, point
from lecture_timing import kernel_of, kernel_seconds, loops_seconds, matrices, whole_seconds, with_block
from report_table import Block, Remarks, Table, printed

from hybrid.errors import DeviceUnavailable
from hybrid.kernels.catalogue import Kernel

NAME, DTYPE, RUNS = "lecture_2d", "float32", 5
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
    return with_block("naive", SIDE) if program == "MM-GPU-GM" else kernel_of(PROGRAMS_2D[program])


def left_out(width: int, side: int = SIDE) -> int:
    """Elements of C that no thread of the lecture's grid computes: it rounds the number of blocks down."""
    return width**2 - (width // side * side) ** 2


def measured(place: Place, cpu_width: int, width: int, ragged: int) -> Iterator[Line]:
    about = on(place)
    a, b = matrices("index", DTYPE, cpu_width, cpu_width, cpu_width)
    try:
        times = [seconds for _ in shown(range(RUNS), "MM-CPU") for seconds in loops_seconds("loops", a, b, 1)]
        yield {**about, "part": "programs", "program": "MM-CPU", "width": cpu_width, "runs": times, "kernel_seconds": None}
    except DeviceUnavailable as missing:
        print(f"MM-CPU is left out: {missing}", file=sys.stderr)
    for part, at in (("programs", width), ("ragged", ragged)):
        a, b = matrices("index", DTYPE, at, at, at)
        for program in shown(("MM-GPU-GM", "MM-GPU-SM"), f"width {at}"):
            runs = RUNS if place.device == "cuda" else 1
            times = whole_seconds(place, kernel_for(program), a, b, runs)
            alone = spread(kernel_seconds(place, kernel_for(program), a, b, RUNS)) if place.device == "cuda" else None
            yield {**about, "part": part, "program": program, "width": at, "runs": times, "kernel_seconds": alone}
    yield from lecture_roofline.measured(place)


class Results:
    """The line of each program, at the width that is compared and at the ragged one."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines, self.speeds = lines, of_gpu(lines)
        self.programs = {line["program"]: line for line in lines if line["part"] == "programs"}
        self.ragged = {line["program"]: line for line in lines if line["part"] == "ragged"}

    def milliseconds(self, program: str) -> float:
        """The average."""
        return 1e3 * fmean(self.programs[program]["runs"])

    def times_faster(self, program: str) -> float | None:
        """Than the CPU's program; None without a GPU, and where that was not measured, or not at this size."""
        cpu = self.programs.get("MM-CPU")
        comparable = self.speeds and cpu and program != "MM-CPU" and self.programs[program]["width"] == cpu["width"]
        return self.milliseconds("MM-CPU") / self.milliseconds(program) if comparable else None

    def points(self) -> list[Point]:
        """Where the programs are under the roof of this machine: the kernels alone, or the CPU's program."""
        if not self.speeds:
            if "MM-CPU" not in self.programs:
                return []
            return [point("MM-CPU", self.programs["MM-CPU"]["width"], self.milliseconds("MM-CPU") / 1e3)]
        kernels = [(name, line) for name, line in self.programs.items() if line["kernel_seconds"]]
        return [point(name, line["width"], line["kernel_seconds"]["median"]) for name, line in kernels]


def table(results: Results) -> Iterator[str]:
    yield caption(results.lines)
    yield from printed(blocks(results))


def blocks(results: Results) -> Iterator[Block]:
    heads = ["", "width", "five runs", "average", "times faster", "kernel alone", ""]
    yield Table(heads, "lrlrrrl", list(_program_rows(results)), f"{DTYPE}, a[y][x] = x + y·width; ms")
    if results.ragged:
        yield Remarks([_about_ragged(line) for line in results.ragged.values()], f"a width that is no multiple of {SIDE}")
    yield from lecture_roofline.tables(lecture_roofline.roof_of(results.lines), results.points())


def _program_rows(results: Results) -> Iterator[list[str]]:
    for program, line in results.programs.items():
        told = LECTURE_MEAN_MS[program], LECTURE_TIMES_FASTER.get(program)
        yield _row(program, LECTURE_WIDTH, LECTURE_MS[program], told[0], told[1], None, "lecture")
        if program == "MM-CPU" or results.speeds:
            alone = line["kernel_seconds"] and 1e3 * line["kernel_seconds"]["median"]
            runs = [1e3 * seconds for seconds in line["runs"]]
            yield _row("", line["width"], runs, fmean(runs), results.times_faster(program), alone, "here")
        else:
            yield ["", str(line["width"]), "right, on the CPU's CUDA runtime", "", "", "", "here"]


def _row(
    name: str, width: int, runs: Sequence[float], mean: float, faster: float | None, alone: float | None, whose: str
) -> list[str]:
    digits = 2 if mean >= 1000 else 1 if mean >= 10 else 3
    five = " ".join(f"{ms:.{digits}f}" for ms in runs)
    times = "" if faster is None else f"{faster:.0f}"
    kernel = "" if alone is None else f"{alone:.3f}"
    return [name, str(width), five, f"{mean:.{max(2, digits)}f}", times, kernel, whose]


def _about_ragged(line: Line) -> str:
    width = line["width"]
    terms = f" and the terms from k = {width // SIDE * SIDE} on" if "SM" in line["program"] else ""
    return (
        f"{line['program']} at width {width}, no multiple of {SIDE}: right; the lecture's leaves {left_out(width):,} of "
        f"{width**2:,} elements out{terms}"
    )


def draw(results: Results, path: str) -> None:
    """The averages beside the lecture's, and both roofs."""
    rows = []
    for program in PROGRAMS_2D:
        rows.append((f"{program}, lecture", LECTURE_MEAN_MS[program], lecture_picture.LECTURE))
        line = results.programs.get(program)
        if line and (program == "MM-CPU" or results.speeds):
            size = "" if line["width"] == LECTURE_WIDTH else f" ({line['width']})"
            rows.append((f"{program}, here{size}", results.milliseconds(program), lecture_picture.HERE))
    names, values, colors = zip(*rows, strict=True)
    title = f"CUDA in two dimensions: {DTYPE}, width {LECTURE_WIDTH}"
    with lecture_picture.figure(path, (10.5, 4.4), title, caption(results.lines)) as figure:
        left, right = figure.subplots(1, 2)
        lecture_picture.plain(left, "average of five runs" + ("" if results.speeds else " (no GPU here)"))
        lecture_picture.bars(left, names, values, [number(value) for value in values], colors)
        left.set_xlabel("ms")
        told = [point(program, LECTURE_WIDTH, LECTURE_MEAN_MS[program] / 1e3) for program in PROGRAMS_2D if "GPU" in program]
        lecture_roofline.draw(right, lecture_roofline.roof_of(results.lines), results.points(), told)


def work(options: argparse.Namespace) -> int:
    return present(Results(lines_of(options, NAME, _measured(options))), options, table, draw)


def _measured(options: argparse.Namespace) -> Iterator[Line]:
    place = place_for(options.device)
    width = options.width or (QUICK_WIDTHS if options.quick else WIDTHS)[place.device]
    cpu = options.width or (QUICK_WIDTHS["cuda"] if options.quick else LECTURE_WIDTH)
    refuse_too_large(*[max(cpu, width)] * 3)
    yield from measured(place, cpu, width, QUICK_RAGGED if options.quick else RAGGED_WIDTH)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    parser.add_argument("--width", type=at_least_1, metavar="N", help="of all three programs")
    return command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
