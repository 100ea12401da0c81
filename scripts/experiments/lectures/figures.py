# SPDX-License-Identifier: MIT
"""The figures of four lectures, measured beside the lectures' numbers: on a GPU by CUDA events; on the CPU's CUDA runtime
products are only checked."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from experiments.common import cuda, frame
from hybrid.commands.parser import svg_file
from hybrid.core.text import aligned
from hybrid.errors import DeviceUnavailable, UsageError
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, launch_of
from hybrid.reporting import markup


def _alone(runtime: cuda.Runtime, kernel: str, operands: tuple[np.ndarray, np.ndarray], repeat: int) -> dict[str, float]:
    return frame.spread(runtime.kernel_seconds(cuda.kernel_of(kernel), *operands, repeat))


_SHARES = {"multNoShare": "naive", "multShare": "tiled"}  # programs and their kernels, without and with shared memory
_SIZES = {  # usual and quick ones
    "cuda": ((*range(100, 1000, 100), *range(1000, 8001, 1000)), (200, 1000, 2000)),
    "emulate": ((64, 100, 130), (64,)),
}
# GPU, compute capability, cores, size, and how many times faster shared memory made the whole program, in the module's words.
_PUBLISHED = (
    ("GT 9600M", "1.1", "32 cores", "1000", "7"),
    ("GT 330M", "1.2", "48 cores", "1000", "towards 2"),
    ("C1060", "1.3", "240 cores", "1000", "about 1.1"),
    ("C1060", "1.3", "240 cores", "8000", "more than 6.5"),
    ("M2070", "2.0", "448 cores", "1000", "about 1.7"),
    ("M2070", "2.0", "448 cores", "8000", "2.6"),
)


class Hochberg(frame.Experiment):
    """With and without shared memory: python -m hybrid.lectures hochberg

    Section 2.4 of the matrix multiplication module, float32: the kernels of multNoShare and multShare against the matrices' size,
    and how many times faster shared memory makes them, by CUDA events. The published factors are of whole programs by the clock
    on the wall. Without a GPU the kernels run on the CPU's CUDA runtime: products are checked, and nothing is compared.
    """

    command, again = "lecture_hochberg", "python -m hybrid.lectures hochberg"
    options = (*frame.LECTURE, frame.option("--sizes", nargs="+", type=frame.positive, metavar="N", help="sizes to measure"))

    @classmethod
    def measured(cls, options: argparse.Namespace) -> Iterator[frame.Line]:
        runtime = cuda.Runtime(options.device)
        for size in frame.shown(options.sizes or _SIZES[runtime.device.name][options.quick], "kernels"):
            frame.refuse_too_large(size, size, size)
            operands = cuda.matrices("lecture", "float32", size, size, size)
            for program, kernel in _SHARES.items():
                seconds = _alone(runtime, kernel, operands, 7)
                yield {**runtime.about, "part": "kernel", "program": program, "size": size, "seconds": seconds}

    def blocks(self) -> Iterator[frame.Table]:
        seconds = {(line["size"], line["program"]): line["seconds"]["median"] for line in self.lines}
        sizes, rows = sorted({size for size, _ in seconds}), []
        for size in sizes:
            without, having = (seconds[size, program] for program in _SHARES)
            both = " / ".join(frame.number(1e3 * each) for each in (without, having)) if self.of_gpu else "right, without a GPU"
            rows.append([str(size), both, f"{without / having:.2f}" if self.of_gpu else "–"])
        yield frame.Table(["size", "kernel, ms", "ratio"], "rrr", rows, "float32, time without / with shared memory")
        heads = ["GPU", "compute capability", "", "size", "factor"]
        yield frame.Table(heads, "lrrrl", _PUBLISHED, "published, of whole programs")


_THREE = {"matmul1": ("naive", 13.8), "matmul2": ("tiled", 4.8)}  # the kernel of each, and the lecture's seconds on a K40c
_LOOPS = {"loops": "i j k", "loops_ikj": "i k j"}  # of the sequential program's loops, by kernel
N = 8000  # of the lecture
_SIDES = {"cuda": (N, 1000), "emulate": (200, 72)}  # usual and quick ones
_LEAST_EXTRAPOLATED = 500  # smaller matrices fit into caches, so their times say nothing of 8000


class Siegel(frame.Experiment):
    """Matrix multiplication in three programs: python -m hybrid.lectures siegel

    The CUDA lecture's seq (three loops on one core), matmul1 (one thread per element) and matmul2 (tiles in shared memory) at
    8000×8000 in float64, beside its 13.8 s and 4.8 s on a K40c. seq takes more than an hour there; here it is timed at smaller
    sizes, in both orders of the loops, and extrapolated where one is large enough to tell of 8000.

    Kernels are timed by CUDA events, and by the clock with allocation and copies. Without a GPU they run on the CPU's CUDA
    runtime at 200×200: products are checked, and nothing is said of their speed.
    """

    command, again = "lecture_siegel", "python -m hybrid.lectures siegel"
    options = (
        *frame.LECTURE,
        frame.option("--size", type=frame.positive, metavar="N", help=f"of the matrices ({N}; 200 without a GPU)"),
    )

    @classmethod
    def measured(cls, options: argparse.Namespace) -> Iterator[frame.Line]:
        runtime = cuda.Runtime(options.device)
        n = options.size or _SIDES[runtime.device.name][options.quick]
        frame.refuse_too_large(n, n, n, item=8)
        try:
            jobs = [(size, kernel) for size in ((100, 200) if options.quick else (250, 500, 1000)) for kernel in _LOOPS]
            for size, kernel in frame.shown(jobs, "seq"):
                seconds = frame.spread(cuda.loops_seconds(kernel, *cuda.matrices("uniform", "float64", size, size, size), 3))
                yield {**runtime.about, "part": "seq", "kernel": kernel, "n": size, "seconds": seconds}
        except DeviceUnavailable as missing:
            print(f"seq is left out: {missing}", file=sys.stderr)
        operands = cuda.matrices("uniform", "float64", n, n, n)
        for program, (kernel, _) in frame.shown(list(_THREE.items()), "kernels"):
            times = {"seconds": _alone(runtime, kernel, operands, 5)}
            times["whole"] = frame.spread(runtime.whole_seconds(cuda.kernel_of(kernel), *operands, 3 if runtime.gpu else 1))
            yield {**runtime.about, "part": "kernel", "program": program, "n": n, **times}

    def blocks(self) -> Iterator[frame.Table]:
        programs = {line["program"]: line for line in self.lines if line["part"] == "kernel"}
        rows = [
            [f"seq, {order}", "> 1 h" if kernel == "loops" else "", self._of_loops(kernel)] for kernel, order in _LOOPS.items()
        ]
        rows += [[program, f"{_THREE[program][1]:.1f} s", self._of_kernel(line)] for program, line in programs.items()]
        if self.of_gpu:
            one, two = (line["seconds"]["median"] for line in programs.values())
            rows.append(["ratio", f"{_THREE['matmul1'][1] / _THREE['matmul2'][1]:.1f}", f"{one / two:.2f}"])
        yield frame.Table(["program", "K40c (lecture)", "here"], "lrl", rows, f"{N}×{N}, float64: {N**3:,} multiplications")

    def _of_loops(self, kernel: str) -> str:
        """The time of the largest size, extrapolated."""
        lines = [line for line in self.lines if line.get("kernel") == kernel]
        if not lines:
            return "not measured"
        size, seconds = lines[-1]["n"], lines[-1]["seconds"]["median"]
        if size < _LEAST_EXTRAPOLATED:
            return f"{frame.duration(seconds)} at {size}, which says nothing of {N}"
        whole = frame.duration(seconds * (N / size) ** 3)
        return f"{whole}, extrapolated by n³ from {frame.duration(seconds)} at {size}; not measured"

    def _of_kernel(self, line: frame.Line) -> str:
        if not self.of_gpu:
            return f"right at {line['n']}, on the CPU's CUDA runtime"
        size = "" if line["n"] == N else f" at {line['n']}"
        alone, whole = (frame.duration(line[key]["median"]) for key in ("seconds", "whole"))
        return f"{alone}{size}, {whole} with allocation and copies"


_RUNS, _SIDE, _WIDTH = 5, 32, 1024  # runs, threads of a block's side, the lecture's width
_WIDTHS = {"cuda": (_WIDTH, 256), "emulate": (256, 128)}  # usual and quick ones
_PROGRAMS: dict[str, tuple[tuple[float, ...], float | None]] = {  # the lecture's milliseconds, and times faster
    "MM-CPU": ((41045.35, 40277.44, 40369.30, 40385.85, 40446.14), None),
    "MM-GPU-GM": ((52.5, 52.4, 52.4, 52.4, 52.6), 772),
    "MM-GPU-SM": ((24.4, 24.2, 24.3, 24.4, 24.4), 1664),
}


class TwoDimensions(frame.Experiment):
    """CUDA in two dimensions: python -m hybrid.lectures 2d

    The lecture's three programs, C = A·B of width 1024 in float32 with a[y][x] = b[y][x] = x + y·width: MM-CPU (three loops on
    one core), MM-GPU-GM (one thread per element) and MM-GPU-SM (tiles in shared memory), in blocks of 32×32. Five runs each, the
    average, and times faster; a GPU's runs span allocation, copies in, kernel and copy out, with the kernel alone beside them.
    Then the same at width 1000, where the lecture's programs leave out a part of C. Without a GPU the CPU's CUDA runtime runs
    smaller widths: products are checked, and times are no speeds.
    """

    command, again = "lecture_2d", "python -m hybrid.lectures 2d"
    options = (*frame.LECTURE, frame.option("--width", type=frame.positive, metavar="N", help="of all three programs"))

    @classmethod
    def measured(cls, options: argparse.Namespace) -> Iterator[frame.Line]:
        runtime = cuda.Runtime(options.device)
        width, of_cpu = (options.width or _WIDTHS[device][options.quick] for device in (runtime.device.name, "cuda"))
        frame.refuse_too_large(*[max(of_cpu, width)] * 3)
        a, b = cuda.matrices("index", "float32", of_cpu, of_cpu, of_cpu)
        about = {**runtime.about, "part": "programs"}
        try:
            times = [seconds for _ in frame.shown(range(_RUNS), "MM-CPU") for seconds in cuda.loops_seconds("loops", a, b, 1)]
            yield {**about, "program": "MM-CPU", "width": of_cpu, "runs": times, "kernel_seconds": None}
        except DeviceUnavailable as missing:
            print(f"MM-CPU is left out: {missing}", file=sys.stderr)
        kernels = {"MM-GPU-GM": cuda.with_block("naive", _SIDE), "MM-GPU-SM": cuda.kernel_of("tiled32")}
        for part, at in (("programs", width), ("ragged", 72 if options.quick else 1000)):
            a, b = cuda.matrices("index", "float32", at, at, at)
            for program, kernel in frame.shown(list(kernels.items()), f"width {at}"):
                times = runtime.whole_seconds(kernel, a, b, _RUNS if runtime.gpu else 1)
                alone = frame.spread(runtime.kernel_seconds(kernel, a, b, _RUNS)) if runtime.gpu else None
                yield {**about, "part": part, "program": program, "width": at, "runs": times, "kernel_seconds": alone}

    def blocks(self) -> Iterator[frame.Table]:
        heads = ["", "width", "five runs", "average", "times faster", "kernel alone", ""]
        yield frame.Table(heads, "lrlrrrl", list(self._rows()), "float32, a[y][x] = x + y·width; ms")
        about_ragged = []
        for line in (line for line in self.lines if line["part"] == "ragged"):
            program, width, covered = line["program"], line["width"], line["width"] // _SIDE * _SIDE
            terms = f" and the terms from k = {covered} on" if "SM" in program else ""
            left_out = f"{width**2 - covered**2:,} of {width**2:,} elements out{terms}"
            about_ragged.append(f"{program} at width {width}, no multiple of {_SIDE}: right; the lecture's leaves {left_out}")
        if about_ragged:
            yield frame.remarks(about_ragged, f"a width that is no multiple of {_SIDE}")

    def _rows(self) -> Iterator[list[str]]:
        programs = {line["program"]: line for line in self.lines if line["part"] == "programs"}
        cpu = programs.get("MM-CPU")
        for name, line in programs.items():
            yield [name, *_times(_WIDTH, *_PROGRAMS[name]), "", "lecture"]
            if name != "MM-CPU" and not self.of_gpu:
                yield ["", str(line["width"]), "right, on the CPU's CUDA runtime", "", "", "", "here"]
                continue
            comparable = cpu is not None and line is not cpu and line["width"] == cpu["width"]
            faster = fmean(cpu["runs"]) / fmean(line["runs"]) if cpu and comparable else None
            alone = f"{1e3 * line['kernel_seconds']['median']:.3f}" if line["kernel_seconds"] else ""
            yield ["", *_times(line["width"], [1e3 * seconds for seconds in line["runs"]], faster), alone, "here"]


def _times(width: int, runs: Sequence[float], faster: float | None) -> list[str]:
    mean = fmean(runs)
    digits = 2 if mean >= 1000 else 1 if mean >= 10 else 3
    five = " ".join(f"{ms:.{digits}f}" for ms in runs)
    return [str(width), five, f"{mean:.{max(2, digits)}f}", "" if faster is None else f"{faster:.0f}"]


_MOST_THREADS, _MOST_BLOCKS = 1024, {"x": 2**31 - 1, "y": 65_535}  # of a block, and blocks of a grid, on every GPU
Number = int | tuple[int, int]


def covering(rows: int, columns: int, x: int, y: int) -> dict[str, tuple[Any, str]]:
    """The numbers of a rows×columns matrix under blocks of x×y threads, one thread per element, and how each is computed.
    UsageError for a block too large for any GPU."""
    if (block := x * y) > _MOST_THREADS:
        raise UsageError(f"a block of {x}×{y} has {block} threads, and {_MOST_THREADS} are the most")
    across, down = -(-columns // x), -(-rows // y)
    blocks, threads, passing = across * down, across * down * block, rows * columns
    return {
        "threads a block": (block, f"{x} · {y}"),
        "grid": ((across, down), f"ceil({columns} / {x}) × ceil({rows} / {y})"),
        "blocks": (blocks, ""),
        "threads": (threads, f"{blocks:,} · {block:,}"),
        "pass the bounds test": (passing, f"{rows} · {columns}"),
        "have nothing to do": (threads - passing, ""),
    }


def tile_phase(tile: int) -> dict[str, tuple[Any, str]]:
    """A block's work on one pair of tile×tile tiles in shared memory: one multiplication and addition per thread and step."""
    return {"loads": (2 * tile**2, f"2 · {tile}²"), "operations": (tile**2 * 2 * tile, f"{tile}² · 2 · {tile}")}


