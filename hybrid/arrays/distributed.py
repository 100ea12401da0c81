# SPDX-License-Identifier: MIT
"""Matrices distributed over all ranks: a `RowBlock` is a rank's rows, a `Block2D` its rows and columns in a grid of ranks.

Products, sums, norms and largest elements are collective. Elementwise operations are local, without messages. Functions that
would mistake a rank's elements for the whole matrix are refused.
"""

from __future__ import annotations

import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from hybrid.arrays.interop import is_array, on_device_of, on_gpu, on_host, refuse_masked
from hybrid.core.problem import Span, merged
from hybrid.core.settings import as_int
from hybrid.errors import NoArray, UsageError
from hybrid.planning.decision import same_on_all_ranks
from hybrid.planning.grid import Part, moves
from hybrid.ranks.launcher import launched
from hybrid.ranks.team import team_of

Bounds = tuple[int, int]  # the first row or column, and the last plus one
_NUMBERS = (int, float, complex, np.generic)


def _transposed(a: Any, axes: Sequence[int] | None = None) -> Any:
    if axes is None or tuple(axes) in {(1, 0), (-1, 0), (1, -2), (-1, -2)}:
        return a.T
    raise UsageError(f"axes={axes} is no transpose of a {_kind(a)}, which is axes=(1, 0)", code="dimensions")


_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {  # NumPy's functions that are local, or are the product
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.iscomplexobj: lambda a: a.dtype.kind == "c",
    np.result_type: lambda *given: np.result_type(*(each.dtype if isinstance(each, Distributed) else each for each in given)),
    np.transpose: _transposed,
    np.dot: operator.matmul,
}


