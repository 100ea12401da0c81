# SPDX-License-Identifier: MIT
"""One product of real matrices from all ranks' Block2Ds of A and B, and where the parts of its matrices lie."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hybrid.arrays.block_2d import Block2D
from hybrid.arrays.integers import largest_of
from hybrid.arrays.product_type import ProductType, product_type
from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.plan.grid import Placement
from hybrid.plan.rectangles import Part


@dataclass(frozen=True)
class Blocks:
    """What the other ranks must know of one rank's blocks of A and B."""

    shape_a: tuple[int, int]
    shape_b: tuple[int, int]
    a: Part
    b: Part
    types: ProductType
    copied_bytes: int  # host memory for blocks that must be converted
    largest: tuple[int, ...] = ()  # magnitudes of A's and B's integers, and of no C

    @classmethod
    def of(cls, a: Any, b: Any, asked: str, threads: Callable[[], int]) -> Blocks:
        """What is to be known of this rank's operands. UsageError where they cannot be multiplied.

        `asked`: the type of C; "": NumPy's. `threads`: gives the number of threads that look for the largest integers.
        """
        for name, block in (("a", a), ("b", b)):
            if not isinstance(block, Block2D):
                raise UsageError(
                    f"{name} is no Block2D, but the other operand is one: pass Block2Ds for both, on every rank",
                    code="mixed-kinds",
                )
        types = product_type(a.array.dtype, b.array.dtype, asked)
        copied = [
            block.array.size * (1 + complex_) * (1 + expanded)
            for block, dtype, complex_, expanded in (
                (a, types.operand_a, types.complex_a, False),
                (b, types.operand_b, types.complex_b, types.complex_a),
            )
            if expanded or block.array.dtype != dtype or not block.array.flags.c_contiguous
        ]
        largest = (*(largest_of(each.array, threads()) for each in (a, b)), 0) if types.exact else ()
        return cls(tuple(a.shape), tuple(b.shape), a.part, b.part, types, sum(copied) * types.item_size, largest)

    @property
    def elements_of_c(self) -> int:
        """The number of elements of C that this rank computes."""
        return Part(self.a.rows, self.b.columns).elements


def problem_of_2d(blocks: Sequence[Blocks]) -> tuple[Problem, Placement]:
    """The real product of all ranks' blocks, and where its parts lie. UsageError where the blocks do not fit together, or are
    not a grid's."""
    first = blocks[0]
    for rank, block in enumerate(blocks):
        if (block.shape_a, block.shape_b, block.types) != (first.shape_a, first.shape_b, first.types):
            raise UsageError(
                f"rank {rank}'s blocks are of matrices {block.shape_a} and {block.shape_b} of {block.types}, "
                f"rank 0's {first.shape_a} and {first.shape_b} of {first.types}",
                code="ranks-differ",
            )
    if first.shape_a[1] != first.shape_b[0]:
        raise UsageError(f"A has {first.shape_a[1]} columns and B {first.shape_b[0]} rows: they must be the same", code="shapes")
    of_a, of_b = [block.a for block in blocks], [block.b for block in blocks]
    of_c = [Part(a.rows, b.columns) for a, b in zip(of_a, of_b, strict=True)]
    shape_c = first.shape_a[0], first.shape_b[1]
    for name, parts, shape in (("A", of_a, first.shape_a), ("B", of_b, first.shape_b), ("C", of_c, shape_c)):
        refuse_no_grid(name, parts, shape)
    l, m = 1 + first.types.complex_a, 1 + first.types.complex_b
    placement = Placement(
        *(tuple(part.stretched(*by) for part in of) for of, by in ((of_a, (1, l)), (of_b, (l, m)), (of_c, (1, m))))
    )
    return first.types.problem(*first.shape_a, first.shape_b[1]), _with_neighbours(placement)


def _with_neighbours(placement: Placement) -> Placement:
    """The same placement with rows and columns numbered anew, so that those of a rank are neighbours.

    The order in which they are multiplied does not matter, and parts that were dealt out in many blocks need not be sent around
    to be joined.
    """
    rows, columns = _Numbers([part.rows for part in placement.a]), _Numbers([part.columns for part in placement.b])
    inner = _Numbers([part.columns for part in placement.a])
    return Placement(
        tuple(Part(rows.of(part.rows), inner.of(part.columns)) for part in placement.a),
        tuple(Part(inner.of(part.rows), columns.of(part.columns)) for part in placement.b),
        tuple(Part(rows.of(part.rows), columns.of(part.columns)) for part in placement.c),
    )


class _Numbers:
    """New numbers for rows or columns: those that belong to one group get neighbouring ones."""

    def __init__(self, groups: Sequence[tuple[Span, ...]]) -> None:
        self._old: list[Span] = []  # and from where on each is numbered
        self._new: list[int] = []
        next_number = 0
        for span in (span for group in dict.fromkeys(groups) for span in group if len(span)):
            self._old.append(span)
            self._new.append(next_number)
            next_number += len(span)
        order = sorted(range(len(self._old)), key=self._old.__getitem__)
        self._old, self._new = [self._old[i] for i in order], [self._new[i] for i in order]
        self._ends = [span.hi for span in self._old]

    def of(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        """The new numbers of these rows or columns, in their order; neighbours are joined."""
        found: list[Span] = []
        for span in spans:
            at = bisect_right(self._ends, span.lo)
            lo = span.lo
            while lo < span.hi:
                old, new = self._old[at], self._new[at]
                hi = min(span.hi, old.hi)
                part = Span(new + lo - old.lo, new + hi - old.lo)
                if found and found[-1].hi == part.lo:
                    found[-1] = Span(found[-1].lo, part.hi)
                else:
                    found.append(part)
                lo, at = hi, at + 1
        return tuple(found)


def refuse_no_grid(name: str, parts: Sequence[Part], shape: tuple[int, int]) -> None:
    """UsageError unless every element belongs to exactly one rank, and each rank has all elements where its rows and columns
    meet."""
    there = [part for part in parts if part.elements]
    rows, columns = {part.rows for part in there}, {part.columns for part in there}
    whole = all(_cover(spans, length) for spans, length in ((rows, shape[0]), (columns, shape[1])))
    pairs = {(part.rows, part.columns) for part in there}
    if shape[0] * shape[1] and not (whole and len(pairs) == len(there) == len(rows) * len(columns)):
        how = "the ranks' rows of A and columns of B" if name == "C" else "the ranks' blocks"
        raise UsageError(
            f"{how} do not make up {name} ({shape[0]}×{shape[1]}) once: each element must belong to one rank of a grid",
            code="blocks",
        )


def _cover(spans: set[tuple[Span, ...]], length: int) -> bool:
    """Whether these spans cover all rows or columns, none of them twice."""
    end = 0
    for span in sorted(span for of_one in spans for span in of_one if len(span)):
        if span.lo != end:
            return False
        end = span.hi
    return end == length