# The documents' numbers of launches, beside computed ones.
_LAUNCHES: tuple[tuple[str, dict[str, tuple[Any, str]], dict[str, Number]], ...] = (
    ("exercise 3", covering(150, 300, 16, 32),
     {"threads a block": 512, "grid": (19, 5), "blocks": 95, "threads": 48_640, "pass the bounds test": 45_000}),
    ("figure 2.1", covering(70, 200, 32, 16), {"threads a block": 512, "grid": (7, 5), "blocks": 35}),
    ("100×200 · 200×500", covering(100, 500, 16, 16), {"pass the bounds test": 50_000}),
    ("slides, 1024²", covering(1024, 1024, 16, 16), {"threads a block": 256, "grid": (64, 64), "blocks": 4096}),
    ("slides, tile 16", tile_phase(16), {"loads": 512, "operations": 8192}),
)  # fmt: skip


def explained(rows: int, columns: int, x: int, y: int) -> Iterator[str]:
    """Lines that show how each number is computed."""

    def table(numbers: dict[str, tuple[Any, str]]) -> Iterator[str]:
        return aligned([[f"  {name}", _text(number), how] for name, (number, how) in numbers.items()], "lrl")

    yield f"C of {rows}×{columns} under blocks of {x}×{y} threads (x×y), one thread per element"
    numbers = covering(rows, columns, x, y)
    grid = numbers["grid"][0]
    yield from table(numbers)
    yield f"dim3 block({x}, {y}), grid({grid[0]}, {grid[1]});  // kernel<<<grid, block>>>(...)"
    if x != y:
        turned, blocks = (_text(covering(rows, columns, y, x)[name][0]) for name in ("grid", "blocks"))
        yield f"the other way round, blocks of {y}×{x}: a grid of {turned}, {blocks} blocks"
    for side, count in zip("xy", grid, strict=True):
        if count > _MOST_BLOCKS[side]:
            yield f"CUDA takes at most {_MOST_BLOCKS[side]:,} blocks in {side}: several launches, or several elements a thread"
    if x == y:
        yield f"with tiles of {x}×{x} in shared memory, a block and a pair of tiles:"
        yield from table(tile_phase(x))
        yield f"  loads a multiply-add  2/{x}  (without tiles 2)"


