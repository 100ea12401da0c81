# SPDX-License-Identifier: MIT
"""The walks behind a count: all of them, vertex by vertex, and the terms of the sum that an entry of a power is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from hybrid.core.problem import record
from hybrid.core.text import aligned, counted
from hybrid.errors import CheckFailed, UsageError
from hybrid.graphs.count_output import shortened
from hybrid.graphs.limits import MOST_LISTED, MOST_TERMS


@record
class Walk:
    """The walks through the same vertices."""

    vertices: tuple[int, ...]
    edges: int  # how many walks there are: one for each choice among parallel edges

    def told(self, names: Sequence[str]) -> str:
        """The walk in a line, as C-E-H-J."""
        between = " → " if any("-" in name for name in names) else "-"
        times = f" ({counted(self.edges, 'path')}: parallel edges)" if self.edges > 1 else ""
        return between.join(names[vertex] for vertex in self.vertices) + times


def listed(adjacency: np.ndarray, length: int, tail: int, head: int, count: int) -> list[Walk]:
    """All walks of this length from tail to head, which are `count`, in the order of their vertices.

    UsageError where they are too many to be read; CheckFailed where the list does not have as many as were counted.
    """
    if count > MOST_LISTED:
        raise UsageError(
            f"--list: {shortened(count)} paths lead there, and at most {MOST_LISTED} are listed: ask for a smaller --length",
            code="number",
        )
    edges = adjacency > 0
    ends = [np.arange(len(adjacency)) == head]  # for each number of steps, the vertices from which so many can end at `head`
    for _ in range(length):
        ends.append((edges & ends[-1]).any(axis=1))
    found: list[tuple[int, ...]] = [(tail,)] if ends[length][tail] else []
    for left in reversed(range(length)):
        onward = {vertex: np.flatnonzero(edges[vertex] & ends[left]).tolist() for vertex in {walk[-1] for walk in found}}
        found = [(*walk, vertex) for walk in found for vertex in onward[walk[-1]]]
    walks = [Walk(walk, _choices(adjacency, walk)) for walk in found]
    if (there := sum(walk.edges for walk in walks)) != count:
        raise CheckFailed(f"{there} paths were found one by one, and {shortened(count)} were counted: a product is wrong")
    return walks


def _choices(adjacency: np.ndarray, walk: Sequence[int]) -> int:
    """How many ways there are to choose among parallel edges."""
    number = 1
    for begin, end in pairwise(walk):
        number *= int(adjacency[begin, end])
    return number


def refuse_many_terms(vertices: int) -> None:
    """UsageError for a graph with more vertices than terms are shown."""
    if vertices > MOST_TERMS:
        raise UsageError(
            f"--terms shows a term for each vertex: of {vertices} vertices, and {MOST_TERMS} are the most", code="number"
        )


def terms(
    names: Sequence[str], ends: tuple[int, int], length: int, row: np.ndarray, column: np.ndarray, count: int
) -> Iterator[str]:
    """The lines that show an entry of A^length as row · column: for each vertex, the edges to it, and the walks of length - 1
    that lead on from there.

    `ends`: the walks' first and last vertex; `row`: the first one's of A; `column`: the last one's of A^(length-1). CheckFailed
    where the sum is not `count`, which powers gave.
    """
    pairs = [(int(one), int(rest)) for one, rest in zip(row, column, strict=True)]
    if sum(one * rest for one, rest in pairs) != count:
        raise CheckFailed(f"row times column does not give the {shortened(count)} that the power has: a product is wrong")
    tail, head = (names[end] for end in ends)
    heads = ("by way of", f"from {tail}, length 1", f"to {head}, length {length - 1}", "product")
    numbers = [(name, *map(shortened, (one, rest, one * rest))) for name, (one, rest) in zip(names, pairs, strict=True)]
    yield from aligned([heads, *numbers, ("", "", "sum", shortened(count))])
    yield " + ".join(f"{shortened(one)}·{shortened(rest)}" for one, rest in pairs) + f" = {shortened(count)}"
