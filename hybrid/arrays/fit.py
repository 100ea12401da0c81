# SPDX-License-Identifier: MIT
"""Whether the arrays of a call fit together, and which real product a call of distributed matrices means.

What does not fit is refused in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hybrid.arrays.distributed import Block2D, Distributed
from hybrid.arrays.gemm import Gemm, ProductType, numpy_type, product_type
from hybrid.arrays.integers import DIGIT, Exact, largest_of, temporary_bytes
from hybrid.arrays.interop import on_gpu, where_it_lies
from hybrid.core.problem import ITEM_SIZES, Problem
from hybrid.core.spans import Span, consecutive
from hybrid.errors import UsageError
from hybrid.planning.grid import Part, Placement

_MOST_WORK = 100_000  # steps of NumPy's search for a common element: some milliseconds


def can_hold(out: np.ndarray, dtype: str) -> bool:
    """Whether C can be computed in `out` itself, without a copy at the end."""
    return out.flags.c_contiguous and out.flags.aligned and out.dtype.isnative and out.dtype == dtype


def refuse_unused_c(c: Any, asked_gemm: Mapping[str, Any]) -> None:
    """UsageError for a C that is given without a word on beta; callers of BLAS pass beta=0 when C is not to be read."""
    if c is not None and asked_gemm.get("beta") is None:
        or_out = "" if isinstance(c, Distributed) else ", or out=c to write to it"
        raise UsageError(f"c is given, but beta is 0: pass beta=1 to add c, beta=0 to leave it unread{or_out}", code="addend")


def refuse_wrong_c(c: Any, gemm: Gemm, shape: tuple[int, ...], types: ProductType) -> None:
    """UsageError unless beta times this C can be added to the product. Where beta is 0, it is not looked at."""
    if gemm.beta == 0:
        return
    if c is None:
        raise UsageError(f"beta is {gemm.beta:g}, but c is None: pass the matrix that is added", code="addend")
    if c.shape != shape:
        raise UsageError(f"c has shape {c.shape}, the product {shape}", code="addend")
    if types.exact and c.dtype.kind not in "biu":
        raise UsageError(
            f"c is of {c.dtype}, and a product of {types.result} is exact: pass integers, or dtype='float64'", code="addend"
        )
    if not types.exact and not np.can_cast(c.dtype, numpy_type(types.result), "same_kind"):
        raise UsageError(f"c is of {c.dtype}, which cannot be added to a product of {types.result}", code="addend")


def refuse_out(out: Any, shape: tuple[int, ...], dtype: np.dtype, what: str = "product") -> None:
    """UsageError unless `what`, of this shape and type, can be written to `out`."""
    if isinstance(out, np.ma.MaskedArray):
        raise UsageError(f"out is a masked array, whose mask would hide elements of the {what}: pass out.data", code="masked")
    if not (isinstance(out, np.ndarray) or (on_gpu(out) and hasattr(out, "flags"))):
        raise UsageError(f"out must be an array of NumPy or CuPy, not {type(out).__name__}", code="out")
    if out.shape != shape:
        raise UsageError(f"out has shape {out.shape}, the {what} {shape}", code="out")
    if out.dtype != dtype:
        order = " in this machine's byte order" if dtype.isnative else ""
        raise UsageError(f"out must be an array of {dtype}{order}, not of {out.dtype}", code="out")
    if on_gpu(out):
        return
    if not out.flags.writeable:
        raise UsageError("out must be writable, and this array is not", code="out")
    if _overlaps_itself(out):
        raise UsageError(f"out has strides {out.strides}, with which several of its elements share memory", code="out")


def refuse_wrong_out(out: Any, operands: Iterable[Any], c: Any, shape: tuple[int, ...], types: ProductType) -> None:
    """UsageError unless the product can be written to `out` while A and B, the `operands`, and C are still read. To a GPU it is
    copied afterwards."""
    refuse_out(out, shape, numpy_type(types.result))
    if on_gpu(out):
        return
    if any(_overlap(out, each) for each in operands):
        raise UsageError("out overlaps a or b, which are still read while it is written", code="overlap")
    if c is not None and _overlap(out, c) and not _is_same(out, c):
        raise UsageError("out overlaps c without being the same array", code="overlap")


def _overlap(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether an element of one array shares memory with one of the other.

    Neighbouring blocks of columns of one matrix do not, though each reaches from its first row to its last.
    """
    try:
        return np.shares_memory(one, other, max_work=_MOST_WORK)  # type: ignore[arg-type]  # any number may be given
    except RuntimeError:  # TooHardError
        return True


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether the two arrays have the same elements at the same place."""
    return one.__array_interface__["data"] == other.__array_interface__["data"] and (one.strides, one.dtype) == (
        other.strides,
        other.dtype,
    )


def _overlaps_itself(array: np.ndarray) -> bool:
    """Whether several elements share memory: they may unless the elements of each dimension lie within one step of the next."""
    reach = array.itemsize
    for step, extent in sorted((abs(step), extent) for step, extent in zip(array.strides, array.shape, strict=True)):
        if extent > 1:
            if step < reach:
                return array.size > 0
            reach += step * (extent - 1)
    return False


def refuse_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """UsageError unless a matrix of shape `a` can be multiplied by one of shape `b`."""
    if a[1] != b[0]:
        raise UsageError(f"a has {a[1]} columns and b {b[0]} rows: they must be the same", code="shapes")


# -------- distributed operands
# What the ranks tell each other of their parts of A and B, and what follows from that.


@dataclass(frozen=True)
class Shares:
    """What the other ranks must know of one rank's RowBlocks, or Block2Ds, of A, B and C."""

    a: tuple[int, int]  # the shape of what it has of A
    b: tuple[int, int]
    types: ProductType
    copied_bytes: int  # host memory for parts that must be converted, and for copies from a GPU for the check
    gpu_bytes: int = 0  # memory for the expanded B on its GPU, if that multiplies it, and for a C that is copied there
    largest: tuple[int, ...] = ()  # the largest magnitudes in A, in B and in C, where they are integers
    on_gpu: tuple[bool, bool] = (False, False)  # whether A lies on a GPU, and B
    whole: tuple[tuple[int, int], ...] = ()  # of Block2Ds the shapes of A and B
    places: tuple[Part, ...] = ()  # of Block2Ds, where these parts lie in A and B

    @classmethod
    def of(cls, a: Any, b: Any, c: Any, gemm: Gemm, *, check: bool, threads: Callable[[], int]) -> Shares:
        """What is to be known of this rank's operands. UsageError where they cannot be multiplied.

        `check`: the product is checked from host memory. `threads`: gives the number of threads that look for the largest
        integers.
        """
        in_2d = [each for each in (a, b) if isinstance(each, Block2D)]
        if len(in_2d) == 1:
            name = "b" if in_2d[0] is a else "a"
            raise UsageError(
                f"{name} is no Block2D, but the other operand is one: pass Block2Ds for both, on every rank", code="mixed-kinds"
            )
        types = product_type(a.array.dtype, b.array.dtype, gemm.dtype)
        (n, l), (depth, m) = a.array.shape, b.array.shape
        refuse_wrong_c(None if c is None else c.array, gemm.of_type(types), (n, m), types)
        real = types.problem(n, l, m)  # this rank's part of the real product
        real_b, is_conjugated = depth * (1 + types.complex_a), types.complex_b and gemm.conjugate_b
        copied = (
            real.n * real.l * _is_copied(a.array, types.operand_a, check=check),
            real_b * real.m * (types.complex_a or is_conjugated or _is_copied(b.array, types.operand_b, check=check)),
            real.n * real.m * (on_gpu(a.array) and check),
        )
        expanded = real_b * real.m * real.item_size if types.complex_a and on_gpu(b.array) else 0
        added = None if gemm.beta == 0 else c  # else C is not read
        largest: tuple[int, ...] = ()
        if types.exact is not None:
            looked_at = a, b, added
            largest = tuple(largest_of(where_it_lies(part.array), threads()) if part is not None else 0 for part in looked_at)
        there = on_gpu(a.array), on_gpu(b.array)
        copied_there = added.array.nbytes if added is not None and there[0] and not on_gpu(added.array) else 0
        return cls(
            (n, l),
            (depth, m),
            types,
            sum(copied) * real.item_size,
            expanded + copied_there,
            largest,
            there,
            tuple(each.shape for each in in_2d),
            tuple(each.part for each in in_2d),
        )

    @property
    def depth(self) -> int:
        """The columns of the whole A."""
        return self.whole[0][1] if self.whole else self.a[1]

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
        temporary = temporary_bytes(exact, self.types.result, there, combines=combines)
        if exact.primes:
            return self.gpu_bytes + operands + temporary + (c[0] * c[1] * len(exact.primes) * DIGIT.itemsize) * self.on_gpu[0]
        result = c[0] * c[1] * np.dtype(self.types.result).itemsize  # is made when A and B of the real product are given back
        return self.gpu_bytes + max(operands, (result + temporary) * self.on_gpu[0])