def _text(number: Number) -> str:
    return "×".join(map(str, number)) if isinstance(number, tuple) else f"{number:,}"


_MOST_DRAWN, _NUMBERED = 2000, 60  # most blocks that a picture shows, and that it numbers
_LONG, _LEFT, _TOP, _BELOW = 640, 64, 70, 60  # of the longer side, and around a grid
_STYLE = ".covered { fill-opacity: 0.15 } .edge { fill: none; stroke-width: 2 } .blocks { fill: none; stroke-width: 0.7 }\n"
_HATCHES = (
    '<pattern id="outside" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="stroke-second" d="M0 0V6" stroke-width="2"/></pattern>'
)


def draw_launch(path: str, rows: int, columns: int, x: int, y: int) -> None:
    """Draw blocks of x×y threads, and if x and y differ also of y×x threads. UsageError for too many."""
    grids = {way: covering(rows, columns, *way)["grid"][0] for way in ((x, y), (y, x))}
    if (most := max(map(math.prod, grids.values()))) > _MOST_DRAWN:
        raise UsageError(f"a picture of {most:,} blocks would be black: {_MOST_DRAWN:,} are the most")
    widths, heights = zip(*((across * way[0], down * way[1]) for way, (across, down) in grids.items()), strict=True)
    scale, title, top = _LONG / max(widths + heights), f"C of {rows}×{columns}, a thread for each element", 30.0
    drawn = [_HATCHES, markup.text(12, 20, title, more='style="font-weight: 600"')]
    for way, height in zip(grids, heights, strict=True):
        drawn += [f'<g transform="translate(0 {top:.0f})">', *_grid(rows, columns, *way, scale), "</g>"]
        top += _BELOW + scale * height
    markup.write_svg(path, title, (_LEFT + max(scale * max(widths) + 36, 400), top + 20), drawn, _STYLE)


