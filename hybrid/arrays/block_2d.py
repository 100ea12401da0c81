# SPDX-License-Identifier: MIT
"""Matrices that are distributed over all ranks in two dimensions: blocks of a grid, or block-cyclically as ScaLAPACK has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybrid.arrays.distributed import Distributed
from hybrid.arrays.interop import on_gpu, refuse_masked
from hybrid.core.settings import as_int
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.plan.rectangles import Part, Rectangle

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
        for rectangle, place in self.part.common(Rectangle(Span(0, self.shape[0]), Span(0, self.shape[1]))):
            whole[rectangle.rows.slice, rectangle.columns.slice] = self.array[place]
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
