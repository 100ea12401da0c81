# SPDX-License-Identifier: MIT
"""Matrices of which every rank has some rows, and products of them that no root gathers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid.arrays.distributed import Distributed
from hybrid.arrays.exact_result import temporary_arrays
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.integer_parts import bytes_of_part
from hybrid.arrays.integers import DIGIT, Exact, largest_of
from hybrid.arrays.interop import on_gpu, refuse_masked, where_it_lies
from hybrid.arrays.operand_checks import refuse_wrong_c
from hybrid.arrays.product_type import ProductType, product_type
from hybrid.core.problem import ITEM_SIZES, Problem
from hybrid.core.spans import Span, consecutive
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.arrays.transposed_row_block import TransposedRowBlock


@dataclass(frozen=True, eq=False)
class RowBlock(Distributed):
    """This rank's consecutive rows of a matrix that is distributed over all ranks, in the order of the ranks.

    Every rank has one; it may be empty. `shape`, `len` and `nbytes` are of this rank's rows. `a @ b` is the product by all ranks;
    `+ - * / // % **`, comparisons and NumPy's functions of single elements, with numbers and RowBlocks of the same rows, give
    what each rank computes of its own. `a.T` is a view, of which this rank has columns; products take it.

    Parameters
    ----------
    array
        The rows: a NumPy array, or a CuPy array on the rank's GPU.
    comm
        The mpi4py communicator for `@`. RowBlocks that `multiply`, `scatter` and operators return know theirs; a pickled one does
        not.
    first_row
        Of these rows, in the whole matrix, where that is known, as of what `multiply` and `scatter` return. It is only shown.
    """

    array: Any
    comm: Any = None
    first_row: int | None = None

    def __post_init__(self) -> None:
        is_array = isinstance(self.array, np.ndarray) or (on_gpu(self.array) and hasattr(self.array, "ndim"))
        if not is_array or self.array.ndim != 2:
            given = f"an array of {self.array.ndim} dimensions" if is_array else type(self.array).__name__
            raise UsageError(f"a RowBlock takes a matrix of NumPy's or CuPy's, not {given}", code="no-numbers")
        refuse_masked(self.array, "the array of a RowBlock")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns that this rank has. How many rows others have, it does not know."""
        rows, columns = self.array.shape
        return rows, columns

    def __len__(self) -> int:
        return len(self.array)

    @property
    def T(self) -> TransposedRowBlock:
        """The transpose, of which this rank has columns. No element is moved before a product, `scatter` or `gather` takes it."""
        from hybrid.arrays.transposed_row_block import TransposedRowBlock  # which is made of RowBlocks

        return TransposedRowBlock(self)

    def _like(self, array: Any, comm: Any) -> RowBlock:
        return type(self)(array, comm, self.first_row)

    def __repr__(self) -> str:
        (rows, columns), first = self.shape, self.first_row
        which = f"{rows} rows" if first is None else f"rows {Span(first, first + rows)}"
        return f"RowBlock({which} of {columns} columns, {self.dtype}, {self.device}{self._rank})"


