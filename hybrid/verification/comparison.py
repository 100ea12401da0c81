# SPDX-License-Identifier: MIT
"""Comparing C·x with A·(B·x) on the host: how large the differences are, in units of the rounding errors to be expected.

A difference in these units is called a size: 1 is what rounding errors are expected to make, at most.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, even_pieces, pieces
from hybrid.devices.cpu import MOST_IN_TOTAL
from hybrid.emulation.build import build_plain, c_compiler
from hybrid.emulation.loaded_soon import LoadedSoon
from hybrid.host.row_sums import NOT_INTEGRAL
from hybrid.host.threads import CALL_BYTES, on_threads, rows_of_about
from hybrid.plan.check_layout import GROUP_COLUMNS
from hybrid.verification.check import FEW, Suspect, comparison_numbers, spread_of

if TYPE_CHECKING:
    from hybrid.verification.second_look import WrongParts


# -------- group loops
# The loops of group_sums.c, where there is a C compiler; group_sums.py and comparison.py do the same with NumPy.

SOURCE = Path(__file__).resolve().parent / "group_sums.c"
_FLAGS = ("-std=c11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-pthread")
_TYPES = ("float32", "float64")
TOGETHER = 64  # rows whose squares are added up
# Of the rows that a thread takes in one call: Python does not notice an interrupt (SIGINT) before it ends.
_BYTES_A_THREAD = 64 << 20
FOUND, NOT_COMPARED = 5, -1.0  # how much is found of each row, and what of those not compared, as in group_sums.c
_pools: dict[int, Any] = {}  # by process


class Look(ctypes.Structure):
    """What rows of elements are like, as group_sums.c has it. Of those that are not integral `largest` tells nothing."""

    _fields_: ClassVar[Any] = [("largest", ctypes.c_double), ("integral", ctypes.c_int64)]


class CComparison(ctypes.Structure):
    """What sums are compared with, as group_sums.c has it."""

    _fields_: ClassVar[Any] = [
        *((name, ctypes.c_void_p) for name in ("sums", "norms_a", "norms_b")),
        *((name, ctypes.c_double) for name in ("deviation", "per_term", "flushed", "overflow")),
        ("integral", ctypes.c_int64),
        ("kept", ctypes.c_void_p),
        ("kept_length", ctypes.c_int64),
        ("found", ctypes.c_void_p),
    ]


class _Rows(ctypes.Structure):
    """A matrix, as group_sums.c has it."""

    _fields_: ClassVar[Any] = [
        ("elements", ctypes.c_void_p),
        ("columns", ctypes.c_int64),
        ("row_length", ctypes.c_int64),  # elements from one row to the next
    ]

    @classmethod
    def of(cls, matrix: np.ndarray) -> _Rows:
        return cls(matrix.ctypes.data, matrix.shape[1], matrix.strides[0] // matrix.itemsize)


def can_sum(rows: np.ndarray) -> bool:
    """Whether there is the library, compiled in the background, and it can read these rows where they lie."""
    in_rows = rows.strides[1] == rows.itemsize and not rows.strides[0] % rows.itemsize
    readable = rows.dtype.name in _TYPES and rows.dtype.isnative and rows.flags.aligned and in_rows
    return readable and _library().loaded is not None


def sums_and_squares(
    matrix: np.ndarray, x: np.ndarray, group: int, threads: int, *, looks: bool
) -> tuple[np.ndarray, np.ndarray, Look | None]:
    """For each row and each group of columns the sum of x[j]·matrix[i,j]; for each TOGETHER rows and each group that of squares.
    Only for a matrix of which `can_sum` is true. `looks`: tell what it is like."""
    groups, look = -(-matrix.shape[1] // group), Look(0.0, 1) if looks else None
    sums, squares = np.empty((len(matrix), groups)), np.zeros((-(-len(matrix) // TOGETHER), groups))
    x = np.ascontiguousarray(x)
    results = sums.ctypes.data, squares.ctypes.data, _pointer(look)
    _call(f"group_sums_{matrix.dtype.name}", matrix, threads, x.ctypes.data, group, TOGETHER, *results)
    return sums, squares, look


def products_and_squares(
    matrix: np.ndarray, y: np.ndarray, threads: int, *, looks: bool
) -> tuple[np.ndarray, np.ndarray, Look | None]:
    """The matrix times y, and the sum of squares of each of its rows. Only for a matrix of which `can_sum` is true. `looks`: tell
    what it is like."""
    product, squares, look = np.empty((len(matrix), y.shape[1])), np.zeros(len(matrix)), Look(0.0, 1) if looks else None
    library, y = _library().loaded, np.ascontiguousarray(y)
    columns = ctypes.c_int.in_dll(library, "columns_together").value
    packed = np.empty((-(-y.shape[1] // columns), len(y), columns))
    library.pack(_pool(), threads, y.ctypes.data, *y.shape, packed.ctypes.data)
    results = product.ctypes.data, squares.ctypes.data, _pointer(look)
    _call(f"products_{matrix.dtype.name}", matrix, threads, packed.ctypes.data, y.shape[1], *results)
    return product, squares, look


def compare(matrix: np.ndarray, x: np.ndarray, group: int, threads: int, comparison: CComparison) -> np.ndarray:
    """What the comparison finds of each row, as group_sums.c tells it. Only for a matrix of which `can_sum` is true."""
    found, x = np.empty((len(matrix), FOUND)), np.ascontiguousarray(x)
    comparison.found = found.ctypes.data
    _call(f"compare_{matrix.dtype.name}", matrix, threads, x.ctypes.data, group, _pointer(comparison))
    return found


def _pointer(structure: ctypes.Structure | None) -> Any:
    return ctypes.byref(structure) if structure is not None else None


def _call(function: str, matrix: np.ndarray, threads: int, *operands: Any) -> None:
    """Call a function of the library for all rows, of which some are given to one call."""
    rows = _Rows.of(matrix)
    at_once = _BYTES_A_THREAD * max(1, threads) // max(1, matrix.shape[1] * matrix.itemsize)
    for some in pieces(Span(0, len(matrix)), max(1, at_once // TOGETHER) * TOGETHER):
        getattr(_library().loaded, function)(_pool(), threads, ctypes.byref(rows), *operands, some.lo, some.hi)


@cache
def _library() -> LoadedSoon:
    return LoadedSoon(load)


def _pool() -> Any:
    """The address of this process's pool of threads. A forked child makes its own: its parent's has no threads there, and perhaps
    a lock that is never released."""
    process = os.getpid()
    if process not in _pools:
        pool = _library().loaded.new_loop_pool()
        if not pool:
            raise MemoryError("no memory for a pool of threads")
        _pools.setdefault(process, pool)  # if another thread has made one meanwhile, this one never gets threads
    return _pools[process]


def load() -> Any:
    """The compiled library. HybridError without a C compiler, or where it does not compile."""
    library: Any = ctypes.CDLL(str(build_plain(c_compiler(), SOURCE, _FLAGS)))
    address, number, count = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.new_loop_pool.restype = address
    library.pack.argtypes, library.pack.restype = [address, count, address, number, number, address], None
    operands = {
        "group_sums": [address, number, number, address, address, address],
        "products": [address, number, address, address, address],
        "compare": [address, number, address],
    }
    for name, of in operands.items():
        for dtype in _TYPES:
            function = getattr(library, f"{name}_{dtype}")
            function.argtypes, function.restype = [address, count, address, *of, number, number], None
    return library


# -------- group sums
# Sums and norms over groups of columns of matrices in host memory, computed for some rows at a time, which stay in a core's
# cache.

Result = TypeVar("Result")

_PIECE_BYTES = 1 << 20  # of rows as float64: few enough to stay in the cache, enough to make NumPy's calls worth their while
_MOST_BYTES = 16 << 20  # of rows that a thread takes at once
_SQUARES = 1e-280, 1e280  # sums of squares between these have neither overflowed nor lost what counts to underflow
# For elements of 4 and 8 bytes: the rows and columns of A that BLAS multiplies at a time. Sums of few terms are more accurate, as
# the check's must be where the product is itself in float64.
_BLOCKS = {4: (128, 4096), 8: (512, 128)}


class Integers:
    """Finds whether all numbers are integers, and their largest magnitude. Several threads may show it numbers."""

    def __init__(self) -> None:
        self._integral, self._peaks = True, [0.0]

    @property
    def largest(self) -> float:
        """The largest magnitude so far, or NOT_INTEGRAL if there was a number that is no integer."""
        return max(self._peaks) if self._integral else NOT_INTEGRAL

    @property
    def integral(self) -> bool:
        return self._integral

    @staticmethod
    def all(largest: Iterable[float]) -> bool:
        """Whether these, the `largest` of several Integers, are all of integers."""
        return NOT_INTEGRAL not in largest

    def look(self, values: np.ndarray) -> None:
        """Take these numbers into account. After the first that is no integer, this costs nothing."""
        if not values.size or not self._integral:
            return
        if not (are_integers(values[:1]) and are_integers(values)):
            self._integral = False
        else:
            self._peaks.append(float(max(values.max(), -values.min())))

    def take(self, look: Look | None) -> None:
        """Take into account what numbers are like, if someone looked at them."""
        if look is None:
            return
        if look.integral:
            self._peaks.append(look.largest)
        else:
            self._integral = False


def are_integers(values: np.ndarray) -> bool:
    """Whether all values are integers; infinity counts as one."""
    return bool((np.rint(values) == values).all())


def over_rows(matrix: np.ndarray, threads: int, work: Callable[[slice, np.ndarray], Result]) -> Iterator[Result]:
    """The results of `work(where, rows)` for some rows at a time, by several threads. `where`: which rows of the matrix."""

    def quietly(rows: Span) -> Result:
        with np.errstate(all="ignore"):  # whoever looks at the sums deals with overflow and NaN
            return work(rows.slice, matrix[rows.slice])

    row_bytes = matrix.shape[1] * matrix.itemsize
    at_once = max(CALL_BYTES, min(_MOST_BYTES, len(matrix) * row_bytes // (2 * threads)))
    return on_threads(threads, quietly, rows_of_about(at_once, Span(0, len(matrix)), row_bytes))


def in_cache(matrix: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Some rows at a time, and which they are, as float64. The next rows may overwrite them."""
    buffer = np.empty(0)
    for rows in rows_of_about(_PIECE_BYTES, Span(0, len(matrix)), 8 * matrix.shape[1]):
        buffer, values = _as_float64(matrix[rows.slice], buffer)
        yield rows.slice, values