def _grid(rows: int, columns: int, x: int, y: int, scale: float) -> Iterator[str]:
    (across, down), outside = (covering(rows, columns, x, y)[name][0] for name in ("grid", "have nothing to do"))
    counts = f"{across} × {down} = {across * down:,} blocks, {outside:,} threads lie outside of C"
    yield markup.text(12, 14, f"blocks of x = {x}, y = {y}: {counts}")
    width, height = across * x * scale, down * y * scale
    yield f'<g transform="translate({_LEFT} {_TOP - 30})">'
    yield markup.text(0, -6, f"column, x, to {columns} of {across * x}", "fill-soft")
    turned = 'text-anchor="end" transform="rotate(-90 -8 0)"'
    yield markup.text(-8, 0, f"row, y, to {rows} of {down * y}", "fill-soft", turned)
    yield f'<rect width="{width:.1f}" height="{height:.1f}" fill="url(#outside)"/>'
    inside = f'width="{columns * scale:.1f}" height="{rows * scale:.1f}"'
    yield f'<rect class="fill-ground" {inside}/><rect class="covered fill-first" {inside}/>'
    lines = "".join(f"M{line * x * scale:.1f} 0V{height:.1f}" for line in range(across + 1))
    lines += "".join(f"M0 {line * y * scale:.1f}H{width:.1f}" for line in range(down + 1))
    yield f'<path class="blocks stroke-ink" d="{lines}"/><rect class="edge stroke-first" {inside}/>'
    if across * down <= _NUMBERED and across <= 20:
        for block in range(across * down):
            at_y, at_x = divmod(block, across)
            yield markup.text(at_x * x * scale + 3, at_y * y * scale + 12, f"{at_x},{at_y}")
    yield "</g>"