def _is_copied(array: Any, dtype: str, *, check: bool) -> bool:
    """Whether the array is copied to new host memory: from a GPU for the check, on the host for its type or layout."""
    return check if on_gpu(array) else array.dtype != dtype or not array.flags.c_contiguous


def problem_of_rows(shares: Sequence[Shares]) -> tuple[Problem, Placement]:
    """The real product of all ranks' RowBlocks, and which rows each rank has. UsageError where they do not fit
    together."""
    first = shares[0]
    for rank, share in enumerate(shares):
        if (share.a[1], share.b[1], share.types) != (first.a[1], first.b[1], first.types):
            raise UsageError(
                f"rank {rank}'s blocks have {share.a[1]} and {share.b[1]} columns of {share.types}, "
                f"rank 0's {first.a[1]} and {first.b[1]} of {first.types}",
                code="ranks-differ",
            )
    depth = sum(share.b[0] for share in shares)
    if depth != first.a[1]:
        raise UsageError(f"A has {first.a[1]} columns and B {depth} rows: they must be the same", code="shapes")
    rows_a = consecutive(share.a[0] for share in shares)
    rows_b = consecutive(share.b[0] * (1 + first.types.complex_a) for share in shares)
    problem = first.types.problem(rows_a[-1].hi, depth, first.b[1])
    return problem, Placement.of_rows(problem, rows_a, rows_b, rows_a)


