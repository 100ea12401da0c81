# SPDX-License-Identifier: MIT
"""The command python -m hybrid.paths GRAPH --length L: how many walks of a length lead from where to where?"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from hybrid.commands.cli import Command, agree
from hybrid.commands.parser import Parser, add_settings, at_least, file_name, settings_of, svg_file
from hybrid.core.problem import record
from hybrid.core.settings import Settings
from hybrid.core.text import counted, printable, readable
from hybrid.errors import DoesNotFit, UsageError
from hybrid.host.files import refuse_same, refuse_unwritable
from hybrid.host.memory import available_host_bytes
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team, world_communicator
from hybrid.reporting.progress import Progress

if TYPE_CHECKING:
    import numpy as np

    from hybrid.graphs.graph import Graph
    from hybrid.graphs.walks import Arithmetic


_PRINTED = 10  # rows and columns of the matrix
_MOST_LISTED, _MOST_STEPS, _MOST_TERMS = 1000, 1000, 100  # printed paths, edges of one, and terms of a sum
_OUT_FORMATS = (".npy", ".csv", ".json")

_MORE = """\
A "path" is a walk, as in the lecture: it may pass the same vertex and the same edge several times. Its length is the number of
its edges.

GRAPH is a file, or one of the lecture's graphs: ten (Figure 1.1) and five (question 1). The extension gives the format, unless
--format does:
  .csv .tsv   the adjacency matrix, with or without the vertices' names above and before it
  .mtx        Matrix Market, read by SciPy (the extra graphs)
  .npy        the adjacency matrix
  others      an edge list: FROM TO or FROM TO NUMBER a line, both ways unless --directed; a name alone is a vertex
Vertices without names are numbered from 1. A loop counts once.

examples:
  python -m hybrid.paths ten --length 4
  python -m hybrid.paths ten --length 4 --from C --to J --terms
  python -m hybrid.paths ten --length 4 --from C --to J --list --picture walks.svg
  mpirun -n 2 python -m hybrid.paths five --length 10000 --from A --to B

exit codes: 0 all well, 1 a failure, 2 wrong usage, 3 a product or the result failed its check
"""


def build_parser() -> Parser:
    summary = "Count the paths of a length, exactly, by matrix powers."
    parser = Parser(prog="python -m hybrid.paths", epilog=_MORE, description=summary)
    parser.add_argument("graph", type=file_name, metavar="GRAPH", help="a file, or ten, or five")
    parser.offered["graph"] = ("ten", "five")
    parser.add_argument("--length", type=at_least(0), required=True, metavar="L", help="edges of a path")
    parser.add_argument("--from", dest="tail", metavar="VERTEX", help="only paths that begin there (anywhere)")
    parser.add_argument("--to", dest="head", metavar="VERTEX", help="only paths that end there (anywhere)")
    parser.add_argument(
        "--format", choices=("edges", "csv", "mtx", "npy"), metavar="F", help="edges, csv, mtx or npy (by the file's extension)"
    )
    parser.add_argument("--directed", action="store_true", help="the lines of an edge list count one way only")
    how = parser.add_argument_group("how")
    kernel = "auto, or a name: python -m hybrid.matmul --kernel list (auto)"
    add_settings(how, "device", "kernel", "threads", "stall", kernel=kernel)
    shown = parser.add_argument_group("what is shown")
    some = f"at most K rows and columns ({_PRINTED})"
    shown.add_argument("--print", dest="printed", type=at_least(1), default=_PRINTED, metavar="K", help=some)
    shown.add_argument("--out", type=file_name, metavar="FILE", help="write the whole matrix: .csv, .json, or .npy (int64)")
    listed = f"also every path between --from and --to, vertex by vertex: at most {_MOST_LISTED}"
    shown.add_argument("--list", dest="listed", action="store_true", help=listed)
    shown.add_argument("--terms", action="store_true", help="also the number as a sum of products, row times column")
    shown.add_argument("--picture", type=svg_file, metavar="FILE.svg", help="draw the graph; with --list a panel for each path")
    return parser


def parse() -> tuple[argparse.Namespace, Settings]:
    """Options and settings; UsageError for what is wrong for any graph."""
    options = build_parser().parse_args()
    if options.out and (options.tail is not None or options.head is not None):
        raise UsageError("--out writes the whole matrix: not with --from or --to", code="option-combination")
    for name, asked in (("--list", options.listed), ("--terms", options.terms)):
        if asked and (options.tail is None or options.head is None):
            raise UsageError(f"{name} is for one number: name both ends, --from and --to", code="option-combination")
        if asked and options.length > _MOST_STEPS:
            raise UsageError(f"{name}: for paths of at most {_MOST_STEPS} edges: a smaller --length", code="number")
    if options.terms and options.length == 0:
        raise UsageError("--terms begins with an edge: --length 1 or more", code="number")
    return options, settings_of(options)


NAME = "hybrid.paths"
_AT_ONCE = 16  # matrices of 8 bytes an element: operands, products, buffers and remainders


@record
class Task:
    """What rank 0 has read and decided."""

    graph: Graph
    rows: list[int]
    columns: list[int]
    arithmetic: Arithmetic


def work(team: Team, options: argparse.Namespace, settings: Settings) -> int:
    """One rank's part of the command. Rank 0 reads the graph and reports the result; all ranks multiply."""
    agree(team, options, settings)
    # From here on NumPy may be loaded: its BLAS reads the number of threads from the environment.
    task: Task | None = None
    with team.phase("read", timed=False) as reading, busy():
        if team.rank == 0:
            task = _prepare(options, settings)
            reading.mine = task.arithmetic
    team.enter("multiply")
    found = _multiply(team, task, reading.all[0], settings)
    with team.phase("report", timed=False), busy():
        if task is not None and found is not None:
            _report(options, task, found)
    return 0


