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
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from experiments.common import cli, cuda, plots, results
from hybrid.errors import DeviceUnavailable
from hybrid.host.threads import limited_threads
from hybrid.kernels.catalogue import fastest
from hybrid.reporting import jsonl

DTYPE, ITEM, RUNS = "float32", 4, 5
SIDE = 32  # of a block, and of a tile
LECTURE_WIDTH, RAGGED_WIDTH = 1024, 1000
WIDTHS = {"cuda": 1024, "emulate": 256}
QUICK_WIDTHS, QUICK_RAGGED = {"cuda": 256, "emulate": 128}, 72
COPIED = (8192, 8192)  # float32 numbers, more than any cache holds
MULTIPLIED = {"cuda": 8192, "emulate": 1024}


class Program(NamedTuple):
    """`intensity`: operations for each byte that it loads from global memory, a multiplication and an addition for two numbers,
    or for two SIDEth parts of numbers. The lecture's milliseconds, their mean, and times faster."""

    intensity: float
    runs: tuple[float, ...]
    mean: float
    faster: float | None


PROGRAMS = {
    "MM-CPU": Program(2 / (2 * ITEM), (41045.35, 40277.44, 40369.30, 40385.85, 40446.14), 40504.82, None),
    "MM-GPU-GM": Program(2 / (2 * ITEM), (52.5, 52.4, 52.4, 52.4, 52.6), 52.46, 772),
    "MM-GPU-SM": Program(2 / (2 * ITEM / SIDE), (24.4, 24.2, 24.3, 24.4, 24.4), 24.34, 1664),
}


class Roof(NamedTuple):
    """What a device's memory and its arithmetic can do in a second."""

    name: str
    bytes: float
    operations: float

    def bound(self, program: str) -> float:
        """Its operations a second."""
        return min(self.operations, self.bytes * PROGRAMS[program].intensity)


LECTURE = Roof("C2075 (lecture)", 144e9, 1e12)


def measured(options: argparse.Namespace) -> Iterator[results.Line]:
    runtime = cuda.runtime_for(options.device)
    on_gpu, about = runtime.device == "cuda", runtime.about
    width = options.width or (QUICK_WIDTHS if options.quick else WIDTHS)[runtime.device]
    cpu_width = options.width or (QUICK_WIDTHS["cuda"] if options.quick else LECTURE_WIDTH)
    cli.refuse_too_large(*[max(cpu_width, width)] * 3)
    a, b = cuda.matrices("index", DTYPE, cpu_width, cpu_width, cpu_width)
    try:
        times = [seconds for _ in cli.shown(range(RUNS), "MM-CPU") for seconds in cuda.loops_seconds("loops", a, b, 1)]
        yield {**about, "part": "programs", "program": "MM-CPU", "width": cpu_width, "runs": times, "kernel_seconds": None}
    except DeviceUnavailable as missing:
        print(f"MM-CPU is left out: {missing}", file=sys.stderr)
    kernels = {"MM-GPU-GM": cuda.with_block("naive", SIDE), "MM-GPU-SM": cuda.kernel_of("tiled32")}
    for part, at in (("programs", width), ("ragged", QUICK_RAGGED if options.quick else RAGGED_WIDTH)):
        a, b = cuda.matrices("index", DTYPE, at, at, at)
        for program, kernel in cli.shown(list(kernels.items()), f"width {at}"):
            times = cuda.whole_seconds(runtime, kernel, a, b, RUNS if on_gpu else 1)
            alone = results.spread(cuda.kernel_seconds(runtime, kernel, a, b, RUNS)) if on_gpu else None
            yield {**about, "part": part, "program": program, "width": at, "runs": times, "kernel_seconds": alone}
    yield {**about, "part": "roof", **_roof(runtime)}