def problem_of_blocks(shares: Sequence[Shares]) -> tuple[Problem, Placement]:
    """The real product of all ranks' Block2Ds, and where its parts lie. UsageError where the blocks do not fit together, or are
    not a grid's.

    Rows and columns are numbered anew, so that those of a rank are neighbours: the order in which they are multiplied does not
    matter, and parts that were dealt out in many blocks need not be sent around to be joined.
    """
    first = shares[0]
    (n, l), (depth, m) = first.whole
    for rank, share in enumerate(shares):
        if (share.whole, share.types) != (first.whole, first.types):
            raise UsageError(
                f"rank {rank}'s blocks are of matrices {share.whole[0]} and {share.whole[1]} of {share.types}, "
                f"rank 0's {n, l} and {depth, m} of {first.types}",
                code="ranks-differ",
            )
    if l != depth:
        raise UsageError(f"A has {l} columns and B {depth} rows: they must be the same", code="shapes")
    of_a, of_b = zip(*(share.places for share in shares), strict=True)
    of_c = [Part(a.rows, b.columns) for a, b in zip(of_a, of_b, strict=True)]
    for name, parts, shape in (("A", of_a, (n, l)), ("B", of_b, (l, m)), ("C", of_c, (n, m))):
        refuse_no_grid(name, parts, shape)
    rows, columns = (
        _renumbered([part.rows for part in of_a], n, 1),
        _renumbered([b.columns for b in of_b], m, 1 + first.types.complex_b),
    )
    inner = _renumbered([part.columns for part in of_a], l, 1 + first.types.complex_a)
    placement = Placement(
        tuple(Part(rows(part.rows), inner(part.columns)) for part in of_a),
        tuple(Part(inner(part.rows), columns(part.columns)) for part in of_b),
        tuple(Part(rows(part.rows), columns(part.columns)) for part in of_c),
    )
    return first.types.problem(n, l, m), placement


def _renumbered(groups: Sequence[tuple[Span, ...]], length: int, each: int) -> Callable[[tuple[Span, ...]], tuple[Span, ...]]:
    """A function that gives rows, or columns, new numbers, of which those of one group are neighbours. Each of the `length` rows
    has become `each` rows of the real product."""
    numbers, next_one = np.arange(length), 0
    for span in (span for group in dict.fromkeys(groups) for span in group):
        numbers[span.slice] = np.arange(next_one, next_one + len(span))
        next_one += len(span)

    def renumbered(spans: tuple[Span, ...]) -> tuple[Span, ...]:
        found = np.concatenate([numbers[:0], *(numbers[span.slice] for span in spans)])
        ends = [0, *(np.flatnonzero(np.diff(found) != 1) + 1), len(found)]
        runs = [found[lo:hi] for lo, hi in pairwise(ends) if hi > lo]
        return tuple(Span(int(run[0]) * each, int(run[-1] + 1) * each) for run in runs)

    return renumbered


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
