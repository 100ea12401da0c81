# SPDX-License-Identifier: MIT
"""With and without shared memory: python -m hybrid.lectures hochberg [--picture FILE.svg]

Section 2.4 of the matrix multiplication module, float32: time against matrix size, to 1000 and from 1000 to 8000, and under
it how many times faster shared memory makes it. The published factors are of whole programs by the clock on the wall, so wall
and kernel are drawn apart; no curves were published, and the factors are points.

  python -m hybrid.lectures hochberg multNoShare 10 15 8      the module's programs: A is 10×15, B 15×8; what each CUDA call
  python -m hybrid.lectures hochberg multShare 10 15 8        said, then the matrices' top left corners

Here a whole program is one of these commands: its wall time has Python's and CUDA's start in it. Without a GPU the kernels run
on the CPU's CUDA runtime at sizes 64, 100 and 130 (--quick: 64): products are checked, nothing is compared, and the times are
said to be no GPU's.
"""

import argparse
import secrets
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TextIO

import numpy as np

from experiments.common import cli, cuda, plots, product_check, records, results, tables
from hybrid.core.settings import Settings, parse_bytes
from hybrid.errors import HybridError, UsageError
from hybrid.reporting.run_report import top_left

DTYPE, PRINTED = "float32", 10
MODULE_PROGRAMS = {"multNoShare": "naive", "multShare": "tiled"}  # the kernel of each
NO_ERROR = "no error"  # as CUDA says it
_UNPRINTED = {"multShare": ("Copy A to device", "Copy B to device")}


def run_program(
    program: str,
    runtime: cuda.CudaRuntime,
    sizes: tuple[int, int, int],
    seed: int | None = None,
    *,
    check: bool = True,
    out: TextIO | None = None,
) -> None:
    """For sizes a1, a2, b2: A (a1×a2) of {0,1,2} times B (a2×b2) of {0,1}; unseeded, as there, without a seed.

    The lecture's programs go on after a call that failed, with a C of anything; here it is said, and CallFailed raised.
    """
    out = out or sys.stdout
    a1, a2, b2 = sizes
    cli.refuse_too_large(a1, a2, b2)
    a, b = cuda.matrices("lecture", DTYPE, a1, a2, b2, secrets.randbits(63) if seed is None else seed)
    c = np.full((a1, b2), np.nan, DTYPE)

    def call(what: str, work: Callable[[], Any]) -> Any:
        try:
            result = work()
        except cuda.CallFailed as failed:
            print(f"{what}: {failed}", file=out)
            raise cuda.CallFailed(f"{what}: {failed}") from None
        if what not in _UNPRINTED.get(program, ()):
            print(f"{what}: {NO_ERROR}", file=out)
        return result

    def run_kernel() -> None:
        runtime.launch(cuda.kernel_of(MODULE_PROGRAMS[program]), on_a, on_b, on_c)
        runtime.synchronize()

    try:
        on_a = call("CUDA malloc A", lambda: runtime.allocate(a1, a2, DTYPE))
        call("Copy A to device", lambda: runtime.copy(on_a, a))
        on_b = call("CUDA malloc B", lambda: runtime.allocate(a2, b2, DTYPE))
        call("Copy B to device", lambda: runtime.copy(on_b, b))
        on_c = call("CUDA malloc C", lambda: runtime.allocate(a1, b2, DTYPE))
        call("Run kernel", run_kernel)
        call("Copy C off of device", lambda: runtime.copy(c, on_c))
    finally:
        runtime.release()
    for matrix in (a, b, c):
        out.write(top_left(matrix[:PRINTED, :PRINTED]))
    if check:
        product_check.refuse_wrong(program, a, b, c)


SMALL, LARGE = range(100, 1001, 100), range(1000, 8001, 1000)
WALL_SIZES = (100, 500, 1000, 2000, 4000, 8000)
QUICK_SIZES = (200, 1000, 2000)
EMULATED_SIZES, EMULATED_QUICK = (64, 100, 130), (64,)
REPEAT, WALL_REPEAT = 7, 3
WITHOUT, WITH = MODULE_PROGRAMS  # shared memory


# How many times faster shared memory made the whole program, as the module words it.
Published = namedtuple("Published", "gpu capability cores size factor wording")
PUBLISHED = (
    Published("GT 9600M", "1.1", 32, 1000, 7, "7"),
    Published("GT 330M", "1.2", 48, 1000, 2, "towards 2"),
    Published("C1060", "1.3", 240, 1000, 1.1, "about 1.1"),
    Published("C1060", "1.3", 240, 8000, 6.5, "more than 6.5"),
    Published("M2070", "2.0", 448, 1000, 1.7, "about 1.7"),
    Published("M2070", "2.0", 448, 8000, 2.6, "2.6"),
)