def _roof(runtime: cuda.CudaRuntime) -> results.Line:
    """A GPU, or where there is none a core of the CPU: the best of some copies, and the fastest multiplication there is."""
    moved = 2 * ITEM * COPIED[0] * COPIED[1]  # read and written
    size = MULTIPLIED[runtime.device]
    a, b = cuda.matrices("uniform", DTYPE, size, size, size)
    if isinstance(runtime, cuda.GpuRuntime):
        copy = min(_copies_on_gpu(runtime))
        kernel = fastest("cuda", DTYPE, size, runtime.capability)
        product = min(cuda.kernel_seconds(runtime, kernel, a, b, RUNS))
        name, how = runtime.name, kernel.name
    else:
        with limited_threads(1):
            into, source = np.zeros(COPIED, np.float32), np.ones(COPIED, np.float32)
            copy = min(results.seconds_of(np.copyto, into, source) for _ in range(RUNS))
            product = min(results.seconds_of(np.matmul, a, b) for _ in range(RUNS))
        name, how = f"one core of {jsonl.machine()['processor']}", "blas"
    rates = {"bytes_per_second": moved / copy, "operations_per_second": 2 * size**3 / product}
    return {"roof": name, **rates, "multiplied_by": how}


def _copies_on_gpu(runtime: cuda.GpuRuntime) -> list[float]:
    try:
        into, source = (runtime.allocate(*COPIED, DTYPE) for _ in range(2))
        runtime.poison(source)
        times = []
        for _ in range(RUNS + 1):
            begin = runtime.event()
            runtime.move(into, source)
            times.append(runtime.seconds(begin, runtime.event()))
        return times[1:]
    finally:
        runtime.release()