_THREADS = {"naive": "nm", "row_per_thread": "n", "column_per_thread": "m"}  # a thread for each element, row, column
_OF_C, _OF_VECTOR = {"cuda": (1024, 256), "emulate": (96, 48)}, {"cuda": (16384, 4096), "emulate": (512, 128)}
_SLENDER = 16  # times the square C's rows, or columns, with the other sides a quarter: the same multiply-adds


def _threads(line: frame.Line) -> int:
    """The threads with work."""
    return math.prod(line[side] for side in _THREADS[line["kernel"]])


def _gigaflops(line: frame.Line) -> float:
    return float(2 * line["n"] * line["l"] * line["m"] / line["seconds"]["median"] / 1e9)


class Pmpp(frame.Experiment):
    """The exercises on multidimensional grids: python -m hybrid.lectures pmpp [--launch ROWS COLUMNS X Y]

    Exercise 1: a thread for each row of C and one for each column, beside a thread for each element, on a square, a tall and a
    wide C of the same work, float32. Exercise 2: a matrix times a vector. Exercise 3 and the other launches of the documents:
    --launch shows the arithmetic for any, and with --picture the blocks over C, both ways. Without a GPU C is 96×96, on the
    CPU's CUDA runtime: products are checked, and nothing is said of speed.
    """

    command, again = "lecture_pmpp", "python -m hybrid.lectures pmpp"
    options = (
        *frame.LECTURE,
        frame.option("--size", type=frame.positive, metavar="N", help="rows and columns of the square C"),
        frame.option("--launch", nargs=4, type=frame.positive, metavar=("ROWS", "COLUMNS", "X", "Y"),
                     help="only the arithmetic: X×Y threads a block"),
        frame.option("--picture", type=svg_file, metavar="FILE.svg", help="with --launch: draw the blocks over C"),
    )  # fmt: skip

    @classmethod
    def work(cls, options: argparse.Namespace) -> int:
        if not options.launch:
            if options.picture:
                raise UsageError("--picture draws the blocks of --launch")
            return super().work(options)
        print(*explained(*options.launch), sep="\n")
        if options.picture:
            draw_launch(options.picture, *options.launch)
        return 0

    @classmethod
    def measured(cls, options: argparse.Namespace) -> Iterator[frame.Line]:
        runtime = cuda.Runtime(options.device)
        size = options.size or _OF_C[runtime.device.name][options.quick]
        if size % 4:
            raise UsageError(f"--size {size}: a multiple of 4, for the tall C and the wide one")
        quarter, slender = size // 4, _SLENDER * size
        shapes = {"square": (size, size, size), "tall": (slender, quarter, quarter), "wide": (quarter, quarter, slender)}
        for shape in shapes.values():
            frame.refuse_too_large(*shape)
        for (form, (n, l, m)), kernel in frame.shown([*product(shapes.items(), _THREADS)], "exercise 1"):
            seconds = _alone(runtime, kernel, cuda.matrices("uniform", "float32", n, l, m), 7)
            about = {**runtime.about, "part": "exercise 1", "kernel": kernel, "form": form}
            yield {**about, "n": n, "l": l, "m": m, "seconds": seconds}
        n = _OF_VECTOR[runtime.device.name][options.quick]
        operands = cuda.matrices("uniform", "float32", n, n, 1)
        for kernel in frame.shown(("matvec", "matvec_warp"), "exercise 2"):
            yield {
                **runtime.about,
                "part": "exercise 2",
                "kernel": kernel,
                "n": n,
                "seconds": _alone(runtime, kernel, operands, 7),
            }

    def blocks(self) -> Iterator[frame.Table]:
        heads, rows = ["C", "n×l · l×m", "kernel", "launch", "threads", *(["time", "GF/s"] if self.of_gpu else ["product"])], []
        by_form: dict[str, list[frame.Line]] = {}
        for line in (line for line in self.lines if line["part"] == "exercise 1"):
            by_form.setdefault(line["form"], []).append(line)
            shape = f"{line['n']}×{line['l']} · {line['l']}×{line['m']}"
            speed = [frame.duration(line["seconds"]["median"]), f"{_gigaflops(line):.4g}"] if self.of_gpu else ["right"]
            rows.append([line["form"], shape, line["kernel"], _launch(line), f"{_threads(line):,}", *speed])
        yield frame.Table(heads, "llllrrr"[: len(heads)], rows, "exercise 1, float32")
        yield frame.remarks([*map(self._compared, by_form.values())], "for and against")
        rows = []
        for line in (line for line in self.lines if line["part"] == "exercise 2"):
            n, seconds = line["n"], line["seconds"]["median"]
            said = f"{frame.duration(seconds)}, {4 * n * n / seconds / 1e9:.4g} GB/s of the matrix"
            rows.append([line["kernel"], f"{n}×{n}", said if self.of_gpu else "right"])
        yield frame.Table(["kernel", "matrix", "outcome"], "lll", rows, "exercise 2, a matrix times a vector")
        rows = [[source, name, _text(number), _text(computed[name][0])] for source, computed, told in _LAUNCHES
                for name, number in told.items()]  # fmt: skip
        yield frame.Table(["source", "number", "lecture", "computed"], "llrr", rows, "launches")

    def _compared(self, lines: Sequence[frame.Line]) -> str:
        """The three kernels on one form of C."""
        by_elements, by_rows, by_columns = (f"{_threads(line):,}" for line in lines)
        said = f"{lines[0]['form']}: {by_rows} threads by rows, {by_columns} by columns, {by_elements} by elements"
        if not self.of_gpu:
            return said
        elements, *others = map(_gigaflops, lines)
        (fast, better), (slow, worse) = sorted(zip(others, ("rows", "columns"), strict=True), reverse=True)
        return f"{said}; {better} {fast / slow:.3g} × as fast as {worse}, elements {elements / fast:.3g} × as fast as {better}"


def _launch(line: frame.Line) -> str:
    """Grid and block as in <<<grid, block>>>; sides of 1 are left out, as dim3 allows."""
    launch = launch_of(cuda.kernel_of(line["kernel"]), "float32", line["n"], line["m"], EMULATED_CAPABILITY)
    grid, block = (", ".join(map(str, side if side[1] > 1 else side[:1])) for side in (launch.grid, launch.block))
    return f"grid({grid}), block({block})"