@dataclass(frozen=True)
class BlockShapes:
    """What the other ranks must know of one rank's blocks of A, B and C."""

    a: tuple[int, int]
    b: tuple[int, int]
    types: ProductType
    copied_bytes: int  # host memory for blocks that must be converted, and for copies from a GPU for the check
    gpu_bytes: int = 0  # memory for the expanded B on its GPU, if that multiplies it, and for a C that is copied there
    largest: tuple[int, ...] = ()  # the largest magnitudes in A, in B and in C, where they are integers
    on_gpu: tuple[bool, bool] = (False, False)  # whether A lies on a GPU, and B

    @classmethod
    def of(cls, a: Any, b: Any, c: Any, gemm: Gemm, *, check: bool, threads: Callable[[], int]) -> BlockShapes:
        """What is to be known of this rank's operands. UsageError where they cannot be multiplied.

        `check`: the product is checked from host memory. `threads`: gives the number of threads that look for the largest
        integers.
        """
        types = product_type(a.array.dtype, b.array.dtype, gemm.dtype)
        refuse_wrong_c(None if c is None else c.array, gemm.of_type(types), (len(a), b.shape[1]), types)
        real = types.problem(a.shape[0], a.shape[1], b.shape[1])  # this rank's rows of the real product
        real_b, is_conjugated = b.shape[0] * (1 + types.complex_a), types.complex_b and gemm.conjugate_b
        copied = (
            real.n * real.l * _is_copied(a.array, types.operand_a, check=check),
            real_b * real.m * (types.complex_a or is_conjugated or _is_copied(b.array, types.operand_b, check=check)),
            real.n * real.m * (on_gpu(a.array) and check),
        )
        expanded = real_b * real.m * real.item_size if types.complex_a and on_gpu(b.array) else 0
        added = None if gemm.beta == 0 else c  # else C is not read
        largest: tuple[int, ...] = ()
        if types.exact:
            looked_at = a, b, added
            largest = tuple(largest_of(where_it_lies(block.array), threads()) if block is not None else 0 for block in looked_at)
        there = on_gpu(a.array), on_gpu(b.array)
        copied_there = added.array.nbytes if added is not None and there[0] and not on_gpu(added.array) else 0
        return cls(a.shape, b.shape, types, sum(copied) * real.item_size, expanded + copied_there, largest, there)

    def bytes_on_gpu(self, exact: Exact | None, *, combines: bool) -> int:
        """The bytes that the product takes on this rank's GPU beside the real product's C, if that multiplies it.

        `exact`: how a product of integers is computed, which stay where they lie; None for others. `combines`: as of `Gemm`.
        """
        there = [shape for shape, is_there in zip((self.a, self.b), self.on_gpu, strict=True) if is_there]
        if exact is None or not there:
            return self.gpu_bytes
        operands, c = sum(rows * columns for rows, columns in there) * ITEM_SIZES[exact.computed], (self.a[0], self.b[1])
        if self.on_gpu[0]:
            there.append(c)  # which is put together beside A
        temporary = temporary_arrays(exact, self.types.result, combines=combines) * max(bytes_of_part(*each) for each in there)
        if exact.primes:
            return self.gpu_bytes + operands + temporary + (c[0] * c[1] * len(exact.primes) * DIGIT.itemsize) * self.on_gpu[0]
        result = c[0] * c[1] * np.dtype(self.types.result).itemsize  # is made when A and B of the real product are given back
        return self.gpu_bytes + max(operands, (result + temporary) * self.on_gpu[0])


def problem_of_blocks(blocks: Sequence[BlockShapes]) -> tuple[Problem, list[Span], list[Span]]:
    """The real product of all ranks' blocks, and each rank's rows of its A and of its B. UsageError where they do not fit
    together."""
    first = blocks[0]
    for rank, block in enumerate(blocks):
        if (block.a[1], block.b[1], block.types) != (first.a[1], first.b[1], first.types):
            raise UsageError(
                f"rank {rank}'s blocks have {block.a[1]} and {block.b[1]} columns of {block.types}, "
                f"rank 0's {first.a[1]} and {first.b[1]} of {first.types}",
                code="ranks-differ",
            )
    depth = sum(block.b[0] for block in blocks)
    if depth != first.a[1]:
        raise UsageError(f"A has {first.a[1]} columns and B {depth} rows: they must be the same", code="shapes")
    rows_a = consecutive(block.a[0] for block in blocks)
    rows_b = consecutive(block.b[0] * (1 + first.types.complex_a) for block in blocks)
    return first.types.problem(rows_a[-1].hi, first.a[1], first.b[1]), rows_a, rows_b


def _is_copied(array: Any, dtype: str, *, check: bool) -> bool:
    """Whether the array is copied to new host memory: from a GPU for the check, on the host for its type or layout."""
    return check if on_gpu(array) else array.dtype != dtype or not array.flags.c_contiguous
