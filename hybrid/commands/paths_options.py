# SPDX-License-Identifier: MIT
"""The options of `python -m hybrid.paths`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hybrid.commands.parser import Parser, add_job_options, at_least, file_name
from hybrid.core.problem import ITEM_SIZES
from hybrid.core.settings import Settings, one_of
from hybrid.errors import UsageError
from hybrid.graphs.limits import MOST_LISTED, MOST_STEPS

PRINTED = 10  # rows and columns of the matrix that are shown
FORMATS = ("edges", "csv", "mtx", "npy")

_MORE = """\
A "path" is meant here as in the lecture: a walk, which may pass the same vertex and the same edge several times. Its length
is the number of its edges.

GRAPH is a file, or one of the lecture's graphs: ten (Figure 1.1) and five (question 1). The ending of its name gives the
format, unless --format does:
  .csv .tsv   the adjacency matrix, with or without the vertices' names above and before it
  .mtx        Matrix Market, read by SciPy (the extra graphs)
  .npy        the adjacency matrix
  others      an edge list: FROM TO or FROM TO NUMBER a line, both ways unless --directed; a name alone is a vertex
Vertices without names are numbered from 1. A loop counts once. With --stochastic the numbers are probabilities.

examples:
  python -m hybrid.paths ten --length 4
  python -m hybrid.paths ten --length 4 --from C --to J --terms
  python -m hybrid.paths ten --length 4 --from C --to J --list --picture walks.svg
  mpirun -n 2 python -m hybrid.paths five --length 10000 --from A --to B
  python -m hybrid.paths chain.csv --stochastic --length 50 --out after50.csv

Standard output holds the number, or the matrix, and below it what --list and --terms show; standard error tells the arithmetic
that made it exact.
exit codes: 0 all well, 1 a failure, 2 wrong usage, 3 a product or the result failed its check
"""


def build_parser() -> Parser:
    parser = Parser(
        prog="python -m hybrid.paths", epilog=_MORE, description="Count the paths of a length, exactly, by matrix powers."
    )
    parser.add_argument("graph", type=file_name, metavar="GRAPH", help="a file, or ten, or five")
    parser.add_argument("--length", type=at_least(0), required=True, metavar="L", help="edges of a path")
    parser.add_argument("--from", dest="tail", metavar="VERTEX", help="only paths that begin there (everywhere)")
    parser.add_argument("--to", dest="head", metavar="VERTEX", help="only paths that end there (everywhere)")
    parser.add_argument("--stochastic", action="store_true", help="a Markov chain: probabilities after L steps")
    parser.add_argument("--format", metavar="F", help="edges, csv, mtx or npy (by the ending of the name)")
    parser.add_argument("--directed", action="store_true", help="the lines of an edge list count one way only")
    how = parser.add_argument_group("how")
    how.add_argument("--dtype", default="float64", help="of the products, float32 or float64: exact in both (float64)")
    how.add_argument("--device", help="auto, cpu, cuda, or emulate: the GPU's kernels on the CPU, slowly (auto)")
    how.add_argument("--kernel", help="auto, or a name: python -m hybrid.matmul --kernel list (auto)")
    add_job_options(how)
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--print", dest="printed", type=at_least(1), default=PRINTED, metavar="K",
                       help=f"at most K rows and columns ({PRINTED})")  # fmt: skip
    shown.add_argument(
        "--out", type=file_name, metavar="FILE", help="write all rows and columns: .csv, .json, or .npy where int64 holds them"
    )
    shown.add_argument("--list", dest="listed", action="store_true",
                       help=f"also every path between --from and --to, vertex by vertex: at most {MOST_LISTED}")  # fmt: skip
    shown.add_argument("--terms", action="store_true",
                       help="also the sum that the number is: row of length 1 times column of length L-1")  # fmt: skip
    shown.add_argument("--picture", type=file_name, metavar="FILE.svg",
                       help="draw the graph; with --list the paths in it, a panel each")  # fmt: skip
    shown.add_argument("--json", type=file_name, metavar="FILE", help="append the run as a JSON line; - for standard output")
    return parser


def parse(arguments: Sequence[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    """Options and settings; UsageError for what makes no sense whatever the graph."""
    options = build_parser().parse_args(arguments)
    one_of("dtype", options.dtype, ITEM_SIZES)
    if options.format is not None:
        one_of("format", options.format, FORMATS)
    if options.stochastic and options.directed:
        raise UsageError("--directed is not for --stochastic: probabilities always go one way", code="option-combination")
    if options.out and (options.tail is not None or options.head is not None):
        raise UsageError("--out writes the whole matrix: not with --from or --to", code="option-combination")
    _refuse_without_ends(options)
    flags = ("device", "kernel", "threads", "stall")
    return options, Settings.gather({name: getattr(options, name) for name in flags})


def _refuse_without_ends(options: argparse.Namespace) -> None:
    for name, asked in (("--list", options.listed), ("--terms", options.terms)):
        if asked and (options.tail is None or options.head is None):
            raise UsageError(f"{name} is for one number: name both ends, --from and --to", code="option-combination")
        if asked and options.stochastic:
            raise UsageError(f"{name} is for paths, not for the probabilities of --stochastic", code="option-combination")
    if options.listed and options.length > MOST_STEPS:
        raise UsageError(f"--list: paths of at most {MOST_STEPS} edges are listed: a smaller --length", code="number")
    if options.terms and options.length == 0:
        raise UsageError("--terms begins with an edge: --length 1 or more", code="number")
