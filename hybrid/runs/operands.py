# SPDX-License-Identifier: MIT
"""A and B of a command: generated from a seed or read from files, of any type that a product may have.

`Elements` is such a matrix: any rank can generate or read any rows. A `TypedProduct` turns two of them into the sources of the
real products that compute C.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from hybrid.arrays.gemm import ProductType, complex_view, numpy_type, product_type, real_view, write_real_rows
from hybrid.arrays.integers import largest_of, largest_of_type
from hybrid.arrays.root_operands import MatrixSource, Progress
from hybrid.core.problem import Problem, Span, pieces, record
from hybrid.core.text import tell_nobody
from hybrid.errors import DoesNotFit, UsageError
from hybrid.host.threads import on_threads, rows_of_about
from hybrid.kernels.catalogue import elements_of, storage
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team
from hybrid.runs.matrix_file import BYTES_AT_ONCE, open_matrix

# Generated matrices do not depend on the number of ranks and threads: each block of elements in row-major order, whatever the
# shape, has its own SFC64, seeded with (seed, matrix, block). SFC64's state includes a counter, so that two blocks share no state
# within 2^64 steps.

MATRICES = ("A", "B")

_LECTURE = {"A": 3, "B": 2}  # the lecture's matrices have whole numbers below these
# Elements that a thread generates without the GIL. 16 threads took 0.24 s for the lecture's matrices of 8000×8000 with blocks of
# 2^16 (float64), 0.08 s with 2^18, 0.06 s with these and 0.05 s with 2^20 (a host of 2 H200, 2026-11-26).
_BLOCK = 1 << 19
_CALL_BLOCKS = 4  # most blocks of a thread between two reports of progress
_PARTS_PER_THREAD = 4  # least, if there are enough blocks: delayed threads take fewer parts
_DISCARDED = 18  # steps that SFC64's author runs after seeding with three words; from 11 on, all bits depend on all words
_HALVES = {"float16": 65504.0, "bfloat16": 3.39e38}  # types of 16 bits, and their largest numbers


def fill_rows(
    into: np.ndarray, rows: Span, *, fill: str, seed: int, matrix: str, threads: int = 1, progress: Progress = tell_nobody
) -> None:
    """Generate these rows of the matrix in `into`, which is C-contiguous.

    `fill`: lecture (A from {0, 1, 2}, B from {0, 1}), uniform in [0, 1), normal (standard), or index (the number in row-major
    order).
    """
    if not into.size:
        return
    width, elements = into.shape[1], into.reshape(-1)
    wanted = Span(rows.lo * width, rows.hi * width)

    def make(numbers: Span) -> int:
        from numpy.random import SFC64, Generator  # commands that read files start sooner without it

        generator, count = Generator(SFC64(0)), 0
        for number in range(numbers.lo, numbers.hi):
            block = Span(number * _BLOCK, min((number + 1) * _BLOCK, wanted.hi))
            before = max(0, wanted.lo - block.lo)
            # An element may take several random numbers, so the block is generated from its beginning.
            made = np.empty(len(block), into.dtype) if before else elements[block.within(wanted).slice]
            _make_block(made, generator, number, fill, seed, matrix)
            if before:
                elements[: len(block) - before] = made[before:]
            count += len(block) - before
        return count

    blocks = Span(wanted.lo // _BLOCK, -(-wanted.hi // _BLOCK))
    at_once = max(1, min(_CALL_BLOCKS, len(blocks) // (_PARTS_PER_THREAD * max(1, threads))))
    on_threads(threads, make, pieces(blocks, at_once), lambda done: progress(sum(done) // width))
    progress(len(rows))


def _make_block(into: np.ndarray, generator: Any, number: int, fill: str, seed: int, matrix: str) -> None:
    """Generate the first elements of block `number`."""
    if fill == "index":
        into[...] = np.arange(number * _BLOCK, number * _BLOCK + len(into))
        return
    start = {"state": [seed % 2**64, MATRICES.index(matrix), number, 1]}
    generator.bit_generator.state = {"bit_generator": "SFC64", "state": start, "has_uint32": 0, "uinteger": 0}
    generator.random(_DISCARDED)
    if fill == "lecture":
        # NumPy draws such small numbers from 32 random bits without bias: bools bit by bit, others byte by byte.
        into[...] = generator.integers(_LECTURE[matrix], size=len(into), dtype=bool if _LECTURE[matrix] == 2 else np.uint8)
    elif fill == "uniform":
        generator.random(out=into, dtype=into.dtype.type)
    else:
        generator.standard_normal(out=into, dtype=into.dtype.type)


class Elements(ABC):
    """A matrix, or part of one, that is generated or read from a file, of any type that a product may have. Any rank can get any
    rows."""

    dtype: np.dtype

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = self._whole = shape
        self._rows, self._columns = (Span(0, length) for length in shape)  # of this part, in the whole matrix

    def part(self, rows: Span, columns: Span) -> Elements:
        """These rows and columns of the whole matrix."""
        part = copy(self)
        part._rows, part._columns, part.shape = rows, columns, (len(rows), len(columns))
        return part

    @abstractmethod
    def write(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        """Write these rows into `into`, which is C-contiguous and of the same type (bfloat16: its bits) or a wider one."""

    def bound(self) -> int:
        """A bound on the magnitudes of integer elements."""
        return largest_of_type(self.dtype)

    def largest(self, rows: Span, threads: int) -> int:
        """The largest magnitude of the integers in these rows."""
        return self.bound()

    def some(self, rows: Span) -> np.ndarray:
        """Some rows, in a NumPy type that holds their numbers."""
        into = np.empty((len(rows), self.shape[1]), np.float32 if self.dtype.name in _HALVES else self.dtype)
        self.write(rows, into, 1, tell_nobody)
        return into


class GeneratedElements(Elements):
    """A matrix generated from a seed. Complex ones are generated as real ones of twice the columns; the fill `index` is real."""

    def __init__(self, shape: tuple[int, int], fill: str, seed: int, matrix: str, dtype: np.dtype) -> None:
        super().__init__(shape)
        self.dtype = dtype
        self._fill, self._seed, self._matrix = fill, seed, matrix
        largest = {"lecture": _LECTURE[matrix] - 1, "index": max(0, shape[0] * shape[1] - 1)}.get(fill)
        holds = largest_of_type(dtype) if dtype.kind in "iu" else _HALVES.get(dtype.name, np.inf)
        if dtype.kind in "biu" and largest is None:
            raise UsageError(f"--fill {fill} makes fractions, not {dtype}: use --fill lecture or index", code="dtype")
        if largest is not None and largest > holds:
            raise UsageError(f"--fill {fill} makes numbers up to {largest}, too large for {dtype}", code="dtype")
        self._most = 1 if dtype.kind == "b" else largest or 0

    def write(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        how: Any = {"fill": self._fill, "seed": self._seed, "matrix": self._matrix, "threads": threads}
        is_short, rows, width = self.dtype.name in _HALVES, rows.moved(self._rows.lo), self._whole[1]
        each = 2 if into.dtype.kind == "c" and self._fill != "index" else 1  # numbers per element
        into = real_view(into) if each == 2 else into
        converts = into.dtype.kind == "c" or is_short or self.dtype.kind == "b"
        if not converts and len(self._columns) == width:
            fill_rows(into, rows, **how, progress=progress)
            return
        columns = slice(each * self._columns.lo, each * self._columns.hi)
        dtype = np.dtype(np.float32) if is_short else into.real.dtype  # of the generated numbers, before rounding
        for part in rows_of_about(BYTES_AT_ONCE, rows, each * width * dtype.itemsize):
            numbers, to = np.empty((len(part), each * width), dtype), into[part.within(rows).slice]
            fill_rows(numbers, part, **how)

            def convert(some: Span, numbers: np.ndarray = numbers, to: np.ndarray = to) -> None:
                made = numbers[some.slice, columns]
                _store(made.astype(self.dtype) if converts else made, to[some.slice])

            of_thread = rows_of_about(BYTES_AT_ONCE // 8, Span(0, len(numbers)), numbers.shape[1] * numbers.itemsize)
            on_threads(threads, convert, of_thread)
            progress(part.hi - rows.lo)

    def bound(self) -> int:
        return self._most


class FileElements(Elements):
    """A matrix in a file, of the file's type or another. Every rank opens it and reads the rows it needs.

    It is not mapped for multiplication in place: the file may change meanwhile, and each row is needed several times.
    """

    def __init__(self, name: str, readers: int = 1) -> None:
        """`readers`: ranks of this node."""
        self._name = name
        with _naming(name):
            self._file = open_matrix(name, readers)
        super().__init__(self._file.shape)
        self.path = self._file.path
        self.held = self.dtype = self._file.dtype.newbyteorder("=")  # `held`: in the file

    def load(self) -> None:
        """Read files now that can only be read as a whole, so that malformed ones are refused before anything is computed."""
        with busy(), _naming(self._name):
            self._file.load()

    def convert_to(self, dtype: np.dtype) -> None:
        """Convert the elements to this type when they are read. UsageError if that would lose more than rounding does."""
        if lost := _what_is_lost(self.held, dtype):
            raise UsageError(f"{self.path} holds {self.held}: {dtype} would lose {lost}; use another --dtype", code="dtype")
        self.dtype = dtype

    def write(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        narrower = self.dtype.name in _HALVES or (self.dtype.kind in "iu" and self.held.kind != "b")
        if self.held == self.dtype or not narrower:
            self._file.read(rows.moved(self._rows.lo), into, progress, self._columns, threads)
            return
        for part, values in self._values(rows, threads):
            _store(self._converted(values), into[part.within(rows).slice])
            progress(part.hi - rows.lo)

    def _values(self, rows: Span, threads: int) -> Iterator[tuple[Span, np.ndarray]]:
        """The elements of some rows at a time, of the file's type; unnamed ones of 16 bits as bfloat16."""
        for part in rows_of_about(BYTES_AT_ONCE, rows, self.shape[1] * self.held.itemsize):
            own = np.empty((len(part), self.shape[1]), self.held)
            self._file.read(part.moved(self._rows.lo), own, tell_nobody, self._columns, threads)
            yield part, own.view(self.dtype) if self.held.kind == "V" else own

    def _converted(self, values: np.ndarray) -> np.ndarray:
        if self.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            fits = not values.size or (int(values.min()) >= limits.min and int(values.max()) <= limits.max)
            converted = values.astype(self.dtype) if fits else values
        else:
            with np.errstate(over="ignore"):
                converted = values.astype(self.dtype)
            fits = np.array_equal(np.isinf(converted.astype(np.float32)), np.isinf(values.astype(np.float64)))
        if not fits:
            raise UsageError(f"{self.path} holds values too large for {self.dtype}", code="file-values")
        return converted

    def largest(self, rows: Span, threads: int) -> int:
        return max((largest_of(values, threads) for _, values in self._values(rows, threads)), default=0)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """A context that puts the file's name before errors' messages."""
    try:
        yield
    except (UsageError, DoesNotFit) as error:
        raise type(error)(f"{file} {error}", code=error.code) from None


