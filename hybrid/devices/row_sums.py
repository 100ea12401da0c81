# SPDX-License-Identifier: MIT
"""Sums over rows of matrices in host memory, as kernels/check.cu makes them on a GPU: checksums of rows, sums over groups of
columns, their comparison with expected sums, and A·(B·x).

Each exists twice: in row_sums.c, by a pool of threads without the GIL, and in NumPy, as a reference, for machines without a C
compiler, and until the library is compiled.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybrid.core.problem import Span, pieces, record
from hybrid.devices.base import Device, Event
from hybrid.devices.c_library import declare, structure
from hybrid.emulation.build import build_plain, c_compiler
from hybrid.emulation.loaded_soon import LoadedSoon
from hybrid.errors import DeviceUnavailable
from hybrid.host.blas import OF_ONE_THREAD, matmul_loop, warn_as_numpy
from hybrid.host.threads import CALL_BYTES, limited_blas, on_threads, own_threads, rows_of_about
from hybrid.kernels.catalogue import numbers_of

NOT_INTEGRAL = 1e300  # replaces the largest magnitude of numbers that are not all integers; also the largest size
NOT_JUDGED = -1.0  # the size of a sum that cannot be judged
MOST_IN_TOTAL = 4.0  # cap of a size in totals, which a single large one would otherwise dominate
SAMPLE = 64  # rows of B, sampled for the magnitudes of its columns

SOURCE = Path(__file__).with_suffix(".c")
_FLAGS = ("-std=c11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-pthread")
# Of rows, per thread and call: Python handles an interrupt (SIGINT) only between calls.
_BYTES_A_THREAD = 64 << 20
# BLAS packs all of B in each call: too slow for larger B with fewer rows of C per thread, which are multiplied in other ways.
_SMALL_B, _ROWS_A_THREAD = 1 << 13, 128
_TERMS_A_BYTE = 16  # multiply-adds that count as a byte of _BYTES_A_THREAD
_BYTES_WORTH_A_THREAD = 256 << 10  # waking a thread takes as long as summing fewer

# Structures of product_check.h, and `Piece` of row_sums.c.
_FINE = 2.0**40
_Rows = structure("void* elements; int64_t columns, row_bytes, item_size")
_Look = structure("double largest; int64_t integral")
_Comparison = structure("void* norms_a, norms_b, flushed, overflow; double deviation, per_term, flushed_of_a")
_Found = structure(
    "double total, largest; int64_t differ, not_judged, rows; double sizes[16]; int64_t of_rows[16], of_groups[16]"
)
_Check = structure(
    "Rows a, b, c; int64_t rows_of_b, group; void* x, y; int64_t step, scale, most_scale, most_weight; "
    "double largest_integer, flushed_of_b, largest, smallest_x; Comparison tolerances; Look in_a, in_b, in_c; "
    "void* multiply, pool; int64_t block, raised, no_memory; Found found",
    Rows=_Rows, Comparison=_Comparison, Look=_Look, Found=_Found,
)  # fmt: skip
OF_PRODUCT = np.dtype(
    structure("double total, largest; int64_t differ, not_judged; double largest_a, largest_b; int64_t has_fractions")
)
_Stack = structure(
    "Check first; int64_t rows, apart_a, apart_b, apart_c; void* x, of_products; int64_t threads, raised, no_memory", Check=_Check
)
_Piece = structure(
    "Rows rows; int64_t column_bytes, count; void* weights, sums, total; uint64_t number; int64_t lines, first_line", Rows=_Rows
)
_FUNCTIONS = (
    "void* new_pool(); void* new_batch(void*, int, int); int wait_for(void*, void*); void drop(void*, void*); "
    "void put(void*, void*, void*, void*, void*, int); void sum_again(void*, int64_t); "
    "void group_sums(void*, int, void*, void*, int64_t, void*, void*, void*, void*, int64_t, int64_t); "
    "void products(void*, int, void*, void*, int64_t, void*, void*, void*, int64_t, int64_t); "
    "int products_by_columns(void*, int, void*, int64_t, void*, int64_t, void*, void*, void*); "
    "void transpose(void*, int64_t, int64_t, int64_t, int64_t, void*); "
    "void pack(void*, int64_t, int64_t, void*); int64_t packed_columns(int64_t); "
    "int sums_of_b(void*, int); int check(void*, int, int64_t, int64_t); int check_stack(void*, int, int64_t, int64_t)"
)


def _load() -> Any:
    """The compiled library; None on big-endian machines. HybridError without a C compiler."""
    if sys.byteorder != "little":
        return None
    path = str(build_plain(c_compiler(), SOURCE, _FLAGS))
    library: Any = ctypes.CDLL(path)
    library.put = ctypes.PyDLL(path).put  # keeps the GIL: getting it back would take longer than the call
    declare(library, _FUNCTIONS)
    return library


class _Library(LoadedSoon):
    """The library, loaded in the background, and its thread pool. A forked child makes its own pool: the parent's has no threads
    there, and its lock may be held forever."""

    def __init__(self) -> None:
        self._pools: dict[int, Any] = {}  # by process
        super().__init__(_load)

    @property
    def pool(self) -> Any:
        process = os.getpid()
        if process not in self._pools:
            # If another thread is faster, this one's is never used, and has no threads.
            self._pools.setdefault(process, self.loaded.new_pool())
        return self._pools[process]


@lru_cache(maxsize=1)
def adder() -> _Library:
    """The library, compiled and loaded in the background; NumPy computes until it is there."""
    return _Library()


def can_sum(rows: np.ndarray) -> bool:
    """Whether the library is loaded and can read these rows in place."""
    readable = rows.dtype.char in "fd" and rows.dtype.isnative and rows.flags.aligned
    return readable and rows.strides[1] == rows.itemsize and adder().loaded is not None


def _rows(matrix: np.ndarray, first: int = 0) -> Any:
    """The rows for C functions, in which the first one has the number `first`."""
    step = matrix.strides[0]
    return _Rows(_address_of(matrix) - first * step, matrix.shape[1], step, matrix.itemsize)


def _address_of(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]  # twice as fast as array.ctypes.data
    return address


_PART_BYTES = 1 << 20  # of rows as float64: few enough to stay in a core's cache, enough to amortize NumPy's overhead
_LEAST_ROWS = 8  # converted at a time: a cache line of each column of a matrix in Fortran order
_FEW = 8  # columns of y by which an A in Fortran order is multiplied in memory order; for more, converted rows are faster
_SQUARES = 1e-280, 1e280  # sums of squares between these have neither overflowed nor lost accuracy to underflow
TERMS = 128  # per partial sum: short sums are more accurate, as the check's must be for a product in float64


class Integers:
    """Finds whether all numbers are integers, and their largest magnitude. Thread-safe."""

    def __init__(self) -> None:
        self._look, self._peaks = _Look(0.0, 1), [0.0]

    @property
    def integral(self) -> bool:
        return bool(self._look.integral)

    @property
    def largest(self) -> float:
        """The largest magnitude so far, or NOT_INTEGRAL if there was a number that is no integer."""
        return max(self._look.largest, *self._peaks) if self.integral else NOT_INTEGRAL

    @property
    def address(self) -> Any:
        """For C functions: a `Look`, or NULL after the first number that is no integer."""
        return ctypes.byref(self._look) if self.integral else None

    def look(self, values: np.ndarray) -> None:
        if not values.size or not self.integral:
            return
        if not (_are_integers(values[:1]) and _are_integers(values)):
            self._look.integral = 0
        else:
            self._peaks.append(float(max(values.max(), -values.min())))


def _are_integers(values: np.ndarray) -> bool:
    """Whether all values are integers; infinity counts as one."""
    return bool((np.rint(values) == values).all())


def _for_parts(matrix: np.ndarray, threads: int, work: Callable[[Span, np.ndarray, int, Any], None]) -> None:
    """Call `work(which, rows, threads, library)` for some rows at a time, which C can read, or which are float64 if there is no
    library. Rows that C cannot read in place are converted first, by several threads, each of which calls `work`."""
    rows, width, item_size = Span(0, len(matrix)), matrix.shape[1], matrix.itemsize
    readable, in_fortran_order = can_sum(matrix), can_sum(matrix.T)
    library = adder().loaded  # last: it may be loaded meanwhile
    if readable:
        threads = max(1, min(threads, 1 + len(rows) * width * item_size // _BYTES_WORTH_A_THREAD))
        for some in rows_of_about(_BYTES_A_THREAD * threads, rows, max(1, width * item_size)):
            work(some, matrix[some.slice], threads, library)
        return

    def convert(some: Span) -> None:
        if in_fortran_order:
            part, into = matrix[some.slice], np.empty((len(some), width))
            library.transpose(part.ctypes.data, part.strides[1], item_size, *part.shape, into.ctypes.data)
            work(some, into, 1, library)
        else:
            with np.errstate(all="ignore"):  # overflow and NaN are handled when sums are compared
                work(some, np.ascontiguousarray(numbers_of(matrix[some.slice]), np.float64), 1, library)

    on_threads(threads, convert, pieces(rows, max(_LEAST_ROWS, _PART_BYTES // max(1, 8 * width))))


def sums_and_squares(values: np.ndarray, x: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """For each row and each group of columns, the sum of the terms x[j]·values[...,j], and of their squares."""
    terms, starts = values * x, np.arange(0, len(x), group)
    return np.add.reduceat(terms, starts, axis=-1), np.add.reduceat(terms * terms, starts, axis=-1)


def group_sums(matrix: np.ndarray, x: np.ndarray, group: int, integers: Integers, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """`sums_and_squares` of a matrix, by several threads. Updates `integers`."""
    x = np.ascontiguousarray(x)
    sums, squares = np.empty((2, len(matrix), -(-matrix.shape[1] // group)))

    def add(some: Span, rows: np.ndarray, threads: int, library: Any) -> None:
        if library is not None:
            of_rows, into = ctypes.byref(_rows(rows, some.lo)), (sums.ctypes.data, squares.ctypes.data)
            library.group_sums(
                adder().pool, threads, of_rows, x.ctypes.data, group, *into, integers.address, None, some.lo, some.hi
            )
            return
        integers.look(rows)
        sums[some.slice], squares[some.slice] = sums_and_squares(rows, x, group)

    _for_parts(matrix, threads, add)
    return sums, squares


@record
class Allowed:
    """The tolerances of the sums of C's rows, apart from the norms of A's rows. Norms and limits include the factor x."""

    norms_b: np.ndarray  # of all of B, by group of columns
    deviation: float  # the standard deviation of rounding errors, relative to the norms
    per_term: float  # 1/l
    flushed: np.ndarray  # by group: the error from subnormal numbers in B, or products, that are flushed to zero
    flushed_of_a: float  # the same for A
    overflow: np.ndarray  # by group: from this norm on, sums may overflow
    integral: bool = False  # whether elements with a fraction are wrong


def sizes_of(differences: np.ndarray, squares: np.ndarray, norms_a: np.ndarray, allowed: Allowed) -> np.ndarray:
    """The sizes of these differences: ratios to the largest expected standard deviation of rounding errors; NOT_JUDGED if A·B may
    overflow, or holds NaN or infinities.

    `compare_sums` of kernels/check.cu and `sizes_of` of product_check.h have the same formula. `squares`: the sums of squares of
    C's terms, capped by A's and B's norms, which bound a right C: wrong large elements must not raise their own tolerance.
    """
    norms_b = allowed.norms_b
    with np.errstate(all="ignore"):
        both = norms_a * norms_b
        both[(norms_a == 0) & (norms_b <= np.inf) | (norms_a <= np.inf) & (norms_b == 0)] = 0  # also 0 times an overflowed norm
        least, most = _SQUARES
        part = np.where((squares == 0) | (squares > least) & (squares < most), np.fmin(np.sqrt(squares) / both, 1.0), 1.0)
        expected = np.sqrt(part * part + allowed.per_term) * both * allowed.deviation
        expected += allowed.flushed * (1 + norms_a) + allowed.flushed_of_a * norms_b
        sizes = np.abs(differences)
        sizes = np.where(sizes != 0, sizes / expected, 0.0)
        sizes[~(sizes <= NOT_INTEGRAL)] = NOT_INTEGRAL
        sizes[~(both < allowed.overflow)] = NOT_JUDGED
    return sizes


def compare(
    c: np.ndarray, x: np.ndarray, group: int, sums: np.ndarray, norms_a: np.ndarray, allowed: Allowed, threads: int
) -> None:
    """Replace the expected `sums` of C's rows by the sizes of their differences from C's. `norms_a`: of A's row, by row of C."""
    arrays = x, norms_a, allowed.norms_b, allowed.flushed * _FINE, allowed.overflow
    x, *of_comparison = (np.ascontiguousarray(each) for each in arrays)
    wanted, integers = _comparison(allowed, *(each.ctypes.data for each in of_comparison)), Integers()

    def replace(some: Span, rows: np.ndarray, threads: int, library: Any) -> None:
        where, look = some.slice, integers.address if allowed.integral else None
        if library is not None:
            of_rows, into = ctypes.byref(_rows(rows, some.lo)), (sums.ctypes.data, None, look, ctypes.byref(wanted))
            library.group_sums(adder().pool, threads, of_rows, x.ctypes.data, group, *into, some.lo, some.hi)
            return
        if look is not None:
            integers.look(rows)
        found, squares = sums_and_squares(rows, x, group)
        sums[where] = sizes_of(found - sums[where], squares, norms_a[where, None], allowed)

    def refuse_fractions(some: Span) -> None:
        fractions, sizes = np.rint(rows := c[some.slice]) != rows, sums[some.slice]
        sizes[np.logical_or.reduceat(fractions, np.arange(0, len(x), group), axis=1) & (sizes >= 0)] = NOT_INTEGRAL

    _for_parts(c, threads, replace)
    if allowed.integral and not integers.integral:
        on_threads(threads, refuse_fractions, rows_of_about(_PART_BYTES, Span(0, len(c)), c.shape[1] * c.itemsize))


