# SPDX-License-Identifier: MIT
"""Matrices that are distributed over all ranks in two dimensions: blocks of a grid, or block-cyclically as ScaLAPACK has them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from hybrid.arrays.distributed import Distributed
from hybrid.arrays.integers import largest_of
from hybrid.arrays.interop import on_gpu, refuse_masked
from hybrid.arrays.product_type import ProductType, product_type
from hybrid.core.problem import Problem
from hybrid.core.settings import as_int
from hybrid.core.spans import Span
from hybrid.errors import NoArray, UsageError
from hybrid.plan.grid import Placement
from hybrid.plan.rectangles import Part, Rectangle

_DENSE, _DESCRIPTOR = 1, 9  # ScaLAPACK's type of a dense matrix, and the length of its descriptor
Bounds = tuple[int, int]  # from, and to which row or column, this one not included


@dataclass(frozen=True, eq=False)
class Block2D(Distributed):
    """This rank's rows and columns of a matrix that is distributed over a grid of ranks.

    Every rank has one; it may be empty. Each row belongs to one row of the grid, each column to one of its columns.

    Parameters
    ----------
    array
        The elements: a NumPy array.
    shape
        Rows and columns of the whole matrix.
    rows, columns
        Which these are: pairs of the first and the last plus one, in the array's order.
    """

    array: Any
    shape: tuple[int, int]
    rows: Sequence[Bounds]
    columns: Sequence[Bounds]

    def __post_init__(self) -> None:
        if getattr(self.array, "ndim", None) != 2 or on_gpu(self.array):
            raise UsageError(f"a Block2D takes a matrix in host memory, not {type(self.array).__name__}")
        refuse_masked(self.array, "the array of a Block2D")
        if not _are_counts(self.shape):
            raise UsageError(f"shape {self.shape!r} is not that of a matrix")
        for name, spans, length in (("rows", self.rows, self.shape[0]), ("columns", self.columns, self.shape[1])):
            for bounds in spans if isinstance(spans, Iterable) else [spans]:
                if not _are_counts(bounds) or not bounds[0] <= bounds[1] <= length:
                    raise UsageError(
                        f"{bounds} are no {name} of a matrix of {length}: pairs of the first and the last plus one are"
                    )
        if self.array.shape != self.part.shape:
            raise UsageError(
                f"an array of shape {self.array.shape} is given for {self.part.shape[0]} rows, {self.part.shape[1]} columns"
            )

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        (n, m), (rows, columns) = self.shape, self.array.shape
        return f"Block2D({rows}×{columns} of {n}×{m}, {self.dtype}, {self.device})"

    def _no_operator(self, other: Any) -> NoReturn:
        raise NoArray(
            "a Block2D has no operators, since it knows no communicator: hybrid.multiply(a, b, comm=comm) multiplies two, and "
            ".array has this rank's elements"
        )

    __matmul__ = __rmatmul__ = __add__ = __radd__ = __sub__ = __rsub__ = _no_operator
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_operator

    @property
    def part(self) -> Part:
        rows, columns = (tuple(Span(*bounds) for bounds in spans) for spans in (self.rows, self.columns))
        return Part(rows, columns)

    @property
    def indices(self) -> tuple[np.ndarray, np.ndarray]:
        """In the whole matrix, of the array's rows and of its columns."""
        rows, columns = (
            np.concatenate([np.arange(0), *(np.arange(*bounds) for bounds in of)]) for of in (self.rows, self.columns)
        )
        return rows, columns

    def in_order(self) -> np.ndarray:
        """The whole matrix, of which this rank has all parts."""
        whole = np.empty(self.shape, self.array.dtype)
        for rectangle, place in self.part.common(Rectangle(Span(0, self.shape[0]), Span(0, self.shape[1]))):
            whole[rectangle.rows.slice, rectangle.columns.slice] = self.array[place]
        return whole

    @classmethod
    def from_scalapack(cls, array: Any, descriptor: Sequence[int], grid: tuple[int, int], process: tuple[int, int]) -> Block2D:
        """A distributed matrix of ScaLAPACK's.

        Parameters
        ----------
        array
            The local matrix, of Fortran's order or C's; rows beyond those that there are locally are left out.
        descriptor
            The nine integers of its array descriptor: DTYPE, CTXT, M, N, MB, NB, RSRC, CSRC, LLD.
        grid, process
            Rows and columns of the BLACS process grid, and this process's row and column in it.
        """
        if len(descriptor) != _DESCRIPTOR or descriptor[0] != _DENSE:
            raise UsageError(f"{descriptor} is no descriptor of a dense matrix of ScaLAPACK's")
        _, _, n, m, row_block, column_block, first_row, first_column, _ = map(int, descriptor)
        if not _are_counts(grid) or not all(grid):
            raise UsageError(f"grid {grid} has no processes: pass its rows and columns")
        for name, place in (("process", process), ("RSRC and CSRC of the descriptor", (first_row, first_column))):
            if not _are_counts(place) or not (place[0] < grid[0] and place[1] < grid[1]):
                raise UsageError(f"{name} {place} is not in a grid of {grid[0]}×{grid[1]} processes, which are counted from 0")
        rows = _dealt(n, row_block, grid[0], (process[0] - first_row) % grid[0])
        columns = _dealt(m, column_block, grid[1], (process[1] - first_column) % grid[1])
        height, width = sum(hi - lo for lo, hi in rows), sum(hi - lo for lo, hi in columns)
        return cls(array[:height, :width], (n, m), rows, columns)


