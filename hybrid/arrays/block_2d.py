# SPDX-License-Identifier: MIT
"""Matrices that are distributed over all ranks in two dimensions: blocks of a grid, or block-cyclically as ScaLAPACK has them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybrid.arrays.distributed import Distributed
from hybrid.arrays.gemm import ProductType, product_type
from hybrid.arrays.integers import largest_of
from hybrid.arrays.interop import on_gpu, refuse_masked
from hybrid.core.problem import Problem
from hybrid.core.settings import as_int
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.plan.grid import Part, Placement, moves

_DENSE, _DESCRIPTOR = 1, 9  # ScaLAPACK's type of a dense matrix, and the length of its descriptor
Bounds = tuple[int, int]  # from, and to which row or column, this one not included


@dataclass(frozen=True, eq=False)
class Block2D(Distributed):
    """This rank's rows and columns of a matrix that is distributed over a grid of ranks.

    Every rank has one; it may be empty. Each row belongs to one row of the grid, each column to one of its columns. `shape` and
    `len` are of the whole matrix. `a @ b` is the product by all ranks; `+ - * / // % **`, comparisons and NumPy's functions of
    single elements, with numbers and Block2Ds of the same rows and columns, give what each rank computes of its own.

    Parameters
    ----------
    array
        The elements: a NumPy array.
    shape
        Rows and columns of the whole matrix.
    rows, columns
        Which these are: pairs of the first and the last plus one, in the array's order.
    comm
        The mpi4py communicator for `@`. What `multiply` and operators return knows its own; a pickled one does not.
    """

    array: Any
    shape: tuple[int, int]
    rows: Sequence[Bounds]
    columns: Sequence[Bounds]
    comm: Any = None

    def __post_init__(self) -> None:
        _refuse_no_matrix(self.array)
        refuse_masked(self.array, "the array of a Block2D")
        if not _are_counts(self.shape):
            raise UsageError(f"shape {self.shape!r} is not that of a matrix", code="shapes")
        # A list, or numbers of NumPy's, would be another shape than the same one of another rank or Block2D.
        object.__setattr__(self, "shape", tuple(map(as_int, self.shape)))
        for name, spans, length in (("rows", self.rows, self.shape[0]), ("columns", self.columns, self.shape[1])):
            for bounds in spans if isinstance(spans, Iterable) else [spans]:
                if not _are_counts(bounds) or not bounds[0] <= bounds[1] <= length:
                    raise UsageError(
                        f"{bounds} are no {name} of a matrix of {length}: pairs of the first and the last plus one are",
                        code="blocks",
                    )
        if self.array.shape != self.part.shape:
            raise UsageError(
                f"an array of shape {self.array.shape} is given for {self.part.shape[0]} rows, {self.part.shape[1]} columns",
                code="shapes",
            )

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        (n, m), (rows, columns) = self.shape, self.array.shape
        return f"Block2D({rows}×{columns} of {n}×{m}, {self.dtype}, {self.device}{self._rank})"

    @property
    def _place(self) -> Any:
        return self.shape, self.part

    def _like(self, array: Any, comm: Any) -> Block2D:
        return replace(self, array=array, comm=comm)

    @property
    def T(self) -> Block2D:
        """The transpose: a view of the same elements, for products with what is distributed likewise."""
        return type(self)(self.array.T, self.shape[::-1], self.columns, self.rows, self.comm)

    @property
    def part(self) -> Part:
        """The rows and columns of the whole matrix that this rank has."""
        rows, columns = (tuple(Span(*bounds) for bounds in spans) for spans in (self.rows, self.columns))
        return Part(rows, columns)

    @property
    def indices(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers that the array's rows, and its columns, have in the whole matrix."""
        rows, columns = (
            np.concatenate([np.arange(0), *(np.arange(*bounds) for bounds in of)]) for of in (self.rows, self.columns)
        )
        return rows, columns

    def in_order(self) -> np.ndarray:
        """The whole matrix with its rows and columns in order, on a rank that has all of them. UsageError on others."""
        if any(
            not np.array_equal(np.sort(have), np.arange(length)) for have, length in zip(self.indices, self.shape, strict=True)
        ):
            raise UsageError(f"this rank has not all of {self}: hybrid.gather brings them to one", code="blocks")
        whole = np.empty(self.shape, self.array.dtype)
        for here, there in moves(self.part, Part((Span(0, self.shape[0]),), (Span(0, self.shape[1]),))):
            whole[there] = self.array[here]
        return whole

    @classmethod
    def from_scalapack(
        cls, array: Any, descriptor: Sequence[int], grid: tuple[int, int], process: tuple[int, int], comm: Any = None
    ) -> Block2D:
        """A distributed matrix of ScaLAPACK's.

        Parameters
        ----------
        array
            The local matrix, of Fortran's order or C's; rows beyond those that there are locally are left out.
        descriptor
            The nine integers of its array descriptor: DTYPE, CTXT, M, N, MB, NB, RSRC, CSRC, LLD.
        grid, process
            Rows and columns of the BLACS process grid, and this process's row and column in it.
        comm
            The mpi4py communicator for `@`.
        """
        if len(descriptor) != _DESCRIPTOR or descriptor[0] != _DENSE:
            raise UsageError(f"{descriptor} is no descriptor of a dense matrix of ScaLAPACK's", code="blocks")
        _, _, n, m, row_block, column_block, first_row, first_column, _ = map(int, descriptor)
        if not _are_counts(grid) or not all(grid):
            raise UsageError(f"grid {grid} has no processes: pass its rows and columns", code="blocks")
        for name, place in (("process", process), ("RSRC and CSRC of the descriptor", (first_row, first_column))):
            if not _are_counts(place) or not (place[0] < grid[0] and place[1] < grid[1]):
                raise UsageError(
                    f"{name} {place} is not in a grid of {grid[0]}×{grid[1]} processes, which are counted from 0", code="blocks"
                )
        _refuse_no_matrix(array)
        rows = _dealt(n, row_block, grid[0], (process[0] - first_row) % grid[0])
        columns = _dealt(m, column_block, grid[1], (process[1] - first_column) % grid[1])
        height, width = sum(hi - lo for lo, hi in rows), sum(hi - lo for lo, hi in columns)
        return cls(array[:height, :width], (n, m), rows, columns, comm)


def _refuse_no_matrix(array: Any) -> None:
    if not isinstance(array, np.ndarray) or array.ndim != 2:
        given = f"an array of {array.ndim} dimensions" if isinstance(array, np.ndarray) else type(array).__name__
        where = " on a GPU" if on_gpu(array) else ""  # CuPy's class has the same name as NumPy's
        raise UsageError(f"a Block2D takes a matrix of NumPy's, not {given}{where}", code="no-array")


def _are_counts(pair: Any) -> bool:
    """Whether this is a pair of whole numbers, none of them negative."""
    if not isinstance(pair, Iterable) or isinstance(pair, str):
        return False
    numbers = [as_int(each) for each in pair]
    return len(numbers) == 2 and all(type(each) is int and each >= 0 for each in numbers)


def _dealt(length: int, block: int, processes: int, process: int) -> tuple[Bounds, ...]:
    """The blocks of so many rows or columns that a process gets where they are dealt to processes in turn."""
    if block < 1:
        raise UsageError(f"blocks of {block} rows or columns cannot be dealt", code="blocks")
    return tuple((lo, min(lo + block, length)) for lo in range(process * block, length, processes * block))


# -------- blocks of product
# One product of real matrices from all ranks' Block2Ds of A and B, and where the parts of its matrices lie.


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
