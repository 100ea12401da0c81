# SPDX-License-Identifier: MIT
"""The operands of a call at the root: validated, as matrices or stacks, with what the other ranks must know of them; and the
sources of the real product's A and B, the root's arrays or node-shared memory (commands have others: hybrid.runs.operands)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from hybrid.arrays.distributed import Distributed
from hybrid.arrays.gemm import Gemm, ProductType, numpy_type, product_type, real_view, write_real_rows
from hybrid.arrays.integers import DIGIT, largest_of, least_remainders, temporary_bytes
from hybrid.arrays.interop import SharedArrays, SharedLocation, as_array, as_gpu_array, copy_back, is_masked, on_gpu, on_host
from hybrid.core.problem import Problem, Span, record
from hybrid.core.text import tell_nobody
from hybrid.errors import UsageError
from hybrid.host.memory import bytes_kept_for, copy_rows, is_transpose
from hybrid.kernels.catalogue import elements_of, numbers_of, storage
from hybrid.ranks.team import Team

Progress = Callable[[int], None]  # called with the number of rows done so far, in the caller's thread


class MatrixSource(ABC):
    """The source of A or B of a real product. Every rank has the same kind."""

    shape: tuple[int, int]
    at_root = False  # the root has all rows; otherwise any rank can write any row

    @abstractmethod
    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        """Write these rows into `into`, converted to its type."""

    def in_place(self, dtype: str, *, transposed: bool = False) -> np.ndarray | None:
        """The array itself (bfloat16 as bits) if it can be multiplied without conversion or copy; else None. `transposed`: also
        accept the transpose of a row-major matrix in host memory."""
        return None


class SharedMatrix(MatrixSource):
    """A matrix in memory that all ranks share, on a single node."""

    def __init__(self, array: np.ndarray, dtype: str, *, as_it_lies: bool) -> None:
        """`dtype`: in which it is multiplied. `as_it_lies`: use a transposed array without a copy."""
        self.array = array
        self.shape: tuple[int, int] = array.shape
        # Used in place; otherwise each rank converts some rows.
        self.at_root = array.dtype == storage(dtype) and (as_it_lies or array.flags.c_contiguous)

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        copy_rows(into, numbers_of(self.array[rows.slice]), threads)
        progress(len(rows))

    def in_place(self, dtype: str, *, transposed: bool = False) -> np.ndarray | None:
        return self.array if self.at_root else None


class RootMatrix(MatrixSource):
    """A or B of a real product, an array at the root in host memory or on a GPU. The other ranks know only its shape."""

    at_root = True

    def __init__(self, shape: tuple[int, int], array: Any = None) -> None:
        self.shape, self.array = shape, array

    @classmethod
    def of(cls, key: str, matrix: np.ndarray, types: ProductType, prime: int, threads: int) -> RootMatrix:
        """A or B (`key`) of the real product modulo this prime (0: none), from a matrix in host memory: without a copy if
        possible."""
        heights, widths = types.parts_of(key)
        if not prime and widths == 1:
            return cls(matrix.shape, matrix)
        shape = matrix.shape[0] * heights, matrix.shape[1] * widths
        as_it_is = not prime and heights == 1 and not (key == "B" and types.gemm.conjugate_b)
        if as_it_is and cls(matrix.shape, matrix).in_place(types.promoted) is not None:
            return cls(shape, real_view(matrix))
        return MadeMatrix(shape, key, matrix, types, prime, threads)

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        part = self.array[rows.slice]
        copy_rows(into, elements_of(part) if into.dtype == storage("bfloat16") else part, threads)
        progress(len(rows))

    def in_place(self, dtype: str, *, transposed: bool = False) -> np.ndarray | None:
        array = self.array
        if array is None or array.dtype.name != dtype or not array.dtype.isnative:
            return None
        if on_gpu(array):
            return elements_of(array) if array.flags.c_contiguous else None
        by_rows = array.flags.c_contiguous
        if not array.flags.aligned or not (by_rows or (transposed and array.flags.f_contiguous)):
            return None
        return elements_of(array) if by_rows else elements_of(array.T).T


class MadeMatrix(RootMatrix):
    """A or B of a real product that the root computes from its array, some rows at a time. Only a root that sends rows to other
    nodes keeps the whole, as `array`, made by `threads` threads."""

    def __init__(
        self, shape: tuple[int, int], key: str, matrix: np.ndarray, types: ProductType, prime: int, threads: int
    ) -> None:
        self.shape = shape
        self._key, self._matrix, self._types, self._prime, self._threads = key, matrix, types, prime, threads

    @cached_property
    def array(self) -> np.ndarray:  # type: ignore[override]
        made = np.empty(self.shape, self._types.computed)
        self.rows(Span(0, self.shape[0]), made, self._threads, tell_nobody)
        return made

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        write_real_rows(self._key, self._matrix, rows, into, threads, self._types, self._prime)
        progress(len(rows))

    def in_place(self, dtype: str, *, transposed: bool = False) -> np.ndarray | None:
        return None


_MOST_WORK = 100_000  # of np.shares_memory: takes some milliseconds


@record
class RootOperands:
    """op(A), op(B), C and `out` of a call, views of the user's arrays if possible. They are matrices, or stacks with axes
    product, row and column, where A or B may have one matrix for all products. A stack's `out` has the user's shape."""

    a: Any
    b: Any
    c: np.ndarray | None
    out: np.ndarray | None  # None also if on a GPU: the result is copied there at the end
    types: ProductType
    shape: tuple[int, ...]  # of the user's result
    batch: tuple[int, ...] = ()  # the stacks' dimensions, broadcast

    @classmethod
    def of(cls, a: Any, b: Any, c: Any, out: Any, gemm: Gemm, threads: int) -> RootOperands:
        """The validated operands of a call. Matrices of floats on a GPU stay there, unless there is a C; all others are copied to
        the host. UsageError if they have no product, or `out` cannot hold it. `threads`: to scan and reduce integers."""
        a, b = arrays_of(a, b, on_device=c is None)
        types = product_type(a.dtype, b.dtype, gemm.dtype).of(gemm)
        if types.exact is not None or max(a.ndim, b.ndim) > 2:
            a, b = on_host(a), on_host(b)
        first, second, batch, shape = matrices_of(a, b, gemm)
        c = None if c is None or gemm.beta == 0 else as_array(c, "c")
        refuse_wrong_c(c, shape, types)
        if out is not None:
            refuse_wrong_out(out, (first, second), c, shape, types)
            out = None if on_gpu(out) else out
        core = first.shape[-2], second.shape[-1]
        stacks = (first, *(each for each in (c, out) if each is not None))
        if batch and second.ndim == 2 and all(each.flags.c_contiguous for each in stacks):
            # All products have the same B: A's matrices are stacked to a single one.
            core = math.prod(first.shape[:-1]), core[1]
            first, batch = first.reshape(core[0], first.shape[-1]), ()
        if c is not None:
            c = c.reshape(math.prod(batch), *core) if batch else c.reshape(core)
        if types.exact is not None:
            first, second = (least_remainders(each, gemm.modulus, threads) for each in (first, second))
            c = None if c is None else least_remainders(c, gemm.modulus, threads)
            largest = tuple(0 if each is None else largest_of(each, threads) for each in (first, second, c))
            types = types.bounded(first.shape[-1], [largest])
        if batch:
            first, second = (_as_stack(each, batch) for each in (first, second))
        elif out is not None:
            out = out.reshape(core)  # a view, of a vector, too
        return cls(first, second, c, out, types, shape, batch)

    def sources(self, threads: int = 1, prime: int = 0) -> tuple[RootMatrix, RootMatrix]:
        """A and B, in host memory, of the real product modulo a prime (0: none). `threads`: for copies to send to other nodes."""
        how = self.types, prime, threads
        return RootMatrix.of("A", self.a, *how), RootMatrix.of("B", self.b, *how)

    @property
    def bytes_of_integers(self) -> int:
        """Peak GPU memory of a product of two matrices of integers on one GPU; 0 for others."""
        (n, m), exact = self.core, self.types.exact
        if exact is None or self.batch:
            return 0
        operands, result = sum(each.nbytes + 8 * each.size for each in (self.a, self.b)), np.dtype(self.types.result).itemsize
        digits = DIGIT.itemsize * len(exact.primes)
        return operands + n * m * (8 + result + digits) + temporary_bytes([self.a.shape, self.b.shape, (n, m)])

    @property
    def core(self) -> tuple[int, int]:
        return self.a.shape[-2], self.b.shape[-1]

    @property
    def out_for_c(self) -> np.ndarray | None:
        """`out` if C can be computed in it, without a copy at the end; else None."""
        out, added = self.out, self.c
        if out is None or added is not None or not (out.flags.c_contiguous and out.flags.aligned and out.dtype.isnative):
            return None
        return out if out.dtype == self.types.result else None

    @property
    def real_out(self) -> np.ndarray | None:
        """`out` as C of the real product; None if that cannot be computed there."""
        out = None if self.types.converts else self.out_for_c
        return real_view(out) if out is not None and self.types.complex_b else out

    def room(self) -> np.ndarray:
        """An array for a stack's products: `out` if possible, else a new one."""
        out = self.out_for_c
        whole = np.empty(self.shape, numpy_type(self.types.result)) if out is None else out
        return whole.reshape(math.prod(self.batch), *self.core)

    def given_back(self, result: Any, out: Any) -> Any:
        """The user's result: `out` if given, else an array with the shape of NumPy's `@`, or a scalar."""
        if out is None:
            if result.shape == self.shape:
                return result
            return result.reshape(self.shape) if self.shape else result[0, 0]
        if self.out is None:
            copy_back(result.reshape(self.shape), out)
        elif not np.may_share_memory(self.out, result):
            np.copyto(self.out, result.reshape(self.out.shape))
        return out