def _prepare(options: argparse.Namespace, settings: Settings) -> Task:
    """On rank 0: read the graph, choose the arithmetic, and print it to standard error."""
    from hybrid.graphs import picture
    from hybrid.graphs.graph import EXAMPLES, read_graph
    from hybrid.graphs.walks import NO_INT64, choose_arithmetic, least_bits

    if options.out and not options.out.endswith(_OUT_FORMATS):
        raise UsageError(f"--out {options.out}: the name must end in {', '.join(_OUT_FORMATS)}", code="file-kind")
    source = None if options.graph in EXAMPLES else options.graph
    refuse_same({"GRAPH": source, "--out": options.out, "--picture": options.picture}, may_replace={})
    for file in filter(None, (options.out, options.picture)):
        refuse_unwritable(file)
    graph = read_graph(options.graph, options.format, directed=options.directed, memory=settings.host_memory)
    count = len(graph.names)
    if options.out:  # text formats take at least 2 bytes a number
        refuse_unwritable(options.out, (8 if options.out.endswith(".npy") else 2) * count**2)
    if options.picture:
        picture.refuse(count)
    if options.terms and count > _MOST_TERMS:
        raise UsageError(f"--terms shows a term for each vertex: {count}, at most {_MOST_TERMS}", code="number")
    whole = range(count if options.out else min(options.printed, count))
    rows, columns = (list(whole) if name is None else [graph.vertex(name)] for name in (options.tail, options.head))
    arithmetic = choose_arithmetic(graph.adjacency, options.length)
    if options.out and options.out.endswith(".npy") and arithmetic.bits > 63 and least_bits(graph.adjacency, options.length) > 64:
        raise UsageError(f"--out {options.out}: {NO_INT64}", code="dtype")
    entries = len(rows) * len(columns)
    need, free = arithmetic.bytes_for(entries), settings.host_memory or available_host_bytes()
    if need > free:
        need_of = f"{entries} numbers of up to {arithmetic.bits} bits take about {readable(need)}, {readable(free)} are free"
        raise DoesNotFit(f"{need_of}: ask for fewer (--from, --to, --print) or a smaller --length")
    print(f"{NAME}: {options.graph}: {graph}", file=sys.stderr)
    print(f"{NAME}: {arithmetic}; {counted(arithmetic.products, 'matrix product')}", file=sys.stderr, flush=True)
    return Task(graph, rows, columns, arithmetic)


def _multiply(team: Team, task: Task | None, arithmetic: Arithmetic, settings: Settings) -> np.ndarray | None:
    """The rows and columns asked for, on rank 0; None on other ranks, whose `task` is None. Every rank calls it."""
    import numpy as np

    from hybrid.api import multiply, plan
    from hybrid.graphs import walks

    comm = world_communicator(team)
    how: dict[str, Any] = {"device": settings.device, "kernel": settings.kernel, "threads": settings.threads}
    matrix, rows, columns = (None, [], []) if task is None else (task.graph.adjacency, task.rows, task.columns)

    def product(a: Any, b: Any) -> Any:
        return multiply(a, b, comm=comm, check=True, **how)

    place: walks.Place | None = None
    if arithmetic.products:
        like = None if matrix is None else np.broadcast_to(np.zeros(()), matrix.shape)
        decision = plan(like, like, comm=comm, check=True, **how).decision
        if decision is not None and (gpu := decision.placements[0].gpu) is not None:
            from hybrid.devices.cuda_gpus import where_there_is_room

            place = partial(where_there_is_room, gpu=gpu, room=_AT_ONCE * 8 * arithmetic.vertices**2)
    with Progress(team.rank == 0) as told:
        return walks.carry_out(arithmetic, matrix, rows, columns, product, partial(told, "multiply"), place)


def _report(options: argparse.Namespace, task: Task, found: np.ndarray) -> None:
    """Write and print what the options ask for, on rank 0."""
    from hybrid.graphs import picture, walks

    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)  # Python's limit, 4300 digits, protects servers from long inputs
    numbers = walks.as_integers(task.arithmetic, found)
    graph, names, (tail, head) = task.graph, task.graph.names, (task.rows[0], task.columns[0])
    rows, columns = ([names[index] for index in indices] for indices in (task.rows, task.columns))
    count = int(numbers[0, 0])
    single = options.tail is not None and options.head is not None
    asked = options.length, tail, head, count
    if options.listed and count > _MOST_LISTED:
        what = f"{walks.shortened(count)} paths, at most {_MOST_LISTED}: ask for a smaller --length"
        raise UsageError(f"--list: {what}", code="number")
    listed = walks.listed(graph.adjacency, *asked) if options.listed else []
    terms = [*walks.terms(graph.adjacency, names, *asked)] if options.terms else []
    if options.picture:
        paths = f"{counted(count, 'path')} of length {options.length} from {options.tail} to {options.head}"
        title = f"{options.graph}: {paths if options.listed else graph}"
        ends = [graph.vertex(name) for name in (options.tail, options.head) if name is not None]
        picture.write(options.picture, title, graph.adjacency, names, ends, listed)
    if options.out:
        walks.write(options.out, numbers, names, {"graph": options.graph, "length": options.length})
        rows, columns = rows[: options.printed], columns[: options.printed]
    shown = str(count) if single else walks.table(numbers[: len(rows), : len(columns)], rows, columns)
    print(*map(printable, [shown, *(walk.told(names) for walk in listed), *terms]), sep="\n")
    if len(names) > options.printed and not single:
        more = options.out or "--out FILE writes all, --print K shows more"
        print(f"{NAME}: the first {options.printed} of {len(names)} vertices are shown: {more}", file=sys.stderr)
    sys.stdout.flush()


main = Command(NAME, parse, work).run