def _store(values: np.ndarray, into: np.ndarray) -> None:
    """Store the numbers, or their bits if `into` holds the bits of bfloat16."""
    into[...] = elements_of(values) if into.dtype == storage(values.dtype.name) else values


def _what_is_lost(held: np.dtype, dtype: np.dtype) -> str:
    """What this conversion always loses; empty if it only rounds, or if it depends on the numbers."""
    if held.kind == "c" and dtype.kind != "c":
        return "the imaginary parts"
    if dtype.kind in "iu" and held.kind not in "biu":
        return "fractions"
    return "numbers other than 0 and 1" if dtype.kind == "b" != held.kind else ""


@record
class TypedProduct:
    """The matrices and types of a product of `Elements`, the same on every rank."""

    a: Elements
    b: Elements
    types: ProductType

    @classmethod
    def of(cls, a: Elements, b: Elements, asked: str) -> TypedProduct:
        """The product of A and B, whose integers may be as large as their types allow. `asked`: the type of C; "": NumPy's.
        UsageError if there is no such product."""
        types = product_type(a.dtype, b.dtype, asked)
        if types.exact is not None:
            types = types.bounded(a.shape[1], [(a.bound(), b.bound(), 0)])
        return cls(a, b, types)

    def with_actual_bounds(self, team: Team, threads: int) -> TypedProduct:
        """The same product bounded by the actual integers, if that may save primes. Every rank scans its share."""
        if self.types.primes == (0,):
            return self
        with team.phase("agree", timed=False) as looking, busy():
            mine = (each.largest(Span(0, each.shape[0]).part(team.size, team.rank), threads) for each in (self.a, self.b))
            looking.mine = (*mine, 0)
        return replace(self, types=self.types.bounded(self.a.shape[1], looking.all))

    @property
    def sizes(self) -> tuple[int, int, int]:
        return (*self.a.shape, self.b.shape[1])

    @cached_property
    def problem(self) -> Problem:
        """The real product, or each of several."""
        return self.types.problem(*self.sizes)

    @property
    def result(self) -> np.dtype:
        """The type of C."""
        return numpy_type(self.types.result)

    @property
    def is_plain(self) -> bool:
        """Whether the real product is the one asked for."""
        return not (self.types.complex_b or self.types.converts)

    @property
    def bytes_beside(self) -> int:
        """Host memory on the root's node in addition to the real product's matrices."""
        return self.types.bytes_beside(self.a.shape[0] * self.b.shape[1])

    def __str__(self) -> str:
        n, l, m = self.sizes
        return f"{n}×{l} · {l}×{m} {self.types}"

    def part(self, rows: Span, columns: Span) -> TypedProduct:
        """The product for these rows and columns of C."""
        depth = Span(0, self.a.shape[1])
        return TypedProduct(self.a.part(rows, depth), self.b.part(depth, columns), self.types)

    def sources(self, prime: int = 0) -> tuple[MatrixSource, MatrixSource]:
        """A and B of a real product."""
        return _RealOperand("A", self.a, self.types, prime), _RealOperand("B", self.b, self.types, prime)