def _comparison(how: Allowed | Bounds, norms_a: int | None, norms_b: int, flushed: int, overflow: int) -> Any:
    """The tolerances for C functions; the last four are addresses."""
    return _Comparison(norms_a, norms_b, flushed, overflow, how.deviation * _FINE, how.per_term, how.flushed_of_a * _FINE)


@record
class Compared:
    """The statistics of comparing one rank's sums."""

    # The sum of sizes, each capped at MOST_IN_TOTAL; the number of nonzero sizes, of sums that could not be judged (A·B may
    # overflow, or holds NaN or infinities), and of judged ones.
    totals: tuple[float, ...]
    largest: tuple[float, ...]  # size, magnitude in A, magnitude in B; the latter as Integers.largest
    worst: list[tuple[int, int, float]]  # for the worst rows, the worst sum of each: row of C, group of columns, size


class Bounds(NamedTuple):
    """A product's weights of x, as exponents of 2, and tolerances, for an unweighted x of integers."""

    scale: int  # of all of x
    most_scale: int  # of a group's magnitude, at most
    most_weight: int  # of a column, at most
    largest_integer: float  # as for `column_peaks`
    flushed_of_b: float  # the error from subnormal numbers in B, or products, that are flushed to zero
    largest: float  # times smallest_x: the norm from which sums may overflow
    smallest_x: int
    deviation: float  # this and the next two: as in Allowed
    per_term: float
    flushed_of_a: float


