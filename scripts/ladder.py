"""How fast is every kernel of the catalogue beside cuBLAS? python scripts/ladder.py [--json lines.jsonl] [--write] [--check]

On a GPU: for each type and size all rungs are checked against float64, then timed in turns with cuBLAS, in one run: in each
round every kernel runs once, in changing order. Prints a line for each as it comes: the median, and the median over the
rounds of cuBLAS' time / the kernel's. A rung whose launch takes more than --longest seconds is left out.

Anywhere: `--from lines.jsonl --write` makes the table in kernels/README.md and docs/ladder.svg from recorded lines, `--check`
ends with 1 when a target is missed, and `--loads` counts the loads of every element of A and B on the CPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import ladder_picture
import numpy as np
from ladder_bench import EXACT_CUBLAS, measure
from ladder_table import (
    ROW_BLOCK,
    Line,
    Results,
    Shape,
    form_of,
    label,
    loads_of_elements,
    recorded,
    rungs_named,
    shape_of,
    square,
    table,
    verdicts,
)
from markers import rewrite
from tqdm import tqdm

from hybrid.core.problem import copy_width
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.errors import HybridError, UsageError, one_line
from hybrid.host import files
from hybrid.kernels.catalogue import BOTH, EMULATED_CAPABILITY, Kernel, launch_of
from hybrid.kernels.sources import KERNELS
from hybrid.reporting import jsonl

ROOT = Path(__file__).resolve().parent.parent
README, PICTURE = ROOT / "kernels" / "README.md", ROOT / "docs" / "ladder.svg"
SIZES = (*map(square, (4096, 8000, 8192, 16384)), ROW_BLOCK)
RAGGED = (300, 40, 290)  # of no kernel's tile a multiple


# --- loads, counted


@dataclass(frozen=True)
class Loads:
    """Loads of an element of A and of B: the least, the most, the mean; and what they should be."""

    kernel: str
    dtype: str
    a: tuple[float, float, float]
    b: tuple[float, float, float]
    per_multiply_add: float
    formula: tuple[int, int]
    formula_per_multiply_add: float

    @property
    def as_they_should_be(self) -> bool:
        return self.a == (self.formula[0],) * 3 and self.b == (self.formula[1],) * 3


def count_loads(kernel: Kernel, dtype: str, shape: Shape, capability: int = EMULATED_CAPABILITY) -> Loads:
    """Run the kernel on the CPU that stands for a GPU, which counts. DeviceUnavailable without a C++ compiler."""
    n, l, m = shape
    matrices = [np.ones((rows, columns), dtype) for rows, columns in ((n, l), (l, m), (n, m))]
    numbers = [number for matrix in matrices for number in (matrix.ctypes.data, matrix.strides[0])]
    launch = launch_of(kernel, dtype, n, m, capability, copy_width(np.dtype(dtype).itemsize, numbers))
    run = EmulatedKernel(KERNELS / launch.source, launch.expression, capability, checks="loads")
    run(launch.grid, launch.block, launch.shared_bytes, matrices)
    assert run.loads is not None
    formula = loads_of_elements(kernel.name, form_of(kernel, dtype, capability).tile, shape)
    a, b = ((float(count.min()), float(count.max()), float(count.mean())) for count in (run.loads.a, run.loads.b))
    total = float(run.loads.a.sum() + run.loads.b.sum())
    return Loads(kernel.name, dtype, a, b, total / (n * l * m), formula, formula[0] / m + formula[1] / n)


def loads_table(counted: Iterable[Loads]) -> Iterator[str]:
    """Aligned lines under two of headings."""
    yield f"{'':26}{'loads of an element of A':^30}{'loads of an element of B':^30}{'per multiply-add':^20}"
    of_matrix = f"{'least':>6}{'most':>6}{'mean':>8}{'formula':>9} "
    yield f"{'rung':18}{'dtype':8}{of_matrix}{of_matrix}{'counted':>10}{'formula':>9}"
    for one in counted:
        parts = ""
        for (least, most, mean), due in zip((one.a, one.b), one.formula, strict=True):
            parts += f"{least:6g}{most:6g}{mean:8.2f}{due:9d} "
        note = "" if one.as_they_should_be else "  differs"
        yield f"{one.kernel:18}{one.dtype:8}{parts}{one.per_multiply_add:10.4f}{one.formula_per_multiply_add:9.4f}{note}"


# --- the command


def as_shape(text: str) -> Shape:
    """From 8192 or 1000x8000x8000."""
    lengths = [int(length) if length.isdecimal() else 0 for length in text.split("x")]
    if len(lengths) not in (1, 3) or min(lengths) < 1:
        raise argparse.ArgumentTypeError(f"{text} is neither N nor NxLxM")
    return square(lengths[0]) if len(lengths) == 1 else (lengths[0], lengths[1], lengths[2])


def as_text(line: Line) -> str:
    what = f"{line['kernel']:18} {line['dtype']} {label(shape_of(line)):12}"
    if not line["seconds"]:
        return f"{what} left out: a launch takes about {line['launch_seconds']:.1f} s"
    speed = f"{1e3 * line['seconds']['median']:9.3f} ms {line['teraflops']:7.2f} TF/s  {line['ratio']:.4f} × cuBLAS"
    return f"{what} {speed}" + (f"  {line['registers']} registers" if line["registers"] else "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=BOTH, help="only this one (both)")
    parser.add_argument(
        "--sizes", nargs="+", type=as_shape, default=SIZES, metavar="N", help=f"N or NxLxM ({' '.join(map(label, SIZES))})"
    )
    parser.add_argument("--kernels", nargs="+", metavar="NAME", help="only these rungs, and cuBLAS (all)")
    parser.add_argument("--rounds", type=int, default=7, help="timings of each (7)")
    parser.add_argument("--longest", type=float, default=1.0, metavar="S", help="leave out what takes longer a launch (1.0)")
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument("--json", metavar="FILE", help="append a line for each result")
    lines.add_argument("--from", metavar="FILE", dest="source", help="take these lines, measure nothing; needs no GPU")
    parser.add_argument("--write", action="store_true", help="the table in kernels/README.md, and docs/ladder.svg")
    parser.add_argument("--check", action="store_true", help="are the targets reached?")
    parser.add_argument("--loads", action="store_true", help="count loads on the CPU instead; needs a C++ compiler, no GPU")
    shape = ("N", "L", "M")
    parser.add_argument("--shape", nargs=3, type=int, default=RAGGED, metavar=shape, help="to count loads for (300 40 290)")
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except (HybridError, OSError) as error:
        print(f"{parser.prog}: {one_line(error)}", file=sys.stderr)
        return max(2, getattr(error, "exit_code", 2))


def run(options: argparse.Namespace) -> int:
    kernels = rungs_named(options.kernels)
    dtypes = [options.dtype] if options.dtype else list(BOTH)
    if min(options.rounds, *options.shape) < 1 or not options.longest > 0:
        raise UsageError("sizes, rounds and seconds must be more than 0")
    if options.loads:
        jobs = [(kernel, dtype) for dtype in dtypes for kernel in kernels if dtype in kernel.dtypes]
        bar = tqdm(jobs, desc="rungs", leave=False, disable=not sys.stderr.isatty())
        counted = [count_loads(kernel, dtype, tuple(options.shape)) for kernel, dtype in bar]
        print(*loads_table(counted), sep="\n")
        return 0 if all(one.as_they_should_be for one in counted) else 1
    if options.write:
        ladder_picture.refuse_without_matplotlib()  # not after minutes
    lines = recorded(options.source) if options.source else measured(options, dtypes, kernels)
    results = Results(lines)
    if options.source and not (options.write or options.check):
        print(*map(as_text, results), sep="\n")
    if options.write:
        ladder_picture.draw(results, PICTURE)
        rewrite(README, "ladder", table(results, os.path.relpath(PICTURE, README.parent)))
    judged = verdicts(results) if options.check else []
    for verdict in judged:
        print("pass  " if verdict.passed else "MISSED", verdict.text)
    return 0 if all(verdict.passed for verdict in judged) else 1


def measured(options: argparse.Namespace, dtypes: Sequence[str], kernels: Sequence[Kernel]) -> list[Line]:
    """Prints and records each result as it comes: what a run that is cut short has measured stays."""
    if options.json:
        files.refuse_unwritable(options.json)
    os.environ.update(EXACT_CUBLAS)
    lines = []
    for line in measure(usable_gpus()[0], dtypes, options.sizes, kernels, options.rounds, options.longest):
        tqdm.write(as_text(line))
        sys.stdout.flush()
        if options.json:
            jsonl.write(line, options.json)
        lines.append(line)
    return lines


if __name__ == "__main__":
    sys.exit(main())
