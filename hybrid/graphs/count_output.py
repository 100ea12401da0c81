# SPDX-License-Identifier: MIT
"""Output of exact counts: walks one by one, sums, tables and files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hybrid.core.problem import record
from hybrid.core.text import aligned, counted
from hybrid.errors import CheckFailed, UsageError
from hybrid.graphs import MOST_LISTED
from hybrid.host.files import atomic_write, write_text


@record
class Walk:
    """All walks through the same vertices."""

    vertices: tuple[int, ...]
    edges: int  # the number of walks: one for each choice among parallel edges

    def told(self, names: Sequence[str]) -> str:
        """The walk in a line, as C-E-H-J."""
        between = " → " if any("-" in name for name in names) else "-"
        times = f" ({counted(self.edges, 'path')}: parallel edges)" if self.edges > 1 else ""
        return between.join(names[vertex] for vertex in self.vertices) + times


def listed(adjacency: np.ndarray, length: int, tail: int, head: int, count: int) -> list[Walk]:
    """All walks of this length from tail to head, in the order of their vertices. CheckFailed if they are not `count`."""
    if count > MOST_LISTED:
        raise UsageError(f"--list: {shortened(count)} paths, at most {MOST_LISTED}: ask for a smaller --length", code="number")
    edges = adjacency > 0
    ends = [np.arange(len(adjacency)) == head]  # by number of steps: the vertices from which a walk can end at `head`
    for _ in range(length):
        ends.append((edges & ends[-1]).any(axis=1))
    found: list[tuple[int, ...]] = [(tail,)] if ends[length][tail] else []
    for left in reversed(range(length)):
        onward = {vertex: np.flatnonzero(edges[vertex] & ends[left]).tolist() for vertex in {walk[-1] for walk in found}}
        found = [(*walk, vertex) for walk in found for vertex in onward[walk[-1]]]
    walks = [Walk(walk, math.prod(int(adjacency[step]) for step in pairwise(walk))) for walk in found]
    if (there := sum(walk.edges for walk in walks)) != count:
        raise CheckFailed(f"{there} paths were found one by one, and {shortened(count)} were counted: a product is wrong")
    return walks


def terms(adjacency: np.ndarray, names: Sequence[str], length: int, tail: int, head: int, count: int) -> Iterator[str]:
    """An entry of A^length as row · column: for each vertex, the edges to it, and the walks of length - 1 from there, step by
    step. CheckFailed if the sum is not `count`, the result of the powers."""
    edges = adjacency.astype(object)
    column = np.array([int(vertex == head) for vertex in range(len(edges))], object)
    for _ in range(length - 1):
        column = edges.dot(column)
    pairs = list(zip(edges[tail], column, strict=True))
    if sum(one * rest for one, rest in pairs) != count:
        raise CheckFailed(f"row times column does not give the {shortened(count)} that the power has: a product is wrong")
    heads = ("by way of", f"from {names[tail]}, length 1", f"to {names[head]}, length {length - 1}", "product")
    numbers = [(name, *map(shortened, (one, rest, one * rest))) for name, (one, rest) in zip(names, pairs, strict=True)]
    yield from aligned([heads, *numbers, ("", "", "sum", shortened(count))])
    yield " + ".join(f"{shortened(one)}·{shortened(rest)}" for one, rest in pairs) + f" = {shortened(count)}"


NO_INT64 = "the numbers exceed int64: use .csv or .json"
_LONGEST = 30  # digits of a number that is printed whole
_END = 8  # digits printed of both ends of a longer one


def shortened(number: Any) -> str:
    """The number for a table: of more than 30 digits, the first and last eight and their count."""
    whole = str(number)
    return whole if len(whole) <= _LONGEST else f"{whole[:_END]}…{whole[-_END:]} ({len(whole)} digits)"


def table(numbers: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> str:
    """The numbers in aligned columns, with the vertices' names as heads of columns and rows."""
    lines = ([name, *map(shortened, line)] for name, line in zip(rows, numbers, strict=True))
    return "\n".join(aligned([["from\\to", *columns], *lines]))


def write(path: str, numbers: np.ndarray, names: Sequence[str], about: dict[str, Any]) -> None:
    """Write the matrix to a file: .npy of int64, .csv, which can be read as a graph, or .json, with counts as strings, since
    many readers would round long numbers. `about`: more entries for .json."""
    if path.endswith(".npy"):
        if max(map(int, numbers.flat)) >= 2**63:
            raise UsageError(f"--out {path}: {NO_INT64}", code="dtype")
        with atomic_write(path) as beside, open(beside, "wb") as file:
            np.save(file, numbers.astype(np.int64))
    elif path.endswith(".csv"):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [["from/to", *names], *([name, *line] for name, line in zip(names, numbers, strict=True))]
        )
        write_text(path, text.getvalue())
    else:
        cells = [list(map(str, line)) for line in numbers]
        write_text(path, json.dumps({**about, "vertices": list(names), "walks": cells}) + "\n")