class Distributed(NDArrayOperatorsMixin, ABC):
    """A rank's part of a distributed matrix. Operators are NumPy's elementwise functions, which `__array_ufunc__` applies to this
    rank's elements."""

    array: Any  # this rank's elements
    shape: Any  # of the whole matrix
    rows: Any  # of the whole matrix, and its columns, that this rank has: pairs of the first and the last plus one
    columns: Any
    comm: Any = None  # the communicator for collective operations, if known
    ndim = 2
    __iter__ = None  # this rank has only some of the rows
    _multiply: ClassVar[Callable[..., Any]]  # set to hybrid.multiply, which this room must not import

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def local_shape(self) -> tuple[int, int]:
        """Rows and columns that this rank has."""
        rows, columns = self.array.shape
        return rows, columns

    @property
    def part(self) -> Part:
        """The rows and columns of the whole matrix that this rank has."""
        rows, columns = (tuple(Span(*bounds) for bounds in spans) for spans in (self.rows, self.columns))
        return Part(rows, columns)

    @property
    def indices(self) -> tuple[np.ndarray, np.ndarray]:
        """The row numbers, and the column numbers, of the array in the whole matrix."""
        rows, columns = (np.concatenate([np.arange(*each) for each in ((0, 0), *of)]) for of in (self.rows, self.columns))
        return rows, columns

    def copy(self) -> Any:
        """The same part with a copy of this rank's elements."""
        return self._like(self.array.copy(order="K"), self.comm)

    def astype(self, dtype: Any) -> Any:
        """The same part with a copy of this rank's elements, converted as by NumPy."""
        return self._like(self.array.astype(dtype), self.comm)

    def sum(self) -> Any:
        """The sum of all elements of the matrix, of NumPy's type for sums, on every rank. Collective."""
        return self._reduced(np.sum, lambda array: array.sum())

    def max(self) -> Any:
        """The largest element of the matrix, on every rank. Collective."""
        return self._reduced(np.max, lambda array: array.max() if array.size else array)

    def norm(self) -> Any:
        """The Frobenius norm of the matrix, on every rank. Collective."""
        widened = "f4" if self.dtype == "f2" else self.dtype  # squares of float16 soon overflow
        return self._reduced(np.linalg.norm, lambda array: np.linalg.norm(array.astype(widened, copy=False)))

    def _reduced(self, function: Callable[[np.ndarray], Any], of_part: Callable[[Any], Any]) -> Any:
        """Collective: apply `function` to the results of `of_part` from all ranks."""
        name = function.__name__
        comm = self._communicator([self], f"a.{name}()")
        with on_device_of(self.array):
            _, found = _gathered(
                comm, f"{name} of a {_kind(self)} of {self.dtype}", lambda: (self.part, on_host(of_part(self.array)).ravel())
            )
        parts, values = zip(*found, strict=True)
        refuse_no_grid("a", parts, self.shape)
        if not sum(map(len, values)):
            raise UsageError(f"a matrix of shape {self.shape} has no {name}", code="shapes")
        return function(np.concatenate(values))

    def _communicator(self, inputs: Sequence[Any], call: str) -> Any:
        """The inputs' communicator; None if they have none and this process is alone, else UsageError."""
        comm = common_communicator(inputs)
        if comm is None and _has_others():
            how = f"{_kind(self)}(..., comm=comm) names it, as does hybrid.multiply(a, b, comm=comm)"
            raise UsageError(f"{call} knows no communicator: {how}", code="communicator")
        return comm

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
        """The device of this rank's elements: "cpu", or "cuda:0" and so on."""
        return f"cuda:{getattr(getattr(self.array, 'device', None), 'id', '?')}" if on_gpu(self.array) else "cpu"

    @property
    def _place(self) -> Any:
        """These elements' place in the matrix, as far as known; only parts of the same place can be combined."""
        return self.array.shape

    @abstractmethod
    def _like(self, array: Any, comm: Any) -> Any:
        """A part of the same kind and place, with other elements."""

    @property
    def _rank(self) -> str:
        """For repr: this rank and the size of the communicator, if known."""
        return f", rank {self.comm.Get_rank()} of {self.comm.Get_size()}" if self.comm else ""  # a freed one is false

    def __getstate__(self) -> dict[str, Any]:
        # A communicator means nothing in another process.
        return {name: value for name, value in vars(self).items() if name != "comm"}

    def __bool__(self) -> NoReturn:
        raise UsageError(f"a {_kind(self)} has no truth value: .array.all() is that of this rank's elements", code="no-array")

    def __matmul__(self, other: Any) -> Any:
        if not isinstance(other, Distributed) and not (type(self) is RowBlock and is_array(other)):
            return self._refused(other)
        return Distributed._multiply(self, other, comm=self._communicator([self, other], "a @ b"))

    def __rmatmul__(self, other: Any) -> Any:
        return self._refused(other)

    def _by_elements(self, ufunc: np.ufunc, inputs: Sequence[Any]) -> Any:
        """Apply the function to this rank's elements. NotImplemented if an input is neither a number nor a Distributed."""
        values = []
        for each in inputs:
            if isinstance(each, Distributed):
                self._refuse_other_place(each, ufunc.__name__)
                values.append(each.array)
            elif isinstance(each, _NUMBERS):
                values.append(each)
            elif isinstance(each, np.ndarray) and not each.ndim:  # NumPy's scalars come so from comparisons
                values.append(each[()])
            else:
                return self._refused(each)
        comm = common_communicator(inputs)  # an input that has it also knows its rows
        return next(each for each in inputs if isinstance(each, Distributed) and each.comm == comm)._like(ufunc(*values), comm)

    def _refuse_other_place(self, other: Distributed, operation: str) -> None:
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
        """Returns NotImplemented. Raises NoArray for an array, which cannot be combined with this."""
        if hasattr(other, "__array__"):
            raise NoArray(
                f"a {_kind(self)} and an array do not go together, since other ranks have the rest of the {_kind(self)}: "
                f"make this rank's elements of the other a {_MADE_AS.get(_kind(self), _kind(self))}, or take .array"
            )
        return NotImplemented

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise self._no_array(f"a {_kind(self)} is no array")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        """The product, and elementwise functions; NoArray for all others."""
        computed = NotImplemented
        if more.get("out", [None])[0] is inputs[0]:  # a += b: a new object replaces a
            del more["out"]
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


def _has_others() -> bool:
    """Whether a launcher has started several processes."""
    launch = launched()
    return launch is not None and launch.size > 1


def _gathered(comm: Any, call: str, look: Callable[[], Any]) -> tuple[int, list[Any]]:
    """Collective: this rank's number, and the results of `look` on all ranks. An error on one is raised on all."""
    team = team_of(comm)
    if team.size == 1:
        return 0, [look()]
    with team.together():
        with team.phase("agree", timed=False) as looking:
            looking.mine = {"kind": call}, look()
        same_on_all_ranks([said[0] for said in looking.all])
    return team.rank, [said[1] for said in looking.all]


_MADE_AS = {f"Transposed{kind}": f"{kind}, and take its .T" for kind in ("RowBlock", "Block2D")}  # for private classes


def common_communicator(inputs: Sequence[Any]) -> Any:
    """The inputs' communicator, or None if they have none. UsageError if they have different ones."""
    knowing = [each for each in inputs if isinstance(each, Distributed) and each.comm is not None]
    if any(each.comm != knowing[0].comm for each in knowing):
        raise UsageError(
            f"the {_kind(knowing[0])}s are of different communicators: hybrid.multiply(a, b, comm=comm) says by which",
            code="communicator",
        )
    return knowing[0].comm if knowing else None