def run_whole(program: str, size: int) -> None:
    """The whole program in a process of its own, on a GPU."""
    words = [sys.executable, "-m", "hybrid.lectures", "hochberg", program, *[str(size)] * 3, "--device", "cuda", "--no-check"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HybridError(f"{program} {size} {size} {size} failed: {records.told_error(done.stderr)}")


def measured(runtime: cuda.CudaRuntime, sizes: Sequence[int], wall_sizes: Sequence[int]) -> Iterator[records.Line]:
    for size in cli.shown(sizes, "kernels"):
        a, b = cuda.matrices("lecture", DTYPE, size, size, size)
        for program, kernel in MODULE_PROGRAMS.items():
            times = cuda.kernel_seconds(runtime, cuda.kernel_of(kernel), a, b, REPEAT)
            yield {"part": "kernel", "program": program, "size": size, "seconds": records.spread(times)}
    for size in cli.shown(wall_sizes, "whole programs"):
        of_programs: dict[str, list[float]] = {program: [] for program in MODULE_PROGRAMS}
        for index in range(-1, WALL_REPEAT):  # the first one finds nothing in any cache
            for program in MODULE_PROGRAMS:
                seconds = records.seconds_of(run_whole, program, size)
                if index >= 0:
                    of_programs[program].append(seconds)
        for program in MODULE_PROGRAMS:
            yield {"part": "wall", "program": program, "size": size, "seconds": records.spread(of_programs[program])}


class Results(results.Results):
    """Medians by size; none of them where there was no GPU."""

    command, again = "lecture_hochberg", "python -m hybrid.lectures hochberg"

    def __init__(self, lines: Sequence[records.Line]) -> None:
        super().__init__(lines)
        self.sizes = sorted({line["size"] for line in lines})
        self._seconds = {(line["part"], line["program"], line["size"]): line["seconds"]["median"] for line in lines}

    def seconds(self, part: str, program: str, size: int) -> float | None:
        return self._seconds.get((part, program, size)) if self.of_gpu else None

    def ratio(self, part: str, size: int) -> float | None:
        """Time without shared memory / time with it."""
        slow, fast = (self.seconds(part, program, size) for program in (WITHOUT, WITH))
        return slow / fast if slow and fast else None

    def within(self, sizes: range) -> list[int]:
        return [size for size in self.sizes if sizes[0] <= size <= sizes[-1]]

    def blocks(self) -> Iterator[tables.Block]:
        title = f"{DTYPE}, time without / with shared memory"
        if self.of_gpu:
            heads = ["size", "kernel, ms", "ratio", "whole program, s", "ratio"]
            yield tables.Table(heads, "rrrrr", [self._times_at(size) for size in self.sizes], title)
        else:
            sizes = ", ".join(map(str, self.sizes))
            said = f"no GPU: both kernels are right at {sizes} on the CPU's CUDA runtime, and nothing is compared"
            yield tables.Remarks([said], title)
            heads = ["size", *(f"{program}, s" for program in MODULE_PROGRAMS)]
            rows = [[str(size), *(self._emulated(program, size) for program in MODULE_PROGRAMS)] for size in self.sizes]
            yield tables.Table(heads, "rrr", rows, "what the CPU took to run them: not a GPU's times")
        rows = [[one.gpu, one.capability, f"{one.cores} cores", str(one.size), one.wording] for one in PUBLISHED]
        yield tables.Table(["GPU", "compute capability", "", "size", "factor"], "lrrrl", rows, "published, of whole programs")

    def _emulated(self, program: str, size: int) -> str:
        seconds = self._seconds.get(("kernel", program, size))
        return records.number(seconds) if seconds else "–"

    def _times_at(self, size: int) -> list[str]:
        cells = [str(size)]
        for part, scale in (("kernel", 1e3), ("wall", 1.0)):
            times = [self.seconds(part, program, size) for program in MODULE_PROGRAMS]
            ratio = self.ratio(part, size)
            both = " / ".join(records.number(scale * seconds) for seconds in times if seconds)
            cells += [both or "–", "–" if ratio is None else f"{ratio:.2f}"]
        return cells

    def draw(self, path: str) -> None:
        """Times above, ratios under them; left the sizes to 1000, right those from 1000 on."""
        rows = ["seconds", "wall", "kernel"] if self.of_gpu else ["wall"]
        ranges = (SMALL, LARGE) if self.of_gpu else (LARGE,)  # the published factors are of 1000 and 8000
        title = f"Shared memory: what it brings, {DTYPE}" if self.of_gpu else "Shared memory: the published factors (no GPU here)"
        with plots.figure(path, (10 if self.of_gpu else 6, 1.2 + 2.6 * len(rows)), title, self.caption()) as figure:
            panels = plots.panels(figure, len(rows), len(ranges))
            shown = [(name, sizes) for name in rows for sizes in ranges]
            for panel, (name, sizes) in zip(panels, shown, strict=True):
                if name == "seconds":
                    _draw_seconds(panel, self, sizes)
                else:
                    _draw_ratios(panel, self, name, sizes)
            for panel in panels[-len(ranges) :]:
                panel.set_xlabel("rows and columns of each matrix")


def _draw_seconds(panel: Any, results: Results, sizes: range) -> None:
    plots.plain(panel, f"time, {sizes[0]} to {sizes[-1]}")
    for part, style in (("wall", "--"), ("kernel", "-")):
        for program, color in ((WITHOUT, plots.OTHER), (WITH, plots.HERE)):
            points = [(n, seconds) for n in results.within(sizes) if (seconds := results.seconds(part, program, n))]
            if points:
                panel.plot(*zip(*points, strict=True), style, marker="o", markersize=3, color=color, label=f"{program}, {part}")
    panel.set_yscale("log")
    panel.set_ylabel("seconds")
    if sizes is SMALL:
        panel.legend(frameon=False, fontsize=8, handlelength=4, loc="best")


def _draw_ratios(panel: Any, results: Results, part: str, sizes: range) -> None:
    whole = {"wall": "whole programs by the wall clock", "kernel": "kernels by CUDA events"}
    plots.plain(panel, f"ratio without / with, {whole[part]}")
    points = [(n, ratio) for n in results.within(sizes) if (ratio := results.ratio(part, n))]
    if points:
        panel.plot(*zip(*points, strict=True), marker="o", markersize=3, color=plots.HERE, label="here")
    for one in PUBLISHED if part == "wall" else ():
        if sizes[0] <= one.size <= sizes[-1]:
            panel.plot(one.size, one.factor, "D", color=plots.LECTURE)
            inwards, side = (8, "left") if one.size == sizes[0] else (-8, "right")
            where = {"xytext": (inwards, 6), "textcoords": "offset points", "ha": side, "va": "center"}
            text = f"{one.gpu}: {one.wording}"
            panel.annotate(text, (one.size, one.factor), fontsize=8, color=plots.LECTURE, **where)
    panel.axhline(1, color=plots.GREY, linewidth=0.8)
    panel.set_xlim(sizes[0] - 0.04 * sizes[-1], 1.04 * sizes[-1])
    panel.set_yscale("log", base=2)
    ratios = [ratio for _, ratio in points]
    panel.set_ylim(min([0.7, *(0.9 * ratio for ratio in ratios)]), max([10.0, *(1.1 * ratio for ratio in ratios)]))
    panel.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    panel.set_ylabel("times faster")


def work(options: argparse.Namespace) -> int:
    memory = parse_bytes(options.gpu_memory) if options.gpu_memory else Settings.gather({}).gpu_memory
    if options.program:
        if options.picture or options.json or options.source:
            raise UsageError("one of the programs records and draws nothing: --picture, --json and --from are for the figure")
        program, *sizes = options.program
        if program not in MODULE_PROGRAMS or len(sizes) != 3 or not all(size.isdecimal() and int(size) for size in sizes):
            names = " and ".join(MODULE_PROGRAMS)
            raise UsageError(f"the programs are {names}, each with three sizes: A's rows, its columns, B's columns")
        a1, a2, b2 = map(int, sizes)
        run_program(program, cuda.runtime_for(options.device, memory), (a1, a2, b2), options.seed, check=not options.no_check)
        return 0
    return cli.present(options, Results, partial(_measured, memory=memory))


def _measured(options: argparse.Namespace, memory: int) -> Iterator[records.Line]:
    runtime = cuda.runtime_for(options.device, memory)
    if runtime.device == "emulate":
        sizes, wall_sizes = options.sizes or (EMULATED_QUICK if options.quick else EMULATED_SIZES), ()
    else:
        sizes = options.sizes or (QUICK_SIZES if options.quick else sorted({*SMALL, *LARGE}))
        wall_sizes = options.sizes or (QUICK_SIZES if options.quick else WALL_SIZES)
    yield from cuda.on(runtime, measured(runtime, sizes, wall_sizes))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.parser_for(__doc__)
    parser.add_argument("program", nargs="*", metavar="multNoShare|multShare A1 A2 B2", help="one of the module's programs")
    parser.add_argument("--seed", type=int, help="of its matrices (another one each time)")
    parser.add_argument("--no-check", action="store_true", help="do not verify the program's product, as the module does not")
    parser.add_argument("--gpu-memory", metavar="BYTES", help="memory that may be used of the GPU, or of the CPU in its place")
    parser.add_argument("--sizes", nargs="+", type=cli.at_least_1, metavar="N", help="sizes to measure")
    return cli.command(parser, work, arguments)
