# SPDX-License-Identifier: MIT
"""How fast is every kernel of the catalogue beside cuBLAS? python scripts/ladder.py [--json lines.jsonl] [--write] [--check]

On a GPU: for each type and size all rungs are checked against float64, then timed in turns with cuBLAS, in one run: in each
round every kernel runs once, in changing order. Prints a line for each as it comes: the median, and the median over the
rounds of cuBLAS' time / the kernel's. A rung whose launch takes more than --longest seconds is left out.

Anywhere: `--from lines.jsonl --write` makes the table in kernels/README.md and docs/ladder.svg from recorded lines, `--check`
ends with 1 when a target is missed, and `--loads` counts the loads of every element of A and B on the CPU.
"""

import argparse
import os
from collections.abc import Iterator, Sequence

from experiments.common import cli, records, tables
from experiments.lectures.ladder_results import ROW_BLOCK, Results, as_text, label, rungs_named, square
from experiments.lectures.ladder_timing import EXACT_CUBLAS, measure
from experiments.lectures.loads import count_loads, loads_table
from experiments.start import ROOT
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import UsageError
from hybrid.kernels.catalogue import OPERAND_SIZES, Kernel

README, PICTURE = ROOT / "kernels" / "README.md", ROOT / "docs" / "ladder.svg"
SIZES = (*map(square, (4096, 8000, 8192, 16384)), ROW_BLOCK)
RAGGED = (300, 40, 290)  # of no kernel's tile a multiple


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    sizes = " ".join(map(label, SIZES))
    parser.add_argument("--dtype", choices=tuple(OPERAND_SIZES), help="of A and B: only this one (all)")
    parser.add_argument("--sizes", nargs="+", type=cli.as_sizes, default=SIZES, metavar="N", help=f"N or NxLxM ({sizes})")
    parser.add_argument("--kernels", nargs="+", metavar="NAME", help="only these rungs, and cuBLAS (all)")
    parser.add_argument("--rounds", type=int, default=7, help="timings of each (7)")
    parser.add_argument("--longest", type=float, default=1.0, metavar="S", help="leave out what takes longer a launch (1.0)")
    cli.add_lines(parser)
    cli.add_page(parser, "kernels/README.md", "docs/ladder.svg")
    parser.add_argument("--loads", action="store_true", help="count loads on the CPU instead; needs a C++ compiler, no GPU")
    shape = ("N", "L", "M")
    parser.add_argument(
        "--shape", nargs=3, type=cli.at_least_1, default=RAGGED, metavar=shape, help="to count loads for (300 40 290)"
    )
    return cli.command(parser, work, arguments, failure=2)


def work(options: argparse.Namespace) -> int:
    kernels = rungs_named(options.kernels)
    dtypes = [options.dtype] if options.dtype else list(OPERAND_SIZES)
    if options.rounds < 1 or not options.longest > 0:
        raise UsageError("rounds and seconds must be more than 0")
    if options.loads:
        jobs = [(kernel, dtype) for dtype in dtypes for kernel in kernels if dtype in kernel.dtypes]
        counted = [count_loads(kernel, dtype, tuple(options.shape)) for kernel, dtype in cli.shown(jobs, "rungs")]
        print(*tables.printed([loads_table(counted)]), sep="\n")
        return 0 if all(one.as_they_should_be for one in counted) else 1
    if options.write:
        cli.refuse_page(README, "ladder")  # not after minutes
    results = Results(Results.recorded(options.source) if options.source else list(measured(options, dtypes, kernels)))
    if options.source and not (options.write or options.check):
        print(*map(as_text, results.lines), sep="\n")
    if options.write:
        cli.write_page(results, README, "ladder", PICTURE)
    return 0 if cli.checked(results, options) else 1


def measured(options: argparse.Namespace, dtypes: Sequence[str], kernels: Sequence[Kernel]) -> Iterator[records.Line]:
    """Prints and records each result as it comes."""
    os.environ.update(EXACT_CUBLAS)
    recorder = records.Recorder(Results.command, options.words, options.json)
    for line in measure(usable_gpus()[0], dtypes, options.sizes, kernels, options.rounds, options.longest):
        print(as_text(line), flush=True)
        yield recorder.keep(line)