def _as_float64(matrix: np.ndarray, buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The matrix as float64: itself if it is of that type, else converted into the buffer. Also the buffer for the next call: the
    given one, or a new one where that was too small."""
    if matrix.dtype == np.float64:
        return buffer, matrix
    if len(buffer) < matrix.size:
        buffer = np.empty(matrix.size)
    values = buffer[: matrix.size].reshape(matrix.shape)
    np.copyto(values, matrix)
    return buffer, values


def sums_of_groups(
    matrix: np.ndarray, x: np.ndarray, group: int, integers: Integers, threads: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each row i and each group of columns the sum of x[j]·matrix[i,j], and for each group the 2-norm of all of its elements;
    `integers` looks at them."""
    if can_sum(matrix):
        sums, squares, look = sums_and_squares(matrix, x, group, threads, looks=integers.integral)
        integers.take(look)
        norms = _norms_of_blocks(squares, matrix, group, threads)
    else:
        sums = np.empty((len(matrix), -(-matrix.shape[1] // group)))

        def add_up(where: slice, rows: np.ndarray) -> np.ndarray:
            of_parts = []
            for part, values in in_cache(rows):
                integers.look(values)
                sums[where][part], norms = sums_and_norms(values, x, group)
                of_parts.append(norms_of_all(norms))
            return norms_of_all(of_parts)

        norms = np.array(list(over_rows(matrix, threads, add_up)))
    with np.errstate(all="ignore"):
        return sums, norms_of_all([*norms, np.zeros(sums.shape[1])])


def _norms_of_blocks(squares: np.ndarray, matrix: np.ndarray, group: int, threads: int) -> np.ndarray:
    """For each TOGETHER rows the 2-norms of the groups of columns. `squares`: of `sums_and_squares`."""
    norms, nothing = np.sqrt(squares), np.zeros(matrix.shape[1])

    def again(block: int) -> None:
        rows = matrix[block * TOGETHER : (block + 1) * TOGETHER]
        with np.errstate(all="ignore"):
            of_rows = [sums_and_norms(values, nothing, group)[1] for _, values in in_cache(rows)]
            norms[block] = norms_of_all(np.concatenate(of_rows))

    for _ in on_threads(threads, again, np.flatnonzero(~are_sure(squares).all(axis=1)).tolist()):
        pass
    return norms


def are_sure(squares: np.ndarray) -> np.ndarray:
    """Which sums of squares have neither overflowed nor lost what counts to underflow. Those of the loops are 0 only of zeros."""
    least, most = _SQUARES
    return (squares == 0) | (squares > least) & (squares < most)


def sums_and_norms(values: np.ndarray, x: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """For each row i and each group of columns j, the sum of x[j]·values[i,j], and the 2-norm of the values."""
    rows, columns = values.shape
    groups, whole = -(-columns // group), columns // group
    sums, norms = np.empty((rows, groups)), np.empty((rows, groups))
    for first, last, width in ((0, whole * group, group), (whole * group, columns, columns - whole * group)):
        if first < last:
            part = values[:, first:last].reshape(rows, (last - first) // width, width)
            of_part = slice(first // group, -(-last // group))
            np.einsum("rgj,gj->rg", part, x[first:last].reshape(-1, width), out=sums[:, of_part])
            norms[:, of_part] = norms_of(part)
    return sums, norms


def norms_of(values: np.ndarray) -> np.ndarray:
    """The 2-norms along the last axis, also where squares overflow or underflow."""
    squares = np.einsum("...j,...j->...", values, values)
    least, most = _SQUARES
    out_of_range = ~((squares > least) & (squares < most))
    norms = np.sqrt(squares)
    if out_of_range.any():
        sizes = np.abs(values[out_of_range])
        peaks = sizes.max(axis=-1, initial=0.0)
        scaled = sizes / np.where(peaks > 0, peaks, 1.0)[..., None]
        norms[out_of_range] = peaks * np.sqrt(np.einsum("...j,...j->...", scaled, scaled))
    return norms


def norms_of_all(norms: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """The 2-norms of what has these norms, each row of them of some."""
    return norms_of(np.ascontiguousarray(np.asarray(norms).T))


def times(a: np.ndarray, y: np.ndarray, integers: Integers, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """A·y in float64, and the 2-norms of A's rows; `integers` looks at A."""
    if can_sum(a):
        return _times_by_loops(a, y, integers, threads)
    block_rows, block_columns = _BLOCKS[a.itemsize]
    product, norms = np.zeros((len(a), y.shape[1])), np.zeros(len(a))

    def multiply(rows: Span) -> None:
        buffer = np.empty(0)
        with np.errstate(all="ignore"):
            for inner in pieces(Span(0, a.shape[1]), block_columns):
                for some in pieces(rows, block_rows):
                    buffer, values = _as_float64(a[some.slice, inner.slice], buffer)
                    integers.look(values)
                    norms[some.slice] = np.hypot(norms[some.slice], norms_of(values))
                    product[some.slice] += np.dot(values, y[inner.slice])

    parts = even_pieces(Span(0, len(a)), max(block_rows, -(-len(a) // (4 * threads))))
    for _ in on_threads(threads, multiply, parts):
        pass
    return product, norms


def _times_by_loops(a: np.ndarray, y: np.ndarray, integers: Integers, threads: int) -> tuple[np.ndarray, np.ndarray]:
    product, squares, look = products_and_squares(a, y, threads, looks=integers.integral)
    integers.take(look)
    norms, sure = np.sqrt(squares), are_sure(squares)

    def again(where: slice, rows: np.ndarray) -> None:
        doubtful = np.flatnonzero(~sure[where])
        for part, values in in_cache(rows[doubtful]):
            norms[where][doubtful[part]] = norms_of(values)

    for _ in over_rows(a, threads, again) if not sure.all() else ():
        pass
    return product, norms


MOST_SUSPECTS = 16
_LARGEST_KEPT = 1e30  # fits into float32
_TOTAL, _WORST, _GROUP = 0, 2, 3  # places in what is found of a row


@dataclass(frozen=True)
class Expected:
    """The sums of C·x that A and B let expect, for some rows of C and some groups of columns."""

    columns: Span  # of C, which the groups cover
    x: np.ndarray  # its elements for these columns
    sums: np.ndarray  # A·(B·x)
    norms_a: np.ndarray  # of A's rows
    norms_b: np.ndarray  # of all of B, for each group
    integral: bool  # A and B, as far as is known here


@dataclass(frozen=True)
class Totals:
    """What the comparison of many sums amounts to."""

    total: float  # of the sizes, each counted as MOST_IN_TOTAL at most
    count: int  # of sizes that are not 0
    worst: float  # the largest size
    not_judged: int  # sums where A·B may overflow, or holds NaN or infinities
    judged: int

    @property
    def spread(self) -> float:
        """The standard deviation of the sizes; 1, which is what is expected at most, where there are too few to tell."""
        return float(spread_of(self.total, self.count)) if self.count >= FEW else 1.0

    @property
    def error(self) -> float:
        """The largest difference, in standard deviations of this product's."""
        return self.worst / self.spread


class Comparison:
    """Compares sums of one problem's products with those expected."""

    def __init__(self, problem: Problem, scale: float) -> None:
        """`scale`: the elements of x are integers times this."""
        variance, per_term, flushed, _ = comparison_numbers(problem, GROUP_COLUMNS).tolist()
        self._deviation, self._per_term, self._flushed = variance**0.5, per_term, flushed * scale
        self._overflow = float(np.finfo(problem.dtype).max) / 4

    def suspects(
        self, c: np.ndarray, first_row: int, expected: Expected, threads: int, keep: np.ndarray | None = None
    ) -> tuple[Totals, list[Suspect]]:
        """Compare the rows `c` of C: the totals of their sums, and the worst sums, one of a row.

        `first_row`: the number in C of `c`'s first row. `keep`: an array with a column for each group of C's columns, into which
        all sizes are written.
        """
        groups = slice(expected.columns.lo // GROUP_COLUMNS, -(-expected.columns.hi // GROUP_COLUMNS))
        kept = keep[:, groups] if keep is not None else None
        rows = c[:, expected.columns.slice]
        if can_sum(rows):
            found = self._found_by_loops(rows, expected, threads, kept)
            if (found[:, _TOTAL] == NOT_COMPARED).any():
                self._find(found, rows, expected, threads, kept)
        else:
            found = np.full((len(rows), FOUND), NOT_COMPARED)
            self._find(found, rows, expected, threads, kept)
        return _totals(found, len(expected.norms_b)), [
            Suspect(first_row + row, columns_of(int(found[row, _GROUP]), expected.columns), float(found[row, _WORST]))
            for row in _worst_rows(found[:, _WORST])
        ]

    def _found_by_loops(self, rows: np.ndarray, expected: Expected, threads: int, kept: np.ndarray | None) -> np.ndarray:
        """What is found of each row of C: see `compare` of group_loops.py."""
        arrays = [np.ascontiguousarray(each) for each in (expected.sums, expected.norms_a, expected.norms_b)]
        factor = self._deviation * _root_mean_square(expected.x)
        numbers = factor, self._per_term, self._flushed, self._overflow, expected.integral
        into = (kept.ctypes.data, kept.strides[0] // kept.itemsize) if kept is not None else (None, 0)
        wanted = CComparison(*(each.ctypes.data for each in arrays), *numbers, *into)
        return compare(rows, expected.x, GROUP_COLUMNS, threads, wanted)

    def _find(self, found: np.ndarray, c: np.ndarray, expected: Expected, threads: int, kept: np.ndarray | None) -> None:
        """The same with NumPy, for all rows of `found` that are not compared yet."""

        def find(where: slice, rows: np.ndarray) -> None:
            left = np.flatnonzero(found[where, _TOTAL] == NOT_COMPARED)
            for part, values in in_cache(rows if len(left) == len(rows) else rows[left]):
                some = where.start + left[part]
                differences, norms = sums_and_norms(values, expected.x, GROUP_COLUMNS)
                differences -= expected.sums[some]
                if expected.integral:
                    mark_fractions(differences, values)
                sizes, counted, judged = self.sizes(
                    differences, norms, expected.norms_a[some, None], expected.norms_b, expected.x
                )
                if kept is not None:
                    kept[some] = np.minimum(sizes, _LARGEST_KEPT)
                totals = np.minimum(sizes, MOST_IN_TOTAL).sum(axis=1), counted.sum(axis=1), sizes.max(axis=1)
                found[some] = np.stack([*totals, sizes.argmax(axis=1), (~judged).sum(axis=1)], axis=1)

        for _ in over_rows(c, threads, find):
            pass

    def sizes(
        self, differences: np.ndarray, norms: np.ndarray, norms_a: np.ndarray, norms_b: np.ndarray, x: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The sizes of these differences, which of them are not 0, and which can be judged.

        The formula is that of `compare_sums` in kernels/check.cu, with norms in place of their squares, which may overflow or
        underflow. `norms`: of C's rows within each group; `norms_a` and `norms_b` are broadcast to their shape. `differences` and
        `norms` are overwritten.
        """
        with_b = norms_a * norms_b
        if not np.isfinite(with_b).all():  # 0 times what overflowed is 0
            with_b[(norms_a == 0) & (norms_b <= np.inf) | (norms_a <= np.inf) & (norms_b == 0)] = 0
        judged = with_b < self._overflow  # else A·B may overflow, or holds NaN or infinities
        norms /= with_b
        np.fmin(norms, 1.0, out=norms)  # no part of C is larger, unless it is wrong
        norms *= norms
        norms += self._per_term
        np.sqrt(norms, out=norms)
        norms *= with_b
        norms *= self._deviation * _root_mean_square(x)
        norms += self._flushed * (1 + norms_a + norms_b)
        sizes = np.abs(differences, out=differences)
        counted = (sizes != 0) & judged
        sizes = np.divide(sizes, norms, out=np.zeros_like(sizes), where=counted)
        sizes[~(sizes <= NOT_INTEGRAL)] = NOT_INTEGRAL
        return sizes, counted, judged


def _totals(found: np.ndarray, groups: int) -> Totals:
    """The totals of what is found of rows with so many groups."""
    total, count, _, _, not_judged = found.sum(axis=0).tolist()
    worst, unjudged = float(found[:, _WORST].max(initial=0.0)), int(not_judged)
    return Totals(total, int(count), worst, unjudged, len(found) * groups - unjudged)


def _worst_rows(sizes: np.ndarray) -> list[int]:
    """The rows with the largest sizes, those that are not 0."""
    few = min(MOST_SUSPECTS, len(sizes))
    least = np.partition(sizes, len(sizes) - few)[len(sizes) - few] if few else 0.0
    rows = np.flatnonzero((sizes >= least) & (sizes > 0))
    return [int(row) for row in rows[np.argsort(-sizes[rows], kind="stable")][:few]]


def mark_fractions(differences: np.ndarray, values: np.ndarray) -> None:
    """Where the product is one of integers: make the differences of all groups with a fraction infinite."""
    if not are_integers(values):
        starts = np.arange(0, values.shape[1], GROUP_COLUMNS)
        differences[np.logical_or.reduceat(np.rint(values) != values, starts, axis=1)] = np.inf


def together(sums: Sequence[Totals]) -> Totals:
    """The totals of all these sums."""
    return Totals(
        sum(each.total for each in sums),
        sum(each.count for each in sums),
        max((each.worst for each in sums), default=0.0),
        sum(each.not_judged for each in sums),
        sum(each.judged for each in sums),
    )


def _root_mean_square(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x * x)))


def columns_of(group: int, columns: Span) -> Span:
    """The columns of a group, counted from the first of `columns`."""
    first = columns.lo + group * GROUP_COLUMNS
    return Span(first, min(first + GROUP_COLUMNS, columns.hi))


# -------- judgeable
# Columns of C of which a sum cannot be judged, since another column in their group holds NaN, infinities or may overflow.

_ROOM = 16.0  # a column counts as one that may overflow from this part of the largest number on


def groups_left_open(norms_b: np.ndarray, usual_a: float, largest: float) -> list[int]:
    """The groups of columns whose sums are not judged. `norms_b`: of B in each group; `usual_a`: the norm of a usual row of A;
    `largest`: what sums may be."""
    with np.errstate(all="ignore"):
        return np.flatnonzero(~(norms_b * usual_a < largest)).tolist()


def norms_of_columns(b: np.ndarray, groups: Sequence[int], columns: int) -> np.ndarray:
    """The norm of each column of these groups, in rows `b` of B."""
    with np.errstate(all="ignore"):
        parts = [columns_of(group, Span(0, columns)).slice for group in groups]
        return np.concatenate([norms_of(np.ascontiguousarray(b[:, part].T, np.float64)) for part in parts])


def finite_columns(groups: Sequence[int], norms: np.ndarray, usual_a: float, largest: float, columns: int) -> np.ndarray:
    """The numbers of the columns of these groups that can be judged beside each other, given the norms of all of them."""
    numbers = np.concatenate([np.arange(group * GROUP_COLUMNS, min(columns, (group + 1) * GROUP_COLUMNS)) for group in groups])
    with np.errstate(all="ignore"):
        return numbers[norms * usual_a < largest / _ROOM]


def usual_norm(norms_a: np.ndarray) -> float:
    """The median of those norms of rows that are finite; 1 where none is."""
    finite = norms_a[np.isfinite(norms_a)]
    return float(np.median(finite)) if len(finite) else 1.0


def mark(wrong: WrongParts, groups: Sequence[int], rows: int, columns: int) -> None:
    """Mark all rows of these groups as wrong."""
    for group in groups:
        wrong.add(np.arange(rows), columns_of(group, Span(0, columns)))
