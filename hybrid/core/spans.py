# SPDX-License-Identifier: MIT
"""Ranges of rows or columns, and which rank of which node has which rows. Plain numbers: no MPI, no NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

from hybrid.core.problem import record


@record
class Span:
    """The rows, or columns, from `lo` to `hi` - 1."""

    lo: int
    hi: int

    def __lt__(self, other: Span) -> bool:
        return (self.lo, self.hi) < (other.lo, other.hi)

    def __len__(self) -> int:
        return self.hi - self.lo

    def __str__(self) -> str:
        return f"{self.lo}:{self.hi}"

    def meets(self, other: Span) -> bool:
        """Whether the two overlap."""
        return self.lo < other.hi and other.lo < self.hi

    def lies_in(self, other: Span) -> bool:
        """Whether all of this span is in the other."""
        return other.lo <= self.lo and self.hi <= other.hi

    def common(self, other: Span) -> Span:
        """The span that is in both; an empty one where they do not overlap."""
        lo = max(self.lo, other.lo)
        return Span(lo, max(lo, min(self.hi, other.hi)))

    def part(self, parts: int, number: int) -> Span:
        """Part `number` of `parts` parts, whose lengths differ by at most one."""
        of_length = block(len(self), parts, number)
        return Span(self.lo + of_length.lo, self.lo + of_length.hi)

    @property
    def slice(self) -> slice:
        return slice(self.lo, self.hi)

    def moved(self, by: int) -> Span:
        """The span as far as `by` behind this one."""
        return Span(self.lo + by, self.hi + by)

    def within(self, other: Span) -> Span:
        """The same span counted from the start of `other`."""
        return Span(self.lo - other.lo, self.hi - other.lo)


def block(total: int, parts: int, part: int) -> Span:
    """Block number `part` of `total` rows in `parts` blocks whose sizes differ by at most one row."""
    size, longer = divmod(total, parts)
    lo = part * size + min(part, longer)
    return Span(lo, lo + size + (part < longer))


def pieces(span: Span, size: int) -> Iterator[Span]:
    """`span` in consecutive pieces of `size`; the last may be shorter. None for an empty span."""
    for lo in range(span.lo, span.hi, size):
        yield Span(lo, min(lo + size, span.hi))


def even_pieces(span: Span, at_most: int) -> tuple[Span, ...]:
    """`span` in the fewest pieces of at most `at_most`, whose sizes differ by at most one; none for an empty span."""
    parts = -(-len(span) // max(1, at_most))
    return tuple(span.part(parts, number) for number in range(parts))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The spans in order, with those that follow each other without a gap joined into one."""
    runs: list[Span] = []
    for span in sorted(spans):
        if runs and runs[-1].hi == span.lo:
            runs[-1] = Span(runs[-1].lo, span.hi)
        else:
            runs.append(span)
    return runs


def consecutive(lengths: Iterable[int]) -> list[Span]:
    """Spans of these lengths, each of which begins where the one before ends; the first at 0."""
    return [Span(*bounds) for bounds in pairwise(accumulate(lengths, initial=0))]


@record
class Topology:
    """The ranks of each node. The ranks of a node share memory; the first of them is its leader."""

    nodes: tuple[tuple[int, ...], ...]

    @classmethod
    def of_equal_nodes(cls, ranks: int, ranks_per_node: int) -> Topology:
        """Nodes of `ranks_per_node` ranks; the last one may have fewer."""
        return cls(tuple(tuple(range(piece.lo, piece.hi)) for piece in pieces(Span(0, ranks), ranks_per_node)))

    @classmethod
    def from_node_names(cls, names: Sequence[object]) -> Topology:
        """`names[rank]`: anything that is the same for ranks of one node only."""
        nodes: dict[object, list[int]] = {}
        for rank, name in enumerate(names):
            nodes.setdefault(name, []).append(rank)
        return cls(tuple(tuple(ranks) for ranks in nodes.values()))

    def split(self, ranks_per_node: int) -> Topology:
        """Every node split into nodes of at most `ranks_per_node` ranks."""
        starts = [(ranks, start) for ranks in self.nodes for start in range(0, len(ranks), ranks_per_node)]
        return Topology(tuple(ranks[start : start + ranks_per_node] for ranks, start in starts))

    @cached_property
    def _positions(self) -> dict[int, tuple[int, int]]:
        """Each rank's node, and its position when the ranks are listed node by node."""
        by_node = [(rank, node) for node, ranks in enumerate(self.nodes) for rank in ranks]
        return {rank: (node, position) for position, (rank, node) in enumerate(by_node)}

    @property
    def size(self) -> int:
        return len(self._positions)

    def node_of(self, rank: int) -> int:
        return self._positions[rank][0]

    def rows_of_rank(self, rank: int, total: int) -> Span:
        """The rank's row block. The order is node by node, so that a node's rows are consecutive whichever ranks run on it."""
        return block(total, self.size, self._positions[rank][1])

    def rows_of_node(self, node: int, total: int) -> Span:
        """The rows of a node: those of its ranks, which follow each other."""
        ranks = self.nodes[node]
        return Span(self.rows_of_rank(ranks[0], total).lo, self.rows_of_rank(ranks[-1], total).hi)
