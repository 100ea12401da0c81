# SPDX-License-Identifier: MIT
"""Every kernel of the catalogue beside cuBLAS, and the loads of its elements."""

import argparse
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from experiments.common import frame
from experiments.common.cuda import ProductCheck, kernel_of, launch_on
from experiments.common.frame import Line
from hybrid.classroom.cuda_run import resources
from hybrid.core.settings import one_of
from hybrid.devices.cuda_gpus import free_bytes, usable_gpus
from hybrid.devices.cuda_kernels import CompiledKernel, Multiply, multiplication
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.errors import DoesNotFit, UsageError
from hybrid.kernels import catalogue
from hybrid.planning.decision import Gpu
from hybrid.reporting import markup
from hybrid.testing.checked_kernels import not_a_number, spread_of, stored

Shape = tuple[int, int, int]  # n, l, m

YARDSTICK = "cublas"
ROW_BLOCK = (1000, 8000, 8000)  # one of eight ranks' part of 8000×8000
PICTURED = (8192,) * 3
# The catalogue's GPU kernels for matrices, from the first to the fastest, without the yardstick.
RUNGS = [kernel for kernel in catalogue.CATALOGUE if kernel.device == "cuda" and kernel.source and not kernel.vectors_only]


def label(shape: Shape) -> str:
    """4096, 1000×8000² or 100×60×90."""
    n, l, m = shape
    if n == l == m:
        return str(n)
    return f"{n}×{l}²" if l == m else f"{n}×{l}×{m}"


def shape_of(line: Line) -> Shape:
    return line["n"], line["l"], line["m"]


def unit_of(dtype: str) -> str:
    """The unit of a record's teraflops."""
    return "TOPS" if dtype in catalogue.BYTES else "TF/s"


_NAMES, _BAR, _LONGEST = 116, 17, 220  # pixels: width of names, height of a bar, length of the longest bar


def _names(dtype: str) -> list[str]:
    return [*(kernel.name for kernel in RUNGS if dtype in kernel.dtypes), YARDSTICK]


def _resources(line: Line) -> list[str]:
    if line["tile"] is None:
        return ["–"] * 4
    down, across = (str(length) if length != catalogue.ALL else name for length, name in zip(line["tile"], "nm", strict=True))
    spilled = f", {line['spills']} bytes spilled" if line["spills"] else ""
    loads = loads_per_multiply_add(line["kernel"], line["tile"])
    return [f"{down}×{across}", f"{line['registers']}{spilled}", f"{line['shared'] / 1024:.4g} KiB", str(loads)]


def _speed(line: Line | None) -> str:
    if line is None:
        return "–"
    rate = f"{line['teraflops']:.{1 if line['teraflops'] >= 10 else 2}f}"
    return rate if line["kernel"] == YARDSTICK else f"{rate} ({100 * line['ratio']:.1f} %)"


ALONE = ("naive", "row_per_thread", "column_per_thread")  # every thread loads all of its operands
Counts = tuple[float, float, float]  # loads of an element: the least, the most, the mean


def tile_of(kernel: catalogue.Kernel, dtype: str, capability: int) -> tuple[int, ...]:
    """The tile of C on a GPU of this compute capability (times ten)."""
    return next(form.tile for form in kernel.forms[dtype] if form.capability <= capability)