@dataclass(frozen=True, eq=False)
class RowBlock(Distributed):
    """This rank's consecutive rows of a matrix that is distributed over all ranks, in the order of the ranks.

    Every rank has one; it may be empty. `shape` and `len` are of the whole matrix, `local_shape` and `nbytes` of this rank's
    `rows`. `a @ b` is collective over the communicator of either operand; b may be a matrix that every rank has. `+ - * / // %
    **`, comparisons and NumPy's elementwise functions are local, and accept numbers and RowBlocks of the same rows. `a[i]`,
    `a[lo:hi]` and `a[i, j]` are views of rows that this rank has, indexed by row numbers of the whole matrix. `a.T` is a view:
    this rank's columns of the transpose, which products accept.

    Parameters
    ----------
    array
        The rows: a NumPy array, or a CuPy array on the rank's GPU.
    comm
        The mpi4py communicator. With it this call is collective: the ranks exchange their numbers of rows. Results of `multiply`,
        `scatter` and operators have one; a pickled RowBlock loses it.
    place
        The number of the first row, and the number of rows of the whole matrix. It saves the exchange.
    """

    array: Any
    comm: Any = None
    place: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.comm is None or self.place is not None:
            height, *_ = self._layout()
            if self.place is None and not _has_others():
                object.__setattr__(self, "place", (0, height))
            return
        rank, found = _gathered(self.comm, "RowBlock(array, comm)", self._layout)
        for other, (_, *told) in enumerate(found):
            if told != found[0][1:]:
                raise UsageError(f"rank {other} has columns and type {told}, rank 0 {found[0][1:]}", code="ranks-differ")
        heights = [height for height, *_ in found]
        object.__setattr__(self, "place", (sum(heights[:rank]), sum(heights)))

    def _layout(self) -> list[Any]:
        """This rank's rows and columns, and their type. UsageError if the array is no matrix."""
        if not is_array(self.array) or self.array.ndim != 2:
            given = f"an array of {self.array.ndim} dimensions" if is_array(self.array) else type(self.array).__name__
            raise UsageError(f"a RowBlock takes a matrix of NumPy's or CuPy's, not {given}", code="no-numbers")
        refuse_masked(self.array, "the array of a RowBlock")
        return [*self.array.shape, str(self.dtype)]

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """Rows and columns of the whole matrix."""
        height, width = self.local_shape
        if self.place is not None:
            return self.place[1], width
        unknown = "this RowBlock knows no communicator: shape is this rank's, as local_shape is, and the next release refuses it"
        warnings.warn(f"{unknown}; RowBlock(array, comm) knows the whole", FutureWarning, stacklevel=2)
        return height, width

    @property
    def rows(self) -> tuple[Bounds]:  # type: ignore[override]
        """This rank's rows of the whole matrix: the first, and the last plus one."""
        if self.place is None:
            raise UsageError("a RowBlock knows its rows by its communicator: RowBlock(array, comm)", code="communicator")
        return ((self.place[0], self.place[0] + len(self.array)),)

    @property
    def columns(self) -> tuple[Bounds]:  # type: ignore[override]
        """All columns: the first, and the last plus one."""
        return ((0, self.array.shape[1]),)

    def __getitem__(self, key: Any) -> Any:
        of_rows, of_columns = key if isinstance(key, tuple) and len(key) == 2 else (key, slice(None))
        (rows,), (columns,), (height, width) = self.rows, self.columns, self.shape
        return _slice_of(_slice_of(self.array.T, of_columns, columns, width).T, of_rows, rows, height)

    @property
    def T(self) -> TransposedRowBlock:
        """The transpose, with columns on each rank: a view. Only a product, `scatter` or `gather` moves elements."""
        return TransposedRowBlock(self.array.T, self.comm, self.place)

    def _like(self, array: Any, comm: Any) -> RowBlock:
        return type(self)(array, comm, self.place)

    def __repr__(self) -> str:
        height, width = self.array.shape
        which = f"{height} rows of {width} columns"
        if self.place is not None:
            which = f"rows {Span(*self.rows[0])} of {self.place[1]}×{width}"
        return f"RowBlock({which}, {self.dtype}, {self.device}{self._rank})"


