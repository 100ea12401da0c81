# SPDX-License-Identifier: MIT
"""What `python -m hybrid.paths` says on rank 0 of the numbers of walks: table or number, list, terms, picture, and the JSON
line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hybrid.commands.streams import text_stream
from hybrid.core.problem import record
from hybrid.core.text import printable

if TYPE_CHECKING:
    import numpy as np

    from hybrid.graphs.count_output import Walk
    from hybrid.graphs.graph import Graph
    from hybrid.graphs.markov import Chain
    from hybrid.graphs.walks import Arithmetic

NAME = "hybrid.paths"


@record
class Counted:
    """The result."""

    graph: Graph
    computation: Arithmetic | Chain
    rows: list[int]  # vertices
    columns: list[int]
    numbers: np.ndarray  # for each of these rows and columns
    column: np.ndarray | None  # for --terms: the last vertex's column of the power before
    seconds: float


def report(options: argparse.Namespace, counted: Counted, job: dict[str, Any]) -> None:
    """Write and print what the options ask for."""
    from hybrid.graphs import count_output

    names, numbers = counted.graph.names, counted.numbers
    rows, columns = ([names[index] for index in indices] for indices in (counted.rows, counted.columns))
    single = count_output.text(numbers[0, 0]) if options.tail is not None and options.head is not None else None
    walks, terms = _walks(options, counted), _terms(options, counted)
    if options.picture:
        _draw(options, counted, walks)
    if options.out:
        count_output.write(options.out, numbers, names, {"graph": options.graph, "length": options.length})
        rows, columns = rows[: options.printed], columns[: options.printed]
    shown = numbers[: len(rows), : len(columns)]
    told = [walk.told(names) for walk in walks]
    lines = [count_output.table(shown, rows, columns) if single is None else single, *told, *terms]
    print(*map(printable, lines), sep="\n", file=text_stream(options.json))
    if len(names) > options.printed and single is None:
        more = options.out or "--out FILE writes all, --print K shows more"
        print(f"{NAME}: the first {options.printed} of {len(names)} vertices are shown: {more}", file=sys.stderr)
    if options.json:
        from hybrid.reporting import jsonl

        listed = {"walks": told} if options.listed else {}
        parts = {"rows": rows, "columns": columns, "numbers": [list(map(count_output.shortened, line)) for line in shown]}
        jsonl.write({**_record(options, counted, single), **parts, **listed, **job}, options.json)
    sys.stdout.flush()


def _walks(options: argparse.Namespace, counted: Counted) -> list[Walk]:
    if not options.listed:
        return []
    from hybrid.graphs.count_output import listed

    (tail,), (head,) = counted.rows, counted.columns
    return listed(counted.graph.adjacency, options.length, tail, head, int(counted.numbers[0, 0]))


def _terms(options: argparse.Namespace, counted: Counted) -> Sequence[str]:
    if counted.column is None:
        return []
    from hybrid.graphs.count_output import terms

    (tail,), (head,) = counted.rows, counted.columns
    row = counted.graph.adjacency[tail]
    return list(terms(counted.graph.names, (tail, head), options.length, row, counted.column, int(counted.numbers[0, 0])))


def _draw(options: argparse.Namespace, counted: Counted, walks: Sequence[Walk]) -> None:
    from hybrid.core import text
    from hybrid.graphs import picture

    graph = counted.graph
    title = f"{options.graph}: {graph}"
    ends = [graph.vertex(name) for name in (options.tail, options.head) if name is not None]
    if options.listed:
        paths = text.counted(sum(walk.edges for walk in walks), "path")
        title = f"{options.graph}: {paths} of length {options.length} from {options.tail} to {options.head}"
    picture.write(options.picture, title, graph.adjacency, graph.names, ends, walks)


def _record(options: argparse.Namespace, counted: Counted, single: str | None) -> dict[str, Any]:
    return {
        "command": "paths",
        "graph": options.graph,
        "length": options.length,
        "from": options.tail,
        "to": options.head,
        "vertices": len(counted.graph.names),
        "stochastic": options.stochastic,
        "dtype": options.dtype,
        "arithmetic": str(counted.computation),
        "products": counted.computation.products,
        "seconds": counted.seconds,
        "result": single,
        "arguments": sys.argv[1:],
    }
