# SPDX-License-Identifier: MIT
"""What a rank's part of a distributed matrix has in common with an array, and what it has not.

Products are computed by all ranks, and what is computed element by element by each rank alone, without a message to the others.
Whatever would take this rank's elements for the whole matrix is refused.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np

from hybrid.arrays.gemm import Gemm, ProductType, numpy_type, product_type
from hybrid.arrays.integers import DIGIT, Exact, largest_of, temporary_bytes
from hybrid.arrays.interop import on_gpu, refuse_masked, where_it_lies
from hybrid.core.problem import ITEM_SIZES, Problem
from hybrid.core.spans import Span, consecutive
from hybrid.errors import NoArray, UsageError
from hybrid.ranks.launcher import launched

_NUMBERS = (int, float, complex, np.generic)


def _transposed(a: Any, axes: Sequence[int] | None = None) -> Any:
    """What numpy.transpose gives."""
    if axes is None or tuple(axes) in {(1, 0), (-1, 0), (1, -2), (-1, -2)}:
        return a.T
    raise UsageError(f"axes={axes} is no transpose of a {_kind(a)}, which is axes=(1, 0)", code="dimensions")


_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {  # NumPy's functions that need only what this rank knows, or are the product
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.iscomplexobj: lambda a: a.dtype.kind == "c",
    np.result_type: lambda *given: np.result_type(*(each.dtype if isinstance(each, Distributed) else each for each in given)),
    np.transpose: _transposed,
    np.dot: operator.matmul,
}


def _operator(ufunc: np.ufunc) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The operator that computes this function of NumPy element by element, and the one for an operand on the right."""
    return lambda a, b: a._by_elements(ufunc, (a, b)), lambda b, a: b._by_elements(ufunc, (a, b))