class TransposedRowBlock(RowBlock):
    """`rows.T`: this rank's consecutive columns of the transpose, which are its rows of the matrix.

    `array` has these `columns`. A product first redistributes it by rows, in equal shares; `hybrid.scatter` returns these as a
    `RowBlock`.
    """

    @property
    def T(self) -> RowBlock:  # type: ignore[override]
        """The original RowBlock."""
        return RowBlock(self.array.T, self.comm, self.place)

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """Rows and columns of the whole transpose."""
        return self.T.shape[::-1]

    @property
    def rows(self) -> tuple[Bounds]:  # type: ignore[override]
        """All rows of the transpose: the first, and the last plus one."""
        return self.T.columns

    @property
    def columns(self) -> tuple[Bounds]:  # type: ignore[override]
        """This rank's columns of the transpose: the first, and the last plus one."""
        return self.T.rows

    def __repr__(self) -> str:
        return f"{self.T!r}.T"


def _slice_of(array: Any, key: Any, bounds: Bounds, length: int) -> Any:
    """The elements `key` of a distributed axis of this length; `array` holds those within `bounds`. UsageError if it lacks
    some."""
    (lo, hi), several = bounds, isinstance(key, slice)
    wanted = range(length)[key] if several else [operator.index(key) + length * (key < 0)]
    if wanted and not lo <= min(wanted[0], wanted[-1]) <= max(wanted[0], wanted[-1]) < hi:
        raise UsageError(f"this rank has {Span(lo, hi)} of {length} rows or columns, and not all of {key}", code="rows")
    if not several:
        return array[wanted[0] - lo]
    return array[wanted[0] - lo :: key.step][: len(wanted)] if wanted else array[:0]


_DENSE, _DESCRIPTOR = 1, 9  # ScaLAPACK: DTYPE of a dense matrix, and the length of its descriptor