class Results(results.Results):
    """The line of each program, at the width that is compared and at the ragged one."""

    command, again = "lecture_2d", "python -m hybrid.lectures 2d"

    def __init__(self, lines: Sequence[results.Line]) -> None:
        super().__init__(lines)
        self.programs = {line["program"]: line for line in lines if line["part"] == "programs"}
        self.ragged = {line["program"]: line for line in lines if line["part"] == "ragged"}
        roof = [line for line in lines if line["part"] == "roof"][-1]
        self.roof = Roof(roof["roof"], roof["bytes_per_second"], roof["operations_per_second"])

    def milliseconds(self, program: str) -> float:
        """The average."""
        return 1e3 * fmean(self.programs[program]["runs"])

    def times_faster(self, program: str) -> float | None:
        """Than the CPU's program; None without a GPU, and where that was not measured, or not at this size."""
        cpu = self.programs.get("MM-CPU")
        comparable = self.of_gpu and cpu and program != "MM-CPU" and self.programs[program]["width"] == cpu["width"]
        return self.milliseconds("MM-CPU") / self.milliseconds(program) if comparable else None

    def reached(self) -> dict[str, float]:
        """Operations a second of the programs under the roof of this machine: the kernels alone, or the CPU's program."""
        if self.of_gpu:
            seconds = {name: line["kernel_seconds"]["median"] for name, line in self.programs.items() if line["kernel_seconds"]}
        else:
            seconds = {"MM-CPU": self.milliseconds("MM-CPU") / 1e3} if "MM-CPU" in self.programs else {}
        return {name: 2 * self.programs[name]["width"] ** 3 / each for name, each in seconds.items()}

    def blocks(self) -> Iterator[results.Block]:
        heads = ["", "width", "five runs", "average", "times faster", "kernel alone", ""]
        yield results.Table(heads, "lrlrrrl", list(self._program_rows()), f"{DTYPE}, a[y][x] = x + y·width; ms")
        about_ragged = []
        for program, line in self.ragged.items():
            width, covered = line["width"], line["width"] // SIDE * SIDE
            terms = f" and the terms from k = {covered} on" if "SM" in program else ""
            left_out = f"{width**2 - covered**2:,} of {width**2:,} elements out{terms}"
            about_ragged.append(f"{program} at width {width}, no multiple of {SIDE}: right; the lecture's leaves {left_out}")
        if about_ragged:
            yield results.Remarks(about_ragged, f"a width that is no multiple of {SIDE}")
        rows = []
        for one in (LECTURE, self.roof):
            rates = [results.number(rate / 1e9) for rate in (one.bytes, one.bytes / ITEM, one.operations)]
            share = f"{100 * one.bytes / ITEM / one.operations:.2g} %"
            rows.append([one.name, f"{rates[0]} GB/s", f"{rates[1]} G/s", f"{rates[1]} GF/s", f"{rates[2]} GF/s", share])
        heads = ["", "memory", "numbers", "an operation each", "arithmetic", "share"]
        yield results.Table(heads, "lrrrrr", rows, "the roofline")
        rows = []
        for program, reached in self.reached().items():
            bound = self.roof.bound(program)
            note = " (above: caches hold what was loaded before)" if reached > bound else ""
            rates = [f"{results.number(rate / 1e9)} GF/s" for rate in (bound, reached)]
            rows.append([program, f"{PROGRAMS[program].intensity:g}", rates[0], rates[1] + note])
        if rows:
            yield results.Table(
                ["", "operations a byte", "bound", "reached"], "lrrl", rows, f"under the roof of {self.roof.name}"
            )

    def _program_rows(self) -> Iterator[list[str]]:
        for name, line in self.programs.items():
            lecture = PROGRAMS[name]
            yield [name, *_times(LECTURE_WIDTH, lecture.runs, lecture.faster), "", "lecture"]
            if name == "MM-CPU" or self.of_gpu:
                alone = f"{1e3 * line['kernel_seconds']['median']:.3f}" if line["kernel_seconds"] else ""
                runs = [1e3 * seconds for seconds in line["runs"]]
                yield ["", *_times(line["width"], runs, self.times_faster(name)), alone, "here"]
            else:
                yield ["", str(line["width"]), "right, on the CPU's CUDA runtime", "", "", "", "here"]

    def draw(self, path: str) -> None:
        """The averages beside the lecture's, and both roofs."""
        rows = []
        for program, lecture in PROGRAMS.items():
            rows.append((f"{program}, lecture", lecture.mean, plots.LECTURE))
            if program in self.programs and (program == "MM-CPU" or self.of_gpu):
                width = self.programs[program]["width"]
                name = f"{program}, here" + ("" if width == LECTURE_WIDTH else f", width {width}")
                rows.append((name, self.milliseconds(program), plots.HERE))
        names, values, colors = zip(*rows, strict=True)
        with plots.figure(path, (10.5, 4.4), f"CUDA in two dimensions: {DTYPE}, width {LECTURE_WIDTH}", self.caption()) as figure:
            left, right = figure.subplots(1, 2)
            plots.plain(left, "average of five runs" + ("" if self.of_gpu else " (no GPU here)"))
            plots.bars(left, names, values, [f"{results.number(value)} ms" for value in values], colors)
            left.set_xlabel("ms")
            self._draw_roofs(right)

    def _draw_roofs(self, panel: Any) -> None:
        """Both, and the programs that were measured under each."""
        plots.plain(panel, "what memory and arithmetic allow")
        of_lecture = {name: 2 * LECTURE_WIDTH**3 / (PROGRAMS[name].mean / 1e3) for name in PROGRAMS if "GPU" in name}
        across = np.geomspace(1 / 64, 256, 200)
        for one, reached, color in ((LECTURE, of_lecture, plots.LECTURE), (self.roof, self.reached(), plots.HERE)):
            label = f"{one.name}: {results.number(one.bytes / 1e9)} GB/s, {results.number(one.operations / 1e9)} GF/s"
            panel.plot(across, np.minimum(one.operations, one.bytes * across) / 1e9, color=color, label=label)
            for program, operations in reached.items():
                where = (PROGRAMS[program].intensity, operations / 1e9)
                panel.plot(*where, "o", color=color)
                above = operations > one.bound(program)  # caches deliver what was loaded before; texts keep off the slope
                side = {"xytext": (-6, 5), "ha": "right"} if above else {"xytext": (6, 5), "ha": "left"}
                panel.annotate(program, where, textcoords="offset points", color=color, fontsize=8, **side)
        panel.margins(y=0.14)
        panel.axvline(1 / ITEM, color=plots.GREY, linewidth=0.8, linestyle=":")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{1 / value:g}")
        panel.set_xlabel("operations a byte loaded from memory")
        panel.set_ylabel("GF/s")
        panel.legend(frameon=False, fontsize=8, loc="lower right")


def _times(width: int, runs: Sequence[float], faster: float | None) -> list[str]:
    mean = fmean(runs)
    digits = 2 if mean >= 1000 else 1 if mean >= 10 else 3
    five = " ".join(f"{ms:.{digits}f}" for ms in runs)
    return [str(width), five, f"{mean:.{max(2, digits)}f}", "" if faster is None else f"{faster:.0f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.parser_for(__doc__)
    parser.add_argument("--width", type=cli.at_least_1, metavar="N", help="of all three programs")
    return cli.experiment(parser, Results, measured, arguments)