class Distributed(ABC):
    """A rank's part of a distributed matrix. `array`: this rank's elements; `comm`: the communicator for `@`, where it is
    known."""

    array: Any
    comm: Any = None
    ndim = 2
    _multiply: ClassVar[Callable[..., Any]]  # hybrid.multiply, which has to be above this room

    @property
    def dtype(self) -> np.dtype:
        """The type of the elements."""
        return np.dtype(self.array.dtype)

    @property
    def nbytes(self) -> int:
        """The bytes of this rank's elements."""
        return int(self.array.nbytes)

    @property
    def device(self) -> str:
        """Where this rank's elements are: "cpu", or such as "cuda:0"."""
        return f"cuda:{getattr(getattr(self.array, 'device', None), 'id', '?')}" if on_gpu(self.array) else "cpu"

    @property
    def _place(self) -> Any:
        """The place of these elements in the matrix, as far as it is known. Parts with different places are not combined."""
        return self.array.shape

    @abstractmethod
    def _like(self, array: Any, comm: Any) -> Any:
        """A part of the same kind and place, with other elements."""

    @property
    def _rank(self) -> str:
        """For repr: which rank of the communicator this is, where that is known."""
        return f", rank {self.comm.Get_rank()} of {self.comm.Get_size()}" if self.comm else ""  # a freed one is false

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name != "comm"
        }  # a communicator means nothing in another process

    __add__, __radd__ = _operator(np.add)
    __sub__, __rsub__ = _operator(np.subtract)
    __mul__, __rmul__ = _operator(np.multiply)
    __truediv__, __rtruediv__ = _operator(np.true_divide)
    __floordiv__, __rfloordiv__ = _operator(np.floor_divide)
    __mod__, __rmod__ = _operator(np.remainder)
    __pow__, __rpow__ = _operator(np.power)
    __lt__, __gt__ = _operator(np.less)
    __le__, __ge__ = _operator(np.less_equal)
    __eq__, _ = _operator(np.equal)  # type: ignore[assignment]
    __ne__, _ = _operator(np.not_equal)  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]  # like NumPy's arrays

    def __pos__(self) -> Any:
        return self._by_elements(np.positive, (self,))

    def __neg__(self) -> Any:
        return self._by_elements(np.negative, (self,))

    def __abs__(self) -> Any:
        return self._by_elements(np.absolute, (self,))

    def __bool__(self) -> NoReturn:
        raise UsageError(f"a {_kind(self)} has no truth value: .array.all() is that of this rank's elements", code="no-array")

    def __matmul__(self, other: Any) -> Any:
        if not isinstance(other, Distributed):
            return self._refused(other)
        comm = common_communicator([self, other])
        launch = launched()
        if comm is None and launch is not None and launch.size > 1:
            raise UsageError(
                f"a @ b knows no communicator: {_kind(self)}(..., comm=comm) names it, or hybrid.multiply(a, b, comm=comm)",
                code="communicator",
            )
        return Distributed._multiply(self, other, comm=comm)

    def __rmatmul__(self, other: Any) -> Any:
        return self._refused(other)

    def _by_elements(self, ufunc: np.ufunc, inputs: Sequence[Any]) -> Any:
        """What the function gives for this rank's elements. NotImplemented where an input is neither a number nor a part with
        the same place."""
        values = []
        for each in inputs:
            if isinstance(each, Distributed):
                self._refuse_elsewhere(each, ufunc.__name__)
                values.append(each.array)
            elif isinstance(each, _NUMBERS):
                values.append(each)
            elif isinstance(each, np.ndarray) and not each.ndim:  # NumPy compares its numbers as such arrays
                values.append(each[()])
            else:
                return self._refused(each)
        return self._like(ufunc(*values), common_communicator(inputs))

    def _refuse_elsewhere(self, other: Distributed, operation: str) -> None:
        if type(other) is not type(self):
            raise UsageError(
                f"a {_kind(self)} and a {_kind(other)} have no {operation} by elements, since a rank has other elements of the "
                "one than of the other: hybrid.scatter distributes rows anew",
                code="mixed-kinds",
            )
        if other._place != self._place:
            shapes = f"{self.array.shape} and {other.array.shape}"
            raise UsageError(
                f"{_kind(self)}s of shapes {shapes} have no {operation} by elements: each rank must have the same rows and "
                "columns of both",
                code="shapes",
            )
        if self.device != other.device:
            raise UsageError(
                f"the {_kind(self)}s lie on {self.device} and {other.device}: copy the array of one of them", code="mixed-kinds"
            )

    def _refused(self, other: Any) -> Any:
        """NotImplemented, or for an array a NoArray that says why it cannot be combined with this."""
        if hasattr(other, "__array__"):
            raise NoArray(
                f"a {_kind(self)} and an array do not go together, since other ranks have the rest of the {_kind(self)}: "
                f"make this rank's elements of the other a {_MADE_AS.get(_kind(self), _kind(self))}, or take .array"
            )
        return NotImplemented

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise self._no_array(f"a {_kind(self)} is no array")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        """What NumPy's functions give: the product, and what is computed element by element. NoArray for all others."""
        computed = NotImplemented
        if method == "__call__" and not more and ufunc is np.matmul:
            left, right = inputs
            computed = left @ right if isinstance(left, Distributed) else self._refused(left)
        elif method == "__call__" and not more and ufunc.signature is None and ufunc.nout == 1:
            computed = self._by_elements(ufunc, inputs)
        if computed is not NotImplemented:
            return computed
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        raise self._no_array(f"numpy.{name} takes no {_kind(self)}")

    def __array_function__(self, function: Any, types: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if function in _FUNCTIONS:
            return _FUNCTIONS[function](*given, **named)
        raise self._no_array(f"{function.__module__}.{function.__name__} takes no {_kind(self)}")

    def _no_array(self, what: str) -> NoArray:
        how = "hybrid.gather brings them to one; take .array for this rank's"
        return NoArray(f"{what}, since other ranks have the rest of its elements: {how}")


def _kind(part: Any) -> str:
    return type(part).__name__


_MADE_AS = {"TransposedRowBlock": "RowBlock, and take its .T"}  # of what is no public class


def common_communicator(inputs: Sequence[Any]) -> Any:
    """The communicator that the inputs know; None where none of them does. UsageError where they know different ones."""
    knowing = [each for each in inputs if isinstance(each, Distributed) and each.comm is not None]
    if any(each.comm != knowing[0].comm for each in knowing):
        raise UsageError(
            f"the {_kind(knowing[0])}s are of different communicators: hybrid.multiply(a, b, comm=comm) says by which",
            code="communicator",
        )
    return knowing[0].comm if knowing else None


# -------- operand checks
# Whether the arrays of a call fit together: each function answers one question, or refuses in one line what does not fit.

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


# -------- row block
# Matrices of which every rank has some rows, and products of them that no root gathers.


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
        if types.exact is not None:
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
        temporary = temporary_bytes(exact, self.types.result, there, combines=combines)
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


# -------- transposed row block
# The transpose of a matrix of which every rank has some rows: a view, whose elements are moved only when rows of it are
# needed.


@dataclass(frozen=True, eq=False)
class TransposedRowBlock(Distributed):
    """`rows.T`: this rank's consecutive columns of the transpose, which are its rows of the matrix.

    `shape`, `len` and `nbytes` are of these columns; `array` is a view of them. In a product its rows are moved between the ranks
    first, in equal shares; `hybrid.scatter` gives them as a `RowBlock`.
    """

    rows: RowBlock

    @property
    def array(self) -> Any:  # type: ignore[override]
        return self.rows.array.T

    @property
    def comm(self) -> Any:  # type: ignore[override]
        return self.rows.comm

    @property
    def T(self) -> RowBlock:
        """The RowBlock of which this is the transpose."""
        return self.rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns that this rank has. How many columns others have, it does not know."""
        columns, rows = self.rows.shape
        return rows, columns

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{self.rows!r}.T"

    def _like(self, array: Any, comm: Any) -> TransposedRowBlock:
        return type(self)(RowBlock(array.T, comm, self.rows.first_row))