class _RealOperand(MatrixSource):
    """A or B (`key`) of a real product: the elements themselves, or converted some rows at a time."""

    def __init__(self, key: str, elements: Elements, types: ProductType, prime: int) -> None:
        self._key, self._elements, self._types, self._prime = key, elements, types, prime
        self._heights, self._widths = types.parts_of(key)
        self.shape = elements.shape[0] * self._heights, elements.shape[1] * self._widths

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        elements, each = self._elements, self._heights
        if each == 1 and not self._prime:
            elements.write(rows, complex_view(into) if self._widths > 1 else into, threads, progress)
            return
        width, dtype = elements.shape[1], elements.dtype if self._prime else np.dtype(self._types.promoted)
        for part in rows_of_about(BYTES_AT_ONCE, Span(rows.lo // each, -(-rows.hi // each)), width * dtype.itemsize):
            made = np.empty((len(part), width), dtype)
            elements.write(part, made, threads, tell_nobody)
            wanted = rows.common(Span(each * part.lo, each * part.hi))  # may begin or end with one of an element's two rows
            of_made = Span(wanted.lo - each * part.lo, wanted.hi - each * part.lo)
            to = into[wanted.within(rows).slice]
            write_real_rows(self._key, made, of_made, to, threads, self._types, self._prime)
            progress(wanted.hi - rows.lo)