def _are_counts(pair: Any) -> bool:
    """Whether these are two numbers of rows and columns."""
    if not isinstance(pair, Iterable) or isinstance(pair, str):
        return False
    numbers = [as_int(each) for each in pair]
    return len(numbers) == 2 and all(type(each) is int and each >= 0 for each in numbers)


def _dealt(length: int, block: int, processes: int, process: int) -> tuple[Bounds, ...]:
    """Blocks of so many rows or columns, dealt to processes in turn."""
    if block < 1:
        raise UsageError(f"blocks of {block} rows or columns cannot be dealt")
    return tuple((lo, min(lo + block, length)) for lo in range(process * block, length, processes * block))


@dataclass(frozen=True)
class Blocks:
    """What the other ranks must know of one rank's blocks of A and B."""

    shape_a: tuple[int, int]
    shape_b: tuple[int, int]
    a: Part
    b: Part
    types: ProductType
    copied_bytes: int  # of host memory, for blocks that must be converted
    largest: tuple[int, ...] = ()  # magnitudes of A's and B's integers, and of no C

    @classmethod
    def of(cls, a: Any, b: Any, asked: str, threads: Callable[[], int]) -> Blocks:
        """Of this rank's operands. UsageError if they cannot be multiplied. `asked`: C's type, "" for NumPy's; `threads`: how
        many look at integers."""
        for name, block in (("a", a), ("b", b)):
            if not isinstance(block, Block2D):
                raise UsageError(f"{name} is no Block2D, but the other operand is one: pass Block2Ds for both, on every rank")
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
        """Of this rank's part."""
        return Part(self.a.rows, self.b.columns).elements


def problem_of_2d(blocks: Sequence[Blocks]) -> tuple[Problem, Placement]:
    """The real product of all ranks' blocks, and where its parts lie. UsageError if they do not fit, or are no grid's."""
    first = blocks[0]
    for rank, block in enumerate(blocks):
        if (block.shape_a, block.shape_b, block.types) != (first.shape_a, first.shape_b, first.types):
            raise UsageError(
                f"rank {rank}'s blocks are of matrices {block.shape_a} and {block.shape_b} of {block.types}, "
                f"rank 0's {first.shape_a} and {first.shape_b} of {first.types}"
            )
    if first.shape_a[1] != first.shape_b[0]:
        raise UsageError(f"A has {first.shape_a[1]} columns and B {first.shape_b[0]} rows: they must be the same")
    of_a, of_b = [block.a for block in blocks], [block.b for block in blocks]
    of_c = [Part(a.rows, b.columns) for a, b in zip(of_a, of_b, strict=True)]
    shape_c = first.shape_a[0], first.shape_b[1]
    for name, parts, shape in (("A", of_a, first.shape_a), ("B", of_b, first.shape_b), ("C", of_c, shape_c)):
        _refuse_no_grid(name, parts, shape)
    l, m = 1 + first.types.complex_a, 1 + first.types.complex_b
    placement = Placement(
        *(tuple(part.stretched(*by) for part in of) for of, by in ((of_a, (1, l)), (of_b, (l, m)), (of_c, (1, m))))
    )
    return first.types.problem(*first.shape_a, first.shape_b[1]), _with_neighbours(placement)


def _with_neighbours(placement: Placement) -> Placement:
    """With rows and columns numbered anew, so that those of a rank are neighbours: in which order they are multiplied does not
    matter, and parts that were dealt out in many blocks need not be sent around to have them together."""
    rows, columns = _Numbers([part.rows for part in placement.a]), _Numbers([part.columns for part in placement.b])
    inner = _Numbers([part.columns for part in placement.a])
    return Placement(
        tuple(Part(rows.of(part.rows), inner.of(part.columns)) for part in placement.a),
        tuple(Part(inner.of(part.rows), columns.of(part.columns)) for part in placement.b),
        tuple(Part(rows.of(part.rows), columns.of(part.columns)) for part in placement.c),
    )


class _Numbers:
    """New numbers for rows or columns, of which some belong together: these get neighbouring ones."""

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
        """In their order, neighbours as one."""
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


def _refuse_no_grid(name: str, parts: Sequence[Part], shape: tuple[int, int]) -> None:
    """UsageError unless every element belongs to one rank, which has all elements of its rows and its columns."""
    there = [part for part in parts if part.elements]
    rows, columns = {part.rows for part in there}, {part.columns for part in there}
    whole = all(_cover(spans, length) for spans, length in ((rows, shape[0]), (columns, shape[1])))
    pairs = {(part.rows, part.columns) for part in there}
    if shape[0] * shape[1] and not (whole and len(pairs) == len(there) == len(rows) * len(columns)):
        how = "the ranks' rows of A and columns of B" if name == "C" else "the ranks' blocks"
        raise UsageError(
            f"{how} do not make up {name} ({shape[0]}×{shape[1]}) once: each element must belong to one rank of a grid"
        )


def _cover(spans: set[tuple[Span, ...]], length: int) -> bool:
    """Whether these cover all rows or columns, none of them twice."""
    end = 0
    for span in sorted(span for of_one in spans for span in of_one if len(span)):
        if span.lo != end:
            return False
        end = span.hi
    return end == length