def arrays_of(a: Any, b: Any, *, on_device: bool) -> tuple[Any, Any]:
    """A and B as NumPy arrays; with `on_device`, those on a GPU as CuPy arrays."""
    first, second = (as_gpu_array if on_device and on_gpu(each) else as_array for each in (a, b))
    return first(a, "a"), second(b, "b")


def matrices_of(a: Any, b: Any, gemm: Gemm) -> tuple[Any, Any, tuple[int, ...], tuple[int, ...]]:
    """op(A) and op(B) as matrices or stacks, the stacks' broadcast dimensions, and the shape of the product. A vector becomes a
    row (A) or a column (B). UsageError if they have no product."""
    matrices = []
    for name, each, transposed in (("a", a, gemm.transpose_a), ("b", b, gemm.transpose_b)):
        if each.ndim == 0:
            raise UsageError(f"{name} is a number, and no matrix: * multiplies by it", code="dimensions")
        if each.ndim == 1:
            matrices.append(each.reshape((1, -1) if name == "a" else (-1, 1)))
        else:
            matrices.append(each.swapaxes(-1, -2) if transposed else each)
    first, second = matrices
    if first.shape[-1] != second.shape[-2]:
        raise UsageError(f"a has {first.shape[-1]} columns and b {second.shape[-2]} rows: they must be the same", code="shapes")
    try:
        batch = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    except ValueError:
        raise UsageError(
            f"stacks of shapes {first.shape[:-2]} and {second.shape[:-2]} do not fit together", code="shapes"
        ) from None
    shape = batch + (first.shape[-2],) * (a.ndim > 1) + (second.shape[-1],) * (b.ndim > 1)
    if gemm.alpha == 0:  # as in BLAS, A and B are not read
        first, second = first[..., :0], second[..., :0, :]
    return first, second, batch, shape