def loads_of_elements(kernel: str, tile: Sequence[int], shape: Shape) -> tuple[int, int]:
    """The loads of each element of A and of B, by the kernel's tile of C."""
    n, _, m = shape
    return (m, n) if kernel in ALONE else (-(-m // tile[1]), -(-n // tile[0]))


def loads_per_multiply_add(kernel: str, tile: Sequence[int]) -> Fraction:
    return Fraction(2) if kernel in ALONE else Fraction(1, tile[0]) + Fraction(1, tile[1])


def count_loads(kernel: catalogue.Kernel, dtype: str, shape: Shape) -> tuple[Counts, Counts]:
    """The loads of A and of B, counted by the emulated GPU. DeviceUnavailable without a C++ compiler."""
    n, l, m = shape
    types = catalogue.storage(dtype), catalogue.storage(dtype), catalogue.sums_type(dtype)
    matrices = [np.ones(shape, of_matrix) for shape, of_matrix in zip(((n, l), (l, m), (n, m)), types, strict=True)]
    launch = launch_on(kernel, dtype, matrices, catalogue.EMULATED_CAPABILITY)
    run = EmulatedKernel(catalogue.KERNELS / launch.source, launch.expression, catalogue.EMULATED_CAPABILITY, checks="loads")
    run(launch.grid, launch.block, launch.shared_bytes, matrices)
    a, b = ((float(count.min()), float(count.max()), float(count.mean())) for count in run.reads[:2])
    return a, b


def show_loads(kernels: Sequence[catalogue.Kernel], dtypes: Sequence[str], shape: Shape) -> int:
    """Print counts beside formulas; returns 1 if they differ."""
    heads = ["rung", "dtype", *(f"{matrix}: {what}" for matrix in "AB" for what in ("least", "most", "mean", "formula"))]
    n, _, m = shape
    rows, differs = [], 0
    jobs = [(kernel, dtype) for dtype in dtypes for kernel in kernels if dtype in kernel.dtypes]
    for kernel, dtype in frame.shown(jobs, "rungs"):
        counts = count_loads(kernel, dtype, shape)
        formulas = loads_of_elements(kernel.name, tile_of(kernel, dtype, catalogue.EMULATED_CAPABILITY), shape)
        both = [*zip(counts, formulas, strict=True)]
        told = [(f"{least:g}", f"{most:g}", f"{mean:.2f}", str(formula)) for (least, most, mean), formula in both]
        right = all(each == (formula,) * 3 for each, formula in both)
        differs += not right
        per_term = [f"{of_a / m + of_b / n:.4f}" for of_a, of_b in ((counts[0][2], counts[1][2]), formulas)]
        rows.append([kernel.name, dtype, *told[0], *told[1], *per_term, "" if right else "differs"])
    heads += ["per multiply-add", "formula", ""]
    frame.show(frame.Table(heads, "ll" + "r" * 10 + "l", rows, "loads of an element"))
    return min(differs, 1)


# Keep cuBLAS from using lower precision. It reads these variables when it is loaded.
EXACT_CUBLAS = {"NVIDIA_TF32_OVERRIDE": "0", "CUBLAS_EMULATE_DOUBLE_PRECISION": "0", "CUBLAS_EMULATE_SINGLE_PRECISION": "0"}
TIMED, WARM_UP = 0.08, 0.02  # seconds of one timing, and of launches just before it, since the GPU's clock depends on the load
NO_WARM_UP = 0.25  # seconds of a launch that needs no warm-up
PROBE = 64  # a probe multiplies 1/64 of l, to estimate whether a launch takes seconds or minutes
PROBE_UNIT = 16  # a probe's l is a multiple of this: cuBLAS needs multiples of four for bytes
# Rounding errors of random numbers are about a fifth of eps·|row|·|column|, and at most one or two of it among millions of
# elements. TF32's would be thousands of it, over √l. Tensor cores do not round to nearest when they add.
ROUNDINGS, ROUNDINGS_OF_HALVES = 16, 64


class Bench:
    """A GPU and new random matrices of one type and shape on it. C is filled with NaN, or a number that no product gives."""

    def __init__(self, gpu: Gpu, dtype: str, shape: Shape) -> None:
        import cupy

        self._cupy, self._gpu, self._dtype = cupy, gpu, dtype
        (n, l, m), of_sums, item = shape, np.dtype(catalogue.sums_type(dtype)), catalogue.OPERAND_SIZES[dtype]
        cupy.get_default_memory_pool().free_all_blocks()
        needed = (item + of_sums.itemsize) * (n * l + l * m) + of_sums.itemsize * n * m + 2 * 8 * l * max(n, m)
        if needed > (free := free_bytes(gpu)):
            raise DoesNotFit(f"{dtype} {label(shape)} needs {needed / 2**30:.1f} GiB, the GPU has {free / 2**30:.1f} GiB free")
        random, of_random = cupy.random.default_rng(), np.float32 if dtype in (*catalogue.HALVES, *catalogue.BYTES) else of_sums
        a, b = (stored(spread_of(dtype) * random.standard_normal(size, dtype=of_random), dtype) for size in ((n, l), (l, m)))
        self._nothing = not_a_number(of_sums.name)
        self._operands = a, b, cupy.full((n, m), self._nothing, of_sums)
        # Column-major where cuBLAS has fast kernels only for that; the conversion is not timed.
        self._of_yardstick = (a, cupy.asfortranarray(b), self._operands[2]) if dtype in catalogue.BYTES else self._operands
        if dtype not in catalogue.BYTES:
            a, b = (catalogue.numbers_of(operand).astype(of_sums, copy=False) for operand in (a, b))
        self._check = ProductCheck(a, b, ROUNDINGS_OF_HALVES if dtype in catalogue.HALVES else ROUNDINGS)

    def _seconds(self, multiply: Multiply, operands: tuple[Any, Any, Any], launches: int = 1, warm_up: int = 0) -> float:
        """The mean seconds of these launches."""
        begin, end, stream = self._cupy.cuda.Event(), self._cupy.cuda.Event(), self._cupy.cuda.get_current_stream()
        for _ in range(warm_up):
            multiply.prepared(*operands)(stream)
        begin.record()
        for _ in range(launches):
            multiply.prepared(*operands)(stream)
        end.record()
        end.synchronize()
        return self._cupy.cuda.get_elapsed_time(begin, end) / 1e3 / launches

    def prepared(self, kernel: catalogue.Kernel, multiply: Multiply, longest: float) -> Callable[[], float] | None:
        """Check the kernel's product; returns what times a launch, or None if that takes too long. CheckFailed if it is wrong."""
        a, b, c = operands = self._of_yardstick if kernel.name == YARDSTICK else self._operands
        most = math.inf if kernel.name == YARDSTICK else longest
        part = PROBE_UNIT * -(-a.shape[1] // (PROBE * PROBE_UNIT))
        short = a[:, :part], b[:part], c
        self._seconds(multiply, short)  # may compile
        if self._seconds(multiply, short) * a.shape[1] / part > most:
            return None
        c.fill(self._nothing)
        launch = self._seconds(multiply, operands)
        self._check.refuse_wrong(f"kernel {kernel.name}", c)
        if launch < TIMED:  # the first launch included loading the code
            launch = self._seconds(multiply, operands)
        if launch > most:
            return None
        warm_up = math.ceil(WARM_UP / launch) if launch < NO_WARM_UP else 0
        return partial(self._seconds, multiply, operands, math.ceil(TIMED / launch), warm_up)

    def resources(self, kernel: catalogue.Kernel, multiply: Multiply) -> Line:
        """The kernel's registers, shared memory and spills; unknown for cuBLAS."""
        if not isinstance(multiply, CompiledKernel):
            return dict.fromkeys(("expression", "tile", "registers", "shared", "spills"))
        launch = launch_on(kernel, self._dtype, self._operands, self._gpu.capability)
        registers, shared, spills = resources(multiply.compiled(launch))  # of the timed instance
        about = {"tile": tile_of(kernel, self._dtype, self._gpu.capability), "registers": registers, "spills": spills}
        return {"expression": launch.expression, **about, "shared": shared + launch.shared_bytes}


def summary(seconds: Sequence[float], yardstick: Sequence[float], products: int) -> Line:
    """A kernel's numbers, from the seconds of all rounds and its multiply-adds; None without times."""
    if not seconds:
        return {"seconds": None, "teraflops": None, "ratio": None}
    times = frame.spread(seconds)
    ratio = statistics.median(theirs / ours for theirs, ours in zip(yardstick, seconds, strict=True))
    return {"seconds": times, "teraflops": 2 * products / times["median"] / 1e12, "ratio": ratio}


SIZES = (*((n,) * 3 for n in (4096, 8000, 8192, 16384)), ROW_BLOCK)
RAGGED = (300, 40, 290)  # multiples of no kernel's tile


class Ladder(frame.MachineExperiment):
    """How fast is every kernel of the catalogue beside cuBLAS? python -m hybrid.lectures ladder [--json lines.jsonl]

    On a GPU: for each type and size all rungs are checked against float64, then timed in turns with cuBLAS: in each round every
    kernel runs once, in changing order. Speeds are from medians; percentages are the median over the rounds of cuBLAS's time /
    the kernel's. A rung whose launch takes more than --longest seconds is left out.

    `--loads` counts the loads of every element of A and B, on the CPU.
    """

    command, again = "ladder", "python -m hybrid.lectures ladder"
    options = (
        frame.option("--dtype", choices=tuple(catalogue.OPERAND_SIZES), help="of A and B: only this one (all)"),
        frame.option("--sizes", nargs="+", type=frame.sizes, default=(), metavar="N",
                     help=f"N or NxLxM ({' '.join(map(label, SIZES))}; of recorded lines all)"),
        frame.option("--kernels", nargs="+", metavar="NAME", help="only these rungs, and cuBLAS (all)"),
        frame.option("--rounds", type=frame.positive, default=7, help="timings of each (7)"),
        frame.option("--longest", type=float, default=1.0, metavar="S", help="leave out kernels whose launch takes longer (1.0)"),
        frame.option("--loads", action="store_true", help="count loads on the CPU instead; needs a C++ compiler, no GPU"),
        frame.option("--shape", nargs=3, type=frame.positive, default=RAGGED, metavar=("N", "L", "M"),
                     help="of --loads (300 40 290)"),
    )  # fmt: skip

    @classmethod
    def work(cls, options: argparse.Namespace) -> int:
        for name in options.kernels or ():
            one_of("rung", name, [kernel.name for kernel in RUNGS])
        options.rungs = [kernel for kernel in RUNGS if not options.kernels or kernel.name in options.kernels]
        options.dtypes = [options.dtype] if options.dtype else list(catalogue.OPERAND_SIZES)
        if not options.longest > 0:
            raise UsageError("--longest must be more than 0")
        if options.loads:
            return show_loads(options.rungs, options.dtypes, tuple(options.shape))
        return super().work(options)

    @classmethod
    def measured(cls, options: argparse.Namespace) -> Iterator[Line]:
        """A line for each kernel, type and shape that the GPU is capable of; all of one type and shape are timed in turns."""
        os.environ.update(EXACT_CUBLAS)
        gpu = usable_gpus()[0]
        import cupy
        from cupy_backends.cuda.libs import cublas

        cupy.cuda.Device(gpu.index).use()
        cuda, library = cupy.cuda.runtime.driverGetVersion(), cublas.getVersion(cupy.cuda.device.get_cublas_handle())
        software = {"driver": f"for CUDA {cuda // 1000}.{cuda % 1000 // 10}", "cupy": cupy.__version__, "cublas": library}
        about = {**software, "gpu": gpu.name, "capability": gpu.capability, "rounds": options.rounds}
        for dtype in options.dtypes:
            able = [
                each for each in (*options.rungs, kernel_of(YARDSTICK)) if not catalogue.refusal(each, dtype, 2, gpu.capability)
            ]
            multiplications = [(kernel, multiplication(kernel, dtype, gpu.capability)) for kernel in able]
            for shape in options.sizes or SIZES:
                try:
                    bench = Bench(gpu, dtype, shape)
                except DoesNotFit as refused:
                    print(f"left out: {refused}", file=sys.stderr)
                    continue
                prepared = {
                    kernel.name: bench.prepared(kernel, multiply, options.longest) for kernel, multiply in multiplications
                }
                works = {name: work for name, work in prepared.items() if work}
                seconds = frame.in_turns(works, options.rounds, f"{dtype} {label(shape)}")
                n, l, m = shape
                for kernel, multiply in multiplications:
                    numbers = summary(seconds.get(kernel.name, []), seconds[YARDSTICK], n * l * m)
                    size = {"kernel": kernel.name, "dtype": dtype, "n": n, "l": l, "m": m}
                    yield {**about, **size, **numbers, **bench.resources(kernel, multiply)}
                del bench, prepared, works  # free its memory for the next

    @classmethod
    def recorded(cls, options: argparse.Namespace) -> list[Line]:
        kernels, lines = {*(kernel.name for kernel in options.rungs), YARDSTICK}, super().recorded(options)
        lines = [line for line in lines if line["kernel"] in kernels and line["dtype"] in options.dtypes]
        lines = [line for line in lines if not options.sizes or shape_of(line) in options.sizes]
        if not lines:
            raise UsageError(f"{options.source} has no lines of these rungs, types and sizes")
        return lines

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = {(line["kernel"], line["dtype"], shape_of(line)): line for line in lines}
        super().__init__(list(self._lines.values()))
        self.dtypes = [dtype for dtype in catalogue.OPERAND_SIZES if any(line["dtype"] == dtype for line in self.lines)]

    @staticmethod
    def machine_of(line: Line) -> str:
        return line["gpu"]

    def of(self, kernel: str, dtype: str, shape: Shape) -> Line | None:
        """None: not measured, or too slow."""
        line = self._lines.get((kernel, dtype, shape))
        return line if line and line["seconds"] else None

    def machine(self) -> str:
        last = self.lines[-1]
        major, minor, patch = last["cublas"] // 10000, last["cublas"] // 100 % 100, last["cublas"] % 100
        return f"{last['gpu']}, driver {last['driver']}, CuPy {last['cupy']}, cuBLAS {major}.{minor}.{patch}"

    def blocks(self) -> Iterator[frame.Table]:
        # Squares first, by size.
        shapes = sorted({shape_of(line) for line in self.lines}, key=lambda shape: (len(set(shape)) > 1, shape))
        for dtype in self.dtypes:
            heads = ["rung", "tile of C", "registers", "shared memory", "loads per multiply-add", *map(label, shapes)]
            rows = []
            for kernel in _names(dtype):
                if lines := [line for line in self.lines if (line["kernel"], line["dtype"]) == (kernel, dtype)]:
                    rows.append([kernel, *_resources(lines[0]), *(_speed(self.of(kernel, dtype, shape)) for shape in shapes)])
            yield frame.Table(heads, "ll" + "r" * (len(heads) - 2), rows, f"{dtype}, {unit_of(dtype)} (and % of cuBLAS)")

    def draw(self, path: str) -> None:
        """Bars of each rung's TF/s at 8192, and cuBLAS's; each dtype has its own scale."""
        drawn, y = [], 20.0
        for dtype in self.dtypes:
            speeds = {name: line["teraflops"] for name in _names(dtype) if (line := self.of(name, dtype, PICTURED))}
            drawn.append(markup.text(12, y, f"{dtype}, {unit_of(dtype)}", more='style="font-weight: 600"'))
            for name, speed in speeds.items():
                y, long = y + _BAR, _LONGEST * speed / max(speeds.values())
                drawn.append(markup.text(_NAMES - 5, y, name, more='text-anchor="end"'))
                kind = "fill-second" if name == YARDSTICK else "fill-first"
                drawn.append(markup.rectangle(_NAMES, y - 11, long, _BAR - 3, kind))
                drawn.append(markup.text(_NAMES + long + 4, y, f"{speed:.1f}"))
            y += 2 * _BAR
        title = f"Matrices of {label(PICTURED)}×{label(PICTURED)} on {self.lines[-1]['gpu']}"
        markup.write_svg(path, title, (_NAMES + _LONGEST + 50, y), [*drawn, markup.text(12, y - _BAR / 2, title, "fill-soft")])