@dataclass(frozen=True, eq=False)
class Block2D(Distributed):
    """This rank's rows and columns of a matrix that is distributed over a grid of ranks.

    Every rank has one; it may be empty. Each row belongs to one row of the grid, each column to one of its columns. `shape` and
    `len` are of the whole matrix. `a @ b` is collective over the communicator of either operand. `+ - * / // % **`, comparisons
    and NumPy's elementwise functions are local, and accept numbers and Block2Ds of the same rows and columns. `a[i:j, k:l]` is a
    submatrix on the same grid, by the rows and columns of the whole matrix.

    Parameters
    ----------
    array
        The elements: a NumPy array.
    shape
        Rows and columns of the whole matrix.
    rows, columns
        The array's rows and columns in the whole matrix: pairs of the first and the last plus one, in the array's order.
    comm
        The mpi4py communicator for `@`. Results of `multiply` and operators have one; a pickled Block2D loses it.
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
        # A tuple of Python's integers, to be compared with the shapes of other ranks and Block2Ds.
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

    def __repr__(self) -> str:
        (n, m), (rows, columns) = self.shape, self.local_shape
        return f"Block2D({rows}×{columns} of {n}×{m}, {self.dtype}, {self.device}{self._rank})"

    @property
    def _place(self) -> Any:
        return self.shape, self.part

    def _like(self, array: Any, comm: Any) -> Block2D:
        return replace(self, array=array, comm=comm)

    def __getitem__(self, key: Any) -> Block2D:
        """This rank's part of the submatrix `[i:j, k:l]`, on the same grid, without communication. A view, unless the part has
        its rows or columns out of order."""
        slices = key if isinstance(key, tuple) else (key, slice(None))
        if len(slices) != 2 or not all(isinstance(each, slice) and each.step in (None, 1) for each in slices):
            raise UsageError(f"a submatrix of a Block2D is block[i:j, k:l], without steps, not block[{key}]", code="rows")
        array, spans, shape = self.array, [], []
        for axis, (each, have, numbers) in enumerate(zip(slices, (self.rows, self.columns), self.indices, strict=True)):
            lo, hi, _ = each.indices(self.shape[axis])
            wanted = Span(lo, max(lo, hi))
            here = np.flatnonzero((wanted.lo <= numbers) & (numbers < wanted.hi))
            is_run = len(here) and here[-1] - here[0] < len(here)
            array = array[(slice(None),) * axis + (slice(here[0], here[-1] + 1) if is_run else here,)]
            common = (Span(*bounds).common(wanted).within(wanted) for bounds in have)
            spans.append([(span.lo, span.hi) for span in common if len(span)])
            shape.append(len(wanted))
        return replace(self, array=array, shape=(shape[0], shape[1]), rows=spans[0], columns=spans[1])

    @property
    def T(self) -> Block2D:
        """The transpose: a view of the same elements, on the transposed grid. Only a product moves elements."""
        kind = Block2D if isinstance(self, TransposedBlock2D) else TransposedBlock2D
        return kind(self.array.T, self.shape[::-1], self.columns, self.rows, self.comm)

    def in_order(self) -> np.ndarray:
        """The whole matrix with its rows and columns in order. UsageError unless this rank has all of them."""
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
        """A Block2D from ScaLAPACK's local matrix and descriptor.

        Parameters
        ----------
        array
            The local matrix, in Fortran or C order; padding rows are left out.
        descriptor
            The nine integers of its array descriptor: DTYPE, CTXT, M, N, MB, NB, RSRC, CSRC, LLD.
        grid, process
            Rows and columns of the BLACS process grid, and this process's row and column in it.
        comm
            The mpi4py communicator for `@`.
        """
        if len(descriptor) != _DESCRIPTOR or descriptor[0] != _DENSE:
            raise UsageError(f"{descriptor} is no descriptor of a dense matrix of ScaLAPACK's", code="blocks")
        _, _, n, m, row_block, column_block, first_row, first_column, leading = map(int, descriptor)
        if not _are_counts(grid) or not all(grid):
            raise UsageError(f"grid {grid} has no processes: pass its rows and columns", code="blocks")
        for name, place in (("process", process), ("RSRC and CSRC of the descriptor", (first_row, first_column))):
            if not _are_counts(place) or not (place[0] < grid[0] and place[1] < grid[1]):
                raise UsageError(
                    f"{name} {place} is not in a grid of {grid[0]}×{grid[1]} processes, which are counted from 0", code="blocks"
                )
        rows = _dealt(n, row_block, grid[0], (process[0] - first_row) % grid[0])
        columns = _dealt(m, column_block, grid[1], (process[1] - first_column) % grid[1])
        height, width = sum(hi - lo for lo, hi in rows), sum(hi - lo for lo, hi in columns)
        _refuse_no_matrix(array)
        in_columns = array.size and array.strides[0] == array.itemsize and array.shape[1] > 1  # Fortran order
        lies = array.strides[1] // array.itemsize if in_columns else leading
        if leading != lies or leading < max(1, height):
            raise UsageError(
                f"LLD of the descriptor is {leading}, and the local matrix has {max(1, height)} rows"
                + (f" in columns {lies} elements apart" if in_columns else ""),
                code="blocks",
            )
        return cls(array[:height, :width], (n, m), rows, columns, comm)


class TransposedBlock2D(Block2D):
    """`block.T`. Elementwise operations with a Block2D are refused on every rank, even on those where both have the same
    place."""


def _refuse_no_matrix(array: Any) -> None:
    if not isinstance(array, np.ndarray) or array.ndim != 2:
        given = f"an array of {array.ndim} dimensions" if isinstance(array, np.ndarray) else type(array).__name__
        where = " on a GPU" if on_gpu(array) else ""  # CuPy's class has the same name as NumPy's
        raise UsageError(f"a Block2D takes a matrix of NumPy's, not {given}{where}", code="no-array")


def _are_counts(pair: Any) -> bool:
    """Whether this is a pair of non-negative integers."""
    if not isinstance(pair, Iterable) or isinstance(pair, str):
        return False
    numbers = [as_int(each) for each in pair]
    return len(numbers) == 2 and all(type(each) is int and each >= 0 for each in numbers)


def _dealt(length: int, block: int, processes: int, process: int) -> tuple[Bounds, ...]:
    """A process's blocks in a block-cyclic distribution of rows or columns."""
    if block < 1:
        raise UsageError(f"blocks of {block} rows or columns cannot be dealt", code="blocks")
    return tuple((lo, min(lo + block, length)) for lo in range(process * block, length, processes * block))


def refuse_no_grid(name: str, parts: Sequence[Part], shape: tuple[int, int]) -> None:
    """UsageError unless the parts are those of a grid of ranks, and cover a matrix of this shape exactly once."""
    there = [part for part in parts if part.elements]
    rows, columns = {part.rows for part in there}, {part.columns for part in there}
    whole = all(
        merged(span for of_one in spans for span in of_one if len(span)) == [Span(0, length)]
        for spans, length in ((rows, shape[0]), (columns, shape[1]))
    )
    pairs = {(part.rows, part.columns) for part in there}
    if shape[0] * shape[1] and not (whole and len(pairs) == len(there) == len(rows) * len(columns)):
        how = "the ranks' rows of A and columns of B" if name == "C" else "the ranks' blocks"
        raise UsageError(
            f"{how} do not make up {name} ({shape[0]}×{shape[1]}) once: each element must belong to one rank of a grid",
            code="blocks",
        )