def _as_stack(array: np.ndarray, batch: tuple[int, ...]) -> np.ndarray:
    """A stack of three dimensions: a matrix for each product, or one for all."""
    core = array.shape[-2:]
    if math.prod(array.shape[:-2]) == 1:
        return array.reshape(1, *core)
    return np.broadcast_to(array, batch + core).reshape(math.prod(batch), *core)


@record
class RootShapes:
    """The description of the root's operands that all ranks get."""

    types: ProductType
    problem: Problem  # the real product that gives C, or one of the stack's
    bytes_beside: int  # at the root, beside A, B and C of the real product
    allocated_bytes: int = 0  # of A, B and C at the root already, or kept for C
    locations: Sequence[SharedLocation | None] = (None,) * 3  # of A, B and C; None: not in node-shared memory
    all_shared: bool = False  # all ranks are on one node, with A and B in shared memory: no matrix is sent
    on_gpu: bool = False  # A or B is on a GPU; if both are, C will be
    count: int | None = None  # the number of a stack's products; None: a single product
    stacks: tuple[tuple[tuple[int, ...], np.dtype], ...] = ()  # shape and type of a stack's A, B and C, if there is one

    @classmethod
    def of(cls, team: Team, shared: SharedArrays, given: RootOperands) -> RootShapes:
        a, b, types = given.a, given.b, given.types
        problem = types.problem(a.shape[-2], *b.shape[-2:])
        if given.batch:
            problem = replace(problem, short_operands="")  # no device multiplies stacks of 16-bit elements
            stored = [each for each in (a, b, given.c) if each is not None]
            stacks = tuple((each.shape, each.dtype) for each in stored)
            # Other ranks get copies in row-major order; a process alone multiplies transposed views.
            lying = [each if team.size > 1 or each.flags.c_contiguous else each.swapaxes(1, 2) for each in stored]
            copied = sum(each.nbytes for each in lying if not each.flags.c_contiguous)
            result = 0 if given.out is not None else math.prod(given.shape) * numpy_type(types.result).itemsize
            return cls(types, problem, result + copied, count=math.prod(given.batch), stacks=stacks)
        if not types.complex_b and is_transpose(a, b):
            problem = replace(problem, symmetric="A")
        beside = types.bytes_beside(math.prod(given.core)) * (types.exact is not None or given.out is None)
        if on_gpu(a) or on_gpu(b):  # host memory for copies through it, and for the check
            in_all = problem.bytes_of_matrices
            return cls(types, problem, beside + in_all, in_all, on_gpu=True)
        sources, c = given.sources(prime=types.primes[0]), given.real_out
        in_place = [source.in_place(problem.operand_dtype) for source in sources]
        lying = [source.in_place(problem.operand_dtype, transposed=True) for source in sources]
        locations = [*(shared.location_of(array, transposed=True) for array in lying), shared.location_of(c)]
        if problem.symmetric and in_place[0] is None and lying[0] is not None:
            problem = replace(problem, symmetric="B")
        counted = {"A": in_place[:1], "B": in_place[1:]}.get(problem.symmetric, in_place)
        allocated_bytes = sum(each.nbytes for each in counted if each is not None)
        if len(team.topology.nodes) > 1:  # converted operands are kept, to be sent
            beside += sum(problem.bytes(*source.shape) for source in sources if isinstance(source, MadeMatrix))
        all_shared = len(team.topology.nodes) == 1 < team.size and None not in locations[:2]
        of_c = problem.bytes(problem.n, problem.m)
        if (locations[2] is not None) if all_shared else (c is not None):
            allocated_bytes += of_c
        elif not all_shared:
            allocated_bytes += min(of_c, bytes_kept_for(of_c))
        return cls(types, problem, beside, allocated_bytes, locations, all_shared)

    @property
    def gpu_bytes(self) -> int:
        """The bytes of the expanded B, on B's GPU."""
        return self.problem.bytes(self.problem.l, self.problem.m) if self.on_gpu and self.types.complex_a else 0

    def bytes_on_rank(self, span: Span, *, is_root: bool) -> int:
        """A rank's peak host memory for these products of a stack, beside the root's arrays."""
        p, count, matrices = self.problem, len(span), [min(len(span), shape[0]) for shape, _ in self.stacks]
        bytes_each = [math.prod(shape[1:]) * dtype.itemsize for shape, dtype in self.stacks]
        sent = sum(many * size for many, size in zip(matrices, bytes_each, strict=True))
        made = p.bytes(matrices[0] * p.n, p.l) + p.bytes(matrices[1] * p.l, p.m) + p.bytes(count * p.n, p.m)
        of_c = self.types.bytes_beside(count * p.n * p.m // (1 + self.types.complex_b))
        return (self.bytes_beside if is_root else sent) + made + of_c


def refuse_unused_c(c: Any, asked_gemm: Mapping[str, Any]) -> None:
    """UsageError for a C without an explicit beta, which may be 0, as in BLAS."""
    if hasattr(c, "Get_rank"):
        raise UsageError("c, the third argument, is a communicator: pass comm=comm", code="communicator")
    if c is not None and asked_gemm.get("beta") is None:
        or_out = "" if isinstance(c, Distributed) else ", or out=c to write to it"
        raise UsageError(f"c is given, but beta is 0: pass beta=1 to add c, beta=0 to leave it unread{or_out}", code="addend")


def refuse_wrong_c(c: Any, shape: tuple[int, ...], types: ProductType) -> None:
    """UsageError unless beta times this C can be added to the product. Anything goes if beta is 0."""
    if types.gemm.beta == 0:
        return
    if c is None:
        raise UsageError(f"beta is {types.gemm.beta:g}, but c is None: pass the matrix that is added", code="addend")
    if c.shape != shape:
        raise UsageError(f"c has shape {c.shape}, the product {shape}", code="addend")
    if types.exact and c.dtype.kind not in "biu":
        raise UsageError(
            f"c is of {c.dtype}, and a product of {types.result} is exact: pass integers, or dtype='float64'", code="addend"
        )
    if not types.exact and not np.can_cast(c.dtype, numpy_type(types.result), "same_kind"):
        raise UsageError(f"c is of {c.dtype}, which cannot be added to a product of {types.result}", code="addend")


def refuse_out(out: Any, shape: tuple[int, ...], dtype: np.dtype, what: str = "product") -> None:
    """UsageError unless a result of this shape and type can be written to `out`. `what`: its name in messages."""
    if is_masked(out):
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
    """UsageError unless the product can be written to `out` while A, B and C are read. An `out` on a GPU is written at the
    end."""
    refuse_out(out, shape, numpy_type(types.result))
    if on_gpu(out):
        return
    if any(_overlap(out, each) for each in operands if not on_gpu(each)):
        raise UsageError("out overlaps a or b, which are still read while it is written", code="overlap")
    if c is not None and _overlap(out, c):
        places = (each.__array_interface__["data"] for each in (out, c))
        if len({*places}) > 1 or (out.strides, out.dtype) != (c.strides, c.dtype):
            raise UsageError("out overlaps c without being the same array", code="overlap")


def _overlap(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether the arrays have an element in common, which neighbouring blocks of columns have not. True if the search takes too
    long."""
    try:
        return np.shares_memory(one, other, max_work=_MOST_WORK)  # type: ignore[arg-type]  # any number may be given
    except RuntimeError:  # TooHardError
        return True


def _overlaps_itself(array: np.ndarray) -> bool:
    """Whether elements may share memory: unless each dimension, by ascending stride, fits within one step of the next."""
    reach = array.itemsize
    for step, extent in sorted((abs(step), extent) for step, extent in zip(array.strides, array.shape, strict=True)):
        if extent > 1:
            if step < reach:
                return array.size > 0
            reach += step * (extent - 1)
    return False