def check_product(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, x: np.ndarray, group: int, bounds: Bounds, threads: int, *, multiplies: bool
) -> tuple[Compared, bool] | None:
    """Compare C·x with A·(B·x), in one pass over B and one over A and C. Also returns whether C has fractions though A and B
    have only integers. None if the C code cannot read all of them, or cannot compute C.

    `multiplies`: compute C, a few rows at a time before they are compared, by NumPy's loop."""
    (n, m), l = c.shape, len(b)
    divides = l * m <= _SMALL_B or (threads <= own_threads() and n >= max(_ROWS_A_THREAD * threads, m // 2))
    loop = matmul_loop(c.dtype.char) if multiplies and divides else 0
    if not (can_sum(a) and can_sum(b) and can_sum(c) and b.nbytes <= 4 * threads * _BYTES_A_THREAD) or (multiplies and not loop):
        return None
    library, groups = adder().loaded, -(-m // group)
    memory = np.empty(m + 3 * groups + l * library.packed_columns(groups))
    memory[:m] = x
    check = _check_of(a, b, c, group, bounds, loop, _address_of(memory))
    row_bytes = a.shape[1] * a.itemsize + m * c.itemsize + (l * m // _TERMS_A_BYTE if multiplies else 0)
    at_once = max(1, threads * _BYTES_A_THREAD // max(1, row_bytes))
    with limited_blas(1) if multiplies and n * l * m > OF_ONE_THREAD else nullcontext():
        failed = library.sums_of_b(ctypes.byref(check), threads)
        for first in range(0, n, at_once):
            failed = failed or library.check(ctypes.byref(check), threads, first, min(n, first + at_once))
    if failed:
        raise MemoryError("no memory for the check")
    if check.raised:
        warn_as_numpy(check.raised)
    found = check.found
    totals = found.total, found.differ, found.not_judged, n * groups - found.not_judged
    largest = found.largest, *(each.largest if each.integral else NOT_INTEGRAL for each in (check.in_a, check.in_b))
    rows = slice(found.rows)
    worst = list(zip(found.of_rows[rows], found.of_groups[rows], found.sizes[rows], strict=True))
    return Compared(totals, largest, worst), bool(check.in_a.integral and check.in_b.integral and not check.in_c.integral)


def _check_of(a: np.ndarray, b: np.ndarray, c: np.ndarray, group: int, bounds: Bounds, loop: int, memory: int) -> Any:
    """The C code's check. `loop`: NumPy's, to compute C; 0: C is computed. `memory`: the address of x, before the norms and two
    limits of each group, and packed y; 0: C allocates it."""
    (l, m), groups = b.shape, -(-b.shape[1] // group)
    y, *of_groups = (memory + 8 * (m + groups * number) for number in (3, 0, 1, 2))
    tolerances = _comparison(bounds, None, *of_groups)
    check = _Check(_rows(a), _rows(b), _rows(c), l, group, memory, y, max(1, l // SAMPLE), *bounds[:7], tolerances)
    check.multiply, check.pool = loop, adder().pool
    check.in_a.integral = check.in_b.integral = check.in_c.integral = 1
    return check


def check_stack(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, x: np.ndarray, group: int, bounds: Bounds, threads: int, *, multiplies: bool
) -> np.ndarray | None:
    """Compare C·x with A·(B·x) for each product of a stack; the results are `OfProduct` of product_check.h. `a` or `b` may hold
    one matrix for all. None if the C code cannot read all of them, or cannot compute C. `multiplies`: as for `check_product`."""
    count, n, m = c.shape
    first = a[0], b[0], c[0]
    loop = matmul_loop(c.dtype.char) if multiplies and count >= threads else 0
    if not all(map(can_sum, first)) or (multiplies and not loop):
        return None
    x, found = np.ascontiguousarray(x), np.zeros(count, OF_PRODUCT)
    apart = [each.strides[0] if len(each) > 1 else 0 for each in (a, b, c)]
    each = 1 if count >= threads else threads
    stack = _Stack(_check_of(*first, group, bounds, loop, 0), n, *apart, x.ctypes.data, found.ctypes.data, each)
    bytes_of_one = sum(each.nbytes for each in first) + (n * len(first[1]) * m // _TERMS_A_BYTE if loop else 0)
    with limited_blas(1) if loop and n * len(first[1]) * m > OF_ONE_THREAD else nullcontext():
        for some in rows_of_about(_BYTES_A_THREAD * threads, Span(0, count), bytes_of_one):
            if adder().loaded.check_stack(ctypes.byref(stack), threads, some.lo, some.hi):
                raise MemoryError("no memory for the check")
    if stack.raised:
        warn_as_numpy(stack.raised)
    return found


def _packed(y: np.ndarray) -> np.ndarray:
    """The right operand, packed for C's `products`."""
    library, (terms, width) = adder().loaded, y.shape
    y, into = np.ascontiguousarray(y), np.empty((library.packed_columns(width), terms))
    library.pack(y.ctypes.data, terms, width, into.ctypes.data)
    return into


def times(a: np.ndarray, y: np.ndarray, integers: Integers, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """A·y in float64, and the 2-norms of A's rows. Updates `integers` with A."""
    product, squares, width = np.zeros((len(a), y.shape[1])), np.zeros(len(a)), y.shape[1]
    if width <= _FEW and a.size and not can_sum(a) and can_sum(a.T):
        y, columns, into = np.ascontiguousarray(y), _rows(a.T), (product.ctypes.data, squares.ctypes.data, integers.address)
        of_a = ctypes.byref(columns), len(y), y.ctypes.data, width
        if adder().loaded.products_by_columns(adder().pool, threads, *of_a, *into):
            raise MemoryError("no memory for the check")
        return product, norms_from(squares, lambda some: a[some])
    packed = _packed(y) if adder().loaded is not None else None

    def multiply(some: Span, rows: np.ndarray, threads: int, library: Any) -> None:
        if packed is not None:
            of_rows, into = ctypes.byref(_rows(rows, some.lo)), (product.ctypes.data, squares.ctypes.data)
            library.products(adder().pool, threads, of_rows, packed.ctypes.data, width, *into, integers.address, some.lo, some.hi)
            return
        rows = rows.astype(np.float64, copy=False)
        integers.look(rows)
        squares[some.slice] = np.einsum("ij,ij->i", rows, rows)
        for inner in pieces(Span(0, len(y)), TERMS):
            product[some.slice] += rows[:, inner.slice] @ y[inner.slice]

    _for_parts(a, threads, multiply)
    return product, norms_from(squares, lambda some: a[some])


def norms_from(squares: np.ndarray, rows: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """2-norms from sums of squares. `rows(some)` returns the elements of the rows whose squares overflowed or underflowed."""
    with np.errstate(all="ignore"):
        norms = np.sqrt(squares)
        some = np.flatnonzero(~((squares > _SQUARES[0]) & (squares < _SQUARES[1])))
        for part in pieces(Span(0, len(some)), 1024):
            norms[some[part.slice]] = norms_of(rows(some[part.slice]).astype(np.float64))
    return norms


def norms_of(values: np.ndarray) -> np.ndarray:
    """The 2-norms along the last axis, also if squares overflow or underflow."""
    squares = np.einsum("...j,...j->...", values, values)
    norms, extreme = np.sqrt(squares), ~((squares > _SQUARES[0]) & (squares < _SQUARES[1]))
    if extreme.any():
        sizes = np.abs(values[extreme])
        peaks = sizes.max(axis=-1, initial=0.0)
        scaled = sizes / np.where(peaks > 0, peaks, 1.0)[..., None]
        norms[extreme] = peaks * np.sqrt(np.einsum("...j,...j->...", scaled, scaled))
    return norms


# Columns of B, and so those of C, may differ in magnitude. In the sum of a group, rounding errors of large columns would hide
# errors of small ones. So x is weighted with powers of two that scale all columns of a group to about the largest magnitude,
# which is estimated from a sample of B's rows. If the sample has only small integers, the group is not weighted, so that sums
# of integers stay exact.

MOST_WEIGHT = 64  # exponent of 2: if magnitudes differ by more, large columns may still hide errors of small ones


def column_peaks(sample: np.ndarray, largest_integer: float) -> tuple[np.ndarray, np.ndarray]:
    """The largest magnitude in each column of some rows of B, and which columns hold other numbers than integers up to
    `largest_integer`."""
    with np.errstate(all="ignore"):
        sizes = np.abs(numbers_of(sample))
        peaks = sizes.max(axis=0, initial=0.0).astype(np.float64)
        others, first = ~(peaks <= largest_integer), sizes[:1]
        others |= (np.rint(first) != first).any(axis=0)
        if not others.all():
            others |= (np.rint(sizes) != sizes).any(axis=0)
        return peaks, others


def sampled_peaks(b: np.ndarray, largest_integer: float) -> tuple[np.ndarray, np.ndarray]:
    """`column_peaks` of a sample of B's rows; for columns of zeros in the sample, of all rows."""
    peaks, others = column_peaks(b[:: max(1, len(b) // SAMPLE)], largest_integer)
    empty = np.flatnonzero(peaks == 0) if others.any() else ()
    if len(empty):
        peaks[empty], others[empty] = column_peaks(b[:, empty], largest_integer)
    return peaks, others


def column_weights(peaks: np.ndarray, others: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From `column_peaks`: the exponent of each column's weight, and of each group's magnitude and largest weight."""
    starts = np.arange(0, len(peaks), group)
    if not len(starts):
        return (np.zeros(0, np.int64),) * 3
    known = np.isfinite(peaks) & (peaks > 0)
    exponents = np.where(known, np.frexp(np.where(known, peaks, 1.0))[1], -5000).astype(np.int64)
    of_groups = np.maximum.reduceat(exponents, starts)
    of_groups[(of_groups == -5000) | ~np.logical_or.reduceat(others, starts)] = 0
    weighted = known & np.repeat(np.logical_or.reduceat(others, starts), group)[: len(peaks)]
    weights = np.where(weighted, np.minimum(np.repeat(of_groups, group)[: len(peaks)] - exponents, MOST_WEIGHT), 0)
    return weights, of_groups, np.maximum.reduceat(weights, starts)


# Checksums find wrong copies. A row's checksum is the sum of its elements' bits modulo 2^64; elements of 4 and 2 bytes are
# shifted, so that all types are added as 64-bit words. In one row of 32, each element is multiplied by a weight, to find
# exchanged columns as well.
#
# The host's memory bandwidth hardly feeds several GPUs, let alone another read. So in large matrices, only one cache line of
# SHARE is summed, different ones in each row. A piece that is missing, stale, misplaced or overwritten too early differs in many
# lines of each row.

WEIGHTED_ROWS = 32  # the checksum of the first of these rows is weighted
LINE = 64  # bytes
SHARE = 16  # in large matrices, one line of 16 is summed; divides WEIGHTED_ROWS
_AT_ONCE = 1 << 18  # bytes of rows: they and their temporaries stay in a core's cache
_WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


class Sample(NamedTuple):
    """The cache lines of a piece to sum: in row i, a line is summed if its number plus i plus `first` is a multiple of `step`."""

    step: int = 1
    first: int = 0

    @property
    def words(self) -> np.ndarray:
        """The argument of kernels/check.cu: a bit mask for 32 lines, and `first`."""
        return np.array([[sum(1 << line for line in range(0, 32, self.step)), self.first]], np.uint64)

    def columns_of(self, row: int, columns: int, item_size: int) -> slice | np.ndarray:
        """The columns to sum in this row and each `step`-th row after it."""
        if self.step == 1:
            return slice(None)
        lines = np.arange(columns) * item_size // LINE
        return np.flatnonzero((lines + row + self.first) % self.step == 0)


ALL = Sample()


@lru_cache(maxsize=8)
def checksum_weights(columns: int, item_size: int) -> np.ndarray:
    """For each column an odd pseudo-random number modulo 2^64, the same in all processes.

    Two 32-bit neighbours share one, shifted by 32 bits for the second; likewise four 16-bit ones. So elements can be read as
    64-bit words, as fast as float64.
    """
    per_word = 8 // item_size
    words = _mixed(np.arange(-(-columns // per_word), dtype=np.uint64) + np.uint64(1)) | np.uint64(1)
    shifts = (8 * item_size * (np.arange(columns) % per_word)).astype(np.uint64)
    weights = np.repeat(words, per_word)[:columns] << shifts
    weights.flags.writeable = False
    return weights


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64: a bijection of 64-bit words to pseudo-random ones."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


def numbered(of_rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Row checksums, each mixed with the row's number, so that their sum changes if rows are exchanged.

    Weights would not do: checksums of small integers have zeros in their lower 50 bits, and exchanged rows often the same sum.
    """
    return _mixed(of_rows + numbers * np.uint64(0x9E3779B97F4A7C15))


def mixed_total(of_rows: np.ndarray, number: int) -> np.uint64:
    """One checksum, modulo 2^64, of consecutive rows from their checksums. `number`: of the first row."""
    return np.add.reduce(numbered(of_rows, np.arange(number, number + len(of_rows), dtype=np.uint64)), dtype=np.uint64)


def row_checksums(matrix: np.ndarray, weights: np.ndarray, into: np.ndarray, sample: Sample = ALL) -> None:
    """Each row's checksum, by NumPy. `weights`: of all columns."""
    for row in range(min(sample.step, len(matrix))):
        every, some = slice(row, None, sample.step), sample.columns_of(row, matrix.shape[1], matrix.itemsize)
        weighted = slice(0) if row else slice(None, None, WEIGHTED_ROWS // sample.step)
        _sum_rows(matrix[every][:, some], weights[some], into[every], weighted)


def all_row_checksums(
    rows: np.ndarray, weights: np.ndarray, into: np.ndarray, sample: Sample, threads: int, dtype: str = ""
) -> None:
    """`row_checksums` by several threads, of the elements as `dtype` if given."""

    def add(part: Span) -> None:
        some = rows[part.slice]
        if dtype and not (some.dtype == dtype and some.flags.aligned and some.strides[1] == some.itemsize):
            some = np.ascontiguousarray(some, dtype)
        row_checksums(some, weights, into[part.slice], sample)

    together = max(1, CALL_BYTES // max(1, WEIGHTED_ROWS * rows.shape[1] * rows.itemsize))
    on_threads(threads, add, pieces(Span(0, len(rows)), WEIGHTED_ROWS * together))


def _sum_rows(matrix: np.ndarray, weights: np.ndarray, into: np.ndarray, weighted: slice) -> None:
    """The checksum of all elements of each row. In the `weighted` rows, elements are multiplied by their columns' weights; not in
    the others, because NumPy adds several times as fast without."""
    words, (rows, columns), per_word = matrix.view(_WORDS[matrix.itemsize]), matrix.shape, 8 // matrix.itemsize
    starts_a_word = columns and int(weights[0]) & 1
    in_rows = matrix.strides[1] == matrix.itemsize  # else columns are contiguous
    if per_word > 1 and in_rows and starts_a_word and not (columns % per_word or matrix.strides[0] % 8 or matrix.ctypes.data % 8):
        words, weights = words.view(np.uint64), weights[::per_word]
    if words.dtype == np.uint64:
        np.add.reduce(words, axis=1, out=into)
        np.einsum("ij,j->i", words[weighted], weights, out=into[weighted])
        return
    unweighted = weights & (~weights + np.uint64(1))  # the lowest set bit: a weight is an odd number, shifted
    for part in pieces(Span(0, rows), max(1, _AT_ONCE // max(1, 8 * columns))):
        np.einsum("ij,j->i", words[part.slice].astype(np.uint64), unweighted, out=into[part.slice])
    np.einsum("ij,j->i", words[weighted].astype(np.uint64), weights, out=into[weighted])


# C threads for each link whose copies are summed. For one link, 8 and 14 took as long as 12 on 16 cores, and copies need memory
# bandwidth, too; for two, 12 in all took 1.2 times as long as 20 on 32 cores.
_MOST_THREADS = 12
_LANES = 16  # as in pool.h
_AGAIN = 256  # one of these rows of C is summed again at the end: a tile's copy may have written into another tile


class RowsToSum(NamedTuple):
    """Rows and columns of a matrix in host memory, and where their checksums go. Arrays are whole, with indices, because slicing
    NumPy arrays would take longer."""

    operand: str
    matrix: np.ndarray
    rows: Span
    columns: Span
    weights: np.ndarray  # of all columns
    checksums: np.ndarray
    first: int  # the index of the first row's checksum
    totals: np.ndarray
    place: int  # the index of the total to which the checksums are added, each mixed with its row's number
    number: int  # of the first row in its matrix


class RowChecksums:
    """The row checksums of one product, summed in the background by C threads, each part after its event. Without the C library,
    `wait` sums all by NumPy.

    No array that it was given may be freed before `wait` or `abandon` has returned.
    """

    def __init__(self, threads: int, links: int = 1, sample: Sample = ALL) -> None:
        """`links`: the number of devices that copy these rows. `sample`: the lines to sum in each piece."""
        self._threads, self._sample, self._by_numpy = threads, sample, list[RowsToSum]()
        self._of_c: list[Any] = []  # rows of C, to be summed again
        self._kept: list[tuple[RowsToSum, Event]] = []  # arrays that the threads use, and events that they wait for
        self._process, self._library, self._batch = os.getpid(), adder(), None
        if self._library.loaded is not None:
            some, lanes = max(1, min(threads, links * _MOST_THREADS)), min(_LANES, 2 * links)
            self._batch = self._library.loaded.new_batch(self._library.pool, some, lanes)

    def __del__(self) -> None:
        self.abandon()

    def sum(self, rows: RowsToSum, event: Event, device: Device, link: int = 0) -> None:
        """Sum these rows after the device's event. Events of one link and direction must complete in the order of the calls."""
        if not self._batch:
            self._by_numpy.append(rows)
            return
        matrix, columns, how = rows.matrix, rows.columns, device.event_wait
        (stride, column_stride), item_size = matrix.strides, matrix.itemsize
        first = _address_of(matrix) + rows.rows.lo * stride + columns.lo * column_stride
        of_rows, into = _Rows(first, len(columns), stride, item_size), _address_of(rows.checksums) + 8 * rows.first
        weights, total = _address_of(rows.weights) + 8 * columns.lo, _address_of(rows.totals) + 8 * rows.place
        piece = _Piece(of_rows, column_stride, len(rows.rows), weights, into, total, rows.number, *self._sample)
        waits = (None, 0, 0) if how is None else (ctypes.byref(how), event.ptr, 2 * link + (rows.operand == "C"))
        self._kept.append((rows, event))
        self._library.loaded.put(self._library.pool, self._batch, ctypes.byref(piece), *waits)
        if rows.operand == "C" and len(rows.rows):
            self._of_c.append(piece)

    def wait(self) -> None:
        """Wait until all rows are summed. Some rows of C are then summed again. Call it when all copies are complete."""
        if self._batch and (failure := self._library.loaded.wait_for(self._library.pool, self._batch)):
            raise DeviceUnavailable(f"a copy from or to the device failed (CUDA error {failure})", code="gpu-failed")
        for piece in self._of_c:
            self._library.loaded.sum_again(ctypes.byref(piece), _AGAIN)
        for rows in self._by_numpy:
            elements, weights = rows.matrix[rows.rows.slice, rows.columns.slice], rows.weights[rows.columns.slice]
            into = rows.checksums[rows.first : rows.first + len(rows.rows)]
            all_row_checksums(elements, weights, into, self._sample, self._threads)
            rows.totals[rows.place : rows.place + 1] += mixed_total(into, rows.number)  # modulo 2^64
        self.abandon()

    def abandon(self) -> None:
        """Cancel. When this returns, no thread reads an array."""
        batch, self._batch = self._batch, None
        if batch and self._process == os.getpid():  # a forked child has no such threads
            self._library.loaded.drop(self._library.pool, batch)
        for kept in (self._kept, self._of_c, self._by_numpy):
            kept.clear()
